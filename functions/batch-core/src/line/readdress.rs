//! The body of a line as a model's server gets it: byte for byte, but for the name of the model.

use std::borrow::Cow;
use std::ops::Range;

use super::json::{Kind, Malformed, Scanner, unescape};

/// Why a body is not sent. Its line gets the error that the engine would give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// Validation lets none through.
    #[error("the body is no JSON object")]
    NotAnObject,
    /// A batch does not stream.
    #[error("the body asks for a stream")]
    Streams,
    /// A server may take 1 for true.
    #[error("'stream' is {0}")]
    StreamKind(&'static str),
}

impl From<Malformed> for Unsendable {
    fn from(_: Malformed) -> Self {
        Unsendable::NotAnObject
    }
}

/// Names `model` in a body, in place of whatever name is there. Every other byte stays; if the name is there
/// already, all do.
///
/// # Errors
///
/// [`Unsendable`] if the body is no object, or its answer might be a stream.
pub fn readdress<'a>(body: &'a str, model: &str) -> Result<Cow<'a, str>, Unsendable> {
    let mut others: Vec<Range<usize>> = Vec::new();
    let mut unsendable = None;
    let mut scanner = Scanner::new(body);
    scanner.object(|scanner, key| {
        let key = unescape(key);
        let value = scanner.value()?;
        match &*key {
            // A name that is repeated is replaced each time: servers differ in which they heed.
            b"model" if *unescape(value) != *model.as_bytes() => {
                others.push(scanner.at() - value.len()..scanner.at());
            }
            b"stream" => unsendable = unsendable.or(stream_fault(value)),
            _ => {}
        }
        Ok(())
    })?;
    scanner.end()?;
    if let Some(fault) = unsendable {
        return Err(fault);
    }
    if others.is_empty() {
        return Ok(Cow::Borrowed(body));
    }
    let name = serde_json::Value::from(model).to_string();
    let mut out = String::with_capacity(body.len() + others.len() * name.len());
    let mut from = 0;
    for other in others {
        out.push_str(&body[from..other.start]);
        out.push_str(&name);
        from = other.end;
    }
    out.push_str(&body[from..]);
    Ok(Cow::Owned(out))
}

fn stream_fault(value: &str) -> Option<Unsendable> {
    match (value, Kind::of(value)) {
        ("false" | "null", _) => None,
        (_, Kind::Boolean) => Some(Unsendable::Streams),
        (_, kind) => Some(Unsendable::StreamKind(kind.name())),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn check(body: &str, expected: Expect) {
        let shown = match readdress(body, "org/real-\"1\"") {
            Ok(Cow::Borrowed(same)) => format!("same: {same}"),
            Ok(Cow::Owned(other)) => other,
            Err(fault) => format!("{fault:?}"),
        };
        expected.assert_eq(&shown);
    }

    #[test]
    fn name_of_the_model_alone_is_replaced() {
        check(
            r#"{ "a" : 1.50e0 ,"model":  "alias" , "x":{"model":"alias"}, "y":[{"model":"alias"}],"z":"\u00e9 \ud800" }"#,
            expect![[
                r#"{ "a" : 1.50e0 ,"model":  "org/real-\"1\"" , "x":{"model":"alias"}, "y":[{"model":"alias"}],"z":"\u00e9 \ud800" }"#
            ]],
        );
        check(
            r#"{"mod\u0065l":"a","model":"org/real-\u00221\"","model":7}"#,
            expect![[
                r#"{"mod\u0065l":"org/real-\"1\"","model":"org/real-\u00221\"","model":"org/real-\"1\""}"#
            ]],
        );
    }

    #[test]
    fn body_with_the_right_name_stays_as_it_is() {
        check(
            r#"{"model":"org\/real-\"1\"","stream":false, "n":1}"#,
            expect![[r#"same: {"model":"org\/real-\"1\"","stream":false, "n":1}"#]],
        );
        check(r#"{"stream":null}"#, expect![[r#"same: {"stream":null}"#]]);
    }

    #[test]
    fn streams_and_what_is_no_object_are_not_sent() {
        check(r#"{"model":"a","stream":true}"#, expect!["Streams"]);
        check(
            r#"{"model":"a","stream":true,"stream":false}"#,
            expect!["Streams"],
        );
        check(r#"{"stream":1}"#, expect![[r#"StreamKind("a number")"#]]);
        check(
            r#"{"stream":"yes"}"#,
            expect![[r#"StreamKind("a string")"#]],
        );
        for body in ["[]", "", "{", r#"{"model":"a"} {}"#, r#"{"model":}"#, "7"] {
            check(body, expect!["NotAnObject"]);
        }
    }

    /// Any JSON, written by a writer that is not ours.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let key = prop_oneof![Just("model".to_owned()), any::<String>()];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn nothing_but_the_name_changes(
            before in prop::collection::vec((any::<String>(), value()), 0..5),
            after in prop::collection::vec((any::<String>(), value()), 0..5),
            from in any::<String>(),
            to in any::<String>(),
            pretty in any::<bool>(),
        ) {
            let named = [("model".to_owned(), Value::from(from))];
            let pairs = before.into_iter().chain(named).chain(after);
            let mut body: serde_json::Map<String, Value> = pairs.filter(|(key, _)| key != "stream").collect();
            let write = |body: &serde_json::Map<String, Value>| {
                if pretty { serde_json::to_string_pretty(body) } else { serde_json::to_string(body) }.unwrap()
            };
            let written = write(&body);
            let sent = readdress(&written, &to).unwrap();
            body.insert("model".to_owned(), Value::from(to.clone()));
            prop_assert_eq!(&*sent, write(&body));
            prop_assert!(matches!(readdress(&sent, &to), Ok(Cow::Borrowed(_))));
        }

        #[test]
        fn whatever_the_body_is_nothing_panics(body in any::<String>(), to in any::<String>()) {
            let _ = readdress(&body, &to);
        }
    }
}

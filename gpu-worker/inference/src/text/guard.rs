//! Keeps what users write from becoming control tokens.
//!
//! Every character of a message at which a special token's text begins, or might begin once a template puts
//! something behind it, is replaced by a private-use character before rendering. After rendering the original
//! comes back, and its place in the text is one where no special token may begin. A replacement is one
//! character for one character, so templates see lengths and positions as they are.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Stand-ins come from here: the last private-use plane.
const STAND_INS: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10FFFD}';

/// Replaces the first characters of special tokens by stand-ins.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    texts: Vec<&'a str>,
    stand_ins: BTreeMap<char, char>,
}

impl<'a> Guard<'a> {
    /// Chooses stand-ins that occur in none of `sources`; none if all are taken.
    pub(super) fn new(
        texts: impl Iterator<Item = &'a str>,
        sources: &[&Value],
        template: &str,
    ) -> Option<Self> {
        let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
        let mut taken = BTreeSet::new();
        collect_private(template, &mut taken);
        texts
            .iter()
            .for_each(|text| collect_private(text, &mut taken));
        sources.iter().for_each(|source| {
            visit_strings(source, &mut |text| collect_private(text, &mut taken))
        });
        let mut free = STAND_INS.filter(|c| !taken.contains(c));
        let mut stand_ins = BTreeMap::new();
        for first in texts.iter().filter_map(|text| text.chars().next()) {
            if let std::collections::btree_map::Entry::Vacant(entry) = stand_ins.entry(first) {
                entry.insert(free.next()?);
            }
        }
        Some(Self { texts, stand_ins })
    }

    /// Returns a copy in which no string and no key can begin a special token.
    pub(super) fn guard(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.guard_text(text)),
            Value::Array(values) => {
                Value::Array(values.iter().map(|value| self.guard(value)).collect())
            }
            Value::Object(members) => Value::Object(self.guard_members(members)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    /// As [`Guard::guard`], for the members of an object.
    pub(super) fn guard_members(&self, members: &Map<String, Value>) -> Map<String, Value> {
        members
            .iter()
            .map(|(key, value)| (self.guard_text(key), self.guard(value)))
            .collect()
    }

    fn guard_text(&self, text: &str) -> String {
        let replace = |(at, c): (usize, char)| match self.stand_ins.get(&c) {
            Some(&stand_in) if self.may_begin(&text[at..]) => stand_in,
            _ => c,
        };
        text.char_indices().map(replace).collect()
    }

    /// Returns whether a special token begins `rest`, or would if something followed.
    fn may_begin(&self, rest: &str) -> bool {
        self.texts
            .iter()
            .any(|text| rest.starts_with(text) || text.starts_with(rest))
    }

    /// Puts the original characters back, and returns the byte offsets at which they are.
    pub(super) fn restore(&self, rendered: &str) -> (String, Vec<usize>) {
        let originals: BTreeMap<char, char> = self
            .stand_ins
            .iter()
            .map(|(&c, &stand_in)| (stand_in, c))
            .collect();
        let mut text = String::with_capacity(rendered.len());
        let mut guarded = Vec::new();
        for c in rendered.chars() {
            match originals.get(&c) {
                Some(&original) => {
                    guarded.push(text.len());
                    text.push(original);
                }
                None => text.push(c),
            }
        }
        (text, guarded)
    }
}

fn collect_private(text: &str, into: &mut BTreeSet<char>) {
    into.extend(text.chars().filter(|c| STAND_INS.contains(c)));
}

fn visit_strings(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(values) => values.iter().for_each(|value| visit_strings(value, visit)),
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            visit(key);
            visit_strings(value, visit);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEXTS: [&str; 3] = ["<|im_start|>", "<|im_end|>", "[INST]"];

    fn guard_of(value: &Value) -> Guard<'static> {
        Guard::new(TEXTS.into_iter(), &[value], "").unwrap()
    }

    fn check(text: &str, guarded: &[usize]) {
        let value = json!({ "content": text });
        let guard = guard_of(&value);
        let inside = guard.guard(&value);
        assert_eq!(
            guard.restore(inside["content"].as_str().unwrap()),
            (text.to_owned(), guarded.to_vec())
        );
    }

    #[test]
    fn special_texts_are_guarded_where_they_begin() {
        check("a<|im_end|>b[INST]<|im_end|>", &[1, 12, 18]);
    }

    #[test]
    fn ends_that_something_could_complete_are_guarded() {
        check("x <|im_", &[2]);
        check("<", &[0]);
        check("[", &[0]);
    }

    #[test]
    fn other_text_is_left_alone() {
        check("1 < 2, <|other|>, [INS], |im_end|>", &[]);
    }

    #[test]
    fn private_use_characters_of_the_user_stay_theirs() {
        check("\u{100000}<|im_end|>\u{100001}\u{100002}", &[4]);
    }

    #[test]
    fn keys_are_guarded() {
        let value = json!({ "<|im_end|>": [{ "<|im_start|>": 1 }] });
        let guarded = guard_of(&value).guard(&value).to_string();
        assert!(
            !TEXTS.iter().any(|text| guarded.contains(text)),
            "{guarded}"
        );
    }

    #[test]
    fn there_is_no_guard_when_every_stand_in_is_taken() {
        let all: String = STAND_INS.collect();
        assert!(Guard::new(TEXTS.into_iter(), &[&Value::String(all)], "").is_none());
    }
}

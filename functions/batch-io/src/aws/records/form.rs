//! Items as DynamoDB stores them: names, keys, the entry in the work index. Pure.
//!
//! Attributes keep their names: names are stored and billed with every item. A name that is one of the
//! table's own gets a dot in front, and so does such a name with dots in front.

use std::borrow::Cow;
use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use batch_core::time::UnixMs;

use crate::port::{Attr, Due, Item, RecordKey, WorkKind};

/// The hash key: the partition.
pub(super) const PARTITION: &str = "pk";

/// The range key: the sort key.
pub(super) const SORT: &str = "sk";

/// The hash key of the work index: kind and suffix.
pub(super) const WORK: &str = "wk";

/// The range key of the work index: Unix milliseconds.
pub(super) const DUE: &str = "due";

/// Reserved for the table's time to live: Unix seconds.
const LIFE: &str = "ttl";

/// A name that no item has. Removing it is an update that changes nothing.
pub(super) const NOTHING: &str = ".";

/// Name of the work index.
pub(super) const WORK_INDEX: &str = "work";

/// Suffixes of a kind in the work index: one partition of an index takes 1,000 writes a second.
pub(super) const SUFFIXES: u8 = 8;

const KINDS: [WorkKind; 5] = [
    WorkKind::Batch,
    WorkKind::Shard,
    WorkKind::Backlog,
    WorkKind::Retention,
    WorkKind::Outbox,
];

/// Why stored attributes are none of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    /// No text where a key should be.
    #[error("the key attribute '{0}' is missing or no text")]
    Key(&'static str),
    /// A value that is neither text nor a whole number of 64 bits.
    #[error("the attribute '{0}' is neither text nor a whole number of 64 bits")]
    Value(String),
    /// An entry in the work index that is none.
    #[error("the work index attributes are incomplete or of no kind we know")]
    Due,
}

/// Returns the name under which an attribute is stored.
pub(super) fn stored_name(name: &str) -> Cow<'_, str> {
    if is_own(name.trim_start_matches('.')) {
        Cow::Owned(format!(".{name}"))
    } else {
        Cow::Borrowed(name)
    }
}

/// Returns the name that was stored so; none for one of the table's own.
fn port_name(stored: &str) -> Option<&str> {
    if !is_own(stored.trim_start_matches('.')) {
        return Some(stored);
    }
    stored.strip_prefix('.').filter(|name| !name.is_empty())
}

fn is_own(name: &str) -> bool {
    matches!(name, "" | PARTITION | SORT | WORK | DUE | LIFE)
}

/// Returns a value as DynamoDB has it.
pub(super) fn value(attr: &Attr) -> AttributeValue {
    match attr {
        Attr::Text(text) => AttributeValue::S(text.clone()),
        Attr::Int(number) => AttributeValue::N(number.to_string()),
    }
}

/// Returns the key of an item.
pub(super) fn encode_key(key: &RecordKey) -> HashMap<String, AttributeValue> {
    HashMap::from([
        (
            PARTITION.to_owned(),
            AttributeValue::S(key.partition.clone()),
        ),
        (SORT.to_owned(), AttributeValue::S(key.sort.clone())),
    ])
}

/// Returns a whole item.
pub(super) fn encode(key: &RecordKey, item: &Item) -> HashMap<String, AttributeValue> {
    let mut attributes = encode_key(key);
    for (name, attr) in &item.attrs {
        attributes.insert(stored_name(name).into_owned(), value(attr));
    }
    if let Some(due) = item.due {
        let [work, at] = due_values(key, due);
        attributes.insert(WORK.to_owned(), work);
        attributes.insert(DUE.to_owned(), at);
    }
    attributes
}

/// Returns the values of [`WORK`] and [`DUE`].
pub(super) fn due_values(key: &RecordKey, due: Due) -> [AttributeValue; 2] {
    [
        AttributeValue::S(work(due.kind, suffix_of(key))),
        AttributeValue::N(due.at.0.to_string()),
    ]
}

/// Returns a hash key of the work index.
pub(super) fn work(kind: WorkKind, suffix: u8) -> String {
    format!("{}#{suffix}", kind_name(kind))
}

/// Returns the name of a kind.
pub(super) fn kind_name(kind: WorkKind) -> &'static str {
    match kind {
        WorkKind::Batch => "batch",
        WorkKind::Shard => "shard",
        WorkKind::Backlog => "backlog",
        WorkKind::Retention => "retention",
        WorkKind::Outbox => "outbox",
    }
}

/// Returns the suffix of an item's entries. It must never change: an update that leaves the entry alone
/// does not write it again.
///
/// Source: Fowler, Noll and Vo, FNV-1a of 64 bits, over both parts of the key with a zero byte between; then
/// Knuth, "The Art of Computer Programming", volume 3, section 6.4 (multiplicative hashing).
fn suffix_of(key: &RecordKey) -> u8 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let bytes = key.partition.bytes().chain([0]).chain(key.sort.bytes());
    let hash = bytes.fold(BASIS, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    });
    // The last bytes of a key reach only some bits of the hash: a shard and the next would share a suffix.
    let folded = hash ^ (hash >> 32);
    let [high, ..] = folded.wrapping_mul(GOLDEN).to_be_bytes();
    high >> 5
}

/// Reads an item, or its key and entry alone.
pub(super) fn decode(
    mut attributes: HashMap<String, AttributeValue>,
) -> Result<(RecordKey, Item), Unreadable> {
    let mut text = |name: &'static str| match attributes.remove(name) {
        Some(AttributeValue::S(text)) => Ok(text),
        _ => Err(Unreadable::Key(name)),
    };
    let key = RecordKey::new(text(PARTITION)?, text(SORT)?);
    let due = decode_due(attributes.remove(WORK), attributes.remove(DUE))?;
    let attrs = attributes.into_iter().filter_map(|(stored, value)| {
        let name = port_name(&stored)?.to_owned();
        Some(attr(&name, value).map(|attr| (name, attr)))
    });
    let attrs = attrs.collect::<Result<_, _>>()?;
    Ok((key, Item { attrs, due }))
}

fn attr(name: &str, value: AttributeValue) -> Result<Attr, Unreadable> {
    let number = value.as_n().ok().and_then(|number| number.parse().ok());
    match (value, number) {
        (AttributeValue::S(text), _) => Ok(Attr::Text(text)),
        (_, Some(number)) => Ok(Attr::Int(number)),
        (_, None) => Err(Unreadable::Value(name.to_owned())),
    }
}

fn decode_due(
    work: Option<AttributeValue>,
    at: Option<AttributeValue>,
) -> Result<Option<Due>, Unreadable> {
    let (work, at) = match (work, at) {
        (None, None) => return Ok(None),
        (Some(AttributeValue::S(work)), Some(AttributeValue::N(at))) => (work, at),
        _ => return Err(Unreadable::Due),
    };
    let name = work.split_once('#').map(|(name, _)| name);
    let kind = KINDS
        .into_iter()
        .find(|kind| Some(kind_name(*kind)) == name);
    match (kind, at.parse()) {
        (Some(kind), Ok(at)) => Ok(Some(Due {
            kind,
            at: UnixMs(at),
        })),
        _ => Err(Unreadable::Due),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attr_value() -> impl Strategy<Value = Attr> {
        prop_oneof![any::<i64>().prop_map(Attr::Int), ".*".prop_map(Attr::Text)]
    }

    fn attr_name() -> impl Strategy<Value = String> {
        prop_oneof![".+", "\\.{0,3}(pk|sk|wk|due|ttl)", "\\.{1,3}"]
    }

    proptest! {
        #[test]
        fn items_survive_their_encoding(
            attrs in proptest::collection::btree_map(attr_name(), attr_value(), 0..6),
            at in proptest::option::of(any::<i64>()),
        ) {
            let key = RecordKey::new("p", "s");
            let item = Item { attrs, due: at.map(|at| Due { kind: WorkKind::Outbox, at: UnixMs(at) }) };
            prop_assert_eq!(decode(encode(&key, &item)), Ok((key, item)));
        }
    }

    #[test]
    fn names_of_the_table_are_left_to_it() {
        for (name, stored) in [
            ("status", "status"),
            ("due", ".due"),
            (".due", "..due"),
            (".", ".."),
            (".status", ".status"),
        ] {
            assert_eq!(stored_name(name), stored);
            assert_eq!(port_name(stored), Some(name));
        }
        assert_eq!(port_name("ttl"), None);
        assert_eq!(port_name(NOTHING), None);
    }

    #[test]
    fn suffixes_stay_and_spread() {
        // Stored entries hold them: a change of the rule would leave entries behind.
        let suffix = |sort: &str| suffix_of(&RecordKey::new("acme/batches", sort));
        assert_eq!(["a", "b", "c", "d", "h"].map(suffix), [4, 2, 1, 7, 0]);
        let mut counts = [0; SUFFIXES as usize];
        for n in 0..8000 {
            counts[usize::from(suffix(&format!("batch_{n}/run")))] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn damaged_items_are_unreadable() {
        let with = |name: &str, value| {
            let mut attributes = encode_key(&RecordKey::new("p", "s"));
            attributes.insert(name.to_owned(), value);
            decode(attributes)
        };
        let number = |text: &str| AttributeValue::N(text.to_owned());
        assert_eq!(
            with("a", number("1.5")),
            Err(Unreadable::Value("a".to_owned()))
        );
        assert_eq!(
            with("a", number("9223372036854775808")),
            Err(Unreadable::Value("a".to_owned()))
        );
        assert_eq!(
            with("a", AttributeValue::Bool(true)),
            Err(Unreadable::Value("a".to_owned()))
        );
        assert_eq!(with("pk", number("1")), Err(Unreadable::Key(PARTITION)));
        assert_eq!(with("due", number("1")), Err(Unreadable::Due));
        assert_eq!(
            with("wk", AttributeValue::S("batch#0".to_owned())),
            Err(Unreadable::Due)
        );
    }
}

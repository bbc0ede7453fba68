//! What every records adapter must do alike, as pure functions: when a condition holds, what an update
//! makes of an item, how large an item is, and which requests are refused. Never touches a store.

use std::collections::HashSet;

use super::{Action, ActionKind, Attr, Condition, Item, RecordKey, Update};

/// Most actions of a transaction.
///
/// Source: DynamoDB quotas, `TransactWriteItems`.
pub const ACTIONS_MAX: usize = 100;

/// Most bytes of a transaction's items: 4 MB.
///
/// Source: DynamoDB quotas, `TransactWriteItems`.
pub const TRANSACTION_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most bytes of an item, names included: 400 KB.
///
/// Source: DynamoDB quotas, item size.
pub const ITEM_BYTES_MAX: usize = 400 * 1024;

/// Most bytes of a query's page: 1 MB.
///
/// Source: DynamoDB quotas, `Query`.
pub const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// Most bytes of a partition key.
///
/// Source: DynamoDB quotas, key length.
pub const PARTITION_BYTES_MAX: usize = 2048;

/// Most bytes of a sort key.
///
/// Source: DynamoDB quotas, key length.
pub const SORT_BYTES_MAX: usize = 1024;

/// What an index entry adds to an item: the names and values of its two attributes, rounded up.
const DUE_BYTES: usize = 48;

/// Why a request breaks the port's limits. Always a bug of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordLimit {
    /// A transaction without actions.
    #[error("a transaction needs an action")]
    NoActions,
    /// Too many actions.
    #[error("{0} actions, more than {ACTIONS_MAX}")]
    TooManyActions(usize),
    /// Two actions on one item.
    #[error("two actions on the item {0:?}")]
    SameItemTwice(RecordKey),
    /// An empty or too long key.
    #[error(
        "keys of {partition_bytes} and {sort_bytes} bytes, not of 1 to {PARTITION_BYTES_MAX} and 1 to {SORT_BYTES_MAX}"
    )]
    KeyLength {
        /// Bytes of the partition key.
        partition_bytes: usize,
        /// Bytes of the sort key.
        sort_bytes: usize,
    },
    /// An attribute without a name.
    #[error("an attribute needs a name")]
    UnnamedAttribute,
    /// A check that checks nothing.
    #[error("a check needs a condition")]
    CheckWithoutCondition,
    /// An update that changes one attribute twice.
    #[error("an update changes the attribute '{0}' twice")]
    SameAttributeTwice(String),
    /// A number added to a text.
    #[error("the attribute '{0}' is text: nothing can be added to it")]
    AddToText(String),
    /// A sum that does not fit.
    #[error("adding {change} to {number} in the attribute '{name}' overflows")]
    SumOverflows {
        /// Attribute.
        name: String,
        /// Before.
        number: i64,
        /// Added.
        change: i64,
    },
    /// An item that is too large.
    #[error("an item of {0} bytes, more than {ITEM_BYTES_MAX}")]
    ItemTooLarge(usize),
    /// Items that are too large together.
    #[error("a transaction of {0} bytes, more than {TRANSACTION_BYTES_MAX}")]
    TransactionTooLarge(usize),
    /// A page of no items.
    #[error("a page needs room for an item")]
    NoLimit,
}

impl Condition {
    /// Returns whether this holds of `item`; none is an item that does not exist.
    #[must_use]
    pub fn holds(&self, item: Option<&Item>) -> bool {
        let attr = |name: &str| item.and_then(|item| item.attrs.get(name));
        match self {
            Condition::Exists => item.is_some(),
            Condition::Absent => item.is_none(),
            Condition::Equals(name, value) => attr(name) == Some(value),
            Condition::OneOf(name, values) => {
                attr(name).is_some_and(|found| values.contains(found))
            }
            Condition::BelowOrAbsent(name, limit) => match attr(name) {
                None => true,
                Some(Attr::Int(number)) => number < limit,
                Some(Attr::Text(_)) => false,
            },
            Condition::AtMost(name, limit) => match attr(name) {
                Some(Attr::Int(number)) => number <= limit,
                Some(Attr::Text(_)) | None => false,
            },
            Condition::All(conditions) => conditions.iter().all(|condition| condition.holds(item)),
        }
    }
}

impl Action {
    /// Returns whether doing this twice is doing it once, whatever others do in between: an adapter may then
    /// do without a transaction's protection against repetition, and its price.
    #[must_use]
    pub fn may_be_repeated(&self) -> bool {
        let adds_nothing = match &self.kind {
            ActionKind::Put(_) | ActionKind::Delete => true,
            ActionKind::Update(update) => update.add.is_empty(),
            ActionKind::Check => false,
        };
        adds_nothing && self.condition.is_none()
    }
}

impl Update {
    /// Returns what this makes of `item`; none is an item that does not exist.
    ///
    /// # Errors
    ///
    /// [`RecordLimit`]: `AddToText`, `SumOverflows`.
    pub fn applied_to(&self, item: Option<Item>) -> Result<Item, RecordLimit> {
        let mut item = item.unwrap_or_default();
        for (name, value) in &self.set {
            item.attrs.insert(name.clone(), value.clone());
        }
        for (name, change) in &self.add {
            let number = match item.attrs.get(name) {
                None => 0,
                Some(Attr::Int(number)) => *number,
                Some(Attr::Text(_)) => return Err(RecordLimit::AddToText(name.clone())),
            };
            let sum = number
                .checked_add(*change)
                .ok_or_else(|| RecordLimit::SumOverflows {
                    name: name.clone(),
                    number,
                    change: *change,
                })?;
            item.attrs.insert(name.clone(), Attr::Int(sum));
        }
        for name in &self.remove {
            item.attrs.remove(name);
        }
        if let Some(due) = self.due {
            item.due = due;
        }
        Ok(item)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        let set = self.set.iter().map(|(name, _)| name);
        let add = self.add.iter().map(|(name, _)| name);
        set.chain(add).chain(&self.remove)
    }

    fn check(&self) -> Result<(), RecordLimit> {
        let mut seen = HashSet::new();
        for name in self.names() {
            if name.is_empty() {
                return Err(RecordLimit::UnnamedAttribute);
            }
            if !seen.insert(name) {
                return Err(RecordLimit::SameAttributeTwice(name.clone()));
            }
        }
        Ok(())
    }
}

impl RecordKey {
    /// Makes a key.
    pub fn new(partition: impl Into<String>, sort: impl Into<String>) -> Self {
        Self {
            partition: partition.into(),
            sort: sort.into(),
        }
    }

    /// Checks the length of both parts.
    ///
    /// # Errors
    ///
    /// [`RecordLimit::KeyLength`].
    pub fn check(&self) -> Result<(), RecordLimit> {
        let (partition_bytes, sort_bytes) = (self.partition.len(), self.sort.len());
        let fits = (1..=PARTITION_BYTES_MAX).contains(&partition_bytes)
            && (1..=SORT_BYTES_MAX).contains(&sort_bytes);
        if fits {
            Ok(())
        } else {
            Err(RecordLimit::KeyLength {
                partition_bytes,
                sort_bytes,
            })
        }
    }
}

/// Returns the size of an item as the store bills it: names and values of all attributes, keys included.
///
/// Source: DynamoDB developer guide, "DynamoDB item sizes and formats".
#[must_use]
pub fn item_bytes(key: &RecordKey, item: &Item) -> usize {
    let keys = "pk".len() + key.partition.len() + "sk".len() + key.sort.len();
    let attrs: usize = item
        .attrs
        .iter()
        .map(|(name, value)| name.len() + attr_bytes(value))
        .sum();
    keys + attrs + item.due.map_or(0, |_| DUE_BYTES)
}

/// Checks what can be refused before the items are read.
///
/// # Errors
///
/// [`RecordLimit`] for the first action that breaks a limit.
pub fn check_actions(actions: &[Action]) -> Result<(), RecordLimit> {
    if actions.is_empty() {
        return Err(RecordLimit::NoActions);
    }
    if actions.len() > ACTIONS_MAX {
        return Err(RecordLimit::TooManyActions(actions.len()));
    }
    let mut seen = HashSet::new();
    let mut bytes = 0;
    for action in actions {
        action.key.check()?;
        if !seen.insert(&action.key) {
            return Err(RecordLimit::SameItemTwice(action.key.clone()));
        }
        match &action.kind {
            ActionKind::Put(item) => bytes += check_item(&action.key, item)?,
            ActionKind::Update(update) => update.check()?,
            ActionKind::Check if action.condition.is_none() => {
                return Err(RecordLimit::CheckWithoutCondition);
            }
            ActionKind::Check | ActionKind::Delete => {}
        }
    }
    check_total(bytes)
}

/// Checks one item, and returns its size.
///
/// # Errors
///
/// [`RecordLimit`]: `ItemTooLarge`, `UnnamedAttribute`.
pub fn check_item(key: &RecordKey, item: &Item) -> Result<usize, RecordLimit> {
    if item.attrs.contains_key("") {
        return Err(RecordLimit::UnnamedAttribute);
    }
    let bytes = item_bytes(key, item);
    if bytes > ITEM_BYTES_MAX {
        Err(RecordLimit::ItemTooLarge(bytes))
    } else {
        Ok(bytes)
    }
}

/// Checks the size of all items of a transaction.
///
/// # Errors
///
/// [`RecordLimit::TransactionTooLarge`].
pub fn check_total(bytes: usize) -> Result<(), RecordLimit> {
    if bytes > TRANSACTION_BYTES_MAX {
        Err(RecordLimit::TransactionTooLarge(bytes))
    } else {
        Ok(())
    }
}

fn attr_bytes(value: &Attr) -> usize {
    match value {
        Attr::Text(text) => text.len(),
        Attr::Int(number) => number_bytes(*number),
    }
}

/// One byte for two significant digits, one for the exponent, one for a sign.
fn number_bytes(number: i64) -> usize {
    let digits = number.unsigned_abs().to_string();
    digits.trim_end_matches('0').len().div_ceil(2) + 1 + usize::from(number < 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_asks_and_adds_nothing_may_be_repeated() {
        let may_be_repeated = |kind, condition| {
            let key = RecordKey::new("p", "s");
            Action {
                key,
                kind,
                condition,
            }
            .may_be_repeated()
        };
        let add = Update {
            add: vec![("n".to_owned(), 1)],
            ..Update::default()
        };
        assert!(may_be_repeated(ActionKind::Put(Item::default()), None));
        assert!(may_be_repeated(ActionKind::Delete, None));
        assert!(may_be_repeated(ActionKind::Update(Update::default()), None));
        assert!(!may_be_repeated(ActionKind::Update(add), None));
        assert!(!may_be_repeated(
            ActionKind::Delete,
            Some(Condition::Exists)
        ));
        assert!(!may_be_repeated(ActionKind::Check, Some(Condition::Exists)));
    }
}

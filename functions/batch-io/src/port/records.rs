//! The records port: small items with strong reads and conditional transactions.

use std::collections::BTreeMap;

use async_trait::async_trait;
use batch_core::time::UnixMs;

use crate::IoError;

/// Partition and sort key of an item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// Partition; starts with the tenant where the item has one.
    pub partition: String,
    /// Sorts within the partition, by bytes.
    pub sort: String,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attr {
    /// Text.
    Text(String),
    /// Whole number.
    Int(i64),
}

/// What the sparse work index sorts entries by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKind {
    /// A batch that needs a look: a stuck stage, an expiry, a seal.
    Batch,
    /// A released or leased shard.
    Shard,
    /// Unreleased shards of one model of one batch.
    Backlog,
    /// A file or upload whose time is over.
    Retention,
    /// A notification to send.
    Outbox,
}

/// An item's entry in the work index. The index may lag: every hit is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Due {
    /// Which work.
    pub kind: WorkKind,
    /// When.
    pub at: UnixMs,
}

/// An item: attributes, and at most one entry in the work index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Item {
    /// Attributes by name.
    pub attrs: BTreeMap<String, Attr>,
    /// Entry in the work index.
    pub due: Option<Due>,
}

/// What must hold of an action's own item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It exists.
    Exists,
    /// It does not exist.
    Absent,
    /// The attribute exists and equals this.
    Equals(String, Attr),
    /// The attribute exists and equals one of these.
    OneOf(String, Vec<Attr>),
    /// The attribute is a number below this, or does not exist.
    BelowOrAbsent(String, i64),
    /// The attribute exists and is a number at or below this. A sum stays below a limit by asking this of
    /// the limit less what is added.
    AtMost(String, i64),
    /// All of these; holds if there are none.
    All(Vec<Condition>),
}

/// Changes to single attributes of one item, each named once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Update {
    /// Attributes to set.
    pub set: Vec<(String, Attr)>,
    /// Numbers to add; an absent attribute counts as 0.
    pub add: Vec<(String, i64)>,
    /// Attributes to remove.
    pub remove: Vec<String>,
    /// Change of the work index entry: none leaves it, `Some(None)` removes it.
    pub due: Option<Option<Due>>,
}

/// What an action does to its item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionKind {
    /// Replaces the item, its index entry included.
    Put(Item),
    /// Changes attributes; makes the item if it is absent and the condition allows.
    Update(Update),
    /// Removes the item. An absent one is fine if the condition allows.
    Delete,
    /// Only checks the condition, which must be there.
    Check,
}

/// One action of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// The item.
    pub key: RecordKey,
    /// What to do.
    pub kind: ActionKind,
    /// What must hold.
    pub condition: Option<Condition>,
}

/// Why a transaction did not happen.
#[derive(Debug, thiserror::Error)]
pub enum TransactError {
    /// The conditions of the actions at these positions did not hold. Nothing was changed.
    #[error("the conditions of actions {0:?} did not hold")]
    Conflict(Vec<usize>),
    /// The outcome may be unknown: read, and look for your own mark.
    #[error("run a records transaction")]
    Io(#[from] IoError),
}

/// Items, and where the next page starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Items in the order of their sort keys. May be fewer than asked for, or none, though more follow.
    pub items: Vec<(RecordKey, Item)>,
    /// The sort key to go on after; none at the end.
    pub next: Option<String>,
}

/// Direction of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryOrder {
    /// Ascending sort keys.
    Ascending,
    /// Descending sort keys.
    Descending,
}

/// Strongly read items with conditional transactions.
///
/// Source: DynamoDB `GetItem` (consistent), `Query` (consistent), `TransactWriteItems`.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// Reads one item, strongly.
    ///
    /// # Errors
    ///
    /// [`IoError`] of any kind but `NotFound`.
    async fn get(&self, key: &RecordKey) -> Result<Option<Item>, IoError>;

    /// Reads items of a partition whose sort key starts with `prefix`, strongly, beyond `after`, at most
    /// `limit` (from 1) and at most 1 MB. `after` need not exist, nor start with `prefix`.
    ///
    /// # Errors
    ///
    /// [`IoError`] of any kind but `NotFound`; `TooLarge` for a limit of 0.
    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        order: QueryOrder,
        limit: usize,
    ) -> Result<Page, IoError>;

    /// Reads keys from the work index that are due at or before `until`, earliest first within one suffix.
    /// Late: it may miss a new entry and still show an old one.
    ///
    /// # Errors
    ///
    /// [`IoError`] of any kind but `NotFound`; `TooLarge` for a limit of 0.
    async fn due(
        &self,
        kind: WorkKind,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Due)>, IoError>;

    /// Runs all actions, or none. At least 1 and at most 100 actions, one an item, 4 MB; items at most
    /// 400 KB. A transaction whose future is dropped may still happen.
    ///
    /// # Errors
    ///
    /// [`TransactError::Conflict`] with the positions of all actions whose condition did not hold, in order;
    /// [`TransactError::Io`] otherwise, `TooLarge` for everything in
    /// [`RecordLimit`](super::record_rules::RecordLimit).
    async fn transact(&self, actions: Vec<Action>) -> Result<(), TransactError>;
}

//! Shorthand for transactions and queries over the port.

use batch_core::limits::TRANSACTION_ACTIONS_MAX;

use super::Store;
use crate::port::{
    Action, ActionKind, Attr, Condition, Item, QueryOrder, RecordKey, TransactError, Update,
};
use crate::{IoError, IoKind};

/// Items asked for at once; the port ends a page earlier at 1 MB.
pub(super) const PAGE_ITEMS: usize = 500;

/// What became of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Written {
    /// It happened.
    Yes,
    /// The conditions of the actions at these positions did not hold. Nothing happened.
    No(Vec<usize>),
}

impl Store {
    pub(super) async fn transact(&self, actions: Vec<Action>) -> Result<Written, IoError> {
        match self.records.transact(actions).await {
            Ok(()) => Ok(Written::Yes),
            Err(TransactError::Conflict(positions)) => Ok(Written::No(positions)),
            Err(TransactError::Io(error)) => Err(error),
        }
    }

    /// Runs a single action, and returns whether its condition held.
    pub(super) async fn act(&self, action: Action) -> Result<bool, IoError> {
        Ok(self.transact(vec![action]).await? == Written::Yes)
    }

    /// Removes records, some at a time. A crash leaves the later ones: call again.
    pub(super) async fn delete_all(&self, keys: Vec<RecordKey>) -> Result<(), IoError> {
        for chunk in keys.chunks(TRANSACTION_ACTIONS_MAX) {
            self.transact(chunk.iter().cloned().map(delete).collect())
                .await?;
        }
        Ok(())
    }

    /// Reads all items of a partition whose sort keys start with `prefix`.
    pub(super) async fn query_all(
        &self,
        partition: &str,
        prefix: &str,
    ) -> Result<Vec<(RecordKey, Item)>, IoError> {
        let mut items = Vec::new();
        let mut after = None;
        loop {
            let page = self
                .records
                .query(
                    partition,
                    prefix,
                    after.as_deref(),
                    QueryOrder::Ascending,
                    PAGE_ITEMS,
                )
                .await?;
            items.extend(page.items);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(items),
            }
        }
    }
}

/// Returns the error of an update that met a conflict too often.
pub(super) fn contended(doing: &'static str, key: impl ToString) -> IoError {
    IoError::new(doing, key.to_string(), IoKind::Conflict).because("others changed it at every try")
}

pub(super) fn put(key: RecordKey, item: Item) -> Action {
    Action {
        key,
        kind: ActionKind::Put(item),
        condition: None,
    }
}

pub(super) fn put_new(key: RecordKey, item: Item) -> Action {
    Action {
        key,
        kind: ActionKind::Put(item),
        condition: Some(Condition::Absent),
    }
}

pub(super) fn update(key: RecordKey, update: Update, condition: Condition) -> Action {
    Action {
        key,
        kind: ActionKind::Update(update),
        condition: Some(condition),
    }
}

pub(super) fn delete(key: RecordKey) -> Action {
    Action {
        key,
        kind: ActionKind::Delete,
        condition: None,
    }
}

pub(super) fn check(key: RecordKey, condition: Condition) -> Action {
    Action {
        key,
        kind: ActionKind::Check,
        condition: Some(condition),
    }
}

pub(super) fn text_is(name: &str, text: impl Into<String>) -> Condition {
    Condition::Equals(name.to_owned(), Attr::Text(text.into()))
}

pub(super) fn int_is(name: &str, number: i64) -> Condition {
    Condition::Equals(name.to_owned(), Attr::Int(number))
}

//! Counts request units of records.

use std::sync::Arc;

use async_trait::async_trait;
use batch_core::time::UnixMs;

use super::{Meter, Operation};
use crate::IoError;
use crate::port::record_rules::item_bytes;
use crate::port::{
    Action, ActionKind, Due, Item, Page, QueryOrder, RecordKey, Records, TransactError, WorkKind,
};

/// Partitions of the work index: a look asks each.
const INDEX_PARTITIONS: usize = 8;

const WRITE_UNIT_BYTES: usize = 1024;
const READ_UNIT_BYTES: usize = 4096;

/// Bytes of the kind, its partition and the moment in an entry of the index, which also holds the item's key.
const ENTRY_BYTES: usize = 32;

/// Records that count.
pub(super) struct Counted {
    inner: Arc<dyn Records>,
    meter: Meter,
}

impl Counted {
    pub(super) fn new(inner: Arc<dyn Records>, meter: Meter) -> Self {
        Self { inner, meter }
    }
}

#[async_trait]
impl Records for Counted {
    async fn get(&self, key: &RecordKey) -> Result<Option<Item>, IoError> {
        let item = self.inner.get(key).await?;
        let bytes = item.as_ref().map_or(0, |item| item_bytes(key, item));
        self.meter.add(Operation::GetItem, 1, read_units(bytes));
        Ok(item)
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        order: QueryOrder,
        limit: usize,
    ) -> Result<Page, IoError> {
        let page = self
            .inner
            .query(partition, prefix, after, order, limit)
            .await?;
        let bytes = page.items.iter().map(|(key, item)| item_bytes(key, item));
        self.meter.add(Operation::Query, 1, read_units(bytes.sum()));
        Ok(page)
    }

    async fn due(
        &self,
        kind: WorkKind,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Due)>, IoError> {
        let entries = self.inner.due(kind, until, limit).await?;
        let bytes: usize = entries.iter().map(|(key, _)| entry_bytes(key)).sum();
        // Entries spread evenly over the partitions; the reads are eventual, and cost half.
        let each = read_units(bytes.div_ceil(INDEX_PARTITIONS)) / 2.0;
        self.meter.add(
            Operation::QueryIndex,
            INDEX_PARTITIONS as u64,
            each * INDEX_PARTITIONS as f64,
        );
        Ok(entries)
    }

    async fn transact(&self, actions: Vec<Action>) -> Result<(), TransactError> {
        let is_plain = matches!(actions.as_slice(), [action] if action.may_be_repeated());
        let mut changes = Vec::with_capacity(actions.len());
        for action in &actions {
            let before = match action.key.check() {
                Ok(()) => self.inner.get(&action.key).await?,
                Err(_) => None,
            };
            changes.push(Change::of(action, before.as_ref()));
        }
        let written = self.inner.transact(actions).await;
        let happened = match &written {
            Ok(()) => true,
            // What a condition refuses is billed all the same, by the item that is there.
            Err(TransactError::Conflict(_)) => false,
            Err(TransactError::Io(_)) => return written,
        };
        let units: usize = changes.iter().map(|change| change.units(happened)).sum();
        let (operation, times) = if is_plain {
            (Operation::WriteItem, 1)
        } else {
            (Operation::TransactItems, 2)
        };
        self.meter.add(operation, 1, (units * times) as f64);
        let index: usize = changes.iter().map(|change| change.index).sum();
        if happened && index > 0 {
            self.meter
                .add(Operation::WriteIndex, index as u64, index as f64);
        }
        written
    }
}

/// What an action does to its item's size and its entry in the index.
struct Change {
    before_bytes: usize,
    after_bytes: usize,
    index: usize,
}

impl Change {
    fn of(action: &Action, before: Option<&Item>) -> Self {
        let after = match &action.kind {
            ActionKind::Put(item) => Some(item.clone()),
            // One that cannot be applied is refused, and not counted.
            ActionKind::Update(update) => update.applied_to(before.cloned()).ok(),
            ActionKind::Delete => None,
            ActionKind::Check => before.cloned(),
        };
        let size = |item: Option<&Item>| item.map_or(0, |item| item_bytes(&action.key, item));
        let due = |item: Option<&Item>| item.and_then(|item| item.due);
        let index = match (due(before), due(after.as_ref())) {
            (None, None) => 0,
            (Some(_), None) | (None, Some(_)) => 1,
            (Some(old), Some(new)) => 2 * usize::from(old != new),
        };
        Self {
            before_bytes: size(before),
            after_bytes: size(after.as_ref()),
            index,
        }
    }

    fn units(&self, happened: bool) -> usize {
        let bytes = if happened {
            self.before_bytes.max(self.after_bytes)
        } else {
            self.before_bytes
        };
        bytes.div_ceil(WRITE_UNIT_BYTES).max(1)
    }
}

fn entry_bytes(key: &RecordKey) -> usize {
    key.partition.len() + key.sort.len() + ENTRY_BYTES
}

fn read_units(bytes: usize) -> f64 {
    bytes.div_ceil(READ_UNIT_BYTES).max(1) as f64
}

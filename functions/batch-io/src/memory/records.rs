//! Records in an ordered map. The rules are [`record_rules`]'s; the index is a walk over all items.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Mutex;

use async_trait::async_trait;
use batch_core::time::UnixMs;

use super::lock;
use crate::port::record_rules::{self, RecordLimit};
use crate::port::{
    Action, ActionKind, Due, Item, Page, QueryOrder, RecordKey, Records, TransactError, WorkKind,
};
use crate::{IoError, IoKind};

/// Records in memory.
#[derive(Debug, Default)]
pub struct MemoryRecords {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    items: BTreeMap<RecordKey, Item>,
    due: BTreeSet<(WorkKind, UnixMs, RecordKey)>,
}

impl State {
    fn store(&mut self, key: &RecordKey, item: Option<Item>) {
        let entry = |due: Due| (due.kind, due.at, key.clone());
        if let Some(due) = self.items.get(key).and_then(|item| item.due) {
            self.due.remove(&entry(due));
        }
        match item {
            Some(item) => {
                self.due.extend(item.due.map(entry));
                self.items.insert(key.clone(), item);
            }
            None => {
                self.items.remove(key);
            }
        }
    }
}

#[async_trait]
impl Records for MemoryRecords {
    async fn get(&self, key: &RecordKey) -> Result<Option<Item>, IoError> {
        key.check()
            .map_err(|limit| refused("get record", &key.partition, limit))?;
        Ok(lock(&self.state).items.get(key).cloned())
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        order: QueryOrder,
        limit: usize,
    ) -> Result<Page, IoError> {
        if limit == 0 {
            return Err(refused("query records", partition, RecordLimit::NoLimit));
        }
        let state = lock(&self.state);
        let first = Bound::Included(RecordKey::new(partition, prefix));
        let found = state
            .items
            .range((first, Bound::Unbounded))
            .take_while(|(key, _)| key.partition == partition && key.sort.starts_with(prefix));
        let beyond = |key: &RecordKey| {
            after.is_none_or(|after| match order {
                QueryOrder::Ascending => key.sort.as_str() > after,
                QueryOrder::Descending => key.sort.as_str() < after,
            })
        };
        let found = found.filter(|(key, _)| beyond(key));
        Ok(match order {
            QueryOrder::Ascending => page(found, limit),
            QueryOrder::Descending => page(found.collect::<Vec<_>>().into_iter().rev(), limit),
        })
    }

    async fn due(
        &self,
        kind: WorkKind,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Due)>, IoError> {
        if limit == 0 {
            return Err(refused(
                "query due records",
                "work index",
                RecordLimit::NoLimit,
            ));
        }
        let first = (kind, UnixMs(i64::MIN), RecordKey::new("", ""));
        let state = lock(&self.state);
        let entries = state.due.range(first..);
        Ok(entries
            .take_while(|(other, at, _)| *other == kind && *at <= until)
            .take(limit)
            .map(|(kind, at, key)| {
                let due = Due {
                    kind: *kind,
                    at: *at,
                };
                (key.clone(), due)
            })
            .collect())
    }

    async fn transact(&self, actions: Vec<Action>) -> Result<(), TransactError> {
        let fault = |limit| refused("run a transaction on", "records", limit);
        record_rules::check_actions(&actions).map_err(fault)?;
        let mut state = lock(&self.state);
        let fails = |action: &Action| {
            let condition = action.condition.as_ref();
            condition.is_some_and(|it| !it.holds(state.items.get(&action.key)))
        };
        let failed: Vec<usize> = (0..actions.len())
            .filter(|position| fails(&actions[*position]))
            .collect();
        if !failed.is_empty() {
            return Err(TransactError::Conflict(failed));
        }
        let mut planned = Vec::with_capacity(actions.len());
        let mut bytes = 0;
        for Action { key, kind, .. } in actions {
            let item = match kind {
                ActionKind::Put(item) => Some(item),
                ActionKind::Update(update) => {
                    let before = state.items.get(&key).cloned();
                    Some(update.applied_to(before).map_err(fault)?)
                }
                ActionKind::Delete => None,
                ActionKind::Check => continue,
            };
            if let Some(item) = &item {
                bytes += record_rules::check_item(&key, item).map_err(fault)?;
            }
            planned.push((key, item));
        }
        record_rules::check_total(bytes).map_err(fault)?;
        for (key, item) in planned {
            state.store(&key, item);
        }
        Ok(())
    }
}

/// Like DynamoDB, a page that has reached its limit does not look whether more follow.
fn page<'a>(found: impl Iterator<Item = (&'a RecordKey, &'a Item)>, limit: usize) -> Page {
    let mut page = Page {
        items: Vec::new(),
        next: None,
    };
    let mut bytes = 0;
    for (key, item) in found {
        bytes += record_rules::item_bytes(key, item);
        let is_full = bytes > record_rules::PAGE_BYTES_MAX && !page.items.is_empty();
        if !is_full {
            page.items.push((key.clone(), item.clone()));
        }
        if is_full || page.items.len() >= limit {
            page.next = page.items.last().map(|(key, _)| key.sort.clone());
            break;
        }
    }
    page
}

fn refused(doing: &'static str, key: &str, limit: RecordLimit) -> IoError {
    IoError::new(doing, key, IoKind::TooLarge).because(limit)
}

//! What the dispatcher works on: backlogs, released shards, and its cursors.

use std::collections::HashMap;
use std::ops::Range;

use batch_core::id::{BatchId, TenantId};
use batch_core::lifecycle::State;
use batch_core::limits::{RELEASE_SHARDS_MAX, WORK_LISTED_MAX};
use batch_core::shard::{Backlog, Shard, ShardId, ShardState};
use batch_core::time::UnixMs;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Store;
use super::actions::{PAGE_ITEMS, Written, check, int_is, put, update};
use super::batch_form::state_is;
use super::due::DueRef;
use super::fields::{Attrs, Fields, to_int};
use super::paths::{self, BatchRecord};
use super::shard_form::{
    ESTIMATED_TOKENS, NEXT, backlog_due, is_pending, read_backlog, read_shard, release_update,
};
use super::shards::is_stopped;
use crate::port::{Action, Condition, QueryOrder, Update, WorkKind};
use crate::{IoError, IoKind};

const CURSORS: &str = "cursors";
const EPOCH: &str = "epoch";

/// Shards that are read at once.
const READS_IN_FLIGHT: usize = 8;

/// Later than anything is due.
const ALL: UnixMs = UnixMs(i64::MAX);

/// A shard of a batch in progress that waits in a queue, or that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleasedShard {
    /// Owner.
    pub tenant: TenantId,
    /// Batch.
    pub batch: BatchId,
    /// Shard.
    pub shard: Shard,
    /// How many of its lines have results.
    pub finished: u64,
    /// When its batch's window closes.
    pub deadline: UnixMs,
}

impl ReleasedShard {
    /// Returns the tokens that its lines without results are estimated to take.
    #[must_use]
    pub fn tokens_left(&self) -> u64 {
        let lines = u64::from(self.shard.lines);
        let open = lines.saturating_sub(self.finished);
        let tokens = self.shard.estimated_tokens.saturating_mul(open);
        tokens.div_ceil(lines.max(1))
    }
}

/// Where the dispatcher stands with a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursors<T> {
    /// Its own data; the default if there was none.
    pub value: T,
    /// Raised by every save; 0 if there was none.
    pub epoch: u64,
}

impl Store {
    /// Lists the backlogs with unreleased shards, by deadline as far as the index is sorted. A batch that is
    /// being stopped may still be among them: a release of it does nothing, and drops it from here.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_backlogs(&self) -> Result<Vec<(TenantId, BatchId, Backlog)>, IoError> {
        let mut backlogs = Vec::new();
        for hit in self.due(WorkKind::Backlog, ALL, WORK_LISTED_MAX).await? {
            let DueRef::Backlog {
                tenant,
                batch,
                slot,
            } = hit
            else {
                continue;
            };
            let backlog = self.load_backlog(&tenant, batch, slot).await?;
            let Some(backlog) = backlog.filter(|backlog| backlog.next < backlog.shards) else {
                continue;
            };
            backlogs.push((tenant, batch, backlog));
        }
        Ok(backlogs)
    }

    /// Releases `count` shards of a backlog (at most [`RELEASE_SHARDS_MAX`]),
    /// IF the next is `from` and the batch is in progress. Returns whether they are released: then send their
    /// messages. Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `TooLarge` for no shards or too many, `Corrupt` if one of them is not stored.
    pub async fn release(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        slot: u16,
        from: u32,
        count: u32,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        if !(1..=RELEASE_SHARDS_MAX).contains(&count) {
            return Err(IoError::new(
                "release shards",
                count.to_string(),
                IoKind::TooLarge,
            ));
        }
        let end = from.saturating_add(count);
        let Some(backlog) = self.load_backlog(tenant, batch, slot).await? else {
            return Ok(false);
        };
        if backlog.next >= end {
            return Ok(true);
        }
        if backlog.next != from || end > backlog.shards {
            return Ok(false);
        }
        let tokens = self
            .estimated_tokens(tenant, batch, slot, from..end)
            .await?;
        let state = ShardState::Released {
            check_at: now.plus_ms(self.timing.message_lost_ms),
        };
        let mut actions = vec![
            advance(tenant, batch, &backlog, end, tokens),
            check(
                BatchRecord::Run.key(tenant, batch),
                state_is(|state| state == State::InProgress),
            ),
        ];
        actions.extend((from..end).map(|number| {
            let key = paths::shard(tenant, batch, &ShardId::root(slot, number));
            update(key, release_update(state, &self.timing), is_pending())
        }));
        let Written::No(positions) = self.transact(actions).await? else {
            return Ok(true);
        };
        let is_refused = positions.contains(&1);
        if is_refused
            && self
                .load_run(tenant, batch)
                .await?
                .is_none_or(|run| is_stopped(run.state))
        {
            self.unlist_backlog(tenant, batch, &backlog).await?;
        }
        // The backlog was read a moment ago: if it moved since, another dispatcher released.
        Ok(self
            .load_backlog(tenant, batch, slot)
            .await?
            .is_some_and(|backlog| backlog.next >= end))
    }

    /// Lists the shards that wait in queues, of batches in progress.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_released(&self) -> Result<Vec<ReleasedShard>, IoError> {
        let working = self.list_working().await?.into_iter();
        Ok(working
            .filter(|one| matches!(one.shard.state, ShardState::Released { .. }))
            .collect())
    }

    /// Lists the shards that workers hold, of batches in progress.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_leased(&self) -> Result<Vec<ReleasedShard>, IoError> {
        let working = self.list_working().await?.into_iter();
        Ok(working
            .filter(|one| matches!(one.shard.state, ShardState::Leased { .. }))
            .collect())
    }

    /// Lists the shards that wait in queues or that workers hold, of batches in progress.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_working(&self) -> Result<Vec<ReleasedShard>, IoError> {
        let mut deadlines = HashMap::new();
        let mut open = Vec::new();
        for hit in self.due(WorkKind::Shard, ALL, WORK_LISTED_MAX).await? {
            let DueRef::Shard {
                tenant,
                batch,
                shard,
            } = hit
            else {
                continue;
            };
            let deadline = match deadlines.get(&batch) {
                Some(known) => *known,
                None => {
                    let view = self.load_batch(&tenant, batch).await?;
                    let found = view.filter(|view| view.run.state == State::InProgress);
                    let deadline = found.map(|view| view.params.expires_at);
                    deadlines.insert(batch, deadline);
                    deadline
                }
            };
            open.extend(deadline.map(|deadline| (tenant, batch, shard, deadline)));
        }
        // Boxed, so that the compiler can see that this function's future may move between threads.
        let loads = open.into_iter().map(|(tenant, batch, shard, deadline)| {
            async move {
                let record = self.load_shard_record(&tenant, batch, &shard).await?;
                Ok(record.map(|record| ReleasedShard {
                    tenant,
                    batch,
                    shard: record.shard,
                    finished: record.finished,
                    deadline,
                }))
            }
            .boxed()
        });
        let loaded: Vec<Option<ReleasedShard>> = stream::iter(loads.collect::<Vec<_>>())
            .buffered(READS_IN_FLIGHT)
            .try_collect()
            .await?;
        let is_working = |one: &ReleasedShard| {
            matches!(
                one.shard.state,
                ShardState::Released { .. } | ShardState::Leased { .. }
            )
        };
        Ok(loaded.into_iter().flatten().filter(is_working).collect())
    }

    /// Loads the dispatcher's cursors for a model.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn load_cursors<T: DeserializeOwned + Default>(
        &self,
        model: &str,
    ) -> Result<Cursors<T>, IoError> {
        let key = paths::cursors(model);
        let Some(item) = self.records.get(&key).await? else {
            return Ok(Cursors::default());
        };
        let fields = Fields::of(&key, &item)?;
        Ok(Cursors {
            value: fields.json(CURSORS)?,
            epoch: fields.count(EPOCH)?,
        })
    }

    /// Saves the dispatcher's cursors IF nobody saved since `epoch` was loaded, and returns whether it did.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn save_cursors<T: Serialize + Sync>(
        &self,
        model: &str,
        epoch: u64,
        value: &T,
    ) -> Result<bool, IoError> {
        let item = Attrs::of_record()
            .json(CURSORS, value)
            .count(EPOCH, epoch + 1)
            .into_item();
        let condition = if epoch == 0 {
            Condition::Absent
        } else {
            int_is(EPOCH, to_int(epoch))
        };
        self.act(Action {
            condition: Some(condition),
            ..put(paths::cursors(model), item)
        })
        .await
    }

    async fn load_backlog(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        slot: u16,
    ) -> Result<Option<Backlog>, IoError> {
        let key = paths::backlog(tenant, batch, slot);
        self.records
            .get(&key)
            .await?
            .map(|item| read_backlog(&key, &item))
            .transpose()
    }

    /// Sums the estimates of the shards `numbers` of a slot. They are roots: children come of released ones.
    async fn estimated_tokens(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        slot: u16,
        numbers: Range<u32>,
    ) -> Result<u64, IoError> {
        let partition = paths::work(tenant, batch);
        let last = ShardId::root(slot, numbers.end - 1);
        let mut after = paths::before_shard(&ShardId::root(slot, numbers.start));
        let (mut tokens, mut found) = (0, 0);
        loop {
            let page = self
                .records
                .query(
                    &partition,
                    paths::SHARD,
                    Some(&after),
                    QueryOrder::Ascending,
                    PAGE_ITEMS,
                )
                .await?;
            for (key, item) in &page.items {
                let shard = read_shard(key, item)?.shard;
                if shard.id <= last {
                    tokens += shard.estimated_tokens;
                    found += 1;
                }
            }
            match page.next {
                Some(next) if found < numbers.len() => after = next,
                _ if found == numbers.len() => return Ok(tokens),
                Some(_) | None => {
                    let why = format!(
                        "of the shards {numbers:?} of a published batch, {found} are stored"
                    );
                    return Err(
                        IoError::new("release shards", batch.to_string(), IoKind::Corrupt)
                            .because(why),
                    );
                }
            }
        }
    }

    /// Drops the backlog of a batch that is being stopped from the index.
    async fn unlist_backlog(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        backlog: &Backlog,
    ) -> Result<(), IoError> {
        let change = Update {
            due: Some(None),
            ..Update::default()
        };
        let condition = int_is(NEXT, i64::from(backlog.next));
        self.act(update(
            paths::backlog(tenant, batch, backlog.slot),
            change,
            condition,
        ))
        .await?;
        Ok(())
    }
}

/// Moves a backlog on to the shard `next`, IF it stands where it was read.
fn advance(tenant: &TenantId, batch: BatchId, backlog: &Backlog, next: u32, tokens: u64) -> Action {
    let moved = Backlog {
        next,
        ..backlog.clone()
    };
    let change = Update {
        set: Attrs::default().int(NEXT, i64::from(next)).into_vec(),
        add: vec![(
            ESTIMATED_TOKENS.to_owned(),
            -to_int(tokens.min(backlog.estimated_tokens)),
        )],
        due: Some(backlog_due(&moved)),
        ..Update::default()
    };
    update(
        paths::backlog(tenant, batch, backlog.slot),
        change,
        int_is(NEXT, i64::from(backlog.next)),
    )
}

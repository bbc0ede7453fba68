//! Splits: the unfinished lines of a shard that was lost too often go to children.

use batch_core::id::{BatchId, TenantId};
use batch_core::lease::{self, Split};
use batch_core::limits::UPDATE_TRIES_MAX;
use batch_core::shard::{Shard, ShardState};
use batch_core::time::UnixMs;

use super::Store;
use super::actions::{Written, contended, put_new, update};
use super::batch_form::{SHARDS_TOTAL, is_open};
use super::commits::{CommitDelta, add_to_run, has_room};
use super::paths::{self, BatchRecord};
use super::shard_form::{FINISHED, is_unchanged, shard_item, shard_update};
use crate::port::{Action, Attr, Condition, Update};
use crate::{IoError, IoKind};

/// What became of a split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitShard {
    /// Two children wait for workers, or the shard itself, alone with the one line that is left: send their
    /// messages.
    Split(Vec<Shard>),
    /// No line was unfinished: the shard is done.
    Completed,
    /// The shard has changed since it was read: look at it again.
    Changed,
    /// The batch is sealed.
    Closed,
}

impl Store {
    /// Splits a shard as read by [`Store::apply_lapse`] by its unfinished lines, given as ordinals of the
    /// root's blob, ascending. One transaction: parent, children, and the batch's number of shards IF its
    /// phase is open. Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `TooLarge` if no line is unfinished, but the commits had fewer results than lines.
    pub async fn split_shard(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        shard: &Shard,
        unfinished: &[u32],
        now: UnixMs,
    ) -> Result<SplitShard, IoError> {
        let (actions, split) = match lease::split(shard, unfinished, now, &self.timing) {
            Split::Done(next) => {
                let condition = Condition::All(vec![is_unchanged(shard), has_room(shard, 0, true)]);
                let done = update(
                    paths::shard(tenant, batch, &shard.id),
                    shard_update(&next, &self.timing),
                    condition,
                );
                (
                    vec![
                        done,
                        add_to_run(tenant, batch, CommitDelta::default(), true, now),
                    ],
                    SplitShard::Completed,
                )
            }
            Split::Alone(next) => (
                vec![self.leave_alone(tenant, batch, shard, &next)],
                SplitShard::Split(vec![next]),
            ),
            Split::Halves { parent, children } => {
                let change = shard_update(&parent, &self.timing);
                let mut actions = vec![update(
                    paths::shard(tenant, batch, &shard.id),
                    change,
                    is_unchanged(shard),
                )];
                let put = |child: &Shard| {
                    put_new(
                        paths::shard(tenant, batch, &child.id),
                        shard_item(child, &self.timing),
                    )
                };
                actions.extend(children.iter().map(put));
                // The parent will not be done any more, and the two children will: one more in all.
                let change = Update {
                    add: vec![(SHARDS_TOTAL.to_owned(), 1)],
                    ..Update::default()
                };
                actions.push(update(
                    BatchRecord::Run.key(tenant, batch),
                    change,
                    is_open(),
                ));
                (actions, SplitShard::Split(children.to_vec()))
            }
        };
        self.write_split(tenant, batch, shard, actions, split).await
    }

    /// The shard keeps its segments, and from now on counts only the line that is left.
    fn leave_alone(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        shard: &Shard,
        next: &Shard,
    ) -> Action {
        let mut change = shard_update(next, &self.timing);
        change.set.push((FINISHED.to_owned(), Attr::Int(0)));
        update(
            paths::shard(tenant, batch, &shard.id),
            change,
            is_unchanged(shard),
        )
    }

    async fn write_split(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        shard: &Shard,
        actions: Vec<Action>,
        split: SplitShard,
    ) -> Result<SplitShard, IoError> {
        for _ in 0..UPDATE_TRIES_MAX {
            if self.transact(actions.clone()).await? == Written::Yes {
                return Ok(split);
            }
            let Some(record) = self.load_shard_record(tenant, batch, &shard.id).await? else {
                return Ok(SplitShard::Changed);
            };
            if record.shard.epoch == shard.epoch + 1 && is_written(&record.shard, &split) {
                return Ok(split);
            }
            if !self
                .load_run(tenant, batch)
                .await?
                .is_some_and(|run| run.state.is_open())
            {
                return Ok(SplitShard::Closed);
            }
            if record.shard != *shard {
                return Ok(SplitShard::Changed);
            }
            if split == SplitShard::Completed && record.finished < u64::from(shard.lines) {
                let why = format!(
                    "its segments hold {} lines, its commits {}",
                    shard.lines, record.finished
                );
                return Err(
                    IoError::new("split shard", shard.id.to_string(), IoKind::TooLarge)
                        .because(why),
                );
            }
        }
        Err(contended("split shard", &shard.id))
    }
}

/// The record shows this very write.
fn is_written(stored: &Shard, split: &SplitShard) -> bool {
    match split {
        SplitShard::Split(_) => {
            let waits_alone = stored.alone && matches!(stored.state, ShardState::Released { .. });
            waits_alone || matches!(stored.state, ShardState::Split)
        }
        SplitShard::Completed => matches!(stored.state, ShardState::Done),
        SplitShard::Changed | SplitShard::Closed => false,
    }
}

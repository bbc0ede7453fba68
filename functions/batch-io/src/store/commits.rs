//! Commits: the one write that makes results exist.

use batch_core::batch::TokenCounts;
use batch_core::id::{BatchId, TenantId};
use batch_core::lease;
use batch_core::limits::UPDATE_TRIES_MAX;
use batch_core::shard::{SegmentRef, Shard, ShardState};
use batch_core::time::UnixMs;

use super::Store;
use super::actions::{Written, contended, update};
use super::batch_form::{
    COMPLETED, COST, FAILED, SHARDS_DONE, TOKENS_CACHED, TOKENS_INPUT, TOKENS_OUTPUT, is_open,
};
use super::fields::to_int;
use super::paths::{self, BatchRecord};
use super::shard_form::{FINISHED, ShardRecord, is_held, shard_update};
use crate::port::{Action, Condition, Due, Update, WorkKind};
use crate::{IoError, IoKind};

/// What a commit adds to the batch's public numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitDelta {
    /// Lines with a 2xx response.
    pub completed: u64,
    /// Other finished lines.
    pub failed: u64,
    /// Tokens of both.
    pub tokens: TokenCounts,
    /// Cost of both, in 10⁻¹² dollars.
    pub cost_picodollars: u64,
}

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// It is written: the shard as held now. Give it to the next commit.
    Ok(Shard),
    /// The lease went to another, or was given back: abandon the shard. This call wrote nothing.
    Fenced,
    /// The batch is sealed: abandon the shard. This call wrote nothing.
    Closed,
}

impl Store {
    /// Commits results of a held shard and extends its lease, in one transaction of the shard IF its epoch is
    /// the holder's, and the batch's numbers IF its phase is open. `last` marks the shard done.
    ///
    /// Without a segment the delta must be nothing: it only extends the lease, or marks a shard done whose
    /// segments hold every line. Repeating it with the same segment adds nothing twice: the shard's record
    /// names what it has.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `TooLarge` if the shard would have more results than lines, or fewer when it is done.
    #[expect(
        clippy::too_many_arguments,
        reason = "one transaction, and each is a part of its condition or effect"
    )]
    pub async fn commit_shard(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        held: &Shard,
        segment: Option<SegmentRef>,
        delta: CommitDelta,
        last: bool,
        now: UnixMs,
    ) -> Result<Commit, IoError> {
        if segment.is_none() && delta != CommitDelta::default() {
            let why = "a commit without a segment adds lines, which a repetition would add again";
            return Err(
                IoError::new("commit shard", held.id.to_string(), IoKind::TooLarge).because(why),
            );
        }
        let Ok(next) = lease::commit(held, held.epoch, segment, last, now, &self.timing) else {
            return Ok(Commit::Fenced);
        };
        let finished = delta.completed + delta.failed;
        let mut change = shard_update(&next, &self.timing);
        change.add.push((FINISHED.to_owned(), to_int(finished)));
        let condition = Condition::All(vec![is_held(held), has_room(held, finished, last)]);
        let actions = vec![
            update(paths::shard(tenant, batch, &held.id), change, condition),
            add_to_run(tenant, batch, delta, last, now),
        ];
        // The usual commit reads nothing. Only after a conflict do the records say which it was.
        for _ in 0..UPDATE_TRIES_MAX {
            if self.transact(actions.clone()).await? == Written::Yes {
                return Ok(Commit::Ok(next));
            }
            let Some(record) = self.load_shard_record(tenant, batch, &held.id).await? else {
                return Ok(Commit::Fenced);
            };
            if is_committed(&record.shard, held, segment, last) {
                return Ok(Commit::Ok(record.shard));
            }
            if record.shard.epoch != held.epoch
                || !matches!(record.shard.state, ShardState::Leased { .. })
            {
                return Ok(Commit::Fenced);
            }
            if !self
                .load_run(tenant, batch)
                .await?
                .is_some_and(|run| run.state.is_open())
            {
                return Ok(Commit::Closed);
            }
            check_holder(&record, held, finished, last)?;
        }
        Err(contended("commit shard", &held.id))
    }
}

/// Adds to a batch's public numbers, IF its phase is open.
pub(super) fn add_to_run(
    tenant: &TenantId,
    batch: BatchId,
    delta: CommitDelta,
    last: bool,
    now: UnixMs,
) -> Action {
    let numbers = [
        (COMPLETED, delta.completed),
        (FAILED, delta.failed),
        (TOKENS_INPUT, delta.tokens.input),
        (TOKENS_CACHED, delta.tokens.cached),
        (TOKENS_OUTPUT, delta.tokens.output),
        (COST, delta.cost_picodollars),
        (SHARDS_DONE, u64::from(last)),
    ];
    let add = numbers.into_iter().filter(|(_, number)| *number > 0);
    let change = Update {
        add: add
            .map(|(name, number)| (name.to_owned(), to_int(number)))
            .collect(),
        // Reconcile seals the batch if the worker dies before it does. Due now, not later: with a moment
        // ahead, the last commits of a large batch would put it off again and again.
        due: last.then_some(Some(Due {
            kind: WorkKind::Batch,
            at: now,
        })),
        ..Update::default()
    };
    update(BatchRecord::Run.key(tenant, batch), change, is_open())
}

/// A shard has at most one result a line, and as many as lines when it is done.
pub(super) fn has_room(shard: &Shard, finished: u64, last: bool) -> Condition {
    let room = i64::from(shard.lines) - to_int(finished);
    if last {
        super::actions::int_is(FINISHED, room)
    } else {
        Condition::AtMost(FINISHED.to_owned(), room)
    }
}

/// The record shows this very commit, and the epoch is still the holder's: with another, the results are
/// counted all the same, but the record that now is must not be handed to who no longer holds it.
fn is_committed(stored: &Shard, held: &Shard, segment: Option<SegmentRef>, last: bool) -> bool {
    let is_shown = match segment {
        Some(segment) => stored.segments.contains(&segment),
        None => last && matches!(stored.state, ShardState::Done),
    };
    is_shown && stored.epoch == held.epoch
}

fn check_holder(
    record: &ShardRecord,
    held: &Shard,
    finished: u64,
    last: bool,
) -> Result<(), IoError> {
    let refuse = |why: String| {
        Err(IoError::new("commit shard", held.id.to_string(), IoKind::TooLarge).because(why))
    };
    if record.shard.segments != held.segments {
        return refuse("the holder does not know all segments of its own lease".to_owned());
    }
    let (lines, sum) = (u64::from(held.lines), record.finished + finished);
    if sum > lines || (last && sum < lines) {
        return refuse(format!("{sum} results of {lines} lines"));
    }
    Ok(())
}

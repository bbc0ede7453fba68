//! Batches: loads them, and applies events to them.

use batch_core::batch::{BatchParams, BatchRun, ValidationError};
use batch_core::id::{BatchId, TenantId};
use batch_core::lifecycle::{Effect, Event, Rejected, State, Step, Stop};
use batch_core::limits::UPDATE_TRIES_MAX;
use batch_core::time::UnixMs;

use super::Store;
use super::actions::{Written, contended, int_is, put, text_is, update};
use super::batch_form::{
    CANCELLING_AT, ENDED_AT, ERRORS, FINALIZING_AT, IN_PROGRESS_AT, PIN, RunRecord, SEAL_AT,
    SHARDS_DONE, STAGE_EPOCH, STAGE_UNTIL, STATE, batch_due, read_params, read_run, state_word,
};
use super::fields::{Attrs, Fields, to_int};
use super::files::unpin;
use super::paths::{self, BatchRecord};
use crate::port::{Action, Condition, Due, Item, RecordKey, Update, WorkKind};
use crate::{IoError, IoKind};

const AT: &str = "at";
const STATUS: &str = "status";

/// All that is known of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchView {
    /// What was asked.
    pub params: BatchParams,
    /// How it goes.
    pub run: BatchRun,
    /// Why the input was rejected, if it was.
    pub errors: Option<Vec<ValidationError>>,
}

/// A batch after an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// How it goes now.
    pub run: BatchRun,
    /// What must happen; empty if the event changed nothing.
    pub effects: Vec<Effect>,
}

/// Why an event was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// There is no such batch.
    #[error("no such batch")]
    Missing,
    /// The state forbids it.
    #[error("the event contradicts the state")]
    Rejected(#[source] Rejected),
    /// The records.
    #[error("apply an event")]
    Io(#[from] IoError),
}

impl Store {
    /// Loads a batch.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn load_batch(
        &self,
        tenant: &TenantId,
        batch: BatchId,
    ) -> Result<Option<BatchView>, IoError> {
        let items = self
            .query_all(&paths::batches(tenant), &format!("{batch}/"))
            .await?;
        read_view(&items)
    }

    /// Loads how a batch goes.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn load_run(
        &self,
        tenant: &TenantId,
        batch: BatchId,
    ) -> Result<Option<BatchRun>, IoError> {
        Ok(self
            .load_run_record(tenant, batch)
            .await?
            .map(|record| record.run))
    }

    /// Loads what was asked of a batch.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn load_params(
        &self,
        tenant: &TenantId,
        batch: BatchId,
    ) -> Result<Option<BatchParams>, IoError> {
        let key = BatchRecord::Params.key(tenant, batch);
        self.records
            .get(&key)
            .await?
            .map(|item| read_params(&key, &item))
            .transpose()
    }

    /// Applies an event that needs nothing but itself: all but `Published`, `Rejected` and `Finalized`,
    /// which [`Store::publish`], [`Store::reject`] and [`Store::finish`] apply.
    ///
    /// # Errors
    ///
    /// [`ApplyError`]; an `Io` of kind `Conflict` after
    /// [`UPDATE_TRIES_MAX`] tries.
    pub async fn apply(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        event: Event,
        now: UnixMs,
    ) -> Result<Applied, ApplyError> {
        match event {
            Event::Published { .. } | Event::Rejected | Event::Finalized => {
                let why = "the event needs data: publish, reject and finish apply it";
                return Err(
                    IoError::new("apply event", batch.to_string(), IoKind::TooLarge)
                        .because(why)
                        .into(),
                );
            }
            Event::CancelRequested
            | Event::WindowClosed
            | Event::AllShardsDone
            | Event::GraceOver => {}
        }
        let params = self
            .load_params(tenant, batch)
            .await?
            .ok_or(ApplyError::Missing)?;
        for _ in 0..UPDATE_TRIES_MAX {
            let before = self
                .load_run_record(tenant, batch)
                .await?
                .ok_or(ApplyError::Missing)?;
            let step = before
                .run
                .state
                .on(event, now, self.timing.seal_grace_ms)
                .map_err(ApplyError::Rejected)?;
            if !step.changed {
                return Ok(Applied {
                    run: before.run,
                    effects: step.effects,
                });
            }
            let next = step_run(&before.run, &step, now);
            let mut actions = vec![self.replace_run(&params, &before, &next, Update::default())];
            actions.extend(self.actions_beside(&params, &before, &next, now).await?);
            if self.transact(actions).await? == Written::Yes {
                return Ok(Applied {
                    run: next,
                    effects: step.effects,
                });
            }
        }
        Err(contended("apply event", batch).into())
    }

    /// Sets when reconcile must look at the batch next, after it has looked: when the batch says, or, if that
    /// moment is over and the stage was asked again, when its answer must be there.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn reschedule(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        now: UnixMs,
    ) -> Result<(), IoError> {
        let Some(params) = self.load_params(tenant, batch).await? else {
            return Ok(());
        };
        let Some(RunRecord { run, .. }) = self.load_run_record(tenant, batch).await? else {
            return Ok(());
        };
        let later = now.plus_ms(self.timing.message_lost_ms);
        let due = batch_due(&run, &params, &self.timing);
        let due = due.map(|due| Due {
            at: if due.at <= now { later } else { due.at },
            ..due
        });
        let change = Update {
            due: Some(due),
            ..Update::default()
        };
        // A commit or a claim that came between has set a moment of its own, which must stay.
        let condition = Condition::All(vec![
            is_same_step(&run),
            int_is(STAGE_UNTIL, run.stage.until.0),
            int_is(SHARDS_DONE, to_int(run.shards_done)),
        ]);
        self.act(update(
            BatchRecord::Run.key(tenant, batch),
            change,
            condition,
        ))
        .await?;
        Ok(())
    }

    pub(super) async fn load_run_record(
        &self,
        tenant: &TenantId,
        batch: BatchId,
    ) -> Result<Option<RunRecord>, IoError> {
        let key = BatchRecord::Run.key(tenant, batch);
        self.records
            .get(&key)
            .await?
            .map(|item| read_run(&key, &item))
            .transpose()
    }

    /// Writes a transition: the fields that a step changes, and `more`, IF the state and the stage's epoch are
    /// as read. Counters are not among them.
    pub(super) fn replace_run(
        &self,
        params: &BatchParams,
        before: &RunRecord,
        next: &BatchRun,
        more: Update,
    ) -> Action {
        let mut change = more;
        let attrs = Attrs::default()
            .text(STATE, state_word(next.state))
            .int(STAGE_UNTIL, next.stage.until.0)
            .opt_moment(SEAL_AT, next.seal_at)
            .opt_moment(IN_PROGRESS_AT, next.moments.in_progress_at)
            .opt_moment(FINALIZING_AT, next.moments.finalizing_at)
            .opt_moment(CANCELLING_AT, next.moments.cancelling_at)
            .opt_moment(ENDED_AT, next.moments.ended_at);
        change.set.extend(attrs.into_vec());
        if is_unpinned(before, next) {
            change.remove.push(PIN.to_owned());
        }
        change.due = Some(batch_due(next, params, &self.timing));
        update(
            BatchRecord::Run.key(&params.tenant, params.id),
            change,
            is_same_step(&before.run),
        )
    }

    /// Returns what a transition does to other records: the input file is let go, the notification is written.
    pub(super) async fn actions_beside(
        &self,
        params: &BatchParams,
        before: &RunRecord,
        next: &BatchRun,
        now: UnixMs,
    ) -> Result<Vec<Action>, IoError> {
        let mut actions = Vec::new();
        if let Some(file) = before.pin.filter(|_| is_unpinned(before, next))
            && self.load_file_record(&params.tenant, file).await?.is_some()
        {
            actions.push(unpin(&params.tenant, file));
        }
        if next.state.is_terminal() {
            let attrs = Attrs::of_record()
                .text(STATUS, state_word(next.state))
                .int(AT, now.0);
            let item = Item {
                due: Some(Due {
                    kind: WorkKind::Outbox,
                    at: now,
                }),
                ..attrs.into_item()
            };
            actions.push(put(paths::outbox(&params.tenant, params.id), item));
        }
        Ok(actions)
    }
}

/// Returns the run record after a step.
///
/// A stage's lease ends with the state that it worked in, so that the next stage need not wait for it.
pub(super) fn step_run(run: &BatchRun, step: &Step, now: UnixMs) -> BatchRun {
    let mut next = run.clone();
    next.state = step.next;
    for effect in &step.effects {
        if let Effect::SealAt(at) = effect {
            next.seal_at = Some(*at);
        }
    }
    let moments = &mut next.moments;
    match step.next {
        State::Validating => {}
        State::InProgress => {
            moments.in_progress_at = Some(now);
            next.stage.until = UnixMs::default();
        }
        State::Draining(Stop::Cancelled) => {
            moments.cancelling_at.get_or_insert(now);
        }
        State::Draining(Stop::Expired) => {
            moments.finalizing_at.get_or_insert(now);
        }
        State::Sealed(outcome) => {
            if outcome.stop() == Some(Stop::Cancelled) {
                moments.cancelling_at.get_or_insert(now);
            }
            moments.finalizing_at.get_or_insert(now);
            if !matches!(run.state, State::Sealed(_)) {
                next.stage.until = UnixMs::default();
            }
        }
        State::Ended(_) => moments.ended_at = Some(now),
    }
    next
}

/// State and stage are as they were read, so that moments computed from them are right.
pub(super) fn is_same_step(run: &BatchRun) -> Condition {
    Condition::All(vec![
        text_is(STATE, state_word(run.state)),
        int_is(STAGE_EPOCH, to_int(run.stage.epoch)),
    ])
}

fn is_unpinned(before: &RunRecord, next: &BatchRun) -> bool {
    before.pin.is_some() && next.state != State::Validating
}

/// Puts the records of one batch together; none if there is no batch.
pub(super) fn read_view(items: &[(RecordKey, Item)]) -> Result<Option<BatchView>, IoError> {
    let (mut params, mut run, mut errors) = (None, None, None);
    for (key, item) in items {
        match BatchRecord::parse(&key.sort) {
            Some((_, BatchRecord::Params)) => params = Some(read_params(key, item)?),
            Some((_, BatchRecord::Run)) => run = Some(read_run(key, item)?.run),
            Some((_, BatchRecord::Errors)) => errors = Some(Fields::of(key, item)?.json(ERRORS)?),
            None => {
                let name = format!("{}/{}", key.partition, key.sort);
                return Err(IoError::new("read batch", name, IoKind::Corrupt)
                    .because("no batch has such a record"));
            }
        }
    }
    Ok(params.zip(run).map(|(params, run)| BatchView {
        params,
        run,
        errors,
    }))
}

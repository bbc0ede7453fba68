//! The two stages of a batch that hold a lease on it (validate, finalize), and publishing.

use batch_core::batch::{BatchParams, BatchRun, FileDigest, LineCounts, Manifest, StageLease};
use batch_core::id::{BatchId, TenantId};
use batch_core::lifecycle::{Event, State};
use batch_core::limits::{
    BACKLOGS_WITH_PUBLICATION_MAX, TRANSACTION_ACTIONS_MAX, UPDATE_TRIES_MAX,
};
use batch_core::shard::Backlog;
use batch_core::time::UnixMs;

use super::actions::{Written, contended, put, update};
use super::batch_form::{
    ESTIMATED_TOKENS, MANIFEST, MODELS, RunRecord, SAVED_PLACE, SHARDS_TOTAL, STAGE_EPOCH,
    STAGE_UNTIL, TOTAL, WINDOWS, batch_due,
};
use super::batches::{is_same_step, step_run};
use super::fields::Attrs;
use super::paths::{self, BatchRecord};
use super::shard_form::backlog_item;
use super::{Store, quota};
use crate::IoError;
use crate::port::{Action, Due, Update};

/// A stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Reads the input of a validating batch.
    Validate,
    /// Writes the files of a sealed batch.
    Finalize,
}

/// A stage's lease on a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// What was asked.
    pub params: BatchParams,
    /// How it goes, the lease included.
    pub run: BatchRun,
    /// The fencing token.
    pub epoch: u64,
}

/// What a sound input came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    /// Models by slot.
    pub models: Vec<String>,
    /// Windows, each with an index blob.
    pub windows: u32,
    /// Lines.
    pub total: u64,
    /// Shards, all of them stored.
    pub shards_total: u64,
    /// Tokens that all lines are estimated to take.
    pub estimated_tokens: u64,
    /// The shards of each model; none is released yet.
    pub backlogs: Vec<Backlog>,
    /// Digest of the input file; it becomes [`Manifest::input`](batch_core::batch::Manifest::input).
    pub input: FileDigest,
    /// Tokens that the tenant may have waiting; none is no limit.
    pub enqueued_tokens_max: Option<u64>,
}

/// What became of a publication.
#[derive(Debug, Clone, PartialEq)]
pub enum Published {
    /// The batch is in progress: dispatch.
    Done(Box<BatchRun>),
    /// The lease is lost, or the batch no longer validating. Nothing was written.
    Fenced,
    /// The tenant would have more tokens waiting than allowed: reject it as `token_limit_exceeded`.
    OverTokenLimit {
        /// Tokens allowed.
        limit: u64,
    },
}

impl Store {
    /// Claims a stage of a batch; none if the batch is not there, not in that stage, or another holds it.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn claim_stage(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        stage: Stage,
        now: UnixMs,
    ) -> Result<Option<Claimed>, IoError> {
        let Some(params) = self.load_params(tenant, batch).await? else {
            return Ok(None);
        };
        for _ in 0..UPDATE_TRIES_MAX {
            let Some(RunRecord { run, .. }) = self.load_run_record(tenant, batch).await? else {
                return Ok(None);
            };
            if !stage.works_on(run.state) || now < run.stage.until.plus_ms(self.timing.takeover_ms)
            {
                return Ok(None);
            }
            let epoch = run.stage.epoch + 1;
            let lease = StageLease {
                epoch,
                until: now.plus_ms(self.timing.lease_ms),
            };
            let next = BatchRun {
                stage: lease,
                ..run.clone()
            };
            if self
                .act(self.lease_stage(&params, &run, &next, now))
                .await?
            {
                return Ok(Some(Claimed {
                    params,
                    run: next,
                    epoch,
                }));
            }
        }
        Err(contended("claim stage", batch))
    }

    /// Extends a stage's lease, and returns whether it is still held.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn renew_stage(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        stage: Stage,
        epoch: u64,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        let until = now.plus_ms(self.timing.lease_ms);
        let (lease, no_sooner) = (StageLease { epoch, until }, UnixMs::default());
        self.change_lease(tenant, batch, stage, lease, no_sooner, |run| run)
            .await
    }

    /// Ends a stage's lease at once, so that the message that asked for it can be tried again; returns whether
    /// it was held. Reconcile asks again when that message must be lost.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn give_back_stage(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        stage: Stage,
        epoch: u64,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        let lost = now.plus_ms(self.timing.message_lost_ms);
        let over = self.over(epoch, now);
        self.change_lease(tenant, batch, stage, over, lost, |run| run)
            .await
    }

    /// Ends a finalizer's lease at once, and says that its place is stored for the next one; returns whether
    /// it held the lease.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn save_place(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        epoch: u64,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        let change = |run| BatchRun {
            saved_place: Some(epoch),
            ..run
        };
        let over = self.over(epoch, now);
        self.change_lease(tenant, batch, Stage::Finalize, over, now, change)
            .await
    }

    /// Ends a finalizer's lease at once, and forgets the saved place that nobody can go on from: the next one
    /// starts over. Returns whether it held the lease.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn drop_place(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        epoch: u64,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        let change = |run| BatchRun {
            saved_place: None,
            ..run
        };
        let over = self.over(epoch, now);
        self.change_lease(tenant, batch, Stage::Finalize, over, now, change)
            .await
    }

    /// Returns a lease that is over: nobody must wait for one that was given back.
    fn over(&self, epoch: u64, now: UnixMs) -> StageLease {
        let until = now.plus_ms(-self.timing.takeover_ms);
        StageLease { epoch, until }
    }

    /// Puts `lease` and what `change` makes of the batch in place of what is there, IF the batch is in that
    /// stage and of the lease's epoch; returns whether it was. Reconcile looks at it no sooner than `look_at`,
    /// unless its window ends before.
    async fn change_lease(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        stage: Stage,
        lease: StageLease,
        look_at: UnixMs,
        change: impl Fn(BatchRun) -> BatchRun,
    ) -> Result<bool, IoError> {
        let Some(params) = self.load_params(tenant, batch).await? else {
            return Ok(false);
        };
        for _ in 0..UPDATE_TRIES_MAX {
            let Some(RunRecord { run, .. }) = self.load_run_record(tenant, batch).await? else {
                return Ok(false);
            };
            if !stage.works_on(run.state) || run.stage.epoch != lease.epoch {
                return Ok(false);
            }
            let next = BatchRun {
                stage: lease,
                ..change(run.clone())
            };
            let look_at = match stage {
                Stage::Validate => look_at.min(params.expires_at),
                Stage::Finalize => look_at,
            };
            if self
                .act(self.lease_stage(&params, &run, &next, look_at))
                .await?
            {
                return Ok(true);
            }
        }
        Err(contended("change the stage lease", batch))
    }

    /// Puts a validated batch in progress: numbers, backlogs and the reserved quota, in one transaction IF it
    /// is validating and the lease of this epoch holds. Its shards must be stored. Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn publish(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        epoch: u64,
        publication: Publication,
        now: UnixMs,
    ) -> Result<Published, IoError> {
        let Some(params) = self.load_params(tenant, batch).await? else {
            return Ok(Published::Fenced);
        };
        let event = Event::Published {
            total: publication.total,
            shards_total: publication.shards_total,
        };
        for _ in 0..UPDATE_TRIES_MAX {
            let Some(before) = self.load_run_record(tenant, batch).await? else {
                return Ok(Published::Fenced);
            };
            if before.run.stage.epoch != epoch {
                return Ok(Published::Fenced);
            }
            if before.run.moments.in_progress_at.is_some() {
                return Ok(Published::Done(Box::new(before.run)));
            }
            let Ok(step) = before.run.state.on(event, now, self.timing.seal_grace_ms) else {
                return Ok(Published::Fenced);
            };
            let Some(reservation) = quota::reserve(
                tenant,
                publication.estimated_tokens,
                publication.enqueued_tokens_max,
            ) else {
                return Ok(over_limit(&publication));
            };
            let next = published_run(step_run(&before.run, &step, now), &publication);
            let mut actions = vec![
                reservation,
                self.replace_run(&params, &before, &next, published_fields(&next)),
            ];
            actions.extend(self.actions_beside(&params, &before, &next, now).await?);
            actions.extend(self.put_backlogs(tenant, batch, &publication).await?);
            match self.transact(actions).await? {
                Written::Yes => return Ok(Published::Done(Box::new(next))),
                // The others held: it is the tokens, not a lost lease.
                Written::No(positions) if positions == [0] => return Ok(over_limit(&publication)),
                Written::No(_) => {}
            }
        }
        Err(contended("publish batch", batch))
    }

    fn lease_stage(
        &self,
        params: &BatchParams,
        run: &BatchRun,
        next: &BatchRun,
        look_at: UnixMs,
    ) -> Action {
        let due = batch_due(next, params, &self.timing).map(|due| Due {
            at: due.at.max(look_at),
            ..due
        });
        // A renewal that arrives late must not undo a place that was saved meanwhile.
        let drops_place = run.saved_place.is_some() && next.saved_place.is_none();
        let change = Update {
            set: Attrs::default()
                .count(STAGE_EPOCH, next.stage.epoch)
                .int(STAGE_UNTIL, next.stage.until.0)
                .opt_text(SAVED_PLACE, next.saved_place.map(|epoch| epoch.to_string()))
                .into_vec(),
            remove: drops_place
                .then(|| SAVED_PLACE.to_owned())
                .into_iter()
                .collect(),
            due: Some(due),
            ..Update::default()
        };
        update(
            BatchRecord::Run.key(&params.tenant, params.id),
            change,
            is_same_step(run),
        )
    }

    /// Writes the backlogs that do not fit beside the publication, and returns the others.
    ///
    /// They come first: a backlog of a batch that is not in progress releases nothing, while a batch in
    /// progress without a backlog would never end.
    async fn put_backlogs(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        publication: &Publication,
    ) -> Result<Vec<Action>, IoError> {
        let puts = publication.backlogs.iter();
        let mut actions: Vec<Action> = puts
            .map(|backlog| {
                put(
                    paths::backlog(tenant, batch, backlog.slot),
                    backlog_item(backlog),
                )
            })
            .collect();
        let before = actions.split_off(actions.len().min(BACKLOGS_WITH_PUBLICATION_MAX));
        for chunk in before.chunks(TRANSACTION_ACTIONS_MAX) {
            self.transact(chunk.to_vec()).await?;
        }
        Ok(actions)
    }
}

impl Stage {
    fn works_on(self, state: State) -> bool {
        match self {
            Stage::Validate => state == State::Validating,
            Stage::Finalize => matches!(state, State::Sealed(_)),
        }
    }
}

fn over_limit(publication: &Publication) -> Published {
    Published::OverTokenLimit {
        limit: publication.enqueued_tokens_max.unwrap_or(u64::MAX),
    }
}

fn published_run(run: BatchRun, publication: &Publication) -> BatchRun {
    BatchRun {
        models: publication.models.clone(),
        counts: LineCounts {
            total: publication.total,
            ..run.counts
        },
        shards_total: publication.shards_total,
        windows: publication.windows,
        estimated_tokens: publication.estimated_tokens,
        manifest: Some(Manifest {
            input: publication.input.clone(),
            output: None,
            error: None,
        }),
        ..run
    }
}

fn published_fields(run: &BatchRun) -> Update {
    let attrs = Attrs::default()
        .json(MODELS, &run.models)
        .count(TOTAL, run.counts.total)
        .count(SHARDS_TOTAL, run.shards_total)
        .count(WINDOWS, u64::from(run.windows))
        .count(ESTIMATED_TOKENS, run.estimated_tokens)
        .json(MANIFEST, &run.manifest);
    Update {
        set: attrs.into_vec(),
        ..Update::default()
    }
}

//! The two ends of a batch that a stage writes: rejected, and finished. Each is one transaction.

use batch_core::batch::{
    BatchParams, BatchRun, Endpoint, LineCounts, Manifest, TokenCounts, ValidationError,
};
use batch_core::file::File;
use batch_core::id::{BatchId, TenantId};
use batch_core::lifecycle::{Event, State, Terminal};
use batch_core::limits::UPDATE_TRIES_MAX;
use batch_core::time::UnixMs;
use serde::Serialize;

use super::actions::{Written, contended, put, put_new};
use super::batch_form::{ERROR_FILE, ERRORS, FAILED, MANIFEST, OUTPUT_FILE, RunRecord, state_word};
use super::batches::step_run;
use super::fields::{Attrs, to_int};
use super::files::file_item;
use super::paths::{self, BatchRecord};
use super::{Store, quota};
use crate::IoError;
use crate::port::{Action, Update};

const BILL: &str = "bill";

/// What a finalizer has written.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The output file; none if it would be empty.
    pub output: Option<File>,
    /// The error file; none if it would be empty.
    pub error: Option<File>,
    /// Proof.
    pub manifest: Manifest,
}

/// What became of a finish.
#[derive(Debug, Clone, PartialEq)]
pub enum Finished {
    /// The batch has ended: notify.
    Done(Box<BatchRun>),
    /// The lease is lost, or the batch not sealed. Nothing was written.
    Fenced,
}

impl Store {
    /// Ends a validating batch as failed, with its errors, IF the lease of this epoch holds. Returns whether
    /// it has failed so. Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn reject(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        epoch: u64,
        errors: Vec<ValidationError>,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        let Some(params) = self.load_params(tenant, batch).await? else {
            return Ok(false);
        };
        for _ in 0..UPDATE_TRIES_MAX {
            let Some(before) = self.load_run_record(tenant, batch).await? else {
                return Ok(false);
            };
            if before.run.stage.epoch != epoch {
                return Ok(false);
            }
            if before.run.state != State::Validating {
                return Ok(before.run.state == State::Ended(Terminal::Failed));
            }
            let Ok(step) = before
                .run
                .state
                .on(Event::Rejected, now, self.timing.seal_grace_ms)
            else {
                return Ok(false);
            };
            let next = step_run(&before.run, &step, now);
            let item = Attrs::of_record().json(ERRORS, &errors).into_item();
            let mut actions = vec![
                self.replace_run(&params, &before, &next, Update::default()),
                put(BatchRecord::Errors.key(tenant, batch), item),
            ];
            actions.extend(self.actions_beside(&params, &before, &next, now).await?);
            if self.transact(actions).await? == Written::Yes {
                return Ok(true);
            }
        }
        Err(contended("reject batch", batch))
    }

    /// Ends a sealed batch, in one transaction IF it is sealed and the lease of this epoch holds: file
    /// records, state, counts (a line without a result counts as failed), manifest, notification, bill and
    /// returned quota. Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn finish(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        epoch: u64,
        finish: Finish,
        now: UnixMs,
    ) -> Result<Finished, IoError> {
        let Some(params) = self.load_params(tenant, batch).await? else {
            return Ok(Finished::Fenced);
        };
        for _ in 0..UPDATE_TRIES_MAX {
            let Some(before) = self.load_run_record(tenant, batch).await? else {
                return Ok(Finished::Fenced);
            };
            if before.run.stage.epoch != epoch {
                return Ok(Finished::Fenced);
            }
            match before.run.state {
                State::Sealed(_) => {}
                // Only the finalizer of this epoch can have ended it.
                State::Ended(_) => return Ok(Finished::Done(Box::new(before.run))),
                State::Validating | State::InProgress | State::Draining(_) => {
                    return Ok(Finished::Fenced);
                }
            }
            let Ok(step) = before
                .run
                .state
                .on(Event::Finalized, now, self.timing.seal_grace_ms)
            else {
                return Ok(Finished::Fenced);
            };
            // A sealed batch releases nothing: its backlogs can go before it ends, in as many calls as it takes.
            self.delete_all(self.backlog_keys(tenant, batch).await?)
                .await?;
            let next = finished_run(step_run(&before.run, &step, now), &finish);
            let mut actions = finish_actions(&params, &next, &finish);
            actions.push(self.replace_run(
                &params,
                &before,
                &next,
                finished_fields(&before, &next),
            ));
            actions.extend(self.actions_beside(&params, &before, &next, now).await?);
            if self.transact(actions).await? == Written::Yes {
                return Ok(Finished::Done(Box::new(next)));
            }
        }
        Err(contended("finish batch", batch))
    }
}

/// What a tenant owes for a batch.
#[derive(Debug, Serialize)]
struct Bill<'a> {
    endpoint: Endpoint,
    models: &'a [String],
    status: &'static str,
    counts: LineCounts,
    tokens: TokenCounts,
    cost_picodollars: u64,
    ended_at: Option<UnixMs>,
}

fn finished_run(run: BatchRun, finish: &Finish) -> BatchRun {
    let counts = LineCounts {
        failed: run.counts.total.saturating_sub(run.counts.completed),
        ..run.counts
    };
    BatchRun {
        counts,
        output_file_id: finish.output.as_ref().map(|file| file.id),
        error_file_id: finish.error.as_ref().map(|file| file.id),
        manifest: Some(finish.manifest.clone()),
        ..run
    }
}

/// The failed count is added to, as by a commit: no commit can come between, for the batch is sealed.
fn finished_fields(before: &RunRecord, next: &BatchRun) -> Update {
    let attrs = Attrs::default()
        .json(MANIFEST, &next.manifest)
        .opt_text(
            OUTPUT_FILE,
            next.output_file_id.map(|file| file.to_string()),
        )
        .opt_text(ERROR_FILE, next.error_file_id.map(|file| file.to_string()));
    let unexecuted = to_int(next.counts.failed.saturating_sub(before.run.counts.failed));
    let add = if unexecuted == 0 {
        Vec::new()
    } else {
        vec![(FAILED.to_owned(), unexecuted)]
    };
    Update {
        set: attrs.into_vec(),
        add,
        ..Update::default()
    }
}

/// Everything in a finish but the batch itself and what every end does.
fn finish_actions(params: &BatchParams, next: &BatchRun, finish: &Finish) -> Vec<Action> {
    let files = finish.output.iter().chain(&finish.error);
    let mut actions: Vec<Action> = files
        .map(|file| put_new(paths::file(&params.tenant, file.id), file_item(file)))
        .collect();
    let bill = Bill {
        endpoint: params.endpoint,
        models: &next.models,
        status: state_word(next.state),
        counts: next.counts,
        tokens: next.tokens,
        cost_picodollars: next.cost_picodollars,
        ended_at: next.moments.ended_at,
    };
    let item = Attrs::of_record().json(BILL, &bill).into_item();
    actions.push(put(paths::ledger(&params.tenant, params.id), item));
    // A batch that was never published reserved nothing.
    if next.moments.in_progress_at.is_some() {
        actions.push(quota::release(&params.tenant, next.estimated_tokens));
    }
    actions
}

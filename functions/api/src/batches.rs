//! `/batches`, but for their creation.

use std::sync::Arc;

use axum::extract::{Query, State};
use batch_core::id::BatchId;
use batch_core::lifecycle::{Effect, Event, State as BatchState};
use batch_core::message::{QueueName, SCHEMA, StageJob};
use batch_core::time::UnixMs;
use batch_core::wire::query::LimitBounds;
use batch_core::wire::{BatchObject, ListQuery, Page, Progress, ProgressInput, WireError};
use batch_core::worker::WorkerRecord;
use batch_io::store::{ApplyError, BatchView};
use batch_io::{IoError, IoKind};

use crate::caller::Caller;
use crate::context::Context;
use crate::create_batch::send_job;
use crate::files::{FilePath, Pairs, path_text};
use crate::reply::{ApiError, Reply, json};

pub(crate) async fn list(
    State(context): State<Arc<Context>>,
    caller: Caller,
    Query(pairs): Pairs,
) -> Reply {
    let query = ListQuery::<BatchId>::parse(&pairs, LimitBounds::BATCHES)?;
    let batches = context
        .store
        .list_batches(&caller.tenant, query.after, query.limit)
        .await?;
    let workers = if batches
        .items
        .iter()
        .any(|view| waits_for_workers(&view.run.state))
    {
        context.store.list_workers(caller.now).await?
    } else {
        Vec::new()
    };
    let objects = batches.items.iter().map(|view| {
        (
            view.params.id.to_string(),
            object(view, &workers, caller.now),
        )
    });
    Ok(json(&Page::new(objects, batches.has_more)))
}

pub(crate) async fn retrieve(
    State(context): State<Arc<Context>>,
    caller: Caller,
    id: FilePath,
) -> Reply {
    let text = path_text(id);
    let id: BatchId = text.parse().map_err(|_| WireError::no_batch(&text))?;
    let view = load(&context, &caller, id).await?;
    mark_seen(&context, &caller, &view).await;
    answer(&context, &caller, &view).await
}

/// Asks a batch to stop. Repeating it is fine, also once it has stopped.
pub(crate) async fn cancel(
    State(context): State<Arc<Context>>,
    caller: Caller,
    id: FilePath,
) -> Reply {
    let text = path_text(id);
    let id: BatchId = text.parse().map_err(|_| WireError::no_batch(&text))?;
    let applied = match context
        .store
        .apply(&caller.tenant, id, Event::CancelRequested, caller.now)
        .await
    {
        Ok(applied) => applied,
        Err(ApplyError::Missing) => return Err(WireError::no_batch(&text).into()),
        Err(ApplyError::Io(fault)) => return Err(fault.into()),
        Err(ApplyError::Rejected(_)) => {
            let view = load(&context, &caller, id).await?;
            return Err(WireError::cannot_cancel(view.run.state.status()).into());
        }
    };
    for effect in applied.effects {
        match effect {
            Effect::Finalize => {
                let job = StageJob {
                    schema: SCHEMA,
                    tenant: caller.tenant.clone(),
                    batch: id,
                };
                send_job(&context, &QueueName::Finalize, &job).await;
            }
            // Reconcile seals, and a cancel neither releases work nor ends a batch.
            Effect::SealAt(_) | Effect::Validate | Effect::Dispatch | Effect::Notify(_) => {}
        }
    }
    let view = load(&context, &caller, id).await?;
    mark_seen(&context, &caller, &view).await;
    answer(&context, &caller, &view).await
}

/// Answers with a batch of the caller's.
pub(crate) async fn show(context: &Context, caller: &Caller, id: BatchId) -> Reply {
    let view = load(context, caller, id).await?;
    answer(context, caller, &view).await
}

async fn answer(context: &Context, caller: &Caller, view: &BatchView) -> Reply {
    let workers = if waits_for_workers(&view.run.state) {
        context.store.list_workers(caller.now).await?
    } else {
        Vec::new()
    };
    Ok(json(&object(view, &workers, caller.now)))
}

async fn load(context: &Context, caller: &Caller, id: BatchId) -> Result<BatchView, ApiError> {
    let view = context.store.load_batch(&caller.tenant, id).await?;
    view.ok_or_else(|| WireError::no_batch(&id.to_string()).into())
}

/// Remembers that the caller knows of the batch. Nothing but the next retry depends on it, so that a busy
/// store does not fail the request.
async fn mark_seen(context: &Context, caller: &Caller, view: &BatchView) {
    match context
        .store
        .mark_seen(&view.params, caller.key, caller.now)
        .await
    {
        Ok(()) => {}
        Err(IoError {
            kind: IoKind::Busy | IoKind::Conflict,
            ..
        }) => {}
        Err(fault) => {
            tracing::warn!(error = %fault, batch.id = %view.params.id, "a look is not remembered")
        }
    }
}

fn object<'a>(view: &'a BatchView, workers: &[WorkerRecord], now: UnixMs) -> BatchObject<'a> {
    let progress = Progress::new(ProgressInput {
        run: &view.run,
        workers,
        now,
    });
    BatchObject::new(&view.params, &view.run, view.errors.as_deref(), progress)
}

fn waits_for_workers(state: &BatchState) -> bool {
    match state {
        BatchState::InProgress => true,
        BatchState::Validating
        | BatchState::Draining(_)
        | BatchState::Sealed(_)
        | BatchState::Ended(_) => false,
    }
}

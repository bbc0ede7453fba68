//! Batches that time has changed, and stages that got stuck.

use batch_core::id::{BatchId, TenantId};
use batch_core::lifecycle::{Effect, Event, State, due_event, next_look};
use batch_core::message::QueueName;
use batch_core::time::UnixMs;
use batch_io::IoError;
use batch_io::store::{ApplyError, BatchView};

use crate::Context;
use crate::messages::ask_stage;
use crate::report::Report;

/// Which stages have an empty queue.
///
/// A stage that has messages waiting is busy, not stuck: to send more of them would only lengthen its queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleStages {
    validate: bool,
    finalize: bool,
}

impl IdleStages {
    /// Looks at the queues, once for a whole run.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub(crate) async fn look(ctx: &Context) -> Result<Self, IoError> {
        Ok(Self {
            validate: ctx.platform.queue.depth(&QueueName::Validate).await? == 0,
            finalize: ctx.platform.queue.depth(&QueueName::Finalize).await? == 0,
        })
    }
}

/// Applies the event that is due, or asks again for a stage that is stuck.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn look_at(
    ctx: &Context,
    tenant: &TenantId,
    batch: BatchId,
    idle: IdleStages,
    now: UnixMs,
    report: &mut Report,
) -> Result<(), IoError> {
    let Some(view) = ctx.store.load_batch(tenant, batch).await? else { return Ok(()) };
    if apply_due(ctx, &view, now, report).await? {
        return Ok(());
    }
    let is_due = next_look(&view.run, &view.params, &ctx.settings.timing).is_some_and(|at| at <= now);
    let (queue, is_idle) = match view.run.state {
        State::Validating => (QueueName::Validate, idle.validate),
        State::Sealed(_) => (QueueName::Finalize, idle.finalize),
        State::InProgress | State::Draining(_) | State::Ended(_) => return ctx.store.reschedule(tenant, batch, now).await,
    };
    if is_due && is_idle {
        ask_stage(ctx, &queue, tenant, batch).await?;
        report.stages_resent += 1;
    }
    ctx.store.reschedule(tenant, batch, now).await
}

/// Seals a batch whose last shard is done, unless somebody has.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn seal_if_done(
    ctx: &Context,
    tenant: &TenantId,
    batch: BatchId,
    now: UnixMs,
    report: &mut Report,
) -> Result<(), IoError> {
    let Some(view) = ctx.store.load_batch(tenant, batch).await? else { return Ok(()) };
    apply_due(ctx, &view, now, report).await.map(|_| ())
}

/// Applies the event that is due, and returns whether there was one.
async fn apply_due(ctx: &Context, view: &BatchView, now: UnixMs, report: &mut Report) -> Result<bool, IoError> {
    let BatchView { params, run, .. } = view;
    let Some(event) = due_event(run, params, now) else { return Ok(false) };
    apply(ctx, &params.tenant, params.id, event, now, report).await?;
    Ok(true)
}

async fn apply(
    ctx: &Context,
    tenant: &TenantId,
    batch: BatchId,
    event: Event,
    now: UnixMs,
    report: &mut Report,
) -> Result<(), IoError> {
    let applied = match ctx.store.apply(tenant, batch, event, now).await {
        Ok(applied) => applied,
        Err(ApplyError::Io(error)) => return Err(error),
        // Another was faster: the state that the event was made for is over.
        Err(ApplyError::Missing | ApplyError::Rejected(_)) => return Ok(()),
    };
    if applied.effects.is_empty() {
        return Ok(());
    }
    tracing::info!(batch.id = %batch, %event, state = %applied.run.state, "time moved a batch");
    if event == Event::WindowClosed {
        report.windows_closed += 1;
    }
    for effect in applied.effects {
        match effect {
            Effect::Finalize => {
                report.batches_sealed += 1;
                ask_stage(ctx, &QueueName::Finalize, tenant, batch).await?;
            }
            // The other effects are records already: the seal's moment, and the notification.
            Effect::Validate | Effect::Dispatch | Effect::SealAt(_) | Effect::Notify(_) => {}
        }
    }
    Ok(())
}

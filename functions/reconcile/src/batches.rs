//! Batches that time has changed, and stages that got stuck.

use batch_core::id::{BatchId, TenantId};
use batch_core::lifecycle::{Effect, Event, State, due_event, next_look};
use batch_core::message::QueueName;
use batch_core::time::UnixMs;
use batch_io::IoError;
use batch_io::store::ApplyError;

use crate::Context;
use crate::messages::ask_stage;
use crate::report::Report;

/// Applies the event that is due, or asks again for a stage that does not move.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn look_at(
    ctx: &Context,
    tenant: &TenantId,
    batch: BatchId,
    now: UnixMs,
    report: &mut Report,
) -> Result<(), IoError> {
    let Some(view) = ctx.store.load_batch(tenant, batch).await? else { return Ok(()) };
    if let Some(event) = due_event(&view.run, &view.params, now) {
        return apply(ctx, tenant, batch, event, now, report).await;
    }
    let due = next_look(&view.run, &view.params, &ctx.settings.timing).is_some_and(|at| at <= now);
    let queue = match view.run.state {
        State::Validating => QueueName::Validate,
        State::Sealed(_) => QueueName::Finalize,
        State::InProgress | State::Draining(_) | State::Ended(_) => return ctx.store.reschedule(tenant, batch, now).await,
    };
    if due {
        ask_stage(ctx, &queue, tenant, batch).await?;
        report.stages_resent += 1;
    }
    ctx.store.reschedule(tenant, batch, now).await
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

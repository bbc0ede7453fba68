//! Batches that time has changed, and stages that got stuck.

use batch_core::id::{BatchId, TenantId};
use batch_core::lifecycle::{Effect, Event, State, due_event, next_look};
use batch_core::message::QueueName;
use batch_io::IoError;
use batch_io::store::{ApplyError, BatchView};

use crate::messages::ask_stage;
use crate::pass::Pass;

/// Applies the event that is due, or asks again for a stage that is stuck.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn look_at(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    batch: BatchId,
) -> Result<(), IoError> {
    let Some(view) = pass.ctx.store.load_batch(tenant, batch).await? else {
        return Ok(());
    };
    if apply_due(pass, &view).await? {
        return Ok(());
    }
    let is_due = next_look(&view.run, &view.params, pass.ctx.store.timing())
        .is_some_and(|at| at <= pass.now);
    let (queue, is_idle) = match view.run.state {
        State::Validating => (QueueName::Validate, pass.validate_is_idle),
        State::Sealed(_) => (QueueName::Finalize, pass.finalize_is_idle),
        State::InProgress | State::Draining(_) | State::Ended(_) => {
            return pass.ctx.store.reschedule(tenant, batch, pass.now).await;
        }
    };
    if is_due && is_idle {
        ask_stage(pass.ctx, &queue, tenant, batch).await?;
        pass.report.stages_resent += 1;
    }
    pass.ctx.store.reschedule(tenant, batch, pass.now).await
}

/// Seals a batch whose last shard is done, unless somebody has.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn seal_if_done(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    batch: BatchId,
) -> Result<(), IoError> {
    let Some(view) = pass.ctx.store.load_batch(tenant, batch).await? else {
        return Ok(());
    };
    apply_due(pass, &view).await.map(|_| ())
}

/// Applies the event that is due, and returns whether there was one.
async fn apply_due(pass: &mut Pass<'_>, view: &BatchView) -> Result<bool, IoError> {
    let BatchView { params, run, .. } = view;
    let Some(event) = due_event(run, params, pass.now) else {
        return Ok(false);
    };
    apply(pass, &params.tenant, params.id, event).await?;
    Ok(true)
}

async fn apply(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    batch: BatchId,
    event: Event,
) -> Result<(), IoError> {
    let applied = match pass.ctx.store.apply(tenant, batch, event, pass.now).await {
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
        pass.report.windows_closed += 1;
    }
    for effect in applied.effects {
        match effect {
            Effect::Finalize => {
                pass.report.batches_sealed += 1;
                ask_stage(pass.ctx, &QueueName::Finalize, tenant, batch).await?;
            }
            // The other effects are records already: the seal's moment, and the notification.
            Effect::Validate | Effect::Dispatch | Effect::SealAt(_) | Effect::Notify(_) => {}
        }
    }
    Ok(())
}

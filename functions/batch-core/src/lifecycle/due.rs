//! When a batch must be looked at again, and what time alone does to it.

use super::{Event, State};
use crate::batch::{BatchParams, BatchRun};
use crate::settings::Timing;
use crate::time::UnixMs;

/// Returns when reconcile must look at a batch next; none once it has ended.
///
/// A moment in the past means now: the last shard is done and nobody sealed the batch, or a stage's
/// lease or message got lost.
#[must_use]
pub fn next_look(run: &BatchRun, params: &BatchParams, timing: &Timing) -> Option<UnixMs> {
    match run.state {
        State::Validating => Some(stage_look(run, params, timing).min(params.expires_at)),
        State::InProgress if run.shards_are_done() => {
            run.moments.in_progress_at.or(Some(params.created_at))
        }
        State::InProgress => Some(params.expires_at),
        State::Draining(_) => Some(run.seal_at.unwrap_or_default()),
        State::Sealed(_) => Some(stage_look(run, params, timing)),
        State::Ended(_) => None,
    }
}

/// Returns the event that is due at `now`, if any: the last shard, the end of the window or of the grace.
#[must_use]
pub fn due_event(run: &BatchRun, params: &BatchParams, now: UnixMs) -> Option<Event> {
    match run.state {
        State::Validating => (params.expires_at <= now).then_some(Event::WindowClosed),
        State::InProgress if run.shards_are_done() => Some(Event::AllShardsDone),
        State::InProgress => (params.expires_at <= now).then_some(Event::WindowClosed),
        State::Draining(_) if run.shards_are_done() => Some(Event::AllShardsDone),
        State::Draining(_) => (run.seal_at.unwrap_or_default() <= now).then_some(Event::GraceOver),
        State::Sealed(_) | State::Ended(_) => None,
    }
}

/// A stage is stuck when the lease of whoever answered its message is over, or when nobody has answered for
/// too long.
fn stage_look(run: &BatchRun, params: &BatchParams, timing: &Timing) -> UnixMs {
    let moments = [run.moments.finalizing_at, run.moments.cancelling_at];
    let asked_at = moments
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(params.created_at);
    let takeover = run.stage.until.plus_ms(timing.takeover_ms);
    let was_claimed = run.stage.until > asked_at;
    if was_claimed {
        takeover
    } else {
        takeover.max(asked_at.plus_ms(timing.message_lost_ms))
    }
}

//! The transitions of [`State`], and what is still to be done in each.
//!
//! Repeated events change nothing; contradictory ones are [`Rejected`]. The whole table is in
//! `golden/lifecycle.txt`, printed by the tests.

use super::{Effect, Event, SealedAs, State, Stop, Terminal};
use crate::time::UnixMs;

/// What follows from an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where the batch stands now.
    pub next: State,
    /// What must happen; empty if nothing changed.
    pub effects: Vec<Effect>,
    /// Whether `next` differs from before.
    pub changed: bool,
}

/// An event that contradicts the state: a caller's fault or a late message, never a reason to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event} does not apply to a batch that is {state}")]
pub struct Rejected {
    /// Where the batch stands.
    pub state: State,
    /// What was asked.
    pub event: Event,
}

impl Step {
    fn unchanged(state: State) -> Self {
        Self {
            next: state,
            effects: Vec::new(),
            changed: false,
        }
    }
}

impl State {
    /// Decides what `event` does to a batch in this state.
    ///
    /// A draining batch is sealed `seal_grace_ms` after `now`, unless all its shards are done before.
    ///
    /// # Errors
    ///
    /// [`Rejected`] if the event contradicts the state.
    pub fn on(self, event: Event, now: UnixMs, seal_grace_ms: i64) -> Result<Step, Rejected> {
        let drain = |why| {
            step(
                State::Draining(why),
                vec![Effect::SealAt(now.plus_ms(seal_grace_ms))],
            )
        };
        let seal = |outcome| step(State::Sealed(outcome), vec![Effect::Finalize]);
        let end = |how| step(State::Ended(how), vec![Effect::Notify(how)]);
        let unchanged = Ok(Step::unchanged(self));
        let rejected = Err(Rejected { state: self, event });
        match self {
            State::Validating => match event {
                Event::Published {
                    total,
                    shards_total,
                } if total > 0 && shards_total > 0 => {
                    step(State::InProgress, vec![Effect::Dispatch])
                }
                Event::Rejected => end(Terminal::Failed),
                Event::CancelRequested => seal(SealedAs::Cancelled),
                Event::WindowClosed => end(Terminal::Expired),
                Event::Published { .. }
                | Event::AllShardsDone
                | Event::GraceOver
                | Event::Finalized => rejected,
            },
            State::InProgress => match event {
                Event::CancelRequested => drain(Stop::Cancelled),
                Event::WindowClosed => drain(Stop::Expired),
                Event::AllShardsDone => seal(SealedAs::Completed),
                Event::Published { .. } | Event::Rejected | Event::GraceOver | Event::Finalized => {
                    rejected
                }
            },
            State::Draining(why) => match event {
                Event::GraceOver | Event::AllShardsDone => seal(why.sealed_as()),
                Event::CancelRequested if why == Stop::Expired => {
                    step(State::Draining(Stop::Cancelled), Vec::new())
                }
                Event::CancelRequested | Event::WindowClosed => unchanged,
                Event::Published { .. } | Event::Rejected | Event::Finalized => rejected,
            },
            State::Sealed(outcome) => match event {
                Event::Finalized => end(outcome.terminal()),
                Event::CancelRequested if outcome != SealedAs::Cancelled => {
                    step(State::Sealed(SealedAs::Cancelled), Vec::new())
                }
                Event::CancelRequested
                | Event::WindowClosed
                | Event::AllShardsDone
                | Event::GraceOver => unchanged,
                Event::Published { .. } | Event::Rejected => rejected,
            },
            State::Ended(how) => match event {
                Event::CancelRequested if how != Terminal::Cancelled => rejected,
                Event::Rejected if how != Terminal::Failed => rejected,
                Event::Finalized if how == Terminal::Failed => rejected,
                Event::CancelRequested
                | Event::Rejected
                | Event::Finalized
                | Event::WindowClosed
                | Event::AllShardsDone
                | Event::GraceOver => unchanged,
                Event::Published { .. } => rejected,
            },
        }
    }
}

/// Returns what a batch in `state` waits for, so that a lost effect can be asked for again.
///
/// `seal_at` is the run record's; a draining batch without one is sealed at once.
#[must_use]
pub fn pending_effects(state: State, seal_at: Option<UnixMs>) -> Vec<Effect> {
    match state {
        State::Validating => vec![Effect::Validate],
        State::InProgress => vec![Effect::Dispatch],
        State::Draining(_) => vec![Effect::SealAt(seal_at.unwrap_or_default())],
        State::Sealed(_) => vec![Effect::Finalize],
        State::Ended(how) => vec![Effect::Notify(how)],
    }
}

impl Stop {
    /// Returns how a batch that drains for this reason will be sealed.
    #[must_use]
    pub fn sealed_as(self) -> SealedAs {
        match self {
            Stop::Cancelled => SealedAs::Cancelled,
            Stop::Expired => SealedAs::Expired,
        }
    }
}

impl SealedAs {
    /// Returns how a batch that is sealed so will end.
    #[must_use]
    pub fn terminal(self) -> Terminal {
        match self {
            SealedAs::Completed => Terminal::Completed,
            SealedAs::Cancelled => Terminal::Cancelled,
            SealedAs::Expired => Terminal::Expired,
        }
    }

    /// Returns why lines have no result; none if every line has one.
    #[must_use]
    pub fn stop(self) -> Option<Stop> {
        match self {
            SealedAs::Completed => None,
            SealedAs::Cancelled => Some(Stop::Cancelled),
            SealedAs::Expired => Some(Stop::Expired),
        }
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "an arm of `on`, whose result it is"
)]
fn step(next: State, effects: Vec<Effect>) -> Result<Step, Rejected> {
    Ok(Step {
        next,
        effects,
        changed: true,
    })
}

//! The state machine of a batch: one pure function, one table.
//!
//! `State` is what is stored; the eight statuses of the wire are derived from it ([`State::status`]).
//! Effects are idempotent and derivable from the state, so that losing one is only a delay.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::UnixMs;

mod due;
mod on;
#[cfg(test)]
mod tests;

pub use due::{due_event, next_look};
pub use on::{Rejected, Step, pending_effects};

/// Why work on a batch is being stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The user asked.
    Cancelled,
    /// The window closed.
    Expired,
}

/// How a sealed batch will end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SealedAs {
    /// Every line has a result.
    Completed,
    /// The user asked.
    Cancelled,
    /// The window closed.
    Expired,
}

/// How a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Terminal {
    /// All lines were answered, well or with an error.
    Completed,
    /// The input file was rejected; nothing ran.
    Failed,
    /// The window closed first.
    Expired,
    /// The user stopped it.
    Cancelled,
}

/// Where a batch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "why")]
pub enum State {
    /// The input file is being read.
    Validating,
    /// Lines run; workers may commit.
    InProgress,
    /// No more releases; workers may commit what they have until the grace ends.
    Draining(Stop),
    /// No worker can commit any more; the finalizer writes the files.
    Sealed(SealedAs),
    /// Nothing changes any more.
    Ended(Terminal),
}

/// The statuses of OpenAI's API; never another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The input file is being read.
    Validating,
    /// The input file was rejected.
    Failed,
    /// Lines run.
    InProgress,
    /// Results are being written.
    Finalizing,
    /// Done.
    Completed,
    /// The window closed.
    Expired,
    /// Being stopped.
    Cancelling,
    /// Stopped.
    Cancelled,
}

impl State {
    /// Returns the wire's word for this state.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            State::Validating => Status::Validating,
            State::InProgress => Status::InProgress,
            State::Draining(Stop::Cancelled) | State::Sealed(SealedAs::Cancelled) => {
                Status::Cancelling
            }
            State::Draining(Stop::Expired)
            | State::Sealed(SealedAs::Completed | SealedAs::Expired) => Status::Finalizing,
            State::Ended(Terminal::Completed) => Status::Completed,
            State::Ended(Terminal::Failed) => Status::Failed,
            State::Ended(Terminal::Expired) => Status::Expired,
            State::Ended(Terminal::Cancelled) => Status::Cancelled,
        }
    }

    /// Returns whether workers may commit results: the phase is open.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, State::InProgress | State::Draining(_))
    }

    /// Returns whether nothing changes any more.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, State::Ended(_))
    }
}

/// What happens to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The input is sound: this many lines, cut into this many shards.
    Published {
        /// Lines.
        total: u64,
        /// Shards.
        shards_total: u64,
    },
    /// The input is not sound.
    Rejected,
    /// The user asks to stop.
    CancelRequested,
    /// `expires_at` is reached.
    WindowClosed,
    /// Every shard is done.
    AllShardsDone,
    /// The grace after cancel or expiry is over.
    GraceOver,
    /// The output files are written and proven complete.
    Finalized,
}

/// What must happen after a transition. Each may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Read the input file.
    Validate,
    /// Release shards.
    Dispatch,
    /// Seal at this moment, unless all shards are done before.
    SealAt(UnixMs),
    /// Write the output files.
    Finalize,
    /// Tell the tenant.
    Notify(Terminal),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Validating => "validating",
            State::InProgress => "in progress",
            State::Draining(Stop::Cancelled) => "draining (cancelled)",
            State::Draining(Stop::Expired) => "draining (expired)",
            State::Sealed(SealedAs::Completed) => "sealed (completed)",
            State::Sealed(SealedAs::Cancelled) => "sealed (cancelled)",
            State::Sealed(SealedAs::Expired) => "sealed (expired)",
            State::Ended(Terminal::Completed) => "completed",
            State::Ended(Terminal::Failed) => "failed",
            State::Ended(Terminal::Expired) => "expired",
            State::Ended(Terminal::Cancelled) => "cancelled",
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Published {
                total,
                shards_total,
            } => write!(f, "published ({total} lines, {shards_total} shards)"),
            Event::Rejected => f.write_str("rejected"),
            Event::CancelRequested => f.write_str("cancel requested"),
            Event::WindowClosed => f.write_str("window closed"),
            Event::AllShardsDone => f.write_str("all shards done"),
            Event::GraceOver => f.write_str("grace over"),
            Event::Finalized => f.write_str("finalized"),
        }
    }
}

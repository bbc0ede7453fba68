//! Leases: who may run a shard, and what becomes of one that is lost.
//!
//! Every decision reads one shard record and returns the next. The store writes it only if state, epoch
//! and segments are still as they were read: the epoch alone would let a takeover that was decided before
//! a commit overwrite that commit.

use crate::id::WorkerId;
use crate::limits::SHARD_LOSSES_MAX;
use crate::settings::Timing;
use crate::shard::{SegmentRef, Shard, ShardId, ShardState};
use crate::time::UnixMs;

/// The answer to a worker that wants a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The shard's next record: the worker holds it under the new epoch.
    Granted(Shard),
    /// Nothing is left to do: delete the message.
    Finished,
    /// Another worker holds it up to this moment; its lease, not the message, brings it back.
    Busy {
        /// When the lease may be taken over.
        until: UnixMs,
    },
    /// It is not released, or must be divided first: delete the message, another will be sent.
    NotYet,
}

/// Decides whether `owner` may run `shard`.
///
/// A lapsed lease is taken over, which counts as a loss of its holder, unless that loss is one too many.
#[must_use]
pub fn claim(shard: &Shard, owner: WorkerId, now: UnixMs, timing: &Timing) -> Claim {
    let losses = match shard.state {
        ShardState::Pending => return Claim::NotYet,
        ShardState::Done | ShardState::Split => return Claim::Finished,
        ShardState::Released { .. } => shard.losses,
        ShardState::Leased { until, .. } => {
            let takeover = until.plus_ms(timing.takeover_ms);
            if now < takeover {
                return Claim::Busy { until: takeover };
            }
            if shard.losses + 1 >= SHARD_LOSSES_MAX {
                return Claim::NotYet;
            }
            shard.losses + 1
        }
    };
    let state = ShardState::Leased {
        owner,
        until: now.plus_ms(timing.lease_ms),
    };
    Claim::Granted(Shard {
        state,
        epoch: shard.epoch + 1,
        losses,
        ..shard.clone()
    })
}

/// A holder that holds no more: abandon the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("shard is at epoch {now}, not leased at {held}")]
pub struct Fenced {
    /// The epoch that the caller holds.
    pub held: u64,
    /// The epoch of the record.
    pub now: u64,
}

/// Adds a segment to a shard that is held at `epoch` and renews the lease; `last` makes it done.
///
/// A lapsed lease that nobody took over is renewed too.
///
/// # Errors
///
/// [`Fenced`] if the shard is not leased at `epoch`, or the segment is of another epoch.
pub fn commit(
    shard: &Shard,
    epoch: u64,
    segment: Option<SegmentRef>,
    last: bool,
    now: UnixMs,
    timing: &Timing,
) -> Result<Shard, Fenced> {
    let owner = holder(shard, epoch)?;
    if segment.is_some_and(|segment| segment.epoch != epoch) {
        return Err(Fenced {
            held: epoch,
            now: shard.epoch,
        });
    }
    let mut next = shard.clone();
    // A commit whose answer got lost is sent again.
    next.segments
        .extend(segment.filter(|segment| !shard.segments.contains(segment)));
    next.state = if last {
        ShardState::Done
    } else {
        ShardState::Leased {
            owner,
            until: now.plus_ms(timing.lease_ms),
        }
    };
    Ok(next)
}

/// Gives a shard that is held at `epoch` back, without a loss: a drain, a spot notice, a stop.
///
/// # Errors
///
/// [`Fenced`] if the shard is not leased at `epoch`.
pub fn hand_back(shard: &Shard, epoch: u64, now: UnixMs, timing: &Timing) -> Result<Shard, Fenced> {
    holder(shard, epoch)?;
    Ok(released(shard, shard.losses, now, timing))
}

/// What becomes of a shard whose holder may be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lapse {
    /// Nobody holds it.
    NotHeld,
    /// The lease runs on: look again at this moment.
    StillHeld {
        /// When the lease may be taken over.
        until: UnixMs,
    },
    /// Send a message for it after a while.
    Release {
        /// The shard's next record.
        next: Shard,
        /// How long the message should wait: a lone line that kills its worker backs off.
        delay_ms: i64,
    },
    /// One loss too many: find the lines without a result and call [`split`].
    Split,
    /// The lone line killed its worker too often: write its error line, and commit it as the last.
    ///
    /// The caller holds the shard for that, for one lease and under a new epoch. The dead holder stays its
    /// owner, so that nobody else asks for it meanwhile; if the caller dies too, the next look is the same.
    GiveUp {
        /// The shard's next record, as the caller holds it.
        held: Shard,
    },
}

/// Decides about a lease that may have lapsed.
///
/// `holder_is_dead` is known where a supervisor saw the process end: no need to wait for the lease.
#[must_use]
pub fn lapse(shard: &Shard, holder_is_dead: bool, now: UnixMs, timing: &Timing) -> Lapse {
    let ShardState::Leased { owner, until } = shard.state else {
        return Lapse::NotHeld;
    };
    let takeover = until.plus_ms(timing.takeover_ms);
    if !holder_is_dead && now < takeover {
        return Lapse::StillHeld { until: takeover };
    }
    let losses = shard.losses.saturating_add(1);
    if losses < SHARD_LOSSES_MAX {
        let delay_ms = if shard.alone {
            timing.commit_ms.saturating_mul(1 << losses.min(16))
        } else {
            0
        };
        return Lapse::Release {
            next: released(shard, losses, now.plus_ms(delay_ms), timing),
            delay_ms,
        };
    }
    if !shard.alone {
        return Lapse::Split;
    }
    let state = ShardState::Leased {
        owner,
        until: now.plus_ms(timing.lease_ms),
    };
    Lapse::GiveUp {
        held: Shard {
            state,
            epoch: shard.epoch + 1,
            losses,
            ..shard.clone()
        },
    }
}

/// How a shard that was lost too often goes on.
#[expect(
    clippy::large_enum_variant,
    reason = "it is made once a split, and taken apart at once"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Split {
    /// Every line has a result: the shard is done.
    Done(Shard),
    /// One line is left: the same shard runs it alone.
    Alone(Shard),
    /// The lines that are left are halved.
    Halves {
        /// The shard's next record: its segments stay.
        parent: Shard,
        /// Two new records, released.
        children: [Shard; 2],
    },
}

/// Divides a shard that was lost too often by its `unfinished` lines.
///
/// `unfinished` are ordinals in the root's blob, ascending.
#[must_use]
pub fn split(shard: &Shard, unfinished: &[u32], now: UnixMs, timing: &Timing) -> Split {
    let mut next = Shard {
        epoch: shard.epoch + 1,
        ..shard.clone()
    };
    match unfinished {
        [] => {
            next.state = ShardState::Done;
            Split::Done(next)
        }
        [_] => Split::Alone(Shard {
            segments: shard.segments.clone(),
            ..part(shard, next.id, next.epoch, unfinished, now, timing)
        }),
        [..] => {
            next.state = ShardState::Split;
            let (left, right) = unfinished.split_at(unfinished.len() / 2);
            let [first, second] = shard.id.children();
            let children = [(first, left), (second, right)]
                .map(|(id, lines)| part(shard, id, 0, lines, now, timing));
            Split::Halves {
                parent: next,
                children,
            }
        }
    }
}

/// Returns the worker that holds `shard` at `epoch`.
fn holder(shard: &Shard, epoch: u64) -> Result<WorkerId, Fenced> {
    match shard.state {
        ShardState::Leased { owner, .. } if shard.epoch == epoch => Ok(owner),
        ShardState::Leased { .. }
        | ShardState::Pending
        | ShardState::Released { .. }
        | ShardState::Done
        | ShardState::Split => Err(Fenced {
            held: epoch,
            now: shard.epoch,
        }),
    }
}

/// The epoch rises here too, so that a commit of the former holder is refused by the epoch alone.
fn released(shard: &Shard, losses: u32, now: UnixMs, timing: &Timing) -> Shard {
    let state = ShardState::Released {
        check_at: now.plus_ms(timing.message_lost_ms),
    };
    Shard {
        state,
        epoch: shard.epoch + 1,
        losses,
        ..shard.clone()
    }
}

fn part(
    whole: &Shard,
    id: ShardId,
    epoch: u64,
    ordinals: &[u32],
    now: UnixMs,
    timing: &Timing,
) -> Shard {
    let lines = u32::try_from(ordinals.len()).unwrap_or(u32::MAX);
    Shard {
        id,
        model: whole.model.clone(),
        window: whole.window,
        lines,
        estimated_tokens: whole.estimated_tokens.saturating_mul(u64::from(lines))
            / u64::from(whole.lines.max(1)),
        subset: Some(ordinals.to_vec()),
        state: ShardState::Released {
            check_at: now.plus_ms(timing.message_lost_ms),
        },
        epoch,
        losses: 0,
        alone: lines == 1,
        segments: Vec::new(),
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;

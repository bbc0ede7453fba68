//! How many workers a group of like machines should have: what waits, against when it must be done.
//!
//! A pure function of the demand; who starts and stops machines is no concern of it.

use crate::time::UnixMs;

#[cfg(test)]
mod tests;

/// Tokens (prompt and output) a second of one worker, for a model that nothing is known of: a small GPU with
/// a model of 8 billion parameters.
pub const RATE_DEFAULT: u32 = 1_000;

/// Share of the time left in which the work should be done: half. The rest is for lost machines and for lines
/// that take longer than estimated. Dispatch calls a batch urgent at the same point.
const TIME_SHARE_DIVISOR: i64 = 2;

/// Milliseconds that a new worker needs before its first token: five minutes for the machine, the image and
/// the weights.
const START_MS: i64 = 300_000;

/// Shortest time that work is spread over: two minutes, as long as a shard takes. Work that is due sooner is
/// late in any case, and wants every worker that can still help.
const BURST_MS: i64 = 120_000;

/// Work of one deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueWork {
    /// When it must be done.
    pub deadline: UnixMs,
    /// Milliseconds that one worker needs for it.
    pub worker_ms: u64,
}

impl DueWork {
    /// Makes the work of so many tokens at a worker's rate; the default rate if it is not known.
    #[must_use]
    pub fn of_tokens(tokens: u64, tokens_per_s: Option<u32>, deadline: UnixMs) -> Self {
        let rate = tokens_per_s.filter(|rate| *rate > 0);
        let rate = u64::from(rate.unwrap_or(RATE_DEFAULT));
        Self {
            deadline,
            worker_ms: tokens.saturating_mul(1_000).div_ceil(rate),
        }
    }
}

/// Everything of one model that is not done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demand {
    /// Model id.
    pub model: String,
    /// In any order.
    pub work: Vec<DueWork>,
}

impl Demand {
    /// Returns how long one worker needs for all of it, in seconds, rounded up.
    #[must_use]
    pub fn worker_seconds(&self) -> u64 {
        let work = self.work.iter().map(|due| due.worker_ms);
        work.fold(0, u64::saturating_add).div_ceil(1_000)
    }

    /// Returns the deadline that comes first.
    #[must_use]
    pub fn nearest_deadline(&self) -> Option<UnixMs> {
        self.work.iter().map(|due| due.deadline).min()
    }
}

/// Workers of one kind of machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group<'a> {
    /// Ids of the models that they serve.
    pub models: &'a [String],
    /// Workers that run even when nothing waits.
    pub workers_min: u32,
    /// Most workers.
    pub workers_max: u32,
}

/// Returns how many workers a group should have.
///
/// For each deadline, all work that is due by then must fit into half of the time that is left once new
/// workers are up. One worker runs as soon as anything waits. The group's bounds hold in any case.
#[must_use]
pub fn workers_wanted<'a>(
    demands: impl IntoIterator<Item = &'a Demand>,
    group: &Group<'_>,
    now: UnixMs,
) -> u32 {
    let demands = demands.into_iter();
    let own = demands.filter(|demand| group.models.contains(&demand.model));
    let mut work: Vec<DueWork> = own.flat_map(|demand| demand.work.iter().copied()).collect();
    work.sort_unstable_by_key(|due| due.deadline);
    let (mut due_by, mut wanted) = (0_u64, 0_u64);
    for due in work.iter().filter(|due| due.worker_ms > 0) {
        due_by = due_by.saturating_add(due.worker_ms);
        wanted = wanted.max(due_by.div_ceil(time_for(due.deadline, now)));
    }
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
    wanted.max(group.workers_min).min(group.workers_max)
}

/// Returns the milliseconds that each worker can give to work of a deadline.
fn time_for(deadline: UnixMs, now: UnixMs) -> u64 {
    let left = deadline.0.saturating_sub(now.0);
    let usable = (left / TIME_SHARE_DIVISOR).saturating_sub(START_MS);
    usable.max(BURST_MS).unsigned_abs()
}

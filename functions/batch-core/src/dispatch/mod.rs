//! Which shards are released next: fair between tenants, urgent batches first.
//!
//! Deficit round robin by estimated tokens, over tenants and, within a tenant, over its batches. A plan
//! is a pure function of what waits, who works and what the last plan left in [`Cursors`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::ring::Ring;
use crate::id::{BatchId, TenantId};
pub use crate::limits::RELEASE_SHARDS_MAX;
use crate::message::Lane;
use crate::settings::Timing;
use crate::shard::Backlog;
use crate::time::UnixMs;
use crate::worker::WorkerRecord;

mod ring;
#[cfg(test)]
mod tests;

/// Shards that stay released for a model even if no worker is up, so that a fleet at zero starts.
const DEPTH_SHARDS_MIN: u64 = 4;

/// Shards that one plan releases.
const PLAN_SHARDS_MAX: usize = 1_000;

/// Batches whose deficits are remembered: 4,000 * 60 bytes, within one record.
const CURSOR_BATCHES_MAX: usize = 4_000;

/// A batch's unreleased shards of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Owner.
    pub tenant: TenantId,
    /// Batch.
    pub batch: BatchId,
    /// Its shards.
    pub backlog: Backlog,
}

/// What of a model is in its queues, claimed by nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depth {
    /// Shards.
    pub shards: u64,
    /// Tokens that they were estimated to take.
    pub tokens: u64,
}

/// What the dispatcher knows about one model.
#[derive(Debug, Clone)]
pub struct DispatchInput<'a> {
    /// Model id.
    pub model: &'a str,
    /// Unreleased shards; those of other models and past their deadline are passed over.
    pub backlogs: &'a [Waiting],
    /// Every registered worker.
    pub workers: &'a [WorkerRecord],
    /// What is released and not claimed.
    pub released: Depth,
    /// Tokens a second of one worker, for while none is measured: learned, or the catalog's.
    pub known_rate: Option<u32>,
    /// What the last plan for this model left.
    pub cursors: &'a Cursors,
    /// Now.
    pub now: UnixMs,
    /// Times.
    pub timing: &'a Timing,
}

/// Shards of one batch to release, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Owner.
    pub tenant: TenantId,
    /// Batch.
    pub batch: BatchId,
    /// Index into the batch's models.
    pub slot: u16,
    /// The first shard.
    pub from: u32,
    /// How many, at most [`RELEASE_SHARDS_MAX`].
    pub count: u32,
    /// Which queue.
    pub lane: Lane,
}

/// What to release now, and what to remember.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DispatchPlan {
    /// In the order in which they must be carried out.
    pub releases: Vec<Release>,
    /// For the next plan.
    pub cursors: Cursors,
}

/// How many tokens each tenant and batch may still take before it is the others' turn.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursors {
    tenants: Ring<TenantId>,
    batches: BTreeMap<TenantId, Ring<BatchId>>,
}

/// Plans the releases of one model.
///
/// Keeps max(4 shards, one a slot of its workers, two dispatch periods of their measured work) released.
/// Shards of the fast lane may go beyond, to twice as many, so that a full queue never hides them.
/// A batch whose slack is below twice its remaining work goes first, within its tenant's share.
#[must_use]
pub fn plan(input: &DispatchInput<'_>) -> DispatchPlan {
    let capacity = Capacity::of(input);
    let mut waiting = candidates(input, &capacity);
    let quantum = waiting
        .iter()
        .map(|candidate| candidate.cost)
        .max()
        .unwrap_or(1);
    let mut cursors = input.cursors.clone();
    cursors.forget_idle(&waiting, quantum);
    let mut released = input.released;
    let mut releases: Vec<Release> = Vec::new();
    for _ in 0..PLAN_SHARDS_MAX {
        let Some(only_fast) = capacity.room(released) else {
            break;
        };
        waiting.retain(|candidate| candidate.next < candidate.end);
        let open = || {
            waiting
                .iter()
                .filter(|candidate| !only_fast || candidate.lane == Lane::Fast)
        };
        let Some(tenant) = cursors
            .tenants
            .pick(open().map(Candidate::of_tenant), quantum, false)
        else {
            break;
        };
        let own = open().filter(|candidate| *candidate.tenant == tenant);
        let batches = cursors.batches.entry(tenant.clone()).or_default();
        let Some(batch) = batches.pick(own.map(Candidate::of_batch), quantum, true) else {
            break;
        };
        let Some(chosen) = waiting
            .iter_mut()
            .find(|it| it.batch == batch && *it.tenant == tenant)
        else {
            break;
        };
        batches.charge(&batch, chosen.cost);
        cursors.tenants.charge(&tenant, chosen.cost);
        released = Depth {
            shards: released.shards + 1,
            tokens: released.tokens.saturating_add(chosen.cost),
        };
        append(&mut releases, chosen);
        chosen.next += 1;
    }
    DispatchPlan { releases, cursors }
}

/// How much a model's workers can take.
#[derive(Debug, Clone, Copy)]
struct Capacity {
    shards: u64,
    tokens: u64,
    /// Tokens a second of all workers; of one, while none is measured; 0 if even that is unknown.
    rate: u64,
}

impl Capacity {
    fn of(input: &DispatchInput<'_>) -> Self {
        let serving = |worker: &&WorkerRecord| {
            worker.loaded.as_deref() == Some(input.model) && worker.expires_at > input.now
        };
        let workers = || input.workers.iter().filter(serving);
        let slots: u64 = workers().map(|worker| u64::from(worker.slots)).sum();
        let measured: u64 = workers().map(|worker| u64::from(worker.tokens_per_s)).sum();
        let periods_ms = u64::try_from(input.timing.dispatch_ms.saturating_mul(2)).unwrap_or(0);
        let rate = if measured > 0 {
            measured
        } else {
            u64::from(input.known_rate.unwrap_or(0))
        };
        Self {
            shards: slots.max(DEPTH_SHARDS_MIN),
            tokens: measured.saturating_mul(periods_ms) / 1_000,
            rate,
        }
    }

    /// Returns whether only the fast lane has room; none if nothing has.
    fn room(&self, released: Depth) -> Option<bool> {
        if released.shards < self.shards || released.tokens < self.tokens {
            Some(false)
        } else {
            (released.shards < self.shards.saturating_mul(2)).then_some(true)
        }
    }

    /// Returns how long the workers need for these tokens, if that is known.
    fn work_ms(&self, tokens: u64) -> Option<i64> {
        let work_ms = tokens.saturating_mul(1_000).checked_div(self.rate)?;
        Some(i64::try_from(work_ms).unwrap_or(i64::MAX))
    }
}

/// A batch that could be released from.
#[derive(Debug)]
struct Candidate<'a> {
    tenant: &'a TenantId,
    batch: BatchId,
    slot: u16,
    next: u32,
    end: u32,
    /// Tokens of its average shard.
    cost: u64,
    lane: Lane,
    /// Its deadline, if it is in danger.
    urgent: Option<UnixMs>,
}

impl Candidate<'_> {
    fn of_tenant(&self) -> (&TenantId, Option<UnixMs>) {
        (self.tenant, self.urgent)
    }

    fn of_batch(&self) -> (&BatchId, Option<UnixMs>) {
        (&self.batch, self.urgent)
    }
}

fn candidates<'a>(input: &DispatchInput<'a>, capacity: &Capacity) -> Vec<Candidate<'a>> {
    let open = input.backlogs.iter().filter(|waiting| {
        let Backlog {
            model,
            next,
            shards,
            deadline,
            ..
        } = &waiting.backlog;
        model == input.model && next < shards && *deadline > input.now
    });
    let candidate = |waiting: &'a Waiting| {
        let backlog = &waiting.backlog;
        let work_ms = capacity.work_ms(backlog.estimated_tokens);
        let slack_ms = backlog.deadline.since_ms(input.now);
        let urgent = work_ms
            .is_some_and(|work_ms| slack_ms < work_ms.saturating_mul(2))
            .then_some(backlog.deadline);
        Candidate {
            tenant: &waiting.tenant,
            batch: waiting.batch,
            slot: backlog.slot,
            next: backlog.next,
            end: backlog.shards,
            cost: (backlog.estimated_tokens / u64::from(backlog.shards - backlog.next)).max(1),
            lane: if urgent.is_some() || backlog.shards == 1 {
                Lane::Fast
            } else {
                Lane::Bulk
            },
            urgent,
        }
    };
    open.map(candidate).collect()
}

impl Cursors {
    /// Who waits no more loses its claim, so that idling earns nothing; so does the record's growth.
    fn forget_idle(&mut self, waiting: &[Candidate<'_>], quantum: u64) {
        let tenants: BTreeMap<&TenantId, ()> = waiting
            .iter()
            .map(|candidate| (candidate.tenant, ()))
            .collect();
        let batches: BTreeMap<BatchId, ()> = waiting
            .iter()
            .map(|candidate| (candidate.batch, ()))
            .collect();
        self.tenants
            .retain(|tenant| tenants.contains_key(tenant), quantum);
        self.batches
            .retain(|tenant, _| tenants.contains_key(tenant));
        for ring in self.batches.values_mut() {
            ring.retain(|batch| batches.contains_key(batch), quantum);
        }
        if self.batches.values().map(Ring::len).sum::<usize>() > CURSOR_BATCHES_MAX {
            self.batches.clear();
        }
    }
}

fn append(releases: &mut Vec<Release>, chosen: &Candidate<'_>) {
    if let Some(last) = releases.last_mut()
        && last.batch == chosen.batch
        && last.slot == chosen.slot
        && last.count < RELEASE_SHARDS_MAX
    {
        last.count += 1;
        return;
    }
    releases.push(Release {
        tenant: chosen.tenant.clone(),
        batch: chosen.batch,
        slot: chosen.slot,
        from: chosen.next,
        count: 1,
        lane: chosen.lane,
    });
}

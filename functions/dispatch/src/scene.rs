//! All that the plans of one run are made from, and the numbers that it gives.

use std::collections::BTreeMap;

use batch_core::dispatch::{Depth, Waiting};
use batch_core::fleet::{Demand, DueWork};
use batch_core::shard::ShardState;
use batch_core::time::UnixMs;
use batch_core::worker::WorkerRecord;
use batch_io::IoError;
use batch_io::store::ReleasedShard;

use crate::Context;
use crate::release::ModelBacklog;

/// What waits, what runs, and who works.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) backlogs: Vec<Waiting>,
    pub(crate) workers: Vec<WorkerRecord>,
    released: BTreeMap<String, Depth>,
    /// Released and leased shards.
    working: Vec<ReleasedShard>,
    rates: BTreeMap<String, u32>,
    now: UnixMs,
}

impl Scene {
    /// Reads it; none if `model` is named and has no unreleased shards: then the shards at work, the dearest
    /// part, need not be read.
    pub(crate) async fn read(
        ctx: &Context,
        model: Option<&str>,
        now: UnixMs,
    ) -> Result<Option<Self>, IoError> {
        let backlogs = ctx.store.list_backlogs().await?;
        if model.is_some_and(|model| backlogs.iter().all(|(_, _, it)| it.model != model)) {
            return Ok(None);
        }
        let working = ctx.store.list_working().await?;
        let mut released: BTreeMap<String, Depth> = BTreeMap::new();
        for one in working.iter().filter(|one| is_released(one)) {
            let depth = released.entry(one.shard.model.clone()).or_default();
            depth.shards += 1;
            depth.tokens = depth.tokens.saturating_add(one.shard.estimated_tokens);
        }
        let waiting = backlogs
            .into_iter()
            .map(|(tenant, batch, backlog)| Waiting {
                tenant,
                batch,
                backlog,
            });
        Ok(Some(Self {
            backlogs: waiting.collect(),
            workers: ctx.store.list_workers(now).await?,
            released,
            working,
            rates: ctx.store.list_rates().await?,
            now,
        }))
    }

    /// Returns the models of everything that waits or runs, some of them twice.
    pub(crate) fn models(&self) -> impl Iterator<Item = &str> {
        let waiting = self.backlogs.iter();
        let waiting = waiting.map(|waiting| waiting.backlog.model.as_str());
        let working = self.working.iter();
        waiting.chain(working.map(|one| one.shard.model.as_str()))
    }

    /// Returns what of a model is in its queues.
    pub(crate) fn released(&self, model: &str) -> Depth {
        self.released.get(model).copied().unwrap_or_default()
    }

    /// Returns the tokens a second of one worker, for while none is measured: learned, or the catalog's.
    pub(crate) fn known_rate(&self, ctx: &Context, model: &str) -> Option<u32> {
        let listed = ctx.catalog.resolve(model);
        let listed = || listed.and_then(|listed| listed.tokens_per_s);
        self.rates.get(model).copied().or_else(listed)
    }

    /// Counts what waits and runs of a model. What is past its deadline counts no more: it expires.
    pub(crate) fn measure(&self, ctx: &Context, model: &str) -> ModelBacklog {
        let rate = self
            .measured_rate(model)
            .or_else(|| self.known_rate(ctx, model));
        let depth = self.released(model);
        let mut numbers = ModelBacklog {
            model: model.to_owned(),
            unreleased_shards: 0,
            unreleased_tokens: 0,
            released_shards: depth.shards,
            released_tokens: depth.tokens,
            leased_shards: 0,
            leased_tokens: 0,
            newly_released: 0,
            demand: Demand::default(),
        };
        let mut tokens_by: BTreeMap<UnixMs, u64> = BTreeMap::new();
        let mut add = |deadline: UnixMs, tokens: u64| {
            if deadline > self.now {
                let sum = tokens_by.entry(deadline).or_default();
                // Work that was underestimated is not done before it is done.
                *sum = sum.saturating_add(tokens.max(1));
            }
        };
        for Waiting { backlog, .. } in &self.backlogs {
            if backlog.model == model {
                let shards = backlog.shards.saturating_sub(backlog.next);
                numbers.unreleased_shards += u64::from(shards);
                numbers.unreleased_tokens = numbers
                    .unreleased_tokens
                    .saturating_add(backlog.estimated_tokens);
                add(backlog.deadline, backlog.estimated_tokens);
            }
        }
        for one in self.working.iter().filter(|one| one.shard.model == model) {
            let tokens = one.tokens_left();
            add(one.deadline, tokens);
            if !is_released(one) {
                numbers.leased_shards += 1;
                numbers.leased_tokens = numbers.leased_tokens.saturating_add(tokens);
            }
        }
        numbers.demand = Demand {
            model: model.to_owned(),
            work: tokens_by
                .into_iter()
                .map(|(deadline, tokens)| DueWork::of_tokens(tokens, rate, deadline))
                .collect(),
        };
        numbers
    }

    /// Returns the mean tokens a second of the workers that have the model loaded and measured it.
    fn measured_rate(&self, model: &str) -> Option<u32> {
        let serving = self.workers.iter();
        let rates: Vec<u64> = serving
            .filter(|worker| worker.loaded.as_deref() == Some(model) && worker.tokens_per_s > 0)
            .map(|worker| u64::from(worker.tokens_per_s))
            .collect();
        let mean = rates.iter().sum::<u64>().checked_div(rates.len() as u64)?;
        u32::try_from(mean).ok()
    }
}

fn is_released(one: &ReleasedShard) -> bool {
    matches!(one.shard.state, ShardState::Released { .. })
}

//! One run of the dispatcher: read, plan, release, tell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use batch_core::dispatch::{Cursors, Depth, DispatchInput, Release, Waiting, plan};
use batch_core::message::{DispatchJob, SCHEMA};
use batch_core::time::UnixMs;
use batch_core::worker::WorkerRecord;
use batch_io::{IoError, IoKind};

use crate::Context;
use crate::jobs::shard_jobs;

/// What waits for a model after a run: the numbers that a fleet is scaled by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelBacklog {
    /// Model id.
    pub model: String,
    /// Shards that are not released.
    pub unreleased_shards: u64,
    /// Tokens that they are estimated to take.
    pub unreleased_tokens: u64,
    /// Shards in the queues, claimed by nobody.
    pub released_shards: u64,
    /// Tokens that they are estimated to take.
    pub released_tokens: u64,
    /// Shards that this run released.
    pub newly_released: u64,
}

/// All that the plans of one run are made from.
struct Scene {
    backlogs: Vec<Waiting>,
    workers: Vec<WorkerRecord>,
    released: BTreeMap<String, Depth>,
    rates: BTreeMap<String, u32>,
}

/// Releases shards of the job's model, or of all models, and returns what waits, by model.
///
/// Two runs at once are harmless: the cursors of a model can be saved by one of them only, and the other
/// leaves the model alone. A model that fails does not keep the others from being served.
///
/// # Errors
///
/// The first [`IoError`], after every model was tried; `Denied` for a job of a newer version.
pub async fn handle(
    ctx: &Context,
    job: DispatchJob,
    now: UnixMs,
) -> Result<Vec<ModelBacklog>, IoError> {
    if job.schema > SCHEMA {
        let model = job.model.unwrap_or_default();
        return Err(IoError::new(
            "read a dispatch job of a newer version",
            model,
            IoKind::Denied,
        ));
    }
    let scene = read_scene(ctx, now).await?;
    let models: BTreeSet<&str> = match &job.model {
        Some(model) => BTreeSet::from([model.as_str()]),
        None => scene
            .backlogs
            .iter()
            .map(|waiting| waiting.backlog.model.as_str())
            .collect(),
    };
    let mut numbers = Vec::with_capacity(models.len());
    let mut fault = None;
    for model in models {
        match serve_model(ctx, &scene, model, now).await {
            Ok(backlog) => numbers.push(backlog),
            Err(error) => {
                tracing::warn!(model, %error, "could not dispatch a model");
                fault = fault.or(Some(error));
            }
        }
    }
    fault.map_or(Ok(numbers), Err)
}

async fn read_scene(ctx: &Context, now: UnixMs) -> Result<Scene, IoError> {
    let backlogs = ctx.store.list_backlogs().await?;
    let mut released: BTreeMap<String, Depth> = BTreeMap::new();
    for waiting in ctx.store.list_released().await? {
        let depth = released.entry(waiting.shard.model).or_default();
        depth.shards += 1;
        depth.tokens = depth.tokens.saturating_add(waiting.shard.estimated_tokens);
    }
    Ok(Scene {
        backlogs: backlogs
            .into_iter()
            .map(|(tenant, batch, backlog)| Waiting {
                tenant,
                batch,
                backlog,
            })
            .collect(),
        workers: ctx.store.list_workers(now).await?,
        released,
        rates: ctx.store.list_rates().await?,
    })
}

/// Plans one model and carries the plan out.
async fn serve_model(
    ctx: &Context,
    scene: &Scene,
    model: &str,
    now: UnixMs,
) -> Result<ModelBacklog, IoError> {
    let listed = || {
        ctx.catalog
            .resolve(model)
            .and_then(|listed| listed.tokens_per_s)
    };
    let cursors = ctx.store.load_cursors::<Cursors>(model).await?;
    let input = DispatchInput {
        model,
        backlogs: &scene.backlogs,
        workers: &scene.workers,
        released: scene.released.get(model).copied().unwrap_or_default(),
        known_rate: scene.rates.get(model).copied().or_else(listed),
        cursors: &cursors.value,
        now,
        timing: ctx.store.timing(),
    };
    let plan = plan(&input);
    let mut numbers = measure(&input);
    // Saving first makes this run the only one that carries a plan of these cursors out. A crash after it
    // costs a turn, not a shard.
    if plan.releases.is_empty()
        || !ctx
            .store
            .save_cursors(model, cursors.epoch, &plan.cursors)
            .await?
    {
        return Ok(numbers);
    }
    for release in &plan.releases {
        if carry_out(ctx, model, release, now).await? {
            numbers.newly_released += u64::from(release.count);
        }
    }
    numbers.unreleased_shards = numbers
        .unreleased_shards
        .saturating_sub(numbers.newly_released);
    numbers.released_shards += numbers.newly_released;
    Ok(numbers)
}

/// Releases shards and sends their messages; false if the backlog has changed, or its batch was stopped.
async fn carry_out(
    ctx: &Context,
    model: &str,
    release: &Release,
    now: UnixMs,
) -> Result<bool, IoError> {
    let Release {
        tenant,
        batch,
        slot,
        from,
        count,
        ..
    } = release;
    if !ctx
        .store
        .release(tenant, *batch, *slot, *from, *count, now)
        .await?
    {
        return Ok(false);
    }
    let (queue, jobs) = shard_jobs(model, release);
    ctx.platform.send(&queue, &jobs, Duration::ZERO).await?;
    tracing::info!(batch.id = %batch, model, from, count, lane = ?release.lane, "released shards");
    Ok(true)
}

fn measure(input: &DispatchInput<'_>) -> ModelBacklog {
    let mut numbers = ModelBacklog {
        model: input.model.to_owned(),
        unreleased_shards: 0,
        unreleased_tokens: 0,
        released_shards: input.released.shards,
        released_tokens: input.released.tokens,
        newly_released: 0,
    };
    for Waiting { backlog, .. } in input
        .backlogs
        .iter()
        .filter(|waiting| waiting.backlog.model == input.model)
    {
        numbers.unreleased_shards += u64::from(backlog.shards.saturating_sub(backlog.next));
        numbers.unreleased_tokens = numbers
            .unreleased_tokens
            .saturating_add(backlog.estimated_tokens);
    }
    numbers
}

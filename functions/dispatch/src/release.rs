//! One run of the dispatcher: read, plan, release, tell.

use std::collections::BTreeSet;
use std::time::Duration;

use batch_core::dispatch::{Cursors, DispatchInput, Release, plan};
use batch_core::fleet::Demand;
use batch_core::message::{DispatchJob, SCHEMA};
use batch_core::time::UnixMs;
use batch_io::{IoError, IoKind};

use crate::Context;
use crate::jobs::shard_jobs;
use crate::scene::Scene;

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
    /// Shards that workers hold.
    pub leased_shards: u64,
    /// Tokens that their lines without results are estimated to take.
    pub leased_tokens: u64,
    /// Shards that this run released.
    pub newly_released: u64,
    /// All three as workers' time, by deadline: what `batch_core::fleet::workers_wanted` goes by.
    pub demand: Demand,
}

impl ModelBacklog {
    /// Returns how long one worker needs for all that is not done, in seconds.
    #[must_use]
    pub fn gpu_seconds(&self) -> u64 {
        self.demand.worker_seconds()
    }

    /// Returns the deadline that comes first; none if nothing waits.
    #[must_use]
    pub fn nearest_deadline(&self) -> Option<UnixMs> {
        self.demand.nearest_deadline()
    }
}

/// Releases shards of the job's model, or of all models, and returns what waits, by model.
///
/// A job that names no model gives the numbers of every model of the catalog; one that names a model gives
/// that model's, and none if it has no unreleased shards: there is nothing to do then. Two runs at once are
/// harmless: the cursors of a model can be saved by one of them only, and the other leaves the model alone. A
/// model that fails does not keep the others from being served.
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
    let Some(scene) = Scene::read(ctx, job.model.as_deref(), now).await? else {
        return Ok(Vec::new());
    };
    let models: BTreeSet<&str> = match &job.model {
        Some(model) => BTreeSet::from([model.as_str()]),
        None => {
            let listed = ctx.catalog.models().iter();
            let listed = listed.map(|model| model.id.as_str());
            listed.chain(scene.models()).collect()
        }
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

/// Plans one model and carries the plan out.
async fn serve_model(
    ctx: &Context,
    scene: &Scene,
    model: &str,
    now: UnixMs,
) -> Result<ModelBacklog, IoError> {
    let mut numbers = scene.measure(ctx, model);
    if numbers.unreleased_shards == 0 {
        return Ok(numbers);
    }
    let cursors = ctx.store.load_cursors::<Cursors>(model).await?;
    let plan = plan(&DispatchInput {
        model,
        backlogs: &scene.backlogs,
        workers: &scene.workers,
        released: scene.released(model),
        known_rate: scene.known_rate(ctx, model),
        cursors: &cursors.value,
        now,
        timing: ctx.store.timing(),
    });
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

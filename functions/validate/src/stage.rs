//! The stage itself: claim, read, then one write that publishes or rejects.

use std::sync::Arc;
use std::time::Duration;

use batch_core::batch::{BatchParams, ValidationError};
use batch_core::lifecycle::State;
use batch_core::line::problem;
use batch_core::message::{DispatchJob, QueueName, SCHEMA, StageJob};
use batch_core::time::UnixMs;
use batch_io::store::{Claimed, Publication, Published, Stage};
use batch_io::{IoError, IoKind};
use futures::TryStreamExt;
use tokio::sync::mpsc::{self, Sender};

use crate::Context;
use crate::cut::{Chunk, Job, Sound, cut_file};
use crate::input::{Input, is_awaited, open_input};
use crate::write::store_windows;

/// Chunks of the file that wait for the cutting thread.
const CHUNKS_WAITING: usize = 8;

/// Windows that wait to be stored; their number is bounded by their memory.
const WINDOWS_WAITING: usize = 1;

/// Validates one batch, unless another validator works on it or it needs no validation any more. Asks again
/// later if its file is still being put together.
///
/// May be run again at any time: a lost lease or any error leaves nothing but blobs and records that the
/// next run writes just so.
///
/// # Errors
///
/// [`IoError`] if the store fails, `Denied` for a job of a newer version; run it again.
pub async fn handle(ctx: &Context, job: StageJob, now: UnixMs) -> Result<(), IoError> {
    if job.schema > SCHEMA {
        return Err(IoError::new(
            "read a validate job of a newer version",
            job.batch.to_string(),
            IoKind::Denied,
        ));
    }
    if is_early(ctx, &job, now).await? {
        let delay = Duration::from_millis(ctx.store.timing().control_ms.unsigned_abs());
        return ctx.platform.send(&QueueName::Validate, &[job], delay).await;
    }
    let Some(claimed) = ctx
        .store
        .claim_stage(&job.tenant, job.batch, Stage::Validate, now)
        .await?
    else {
        return Ok(());
    };
    let settled = work(ctx, &claimed, now).await;
    ctx.store
        .give_back_if_failed(Stage::Validate, &claimed, &ctx.platform.clock, settled)
        .await
}

/// Reads the file, then publishes or rejects it.
async fn work(ctx: &Context, claimed: &Claimed, now: UnixMs) -> Result<(), IoError> {
    let examined = examine(ctx, &claimed.params, now);
    match ctx
        .store
        .while_held(Stage::Validate, claimed, &ctx.platform.clock, examined)
        .await?
    {
        Some(Ok(sound)) => publish(ctx, claimed, sound).await,
        Some(Err(errors)) => reject(ctx, claimed, errors).await,
        None => {
            tracing::info!(batch.id = %claimed.params.id, "another validator has taken over");
            Ok(())
        }
    }
}

/// Returns whether a validating batch must wait for its file: nobody claims it then, so that whoever looks
/// first when the file is there can.
async fn is_early(ctx: &Context, job: &StageJob, now: UnixMs) -> Result<bool, IoError> {
    let Some(view) = ctx.store.load_batch(&job.tenant, job.batch).await? else {
        return Ok(false);
    };
    Ok(view.run.state == State::Validating && is_awaited(ctx, &view.params, now).await?)
}

/// Reads the whole file and stores its windows.
async fn examine(
    ctx: &Context,
    params: &BatchParams,
    now: UnixMs,
) -> Result<Result<Sound, Vec<ValidationError>>, IoError> {
    let Input { bytes, body } = match open_input(ctx, params, now).await? {
        Ok(input) => input,
        Err(error) => return Ok(Err(vec![error])),
    };
    let (chunk_sender, chunks) = mpsc::channel(CHUNKS_WAITING);
    let (window_sender, windows) = mpsc::channel(WINDOWS_WAITING);
    let job = Job {
        params: params.clone(),
        catalog: Arc::clone(&ctx.catalog),
        lines_max: ctx.settings.lines_max,
        file_bytes: bytes,
        key: (ctx.platform.random)(),
    };
    let cutting = tokio::task::spawn_blocking(move || cut_file(&job, chunks, window_sender));
    futures::try_join!(
        feed(body, chunk_sender),
        store_windows(ctx, params, windows)
    )?;
    let verdict = cutting
        .await
        .expect("cutting does not panic, and is never aborted");
    let verdict = verdict.expect("cutting ends early only if its feed or its store did");
    let short = verdict
        .as_ref()
        .is_ok_and(|sound| sound.input.bytes != bytes);
    if short {
        Err(IoError::new(
            "read input file",
            params.input_file_id.clone(),
            IoKind::Corrupt,
        ))
    } else {
        Ok(verdict)
    }
}

/// Gives the file to the cutting thread.
async fn feed(mut body: batch_io::port::BlobReader, chunks: Sender<Chunk>) -> Result<(), IoError> {
    while let Some(bytes) = body.try_next().await? {
        if chunks.send(Chunk::Bytes(bytes)).await.is_err() {
            return Ok(());
        }
    }
    // A thread that is gone has stopped for a reason that its windows' store tells.
    let _ = chunks.send(Chunk::End).await;
    Ok(())
}

async fn publish(ctx: &Context, claimed: &Claimed, sound: Sound) -> Result<(), IoError> {
    let Claimed { params, epoch, .. } = claimed;
    let Sound {
        input,
        windows,
        backlogs,
    } = sound;
    let models: Vec<String> = backlogs
        .iter()
        .map(|backlog| backlog.model.clone())
        .collect();
    let publication = Publication {
        models: models.clone(),
        windows,
        total: input.lines,
        shards_total: backlogs
            .iter()
            .map(|backlog| u64::from(backlog.shards))
            .sum(),
        estimated_tokens: backlogs.iter().fold(0, |sum: u64, backlog| {
            sum.saturating_add(backlog.estimated_tokens)
        }),
        backlogs,
        input,
        enqueued_tokens_max: ctx.settings.enqueued_tokens_max,
    };
    let now = (ctx.platform.clock)();
    match ctx
        .store
        .publish(&params.tenant, params.id, *epoch, publication, now)
        .await?
    {
        Published::Done(run) => {
            tracing::info!(batch.id = %params.id, lines = run.counts.total, shards = run.shards_total, "batch published");
            ask_dispatch(ctx, models).await
        }
        Published::Fenced => {
            tracing::info!(batch.id = %params.id, "batch was stopped or taken over while it was read");
            Ok(())
        }
        Published::OverTokenLimit { limit } => {
            let model = if let [model] = models.as_slice() {
                model
            } else {
                "all models"
            };
            reject(
                ctx,
                claimed,
                vec![problem::token_limit_exceeded(model, limit)],
            )
            .await
        }
    }
}

async fn reject(
    ctx: &Context,
    claimed: &Claimed,
    errors: Vec<ValidationError>,
) -> Result<(), IoError> {
    let Claimed { params, epoch, .. } = claimed;
    let count = errors.len();
    let now = (ctx.platform.clock)();
    if ctx
        .store
        .reject(&params.tenant, params.id, *epoch, errors, now)
        .await?
    {
        tracing::info!(batch.id = %params.id, errors = count, "batch failed validation");
    }
    Ok(())
}

/// Asks for a dispatch of each model. If this gets lost, reconcile asks again.
async fn ask_dispatch(ctx: &Context, models: Vec<String>) -> Result<(), IoError> {
    let job = |model| DispatchJob {
        schema: SCHEMA,
        model: Some(model),
    };
    let jobs: Vec<DispatchJob> = models.into_iter().map(job).collect();
    ctx.platform
        .send(&QueueName::Dispatch, &jobs, Duration::ZERO)
        .await
}

//! The stage itself: claim, write both files, end the batch in one transaction.

use std::time::Duration;

use batch_core::batch::{FileDigest, Manifest};
use batch_core::blob_key::BlobKey;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::FileId;
use batch_core::lifecycle::State;
use batch_core::limits::EXPIRES_AFTER_S_MAX;
use batch_core::message::{QueueName, SCHEMA, StageJob};
use batch_core::time::UnixMs;
use batch_io::store::{Claimed, Finish, Finished, Stage};
use batch_io::{IoError, IoKind};

use crate::Context;
use crate::place::Place;
use crate::walk::{ResultFiles, Walked, Written, place_key};

/// The longest that a batch whose results contradict each other waits for its next try: one hour.
const CORRUPT_RETRY_MS_MAX: i64 = 3_600_000;

/// What a finalizer came to.
enum Came {
    /// The batch has ended.
    Ended,
    /// Its time was over.
    Paused(Box<Place>),
    /// Nobody can go on from the saved place: it does not read, or what it names is gone.
    DeadEnd(IoError),
    /// Another has taken over.
    Fenced,
}

/// Writes the files of one sealed batch and ends it, unless another finalizer works on it.
///
/// May be run again at any time. Where `until` is given, the process is killed then: before that it saves its
/// place and asks for another run, which goes on from there, or starts over where that cannot be done. Results
/// that contradict the index are logged and left for a person; the batch is tried again ever later, up to an
/// hour.
///
/// # Errors
///
/// [`IoError`] if the store fails, `Denied` for a job of a newer version; run it again.
pub async fn handle(
    ctx: &Context,
    job: StageJob,
    now: UnixMs,
    until: Option<UnixMs>,
) -> Result<(), IoError> {
    if job.schema > SCHEMA {
        return Err(IoError::new(
            "read a finalize job of a newer version",
            job.batch.to_string(),
            IoKind::Denied,
        ));
    }
    let Some(claimed) = ctx
        .store
        .claim_stage(&job.tenant, job.batch, Stage::Finalize, now)
        .await?
    else {
        return Ok(());
    };
    let settled = work(ctx, &claimed, until).await;
    ctx.store
        .give_back_if_failed(Stage::Finalize, &claimed, &ctx.platform.clock, settled)
        .await
}

/// Runs the stage, and does what must follow.
async fn work(ctx: &Context, claimed: &Claimed, until: Option<UnixMs>) -> Result<(), IoError> {
    match run(ctx, claimed, until).await {
        Ok(Came::Ended) => Ok(()),
        Ok(Came::Paused(place)) => save(ctx, claimed, &place).await,
        Ok(Came::DeadEnd(error)) => start_over(ctx, claimed, &error).await,
        Ok(Came::Fenced) => {
            tracing::info!(batch.id = %claimed.params.id, "another finalizer has taken over");
            Ok(())
        }
        Err(error) if error.kind == IoKind::Corrupt => hold_back(ctx, claimed, error).await,
        Err(error) => Err(error),
    }
}

async fn run(ctx: &Context, claimed: &Claimed, until: Option<UnixMs>) -> Result<Came, IoError> {
    let resumed = claimed.run.saved_place.is_some();
    let mut files = match ResultFiles::open(ctx, claimed).await {
        Ok(files) => files,
        Err(error) if resumed && error.kind == IoKind::Corrupt => {
            return Ok(Came::DeadEnd(error));
        }
        Err(error) => return Err(error),
    };
    let came = end_batch(ctx, claimed, &mut files, until).await;
    match came {
        Ok(Came::Ended) => remove_leftovers(ctx, claimed, files.epoch).await,
        Ok(Came::Paused(_) | Came::DeadEnd(_)) => {}
        // Another has completed a blob of the place's parts, or they are too old.
        Err(error) if resumed && error.kind == IoKind::NotFound => {
            return Ok(Came::DeadEnd(error));
        }
        // What a saved place names belongs to whoever goes on from it.
        Ok(Came::Fenced) | Err(_) if resumed => {}
        Ok(Came::Fenced) | Err(_) => files.abort().await,
    }
    came
}

/// Stores a place and asks for the next run.
async fn save(ctx: &Context, claimed: &Claimed, place: &Place) -> Result<(), IoError> {
    let Claimed { params, epoch, .. } = claimed;
    let key = place_key(claimed, *epoch);
    ctx.platform.blobs.put(&key, place.encode()).await?;
    let now = (ctx.platform.clock)();
    let saved = ctx
        .store
        .save_place(&params.tenant, params.id, *epoch, now)
        .await?;
    if !saved {
        return Ok(());
    }
    tracing::info!(batch.id = %params.id, window = place.position.window, "saved the place");
    ask_again(ctx, claimed).await
}

/// Gives the saved place up, and asks for a run that writes both files anew, under its own epoch. Parts that
/// are left of the old ones go as [`remove_leftovers`] and the bucket's rules say.
async fn start_over(ctx: &Context, claimed: &Claimed, error: &IoError) -> Result<(), IoError> {
    let Claimed { params, epoch, .. } = claimed;
    let now = (ctx.platform.clock)();
    let dropped = ctx
        .store
        .drop_place(&params.tenant, params.id, *epoch, now)
        .await?;
    if !dropped {
        return Ok(());
    }
    tracing::warn!(batch.id = %params.id, %error, source = ?error.source, "cannot go on from the saved place: both files are written anew");
    ask_again(ctx, claimed).await
}

/// Asks for the next run. If this gets lost, reconcile asks.
async fn ask_again(ctx: &Context, claimed: &Claimed) -> Result<(), IoError> {
    let job = StageJob {
        schema: SCHEMA,
        tenant: claimed.params.tenant.clone(),
        batch: claimed.params.id,
    };
    ctx.platform
        .send(&QueueName::Finalize, &[job], Duration::ZERO)
        .await
}

/// Writes and publishes the files.
async fn end_batch(
    ctx: &Context,
    claimed: &Claimed,
    files: &mut ResultFiles,
    until: Option<UnixMs>,
) -> Result<Came, IoError> {
    let State::Sealed(outcome) = claimed.run.state else {
        let what = format!("{} is {}", claimed.params.id, claimed.run.state);
        return Err(IoError::new(
            "finalize a batch that is not sealed",
            what,
            IoKind::Corrupt,
        ));
    };
    let walk = files.write(ctx, claimed, outcome.stop(), until);
    let clock = &ctx.platform.clock;
    let walked = ctx
        .store
        .while_held(Stage::Finalize, claimed, clock, walk)
        .await?;
    let written = match walked {
        Some(Walked::Written(written)) => written,
        Some(Walked::Paused(place)) => return Ok(Came::Paused(Box::new(place))),
        None => return Ok(Came::Fenced),
    };
    let now = clock();
    let finish = describe(ctx, claimed, files, written, now);
    match ctx
        .store
        .finish(
            &claimed.params.tenant,
            claimed.params.id,
            claimed.epoch,
            finish,
            now,
        )
        .await?
    {
        Finished::Done(run) => {
            tracing::info!(batch.id = %claimed.params.id, state = %run.state, "batch ended");
            Ok(Came::Ended)
        }
        Finished::Fenced => Ok(Came::Fenced),
    }
}

/// Makes the records of the files.
fn describe(
    ctx: &Context,
    claimed: &Claimed,
    files: &ResultFiles,
    written: Written,
    now: UnixMs,
) -> Finish {
    let Claimed { params, run, .. } = claimed;
    let life_s = params
        .output_expires_after
        .map_or(EXPIRES_AFTER_S_MAX, |after| after.seconds);
    let record = |digest: &FileDigest, blob: &BlobKey, role: &str| File {
        id: FileId::new(now, (ctx.platform.random)()),
        tenant: params.tenant.clone(),
        bytes: digest.bytes,
        created_at: now,
        expires_at: Some(now.plus_ms(i64::from(life_s) * 1000)),
        filename: format!("{}_{role}.jsonl", params.id),
        purpose: Purpose::BatchOutput,
        status: FileStatus::Processed,
        blob: blob.clone(),
        schema: SCHEMA,
    };
    let output = written
        .output
        .as_ref()
        .map(|digest| record(digest, files.output.key(), "output"));
    let error = written
        .errors
        .as_ref()
        .map(|digest| record(digest, files.errors.key(), "error"));
    // A batch that was cancelled while it was validated has read nothing of its input.
    let unread = || FileDigest {
        sha256: String::new(),
        lines: 0,
        bytes: params.input_bytes.unwrap_or(0),
    };
    let input = run
        .manifest
        .as_ref()
        .map_or_else(unread, |manifest| manifest.input.clone());
    Finish {
        output,
        error,
        manifest: Manifest {
            input,
            output: written.output,
            error: written.errors,
        },
    }
}

/// Removes what finalizers of earlier epochs wrote and could not publish. Reconcile does what fails here.
async fn remove_leftovers(ctx: &Context, claimed: &Claimed, published: u64) {
    let (tenant, batch) = (&claimed.params.tenant, claimed.params.id);
    for epoch in (1..claimed.epoch).filter(|epoch| *epoch != published) {
        let output = BlobKey::Output {
            tenant: tenant.clone(),
            batch,
            epoch,
        };
        let errors = BlobKey::Errors {
            tenant: tenant.clone(),
            batch,
            epoch,
        };
        for key in [output, errors] {
            if let Err(error) = ctx.platform.blobs.delete(&key).await {
                tracing::warn!(blob.key = %key, %error, "could not remove a result file that was not published");
            }
        }
    }
}

/// Leaves a batch for a person, and keeps the stage for a while that doubles with every try.
async fn hold_back(ctx: &Context, claimed: &Claimed, error: IoError) -> Result<(), IoError> {
    let Claimed { params, epoch, .. } = claimed;
    let source = error
        .source
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    tracing::error!(batch.id = %params.id, %error, source, "the results contradict the index: a person must look");
    let lease_ms = ctx.store.timing().lease_ms;
    let wait_ms = lease_ms
        .saturating_mul(1 << (*epoch).min(20))
        .min(CORRUPT_RETRY_MS_MAX);
    let until = (ctx.platform.clock)().plus_ms(wait_ms - lease_ms);
    ctx.store
        .renew_stage(&params.tenant, params.id, Stage::Finalize, *epoch, until)
        .await
        .map(|_| ())
}

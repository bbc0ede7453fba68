//! The stage itself: claim, write both files, end the batch in one transaction.

use batch_core::batch::{FileDigest, Manifest};
use batch_core::blob_key::BlobKey;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::FileId;
use batch_core::lifecycle::State;
use batch_core::limits::EXPIRES_AFTER_S_MAX;
use batch_core::message::{SCHEMA, StageJob};
use batch_core::time::UnixMs;
use batch_io::store::{Claimed, Finish, Finished, Stage};
use batch_io::{IoError, IoKind};

use crate::Context;
use crate::walk::{ResultFiles, Written};

/// The longest that a batch whose results contradict each other waits for its next try: one hour.
const CORRUPT_RETRY_MS_MAX: i64 = 3_600_000;

/// Writes the files of one sealed batch and ends it, unless another finalizer works on it.
///
/// May be run again at any time. Results that contradict the index are logged and left for a person; the
/// batch is tried again ever later, up to an hour.
///
/// # Errors
///
/// [`IoError`] if the store fails, `Denied` for a job of a newer version; run it again.
pub async fn handle(ctx: &Context, job: StageJob, now: UnixMs) -> Result<(), IoError> {
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
    let mut files = ResultFiles::new(ctx, &claimed);
    let result = end_batch(ctx, &claimed, &mut files).await;
    if !matches!(result, Ok(true)) {
        files.abort().await;
    }
    match result {
        Ok(true) => {
            remove_leftovers(ctx, &claimed).await;
            Ok(())
        }
        Ok(false) => {
            tracing::info!(batch.id = %job.batch, "another finalizer has taken over");
            Ok(())
        }
        Err(error) if error.kind == IoKind::Corrupt => hold_back(ctx, &claimed, error).await,
        Err(error) => Err(error),
    }
}

/// Writes and publishes the files; false if the lease was lost.
async fn end_batch(
    ctx: &Context,
    claimed: &Claimed,
    files: &mut ResultFiles,
) -> Result<bool, IoError> {
    let State::Sealed(outcome) = claimed.run.state else {
        let what = format!("{} is {}", claimed.params.id, claimed.run.state);
        return Err(IoError::new(
            "finalize a batch that is not sealed",
            what,
            IoKind::Corrupt,
        ));
    };
    let Some(written) = ctx
        .store
        .while_held(
            Stage::Finalize,
            claimed,
            &ctx.platform.clock,
            files.write(ctx, claimed, outcome.stop()),
        )
        .await?
    else {
        return Ok(false);
    };
    let now = (ctx.platform.clock)();
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
            Ok(true)
        }
        Finished::Fenced => Ok(false),
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
async fn remove_leftovers(ctx: &Context, claimed: &Claimed) {
    let (tenant, batch) = (&claimed.params.tenant, claimed.params.id);
    for epoch in 1..claimed.epoch {
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

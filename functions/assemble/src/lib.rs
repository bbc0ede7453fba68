//! Puts a large file together after its upload was completed, or its import asked for.
//!
//! Any number of runs may work on one file, and each may end anywhere: all write the same bytes under the
//! same name, and one transaction ends the assembly. A run that was killed is repeated from the start, as
//! copying 8 GiB takes about a minute. Start at [`handle`].
//!
//! Keys of objects outside are a user's content: no log and no error has them.
#![warn(missing_docs)]

use std::sync::Arc;

use batch_core::blob_key::BlobKey;
use batch_core::external::PinnedObject;
use batch_core::file::FileStatus;
use batch_core::id::PartId;
use batch_core::message::{AssembleJob, SCHEMA};
use batch_core::upload::{Assembly, AssemblySource, Piece};
use batch_core::wire::create_upload::md5_mismatch;
use batch_io::assembly::{BlobRange, assemble, import, md5_of};
use batch_io::port::Blobs;
use batch_io::store::{AssemblyEnded, Store};
use batch_io::{IoError, IoKind, Platform};
use futures::{StreamExt as _, TryStreamExt as _, stream};

/// Parts that are looked for at the same time.
const LOOKS_AT_ONCE: usize = 32;

/// What the function needs from outside.
#[derive(Debug, Clone)]
pub struct Context {
    /// Ports, clock and randomness.
    pub platform: Platform,
    /// Typed access to the records.
    pub store: Store,
}

/// Puts one file together, unless that is done. The file is `processed` then, or `error` with a reason.
///
/// # Errors
///
/// [`IoError`] if the store fails, `Denied` for a job of a newer version; run it again.
pub async fn handle(ctx: &Context, job: AssembleJob) -> Result<(), IoError> {
    if job.schema > SCHEMA {
        return Err(IoError::new(
            "read an assemble job of a newer version",
            job.upload.to_string(),
            IoKind::Denied,
        ));
    }
    let AssembleJob { tenant, upload, .. } = &job;
    let Some(assembly) = ctx.store.load_assembly(tenant, *upload).await? else {
        return Ok(());
    };
    let blobs = &ctx.platform.blobs;
    let blob = BlobKey::File {
        tenant: tenant.clone(),
        file: assembly.file,
    };
    let status = match &assembly.source {
        AssemblySource::Parts(pieces) => of_parts(blobs, &blob, &assembly, pieces).await?,
        AssemblySource::Object(object) => {
            // The error is logged: it names our file, not the object.
            let named = |fault| IoError {
                key: assembly.file.to_string(),
                ..fault
            };
            of_object(blobs, &blob, object).await.map_err(named)?
        }
    };
    let now = (ctx.platform.clock)();
    let ended = ctx
        .store
        .end_assembly(tenant, *upload, assembly.file, &status, now)
        .await?;
    match ended {
        AssemblyEnded::Done => {
            let outcome = match &status {
                FileStatus::Uploaded => "uploaded",
                FileStatus::Processed => "processed",
                // Why is the user's alone: it may name an object of theirs.
                FileStatus::Error(_) => "error",
            };
            tracing::info!(file.id = %assembly.file, outcome, "a file was put together, or cannot be");
        }
        AssemblyEnded::Already => return Ok(()),
        AssemblyEnded::FileGone => blobs.delete(&blob).await?,
    }
    let parts = BlobKey::parts_prefix(tenant, *upload);
    if let Err(fault) = blobs.delete_prefix(&parts).await {
        tracing::warn!(error = %fault, "parts stay until their upload is collected");
    }
    Ok(())
}

/// Puts parts together, and says what came of it.
async fn of_parts(
    blobs: &Arc<dyn Blobs>,
    blob: &BlobKey,
    assembly: &Assembly,
    pieces: &[Piece],
) -> Result<FileStatus, IoError> {
    let ranges: Vec<BlobRange> = pieces
        .iter()
        .map(|piece| BlobRange {
            blob: part_blob(assembly, piece.part),
            start: piece.start,
            end: piece.end,
        })
        .collect();
    let made = async {
        if let Some(expected) = &assembly.md5 {
            let found = md5_of(blobs, &ranges).await?;
            if found != *expected {
                return Ok(FileStatus::Error(md5_mismatch(expected, &found).message));
            }
        }
        assemble(blobs, blob, &ranges).await?;
        Ok(FileStatus::Processed)
    }
    .await;
    match made {
        Err(IoError {
            kind: IoKind::NotFound,
            ..
        }) => match missing(blobs, assembly, pieces).await? {
            Some(part) => Ok(FileStatus::Error(format!("The part '{part}' is gone."))),
            None => made,
        },
        Ok(_) | Err(_) => made,
    }
}

/// Finds a part whose bytes are gone.
async fn missing(
    blobs: &Arc<dyn Blobs>,
    assembly: &Assembly,
    pieces: &[Piece],
) -> Result<Option<PartId>, IoError> {
    let looks = pieces.iter().copied().map(|piece| async move {
        match blobs.head(&part_blob(assembly, piece.part)).await {
            Ok(_) => Ok(None),
            Err(fault) if fault.kind == IoKind::NotFound => Ok(Some(piece.part)),
            Err(fault) => Err(fault),
        }
    });
    let gone = stream::iter(looks)
        .buffered(LOOKS_AT_ONCE)
        .try_filter_map(|gone| async move { Ok(gone) });
    std::pin::pin!(gone).try_next().await
}

/// Copies an object, and says what came of it.
async fn of_object(
    blobs: &Arc<dyn Blobs>,
    blob: &BlobKey,
    source: &PinnedObject,
) -> Result<FileStatus, IoError> {
    let Err(fault) = import(blobs, blob, source).await else {
        return Ok(FileStatus::Processed);
    };
    let why = match blobs.head_external(&source.object).await {
        Ok(meta) if meta.etag == source.etag => return Err(fault),
        Ok(_) => "has changed since the batch was created",
        Err(look) if matches!(look.kind, IoKind::NotFound | IoKind::Denied) => {
            "is gone, or this service may not read it any more"
        }
        Err(look) => return Err(look),
    };
    Ok(FileStatus::Error(format!(
        "The object '{}' {why}.",
        source.object
    )))
}

fn part_blob(assembly: &Assembly, part: PartId) -> BlobKey {
    BlobKey::Part {
        tenant: assembly.upload.tenant.clone(),
        upload: assembly.upload.id,
        part,
    }
}

//! Walks a batch's windows in input order and fills both result files.

use std::sync::Arc;

use batch_core::batch::{FileDigest, LineCounts};
use batch_core::blob_key::BlobKey;
use batch_core::lifecycle::Stop;
use batch_core::merge::{MergedWindow, merge_window};
use batch_io::port::read_named;
use batch_io::store::Claimed;
use batch_io::{IoError, IoKind};

use crate::Context;
use crate::result_file::ResultFile;
use crate::shards::Segments;

/// Both files of a batch while they are written.
#[derive(Debug)]
pub(crate) struct ResultFiles {
    /// Lines with a 2xx response.
    pub(crate) output: ResultFile,
    /// All other lines.
    pub(crate) errors: ResultFile,
}

/// Both files of a batch, stored and complete.
#[derive(Debug)]
pub(crate) struct Written {
    /// None if no line has a 2xx response.
    pub(crate) output: Option<FileDigest>,
    /// None if all have.
    pub(crate) errors: Option<FileDigest>,
}

impl ResultFiles {
    /// Makes two empty files whose blobs carry the epoch.
    pub(crate) fn new(ctx: &Context, claimed: &Claimed) -> Self {
        let Claimed { params, epoch, .. } = claimed;
        let (tenant, batch, epoch) = (params.tenant.clone(), params.id, *epoch);
        let blobs = &ctx.platform.blobs;
        Self {
            output: ResultFile::new(
                Arc::clone(blobs),
                BlobKey::Output {
                    tenant: tenant.clone(),
                    batch,
                    epoch,
                },
            ),
            errors: ResultFile::new(
                Arc::clone(blobs),
                BlobKey::Errors {
                    tenant,
                    batch,
                    epoch,
                },
            ),
        }
    }

    /// Drops what is stored of files that will not be finished.
    pub(crate) async fn abort(&mut self) {
        self.output.abort().await;
        self.errors.abort().await;
    }

    /// Writes every line of the batch into one of the files, and proves that none is missing or double.
    ///
    /// `stop` says why lines may lack a result; memory holds one window's results at a time.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Corrupt` if results contradict the index or the batch's public counts.
    pub(crate) async fn write(
        &mut self,
        ctx: &Context,
        claimed: &Claimed,
        stop: Option<Stop>,
    ) -> Result<Written, IoError> {
        let Claimed { params, run, .. } = claimed;
        let (tenant, batch) = (&params.tenant, params.id);
        let segments = Segments::of(tenant, batch, &ctx.store.list_shards(tenant, batch).await?);
        let mut counts = LineCounts::default();
        let mut unexecuted = 0;
        for window in 0..run.windows {
            let merged = merge(ctx, claimed, &segments, window, stop).await?;
            counts.completed += merged.completed;
            counts.failed += merged.failed;
            unexecuted += merged.unexecuted;
            self.output.append(&merged.output, merged.completed).await?;
            self.errors.append(&merged.errors, merged.failed).await?;
        }
        counts.total = counts.completed + counts.failed;
        let public = LineCounts {
            failed: run.counts.failed + unexecuted,
            ..run.counts
        };
        if counts != public {
            let contradiction = format!("results give {counts:?}, the batch says {public:?}");
            return Err(IoError::new(
                "prove the results complete",
                batch.to_string(),
                IoKind::Corrupt,
            )
            .because(contradiction));
        }
        Ok(Written {
            output: self.output.finish().await?,
            errors: self.errors.finish().await?,
        })
    }
}

/// Reads and merges one window, off the async threads.
async fn merge(
    ctx: &Context,
    claimed: &Claimed,
    segments: &Segments,
    window: u32,
    stop: Option<Stop>,
) -> Result<MergedWindow, IoError> {
    let Claimed { params, .. } = claimed;
    let (batch, blobs) = (params.id, ctx.platform.blobs.as_ref());
    let key = BlobKey::Index {
        tenant: params.tenant.clone(),
        batch,
        window,
    };
    let index = read_named(blobs, &key).await?;
    let results = segments.read(blobs, window).await?;
    let merged = tokio::task::spawn_blocking(move || {
        let results: Vec<&[u8]> = results.iter().map(AsRef::as_ref).collect();
        merge_window(batch, &index, &results, stop)
    });
    merged
        .await
        .expect("merging does not panic, and is never aborted")
        .map_err(|error| {
            IoError::new(
                "merge the window of index",
                key.to_string(),
                IoKind::Corrupt,
            )
            .because(error)
        })
}

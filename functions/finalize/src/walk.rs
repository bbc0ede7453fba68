//! Walks a batch's windows in input order and fills both result files.

use std::sync::Arc;

use batch_core::batch::{FileDigest, LineCounts};
use batch_core::blob_key::BlobKey;
use batch_core::lifecycle::Stop;
use batch_core::merge::merge_window;
use batch_core::time::UnixMs;
use batch_io::port::read_named;
use batch_io::store::Claimed;
use batch_io::{IoError, IoKind};

use crate::Context;
use crate::pace::Pace;
use crate::place::{Place, Position};
use crate::result_file::ResultFile;
use crate::shards::Segments;

/// Both files of a batch while they are written.
#[derive(Debug)]
pub(crate) struct ResultFiles {
    /// Lines with a 2xx response.
    pub(crate) output: ResultFile,
    /// All other lines.
    pub(crate) errors: ResultFile,
    /// Epoch in the names of both.
    pub(crate) epoch: u64,
    position: Position,
}

/// How a walk went.
#[derive(Debug)]
pub(crate) enum Walked {
    /// To the end.
    Written(Written),
    /// As far as time allowed: the place to go on from.
    Paused(Place),
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
    /// Makes two empty files whose blobs carry the epoch, or goes on with those of the saved place.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Corrupt` if the saved place does not read.
    pub(crate) async fn open(ctx: &Context, claimed: &Claimed) -> Result<Self, IoError> {
        let blobs = &ctx.platform.blobs;
        let Some(saved) = claimed.run.saved_place else {
            let [output, errors] =
                keys(claimed, claimed.epoch).map(|key| ResultFile::new(Arc::clone(blobs), key));
            return Ok(Self {
                output,
                errors,
                epoch: claimed.epoch,
                position: Position::default(),
            });
        };
        let key = place_key(claimed, saved);
        let bytes = read_named(blobs.as_ref(), &key).await?;
        let place = Place::decode(&key.path(), &bytes)?;
        let [output, errors] = keys(claimed, place.files_epoch);
        Ok(Self {
            output: ResultFile::resumed(Arc::clone(blobs), output, place.output)?,
            errors: ResultFile::resumed(Arc::clone(blobs), errors, place.errors)?,
            epoch: place.files_epoch,
            position: place.position,
        })
    }

    /// Gives both files up to a finalizer that goes on with them.
    fn save(&mut self) -> Place {
        Place {
            files_epoch: self.epoch,
            position: self.position.clone(),
            output: self.output.save(),
            errors: self.errors.save(),
        }
    }

    /// Drops what is stored of files that will not be finished.
    pub(crate) async fn abort(&mut self) {
        self.output.abort().await;
        self.errors.abort().await;
    }

    /// Writes every line of the batch into one of the files, and proves that none is missing or double.
    ///
    /// `stop` says why lines may lack a result; memory holds one window's results at a time. When `until` is
    /// near, no further window is begun, but one is always written.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Corrupt` if results contradict the index or the batch's public counts.
    pub(crate) async fn write(
        &mut self,
        ctx: &Context,
        claimed: &Claimed,
        stop: Option<Stop>,
        until: Option<UnixMs>,
    ) -> Result<Walked, IoError> {
        let Claimed { params, run, .. } = claimed;
        let (tenant, batch) = (&params.tenant, params.id);
        let segments = Segments::of(tenant, batch, &ctx.store.list_shards(tenant, batch).await?);
        let clock = &ctx.platform.clock;
        let mut pace = Pace::new(until);
        let first = self.position.window;
        for window in first..run.windows {
            let began_at = clock();
            if window > first && pace.is_over(began_at) {
                return Ok(Walked::Paused(self.save()));
            }
            self.write_window(ctx, claimed, &segments, window, stop)
                .await?;
            pace.took(clock().since_ms(began_at));
        }
        self.prove(claimed)?;
        Ok(Walked::Written(Written {
            output: self.output.finish().await?,
            errors: self.errors.finish().await?,
        }))
    }

    /// Reads and merges one window, and appends its lines. Merging looks at no more than the heads of records,
    /// and is done before the first is appended.
    async fn write_window(
        &mut self,
        ctx: &Context,
        claimed: &Claimed,
        segments: &Segments,
        window: u32,
        stop: Option<Stop>,
    ) -> Result<(), IoError> {
        let (blobs, batch) = (ctx.platform.blobs.as_ref(), claimed.params.id);
        let key = BlobKey::Index {
            tenant: claimed.params.tenant.clone(),
            batch,
            window,
        };
        let index = read_named(blobs, &key).await?;
        let results = segments.read(blobs, window).await?;
        let slices: Vec<&[u8]> = results.iter().map(AsRef::as_ref).collect();
        let merged = merge_window(batch, &index, &slices, stop).map_err(|error| {
            let doing = "merge the window of index";
            IoError::new(doing, key.to_string(), IoKind::Corrupt).because(error)
        })?;
        for record in merged.records() {
            let file = if record.ok {
                &mut self.output
            } else {
                &mut self.errors
            };
            file.append(&record.text).await?;
        }
        let Position {
            counts, unexecuted, ..
        } = &mut self.position;
        counts.completed += merged.completed;
        counts.failed += merged.failed;
        *unexecuted += merged.unexecuted;
        self.position.window = window + 1;
        Ok(())
    }

    /// Compares what was written with what the batch has told its clients.
    fn prove(&self, claimed: &Claimed) -> Result<(), IoError> {
        let Claimed { params, run, .. } = claimed;
        let written = LineCounts {
            total: self.position.counts.completed + self.position.counts.failed,
            ..self.position.counts
        };
        let public = LineCounts {
            failed: run.counts.failed + self.position.unexecuted,
            ..run.counts
        };
        if written == public {
            return Ok(());
        }
        let contradiction = format!("results give {written:?}, the batch says {public:?}");
        Err(IoError::new(
            "prove the results complete",
            params.id.to_string(),
            IoKind::Corrupt,
        )
        .because(contradiction))
    }
}

/// Names the blobs of both files.
fn keys(claimed: &Claimed, epoch: u64) -> [BlobKey; 2] {
    let (tenant, batch) = (claimed.params.tenant.clone(), claimed.params.id);
    [
        BlobKey::Output {
            tenant: tenant.clone(),
            batch,
            epoch,
        },
        BlobKey::Errors {
            tenant,
            batch,
            epoch,
        },
    ]
}

/// Names the blob of the place that the finalizer of an epoch saved.
pub(crate) fn place_key(claimed: &Claimed, epoch: u64) -> BlobKey {
    BlobKey::Place {
        tenant: claimed.params.tenant.clone(),
        batch: claimed.params.id,
        epoch,
    }
}

//! Which blobs hold the results of which window.

use std::collections::BTreeMap;

use batch_core::blob_key::BlobKey;
use batch_core::id::{BatchId, TenantId};
use batch_core::shard::Shard;
use batch_io::port::Blobs;
use batch_io::{IoError, IoKind};
use bytes::{Bytes, BytesMut};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

/// Segments that are read at once.
const READS_IN_FLIGHT: usize = 4;

/// The segments of a batch, by window. Split shards keep theirs beside their children's.
#[derive(Debug)]
pub(crate) struct Segments(BTreeMap<u32, Vec<BlobKey>>);

impl Segments {
    /// Names the segments that the shards' records name: no other segment exists.
    pub(crate) fn of(tenant: &TenantId, batch: BatchId, shards: &[Shard]) -> Self {
        let mut by_window: BTreeMap<u32, Vec<BlobKey>> = BTreeMap::new();
        for shard in shards {
            by_window
                .entry(shard.window)
                .or_default()
                .extend(shard.segments.iter().map(|segment| BlobKey::Segment {
                    tenant: tenant.clone(),
                    batch,
                    shard: shard.id.clone(),
                    segment: *segment,
                }));
        }
        Self(by_window)
    }

    /// Reads the segments of one window.
    ///
    /// # Errors
    ///
    /// As [`read_blob`].
    pub(crate) async fn read(&self, blobs: &dyn Blobs, window: u32) -> Result<Vec<Bytes>, IoError> {
        let keys = self.0.get(&window).map(Vec::as_slice).unwrap_or_default();
        // Boxed here, so that the compiler can see that this function's future may move between threads.
        let reads = keys.iter().map(|key| read_blob(blobs, key).boxed());
        stream::iter(reads.collect::<Vec<_>>())
            .buffer_unordered(READS_IN_FLIGHT)
            .try_collect()
            .await
    }
}

/// Reads a blob that a record names.
///
/// # Errors
///
/// [`IoError`]: `Corrupt` if it is not there, or shorter than it should be.
pub(crate) async fn read_blob(blobs: &dyn Blobs, key: &BlobKey) -> Result<Bytes, IoError> {
    let corrupt = || {
        IoError::new(
            "read a blob that a record names",
            key.to_string(),
            IoKind::Corrupt,
        )
    };
    let mut read = match blobs.get(key, 0, None).await {
        Ok(read) => read,
        Err(error) if error.kind == IoKind::NotFound => return Err(corrupt().because(error)),
        Err(error) => return Err(error),
    };
    let mut bytes = BytesMut::new();
    while let Some(chunk) = read.body.try_next().await? {
        bytes.extend_from_slice(&chunk);
    }
    if bytes.len() as u64 == read.meta.bytes {
        Ok(bytes.freeze())
    } else {
        Err(corrupt())
    }
}

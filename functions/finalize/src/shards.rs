//! Which blobs hold the results of which window.

use std::collections::BTreeMap;

use batch_core::blob_key::BlobKey;
use batch_core::id::{BatchId, TenantId};
use batch_core::shard::Shard;
use batch_io::IoError;
use batch_io::port::{Blobs, read_named};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

/// Segments that are read at once: small ones take some 20 ms each on S3, however few bytes they have.
const READS_IN_FLIGHT: usize = 16;

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
    /// As [`read_named`].
    pub(crate) async fn read(&self, blobs: &dyn Blobs, window: u32) -> Result<Vec<Bytes>, IoError> {
        let keys = self.0.get(&window).map(Vec::as_slice).unwrap_or_default();
        // Boxed here, so that the compiler can see that this function's future may move between threads.
        let reads = keys.iter().map(|key| read_named(blobs, key).boxed());
        stream::iter(reads.collect::<Vec<_>>())
            .buffer_unordered(READS_IN_FLIGHT)
            .try_collect()
            .await
    }
}

//! Stores what the cutting thread hands over: index blobs, shard blobs, shard records.

use batch_core::batch::BatchParams;
use batch_core::blob_key::BlobKey;
use batch_core::shard::Shard;
use batch_io::{IoError, IoKind};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc::Receiver;

use crate::Context;
use crate::cut::CutWindow;

/// Shard blobs in flight at once: 2 of 8 MiB hide the disk's latency and keep memory bounded.
const BLOBS_IN_FLIGHT: usize = 2;

/// Stores every window that arrives, and frees its memory for the next one.
///
/// # Errors
///
/// The first [`IoError`]; the cutting thread then finds its channel closed and stops.
pub(crate) async fn store_windows(
    ctx: &Context,
    params: &BatchParams,
    mut windows: Receiver<CutWindow>,
) -> Result<(), IoError> {
    while let Some(window) = windows.recv().await {
        store_window(ctx, params, &window).await?;
    }
    Ok(())
}

async fn store_window(ctx: &Context, params: &BatchParams, cut: &CutWindow) -> Result<(), IoError> {
    let (tenant, batch) = (&params.tenant, params.id);
    let index = BlobKey::Index {
        tenant: tenant.clone(),
        batch,
        window: cut.number,
    };
    put_once(ctx, &index, Bytes::copy_from_slice(cut.window.index())).await?;
    // Boxed here, so that the compiler can see that this function's future may move between threads.
    let puts = cut.shards.iter().map(|shard| {
        async {
            let key = BlobKey::Shard {
                tenant: tenant.clone(),
                batch,
                shard: shard.record.id.clone(),
            };
            put_once(ctx, &key, Bytes::from(cut.window.encode(&shard.draft))).await
        }
        .boxed()
    });
    stream::iter(puts.collect::<Vec<_>>())
        .buffer_unordered(BLOBS_IN_FLIGHT)
        .try_collect::<()>()
        .await?;
    let records: Vec<Shard> = cut
        .shards
        .iter()
        .map(|shard| shard.record.clone())
        .collect();
    ctx.store.put_shards(tenant, batch, &records).await
}

/// Stores a blob that an earlier run may have stored already, byte for byte the same.
///
/// # Errors
///
/// [`IoError`]: `Corrupt` if what is there has another size.
async fn put_once(ctx: &Context, key: &BlobKey, body: Bytes) -> Result<(), IoError> {
    let bytes = body.len() as u64;
    match ctx.platform.blobs.put_if_absent(key, body).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind == IoKind::Conflict => {
            let there = ctx.platform.blobs.head(key).await?.bytes;
            let differs = || {
                IoError::new(
                    "store blob again with other bytes",
                    key.to_string(),
                    IoKind::Corrupt,
                )
            };
            if there == bytes {
                Ok(())
            } else {
                Err(differs())
            }
        }
        Err(error) => Err(error),
    }
}

//! What an ended batch leaves behind: shards, index, results, and files that were never published.
//!
//! The entry in the outbox is what leads here; it goes last.

use batch_core::blob_key::BlobKey;
use batch_core::id::{BatchId, TenantId};
use batch_core::shard::{SegmentRef, ShardId};
use batch_io::IoError;
use batch_io::store::BatchView;

use crate::pass::Pass;

/// Removes what an ended batch no longer needs, once no late stage or worker can write any more of it.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn clear(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    batch: BatchId,
) -> Result<(), IoError> {
    let Some(view) = pass.ctx.store.load_batch(tenant, batch).await? else {
        return pass.ctx.store.settle_outbox(tenant, batch).await;
    };
    let Some(ended_at) = view
        .run
        .moments
        .ended_at
        .filter(|_| view.run.state.is_terminal())
    else {
        return Ok(());
    };
    let timing = pass.ctx.store.timing();
    if pass.now < ended_at.plus_ms(timing.lease_ms + timing.takeover_ms) {
        return Ok(());
    }
    for folder in folders(tenant, batch) {
        pass.ctx.platform.blobs.delete_prefix(&folder).await?;
    }
    let published = published(pass, &view).await?;
    for epoch in 1..=view.run.stage.epoch {
        for blob in result_blobs(tenant, batch, epoch) {
            if !published.contains(&blob) {
                pass.ctx.platform.blobs.delete(&blob).await?;
            }
        }
    }
    if pass.ctx.store.forget_shards(tenant, batch).await? {
        pass.ctx.store.settle_outbox(tenant, batch).await?;
        pass.report.batches_cleared += 1;
    }
    Ok(())
}

/// Returns the blobs that the batch's own files name. A finalizer that went on from a saved place has named
/// them by the epoch of the one that began. The bytes of a deleted or expired file may go.
async fn published(pass: &Pass<'_>, view: &BatchView) -> Result<Vec<BlobKey>, IoError> {
    let mut blobs = Vec::new();
    let ids = [view.run.output_file_id, view.run.error_file_id];
    for id in ids.into_iter().flatten() {
        let store = &pass.ctx.store;
        let file = store.load_file(&view.params.tenant, id, pass.now).await?;
        blobs.extend(file.map(|file| file.blob));
    }
    Ok(blobs)
}

/// Names the blobs of both files that the finalizer of an epoch began.
fn result_blobs(tenant: &TenantId, batch: BatchId, epoch: u64) -> [BlobKey; 2] {
    [
        BlobKey::Output {
            tenant: tenant.clone(),
            batch,
            epoch,
        },
        BlobKey::Errors {
            tenant: tenant.clone(),
            batch,
            epoch,
        },
    ]
}

/// Returns the folders of a batch's shards, index and results, each with the slash that ends it.
fn folders(tenant: &TenantId, batch: BatchId) -> [String; 3] {
    let (tenant, shard, segment) = (
        tenant.clone(),
        ShardId::root(0, 0),
        SegmentRef {
            epoch: 0,
            number: 0,
        },
    );
    let results = BlobKey::Segment {
        tenant: tenant.clone(),
        batch,
        shard: shard.clone(),
        segment,
    };
    let shards = BlobKey::Shard {
        tenant: tenant.clone(),
        batch,
        shard,
    };
    let index = BlobKey::Index {
        tenant,
        batch,
        window: 0,
    };
    [
        parent(&shards.path()),
        parent(&index.path()),
        parent(parent(&results.path()).trim_end_matches('/')),
    ]
}

/// Returns the folder that a path is in, with its slash.
fn parent(path: &str) -> String {
    path.rsplit_once('/')
        .map_or_else(String::new, |(folder, _)| format!("{folder}/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_one_batch() {
        let batch: BatchId = "batch_00000000000070008000000000000000"
            .parse()
            .expect("a batch id");
        let expected =
            ["shards", "index", "results"].map(|class| format!("{class}/default/{batch}/"));
        assert_eq!(folders(&TenantId::default_tenant(), batch), expected);
    }
}

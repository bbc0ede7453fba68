//! Puts a batch in progress without the validate stage: small windows, small shards.

use batch_core::batch::FileDigest;
use batch_core::blob_key::BlobKey;
use batch_core::format;
use batch_core::id::{BatchId, LineNo};
use batch_core::shard::{Backlog, Shard, ShardId, ShardState};
use batch_io::store::{Publication, Published, Stage};
use bytes::Bytes;

use crate::world::{World, request};

/// How a batch is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Lines in all.
    pub(crate) lines: usize,
    /// Lines of a window.
    pub(crate) window_lines: usize,
    /// Lines of a shard.
    pub(crate) shard_lines: usize,
}

/// Creates a batch of `tiny` with the ids `r-1` and on, and publishes it.
///
/// Inside a window, shards take the lines from its end: merging must put them back.
pub(crate) async fn publish(world: &World, cut: Cut) -> BatchId {
    let batch = world.create_from(b"not read by this test").await;
    let claimed = world
        .store
        .claim_stage(&world.tenant, batch, Stage::Validate, world.now())
        .await;
    let claimed = claimed.expect("claim").expect("a validating batch");
    let numbers: Vec<u64> = (1..=cut.lines as u64).collect();
    let mut shards = Vec::new();
    let mut windows = 0;
    for lines in numbers.chunks(cut.window_lines) {
        let mut index = Vec::new();
        lines.iter().for_each(|no| {
            format::index::encode_entry(&mut index, LineNo(*no), &format!("\"r-{no}\""))
        });
        let key = BlobKey::Index {
            tenant: world.tenant.clone(),
            batch,
            window: windows,
        };
        world
            .platform
            .blobs
            .put(&key, Bytes::from(index))
            .await
            .expect("put the index");
        let backwards: Vec<u64> = lines.iter().rev().copied().collect();
        for part in backwards.chunks(cut.shard_lines) {
            let shard = pending(shards.len(), windows, part.len());
            let mut blob = Vec::new();
            for no in part {
                let raw = request(&format!("r-{no}"), "tiny");
                format::shard::encode_line(&mut blob, LineNo(*no), 10, raw.as_bytes());
            }
            let key = BlobKey::Shard {
                tenant: world.tenant.clone(),
                batch,
                shard: shard.id.clone(),
            };
            world
                .platform
                .blobs
                .put(&key, Bytes::from(blob))
                .await
                .expect("put the shard");
            shards.push(shard);
        }
        windows += 1;
    }
    world
        .store
        .put_shards(&world.tenant, batch, &shards)
        .await
        .expect("put the shards");
    let publication = Publication {
        models: vec!["tiny".to_owned()],
        windows,
        total: cut.lines as u64,
        shards_total: shards.len() as u64,
        estimated_tokens: 10 * cut.lines as u64,
        backlogs: vec![Backlog {
            slot: 0,
            model: "tiny".to_owned(),
            next: 0,
            shards: u32::try_from(shards.len()).expect("few shards"),
            estimated_tokens: 10 * cut.lines as u64,
            deadline: claimed.params.expires_at,
        }],
        input: FileDigest {
            sha256: "00".repeat(32),
            lines: cut.lines as u64,
            bytes: 21,
        },
        enqueued_tokens_max: None,
    };
    let published = world
        .store
        .publish(
            &world.tenant,
            batch,
            claimed.epoch,
            publication,
            world.now(),
        )
        .await;
    assert!(
        matches!(published.expect("publish"), Published::Done(_)),
        "the batch is in progress"
    );
    batch
}

fn pending(number: usize, window: u32, lines: usize) -> Shard {
    Shard {
        id: ShardId::root(0, u32::try_from(number).expect("few shards")),
        model: "tiny".to_owned(),
        window,
        lines: u32::try_from(lines).expect("few lines"),
        estimated_tokens: 10 * lines as u64,
        subset: None,
        state: ShardState::Pending,
        epoch: 0,
        losses: 0,
        alone: false,
        segments: Vec::new(),
    }
}

//! Lost messages, lost workers, splits, and lines that are given up.

use std::time::Duration;

use batch_core::blob_key::BlobKey;
use batch_core::format;
use batch_core::id::BatchId;
use batch_core::lifecycle::{SealedAs, State};
use batch_core::limits::SHARD_LOSSES_MAX;
use batch_core::message::{Lane, QueueName, SCHEMA, ShardJob};
use batch_core::shard::{ShardId, ShardState};

use crate::publish::{Cut, publish};
use crate::worker::{Answers, release_all, run_shard};
use crate::world::World;
use crate::{CUT, reconcile, state};

/// Returns the shards that have messages in a lane.
async fn messages(world: &World, lane: Lane) -> Vec<String> {
    let bodies = world
        .drain(&QueueName::Model {
            model: "tiny".to_owned(),
            lane,
        })
        .await;
    let job = |body: &String| {
        serde_json::from_str::<ShardJob>(body)
            .expect("a shard job")
            .shard
            .to_string()
    };
    bodies.iter().map(job).collect()
}

/// Claims a shard and lets the lease lapse, without a result.
async fn lose(world: &World, batch: BatchId, shard: &ShardId) {
    run_shard(world, batch, shard, Answers::Good, 0)
        .await
        .expect("a free shard");
    world.advance_ms(world.settings.timing.lease_ms);
}

/// Loses a shard as often as it takes to be one time too many.
async fn lose_for_good(world: &World, batch: BatchId, shard: &ShardId) {
    for _ in 1..SHARD_LOSSES_MAX {
        lose(world, batch, shard).await;
        reconcile(world).await;
    }
    lose(world, batch, shard).await;
}

#[tokio::test]
async fn a_message_is_sent_again_when_it_was_lost() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    world.advance_ms(world.settings.timing.message_lost_ms);
    assert_eq!(reconcile(&world).await.shards_resent, 2);
    let mut sent = messages(&world, Lane::Bulk).await;
    sent.sort();
    assert_eq!(sent, ["000-000000", "000-000001"]);
    assert_eq!(
        reconcile(&world).await.shards_resent,
        0,
        "the messages are young"
    );
}

async fn send(world: &World, batch: BatchId, shards: &[ShardId]) {
    let queue = QueueName::Model {
        model: "tiny".to_owned(),
        lane: Lane::Bulk,
    };
    let job = |shard: &ShardId| ShardJob {
        schema: SCHEMA,
        tenant: world.tenant.clone(),
        batch,
        shard: shard.clone(),
    };
    let jobs: Vec<ShardJob> = shards.iter().map(job).collect();
    let sent = world.platform.send(&queue, &jobs, Duration::ZERO).await;
    sent.expect("send");
}

/// A busy queue once hid a lost message until the window closed.
#[tokio::test]
async fn a_lost_message_is_sent_again_while_others_wait() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    send(&world, batch, &[ShardId::root(0, 0)]).await;
    world.advance_ms(world.settings.timing.message_lost_ms);
    reconcile(&world).await;
    let sent = messages(&world, Lane::Bulk).await;
    assert!(sent.contains(&"000-000001".to_owned()), "{sent:?}");
}

#[tokio::test]
async fn no_message_is_sent_while_every_waiting_shard_has_one() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    send(&world, batch, &[ShardId::root(0, 0), ShardId::root(0, 1)]).await;
    world.advance_ms(world.settings.timing.message_lost_ms);
    assert_eq!(reconcile(&world).await.shards_resent, 0);
}

#[tokio::test]
async fn a_shard_waits_for_a_worker_again_when_its_worker_died() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    let shard = ShardId::root(0, 1);
    lose(&world, batch, &shard).await;
    assert_eq!(reconcile(&world).await.shards_resent, 1);
    assert_eq!(messages(&world, Lane::Bulk).await, ["000-000001"]);
    let shard = world
        .store
        .load_shard(&world.tenant, batch, &shard)
        .await
        .expect("load")
        .expect("a shard");
    assert!(matches!(shard.state, ShardState::Released { .. }));
    assert_eq!(shard.losses, 1);
}

#[tokio::test]
async fn only_unfinished_lines_go_to_children_when_a_shard_is_lost_too_often() {
    let world = World::new();
    let batch = publish(
        &world,
        Cut {
            lines: 5,
            window_lines: 5,
            shard_lines: 5,
        },
    )
    .await;
    release_all(&world, batch).await;
    let root = ShardId::root(0, 0);
    for _ in 1..SHARD_LOSSES_MAX {
        lose(&world, batch, &root).await;
        reconcile(&world).await;
    }
    run_shard(&world, batch, &root, Answers::Good, 2)
        .await
        .expect("a free shard");
    world.advance_ms(world.settings.timing.lease_ms);
    assert_eq!(reconcile(&world).await.shards_split, 1);
    let mut lines = Vec::new();
    for child in root.children() {
        let child = world
            .store
            .load_shard(&world.tenant, batch, &child)
            .await
            .expect("load")
            .expect("a child");
        lines.extend(child.subset.clone().expect("a child names its lines"));
        run_shard(&world, batch, &child.id, Answers::Good, usize::MAX)
            .await
            .expect("a free child");
    }
    assert_eq!(lines, [2, 3, 4]);
    assert_eq!(world.batch(batch).await.run.counts.completed, 5);
    world.advance_ms(world.settings.timing.message_lost_ms);
    reconcile(&world).await;
    assert_eq!(
        state(&world, batch).await,
        State::Sealed(SealedAs::Completed)
    );
}

#[tokio::test]
async fn a_line_becomes_an_error_line_when_it_keeps_killing_its_worker_alone() {
    let world = World::new();
    let batch = publish(
        &world,
        Cut {
            lines: 2,
            window_lines: 2,
            shard_lines: 2,
        },
    )
    .await;
    release_all(&world, batch).await;
    let root = ShardId::root(0, 0);
    lose_for_good(&world, batch, &root).await;
    assert_eq!(reconcile(&world).await.shards_split, 1);
    let [killer, harmless] = root.children();
    run_shard(&world, batch, &harmless, Answers::Good, usize::MAX)
        .await
        .expect("a free child");
    for _ in 1..SHARD_LOSSES_MAX {
        world.advance_ms(world.settings.timing.message_lost_ms);
        reconcile(&world).await;
        lose(&world, batch, &killer).await;
    }
    world.advance_ms(world.settings.timing.message_lost_ms);
    reconcile(&world).await;
    lose(&world, batch, &killer).await;
    assert_eq!(reconcile(&world).await.lines_given_up, 1);
    assert_eq!(
        state(&world, batch).await,
        State::Sealed(SealedAs::Completed)
    );
    let counts = world.batch(batch).await.run.counts;
    assert_eq!((counts.completed, counts.failed), (1, 1));
    let shard = world
        .store
        .load_shard(&world.tenant, batch, &killer)
        .await
        .expect("load")
        .expect("a child");
    assert_eq!(shard.state, ShardState::Done);
    let [segment] = shard.segments.as_slice() else {
        panic!("{:?}", shard.segments)
    };
    let key = BlobKey::Segment {
        tenant: world.tenant.clone(),
        batch,
        shard: killer,
        segment: *segment,
    };
    let blob = world.blob(&key).await.expect("the segment");
    let records: Vec<_> = format::segment::decode(&blob)
        .map(|result| result.expect("a result").record)
        .collect();
    let record: serde_json::Value = serde_json::from_slice(records[0]).expect("a record is JSON");
    assert_eq!(record["custom_id"], "r-2");
    assert_eq!(record["response"]["status_code"], 500);
    assert_eq!(record["response"]["body"]["error"]["code"], "worker_crash");
}

#[tokio::test]
async fn other_entries_are_repaired_when_one_is_damaged() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    let (damaged, sound) = (ShardId::root(0, 0), ShardId::root(0, 1));
    lose_for_good(&world, batch, &damaged).await;
    let key = BlobKey::Shard {
        tenant: world.tenant.clone(),
        batch,
        shard: damaged,
    };
    world
        .platform
        .blobs
        .delete(&key)
        .await
        .expect("delete the blob");
    run_shard(&world, batch, &sound, Answers::Good, 0)
        .await
        .expect("a free shard");
    world.advance_ms(world.settings.timing.lease_ms);
    let report = reconcile(&world).await;
    assert_eq!((report.failures, report.shards_resent), (1, 1));
}

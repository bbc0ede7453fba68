//! What reconcile repairs: each kind of stuck thing, alone, and with crashes at every call.

#[path = "../../../finalize/tests/support/faults.rs"]
#[expect(dead_code, reason = "other tests use what this one does not")]
mod faults;
#[path = "../../../finalize/tests/support/publish.rs"]
mod publish;
#[path = "../../../finalize/tests/support/worker.rs"]
#[expect(dead_code, reason = "other tests use what this one does not")]
mod worker;
#[path = "../../../finalize/tests/support/world.rs"]
#[expect(dead_code, reason = "other tests use what this one does not")]
mod world;

mod retention;
mod shards;

use std::sync::Arc;

use batch_core::id::BatchId;
use batch_core::lifecycle::{Event, SealedAs, State, Stop, Terminal};
use batch_core::message::QueueName;
use batch_core::shard::ShardId;
use batch_io::Platform;
use batch_io::store::{Stage, Store};
use faults::{Fuse, When};
use publish::{Cut, publish};
use reconcile::{Context, Report, handle};
use worker::{Answers, release_all, run_shard};
use world::World;

/// Four lines, two a shard.
const CUT: Cut = Cut {
    lines: 4,
    window_lines: 4,
    shard_lines: 2,
};

fn context(world: &World, platform: Platform) -> Context {
    let store = Store::new(Arc::clone(&platform.records), world.settings.timing);
    Context { platform, store }
}

async fn reconcile(world: &World) -> Report {
    handle(&context(world, world.platform.clone()), world.now())
        .await
        .expect("reconcile")
}

async fn state(world: &World, batch: BatchId) -> State {
    world.batch(batch).await.run.state
}

/// Asserts that one job of the stage was sent for the batch.
async fn assert_asked(world: &World, queue: &QueueName, batch: BatchId) {
    let jobs = world.drain(queue).await;
    let expected = serde_json::to_string(&world.stage_job(batch)).expect("a job is plain JSON");
    assert_eq!(jobs, [expected]);
}

#[tokio::test]
async fn nothing_is_done_when_nothing_is_due() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    assert_eq!(reconcile(&world).await, Report::default());
}

#[tokio::test]
async fn the_batch_expires_when_its_window_closes() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    world.advance_ms(86_400_000);
    assert_eq!(reconcile(&world).await.windows_closed, 1);
    assert_eq!(state(&world, batch).await, State::Draining(Stop::Expired));
    assert_eq!(reconcile(&world).await.batches_sealed, 0);
    world.advance_ms(world.settings.timing.seal_grace_ms);
    assert_eq!(reconcile(&world).await.batches_sealed, 1);
    assert_eq!(state(&world, batch).await, State::Sealed(SealedAs::Expired));
    assert_asked(&world, &QueueName::Finalize, batch).await;
}

#[tokio::test]
async fn the_batch_expires_at_once_when_it_is_still_validating() {
    let world = World::new();
    let batch = world.create_from(b"never read").await;
    world.advance_ms(86_400_000);
    assert_eq!(reconcile(&world).await.windows_closed, 1);
    assert_eq!(state(&world, batch).await, State::Ended(Terminal::Expired));
}

#[tokio::test]
async fn the_batch_is_sealed_when_its_grace_after_a_cancel_is_over() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    world
        .store
        .apply(&world.tenant, batch, Event::CancelRequested, world.now())
        .await
        .expect("cancel");
    world.advance_ms(world.settings.timing.seal_grace_ms);
    assert_eq!(reconcile(&world).await.batches_sealed, 1);
    assert_eq!(
        state(&world, batch).await,
        State::Sealed(SealedAs::Cancelled)
    );
    assert_asked(&world, &QueueName::Finalize, batch).await;
}

#[tokio::test]
async fn the_batch_is_sealed_when_the_worker_died_after_the_last_commit() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    for number in 0..2 {
        run_shard(
            &world,
            batch,
            &ShardId::root(0, number),
            Answers::Good,
            usize::MAX,
        )
        .await
        .expect("a free shard");
    }
    world.advance_ms(world.settings.timing.message_lost_ms);
    assert_eq!(reconcile(&world).await.batches_sealed, 1);
    assert_eq!(
        state(&world, batch).await,
        State::Sealed(SealedAs::Completed)
    );
    assert_asked(&world, &QueueName::Finalize, batch).await;
}

#[tokio::test]
async fn validate_is_asked_again_once_when_its_message_was_lost() {
    let world = World::new();
    let batch = world.create_from(b"never read").await;
    assert_eq!(reconcile(&world).await.stages_resent, 0);
    world.advance_ms(world.settings.timing.message_lost_ms);
    assert_eq!(reconcile(&world).await.stages_resent, 1);
    assert_asked(&world, &QueueName::Validate, batch).await;
    assert_eq!(
        reconcile(&world).await.stages_resent,
        0,
        "the message is young"
    );
}

#[tokio::test]
async fn finalize_is_asked_again_when_its_holder_died() {
    let world = World::new();
    let batch = world.create_from(b"never read").await;
    world
        .store
        .apply(&world.tenant, batch, Event::CancelRequested, world.now())
        .await
        .expect("cancel");
    world.advance_ms(world.settings.timing.message_lost_ms);
    let held = world
        .store
        .claim_stage(&world.tenant, batch, Stage::Finalize, world.now())
        .await
        .expect("claim");
    assert!(held.is_some());
    assert_eq!(reconcile(&world).await.stages_resent, 0, "the lease holds");
    world.advance_ms(world.settings.timing.lease_ms);
    assert_eq!(reconcile(&world).await.stages_resent, 1);
    assert_asked(&world, &QueueName::Finalize, batch).await;
}

#[tokio::test]
async fn a_dispatch_is_asked_for_when_a_model_has_shards_but_none_released() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    assert_eq!(reconcile(&world).await.dispatches, 1);
    assert_eq!(
        world.drain(&QueueName::Dispatch).await,
        [r#"{"schema":1,"model":"tiny"}"#]
    );
    assert!(
        world
            .store
            .release(&world.tenant, batch, 0, 0, 1, world.now())
            .await
            .expect("release")
    );
    assert_eq!(reconcile(&world).await.dispatches, 0);
}

#[tokio::test]
async fn two_runs_at_once_are_harmless() {
    let world = World::new();
    let batch = stuck_scene(&world).await;
    let (first, second) = (
        context(&world, world.platform.clone()),
        context(&world, world.platform.clone()),
    );
    for _ in 0..12 {
        let (one, two) = tokio::join!(handle(&first, world.now()), handle(&second, world.now()));
        one.expect("reconcile");
        two.expect("reconcile");
        world.advance_ms(world.settings.timing.message_lost_ms);
    }
    assert_eq!(ending(&world, batch).await, SCENE_ENDS);
}

/// What becomes of the scene once everything is repaired.
const SCENE_ENDS: &str = "sealed (completed); 4 completed, 0 failed; input file gone";

/// A batch with one finished shard, one shard whose worker died, and a deleted input file.
async fn stuck_scene(world: &World) -> BatchId {
    let batch = publish(world, CUT).await;
    release_all(world, batch).await;
    run_shard(
        world,
        batch,
        &ShardId::root(0, 0),
        Answers::Good,
        usize::MAX,
    )
    .await
    .expect("a free shard");
    run_shard(world, batch, &ShardId::root(0, 1), Answers::Good, 1)
        .await
        .expect("a free shard");
    let input = world
        .batch(batch)
        .await
        .params
        .input_file_id
        .parse()
        .expect("a file id");
    assert!(
        world
            .store
            .delete_file(&world.tenant, input, world.now())
            .await
            .expect("delete the file")
    );
    world.advance_ms(world.settings.timing.lease_ms);
    batch
}

/// Lets a worker answer what reconcile asked for, lets reconcile seal, and prints what came of it.
async fn ending(world: &World, batch: BatchId) -> String {
    run_shard(
        world,
        batch,
        &ShardId::root(0, 1),
        Answers::Good,
        usize::MAX,
    )
    .await;
    world.advance_ms(world.settings.timing.message_lost_ms);
    reconcile(world).await;
    let view = world.batch(batch).await;
    let input = view.params.input_file_id.parse().expect("a file id");
    let blob = batch_core::blob_key::BlobKey::File {
        tenant: world.tenant.clone(),
        file: input,
    };
    let input = if world.blob(&blob).await.is_some() {
        "there"
    } else {
        "gone"
    };
    let counts = view.run.counts;
    format!(
        "{}; {} completed, {} failed; input file {input}",
        view.run.state, counts.completed, counts.failed
    )
}

#[tokio::test]
async fn fails_at_every_call() {
    for when in [When::Before, When::After] {
        for k in 0.. {
            let world = World::new();
            let batch = stuck_scene(&world).await;
            let fuse = Fuse::at(k, when);
            // The error is the crash itself; what counts is what the next runs make of it.
            let _ = handle(&context(&world, fuse.wrap(&world.platform)), world.now()).await;
            world.advance_ms(world.settings.timing.message_lost_ms);
            reconcile(&world).await;
            assert_eq!(
                ending(&world, batch).await,
                SCENE_ENDS,
                "crash {when:?} call {k}"
            );
            if i64::try_from(fuse.calls()).expect("few calls") <= k {
                break;
            }
        }
    }
}

//! What the dispatcher releases, what it sends, and what is left after crashes at every call.

#[path = "../../finalize/tests/support/faults.rs"]
#[expect(dead_code, reason = "other tests use what this one does not")]
mod faults;
#[path = "../../finalize/tests/support/publish.rs"]
mod publish;
#[path = "../../finalize/tests/support/world.rs"]
#[expect(dead_code, reason = "other tests use what this one does not")]
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use batch_core::fleet::RATE_DEFAULT;
use batch_core::id::{BatchId, WorkerId};
use batch_core::lifecycle::Event;
use batch_core::message::{DispatchJob, Lane, QueueName, SCHEMA, ShardJob};
use batch_core::shard::{ShardId, ShardState};
use batch_io::Platform;
use batch_io::store::{ShardClaim, Store};
use dispatch::{Context, ModelBacklog, handle};
use faults::{Fuse, When};
use publish::{Cut, publish};
use world::World;

/// Ten shards of one line.
const CUT: Cut = Cut {
    lines: 10,
    window_lines: 10,
    shard_lines: 1,
};

fn context(world: &World, platform: Platform) -> Context {
    let store = Store::new(Arc::clone(&platform.records), world.settings.timing);
    Context {
        platform,
        store,
        catalog: Arc::clone(&world.catalog),
    }
}

fn job(model: Option<&str>) -> DispatchJob {
    DispatchJob {
        schema: SCHEMA,
        model: model.map(str::to_owned),
    }
}

async fn dispatch(world: &World, model: Option<&str>) -> Vec<ModelBacklog> {
    handle(
        &context(world, world.platform.clone()),
        job(model),
        world.now(),
    )
    .await
    .expect("dispatch")
}

/// Returns the shards that have messages, whichever the lane.
async fn messages(world: &World) -> Vec<String> {
    let mut shards = Vec::new();
    for lane in [Lane::Fast, Lane::Bulk] {
        for body in world
            .drain(&QueueName::Model {
                model: "tiny".to_owned(),
                lane,
            })
            .await
        {
            let job: ShardJob = serde_json::from_str(&body).expect("a shard job");
            shards.push(job.shard.to_string());
        }
    }
    shards.sort();
    shards
}

async fn released(world: &World, batch: BatchId) -> Vec<String> {
    let shards = world
        .store
        .list_shards(&world.tenant, batch)
        .await
        .expect("list shards");
    let released = shards
        .into_iter()
        .filter(|shard| matches!(shard.state, ShardState::Released { .. }));
    released.map(|shard| shard.id.to_string()).collect()
}

#[tokio::test]
async fn four_shards_wait_when_there_is_no_worker() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    let numbers = dispatch(&world, None).await;
    let expected = ["000-000000", "000-000001", "000-000002", "000-000003"];
    assert_eq!(released(&world, batch).await, expected);
    assert_eq!(messages(&world).await, expected);
    let [idle, backlog] = numbers.as_slice() else {
        panic!("{numbers:?}")
    };
    assert_eq!((idle.model.as_str(), idle.gpu_seconds()), ("small", 0));
    assert_eq!(
        (backlog.model.as_str(), backlog.newly_released),
        ("tiny", 4)
    );
    assert_eq!((backlog.unreleased_shards, backlog.released_shards), (6, 4));
}

#[tokio::test]
async fn demand_is_all_that_is_not_done() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    let before = tiny(dispatch(&world, None).await);
    let view = world.store.load_batch(&world.tenant, batch).await;
    let deadline = view.expect("load").expect("a batch").params.expires_at;
    assert_eq!(before.nearest_deadline(), Some(deadline));
    let [due] = before.demand.work.as_slice() else {
        panic!("{:?}", before.demand)
    };
    // No rate is known, so the default counts.
    assert_eq!(
        due.worker_ms,
        (before.unreleased_tokens * 1_000).div_ceil(u64::from(RATE_DEFAULT))
    );

    let worker = WorkerId::new(world.now(), [7; 16]);
    let shard = ShardId::root(0, 0);
    let claim = world
        .store
        .claim_shard(&world.tenant, batch, &shard, worker, world.now());
    let claim = claim.await.expect("claim");
    assert!(matches!(claim, ShardClaim::Granted { .. }), "{claim:?}");
    let after = tiny(dispatch(&world, None).await);
    assert_eq!(after.leased_shards, 1);
    assert_eq!(
        after.unreleased_tokens + after.released_tokens + after.leased_tokens,
        before.unreleased_tokens
    );

    world
        .store
        .record_rate("tiny", 10 * RATE_DEFAULT)
        .await
        .expect("record");
    let faster = tiny(dispatch(&world, None).await);
    assert_eq!(faster.demand.work[0].worker_ms, due.worker_ms.div_ceil(10));
}

#[tokio::test]
async fn nothing_is_demanded_when_the_window_has_closed() {
    let world = World::new();
    publish(&world, CUT).await;
    world.advance_ms(86_400_000);
    let late = tiny(dispatch(&world, None).await);
    assert_eq!((late.unreleased_shards, late.gpu_seconds()), (10, 0));
}

fn tiny(numbers: Vec<ModelBacklog>) -> ModelBacklog {
    let found = numbers.into_iter().find(|backlog| backlog.model == "tiny");
    found.expect("the catalog has it")
}

#[tokio::test]
async fn nothing_more_is_released_when_enough_waits() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    dispatch(&world, Some("tiny")).await;
    messages(&world).await;
    let numbers = dispatch(&world, Some("tiny")).await;
    assert_eq!(
        numbers
            .iter()
            .map(|backlog| backlog.newly_released)
            .sum::<u64>(),
        0
    );
    assert_eq!(released(&world, batch).await.len(), 4);
    assert_eq!(messages(&world).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_small_batch_goes_to_the_fast_lane() {
    let world = World::new();
    publish(
        &world,
        Cut {
            lines: 3,
            window_lines: 3,
            shard_lines: 3,
        },
    )
    .await;
    dispatch(&world, None).await;
    assert_eq!(
        world
            .drain(&QueueName::Model {
                model: "tiny".to_owned(),
                lane: Lane::Fast
            })
            .await
            .len(),
        1
    );
}

#[tokio::test]
async fn nothing_is_released_when_the_batch_was_stopped() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    world
        .store
        .apply(&world.tenant, batch, Event::CancelRequested, world.now())
        .await
        .expect("cancel");
    dispatch(&world, None).await;
    assert_eq!(released(&world, batch).await, Vec::<String>::new());
    assert_eq!(messages(&world).await, Vec::<String>::new());
}

#[tokio::test]
async fn other_models_are_left_alone_when_the_job_names_one() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    let numbers = dispatch(&world, Some("small")).await;
    assert_eq!(
        numbers
            .iter()
            .map(|backlog| backlog.newly_released)
            .sum::<u64>(),
        0
    );
    assert_eq!(released(&world, batch).await, Vec::<String>::new());
}

#[tokio::test]
async fn fails_at_every_call() {
    for when in [When::Before, When::After] {
        for k in 0.. {
            let world = World::new();
            let batch = publish(&world, CUT).await;
            let fuse = Fuse::at(k, when);
            // The error is the crash itself; what counts is what the next run makes of it.
            let _ = handle(
                &context(&world, fuse.wrap(&world.platform)),
                job(None),
                world.now(),
            )
            .await;
            dispatch(&world, None).await;
            let released: BTreeSet<String> = released(&world, batch).await.into_iter().collect();
            assert!(released.len() >= 4, "crash {when:?} call {k}: {released:?}");
            // A message may be lost, which reconcile repairs; none may name a shard that is not released.
            let sent: BTreeSet<String> = messages(&world).await.into_iter().collect();
            assert!(
                sent.is_subset(&released),
                "crash {when:?} call {k}: {sent:?} beyond {released:?}"
            );
            if i64::try_from(fuse.calls()).expect("few calls") <= k {
                break;
            }
        }
    }
}

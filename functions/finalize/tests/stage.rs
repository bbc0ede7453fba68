//! What finalize writes for every way in which a batch can end, and with crashes at every call.

#[path = "support/faults.rs"]
mod faults;
#[path = "support/publish.rs"]
mod publish;
#[path = "support/worker.rs"]
mod worker;
#[path = "support/world.rs"]
#[expect(dead_code, reason = "other tests use what this one does not")]
mod world;

use std::sync::Arc;

use batch_core::blob_key::BlobKey;
use batch_core::file::{ExpiresAfter, File, Purpose};
use batch_core::id::{BatchId, FileId};
use batch_core::lifecycle::{Event, SealedAs, State, Terminal};
use batch_core::limits::{OUTPUT_PART_BYTES, SHARD_LOSSES_MAX};
use batch_core::message::QueueName;
use batch_core::settings::Timing;
use batch_core::shard::ShardId;
use batch_io::Platform;
use batch_io::store::{Lapsed, SplitShard, Stage, Store};
use expect_test::{Expect, expect};
use faults::{Fuse, When};
use finalize::{Context, handle};
use publish::{Cut, publish};
use sha2::{Digest, Sha256};
use worker::{Answers, release_all, run_shard};
use world::World;

/// Five lines in two windows, two lines a shard.
const CUT: Cut = Cut {
    lines: 5,
    window_lines: 3,
    shard_lines: 2,
};

fn context(world: &World, platform: Platform) -> Context {
    let store = Store::new(Arc::clone(&platform.records), world.settings.timing);
    Context { platform, store }
}

async fn finalize(world: &World, batch: BatchId) {
    let ctx = context(world, world.platform.clone());
    handle(&ctx, world.stage_job(batch), world.now(), None)
        .await
        .expect("finalize");
}

/// Finalizes with time for one window a run, and returns how many runs it took.
async fn finalize_in_steps(world: &World, batch: BatchId) -> u32 {
    let ctx = context(world, world.platform.clone());
    let mut runs = 0;
    while matches!(world.batch(batch).await.run.state, State::Sealed(_)) {
        assert!(runs < 100, "it does not come to an end");
        runs += 1;
        let now = world.now();
        handle(&ctx, world.stage_job(batch), now, Some(now))
            .await
            .expect("finalize");
    }
    runs
}

async fn apply(world: &World, batch: BatchId, event: Event) {
    world
        .store
        .apply(&world.tenant, batch, event, world.now())
        .await
        .expect("apply the event");
}

/// Stops a batch and waits for its grace.
async fn stop(world: &World, batch: BatchId, event: Event) {
    apply(world, batch, event).await;
    world.advance_ms(world.settings.timing.seal_grace_ms);
    apply(world, batch, Event::GraceOver).await;
}

/// Publishes a batch and runs `shards` of it to their ends.
async fn publish_and_run(world: &World, shards: u32, answers: Answers) -> BatchId {
    let batch = publish(world, CUT).await;
    release_all(world, batch).await;
    for number in 0..shards {
        run_shard(world, batch, &ShardId::root(0, number), answers, usize::MAX)
            .await
            .expect("a free shard");
    }
    batch
}

async fn file(world: &World, id: FileId) -> (File, String) {
    let file = world
        .store
        .load_file(&world.tenant, id, world.now())
        .await
        .expect("load")
        .expect("the file is there");
    let bytes = world.blob(&file.blob).await.expect("the file's bytes");
    (file, String::from_utf8(bytes).expect("JSONL is UTF-8"))
}

/// Prints how a batch ended: state, counts, and each line of both files in short.
async fn outcome(world: &World, batch: BatchId) -> String {
    let run = world.batch(batch).await.run;
    let counts = run.counts;
    let mut text = format!(
        "{}; {}/{}/{}\n",
        run.state, counts.total, counts.completed, counts.failed
    );
    let manifest = run
        .manifest
        .unwrap_or_else(|| panic!("{text} has no manifest"));
    for (role, id, digest) in [
        ("output", run.output_file_id, manifest.output),
        ("error", run.error_file_id, manifest.error),
    ] {
        let Some(id) = id else {
            assert_eq!(digest, None, "a file that is not there has no digest");
            text += &format!("{role}: none\n");
            continue;
        };
        let (file, lines) = file(world, id).await;
        let digest = digest.expect("the digest of a file");
        assert_eq!(digest.sha256, hex::encode(Sha256::digest(lines.as_bytes())));
        assert_eq!(
            (digest.bytes, file.bytes),
            (lines.len() as u64, lines.len() as u64)
        );
        assert_eq!(digest.lines, lines.lines().count() as u64);
        assert_eq!(
            (file.purpose, file.filename.as_str()),
            (
                Purpose::BatchOutput,
                format!("{batch}_{role}.jsonl").as_str()
            )
        );
        text += &format!("{role}:");
        for line in lines.lines() {
            let record: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
            let status = &record["response"]["status_code"];
            let result = if status.is_null() {
                &record["error"]["code"]
            } else {
                status
            };
            text += &format!(
                " {}={result}",
                record["custom_id"].as_str().expect("a custom_id")
            );
        }
        text += "\n";
    }
    text
}

async fn check(world: &World, batch: BatchId, expected: Expect) {
    finalize(world, batch).await;
    let first = outcome(world, batch).await;
    expected.assert_eq(&first);
    finalize(world, batch).await;
    assert_eq!(
        outcome(world, batch).await,
        first,
        "a second run changes nothing"
    );
}

#[tokio::test]
async fn lines_are_in_input_order_when_all_are_done() {
    let world = World::new();
    let batch = publish_and_run(&world, 3, Answers::Mixed).await;
    apply(&world, batch, Event::AllShardsDone).await;
    check(
        &world,
        batch,
        expect![[r#"
        completed; 5/3/2
        output: r-1=200 r-3=200 r-5=200
        error: r-2=400 r-4=400
    "#]],
    )
    .await;
}

#[tokio::test]
async fn there_is_no_output_file_when_every_line_failed() {
    let world = World::new();
    let batch = publish_and_run(&world, 3, Answers::Bad).await;
    apply(&world, batch, Event::AllShardsDone).await;
    check(
        &world,
        batch,
        expect![[r#"
        completed; 5/0/5
        output: none
        error: r-1=400 r-2=400 r-3=400 r-4=400 r-5=400
    "#]],
    )
    .await;
}

#[tokio::test]
async fn there_is_no_error_file_when_every_line_succeeded() {
    let world = World::new();
    let batch = publish_and_run(&world, 3, Answers::Good).await;
    apply(&world, batch, Event::AllShardsDone).await;
    check(
        &world,
        batch,
        expect![[r#"
        completed; 5/5/0
        output: r-1=200 r-2=200 r-3=200 r-4=200 r-5=200
        error: none
    "#]],
    )
    .await;
}

#[tokio::test]
async fn finished_lines_are_kept_when_the_window_closes() {
    let world = World::new();
    let batch = publish_and_run(&world, 1, Answers::Good).await;
    run_shard(&world, batch, &ShardId::root(0, 2), Answers::Good, 1)
        .await
        .expect("a free shard");
    stop(&world, batch, Event::WindowClosed).await;
    check(
        &world,
        batch,
        expect![[r#"
        expired; 5/3/2
        output: r-2=200 r-3=200 r-5=200
        error: r-1="batch_expired" r-4="batch_expired"
    "#]],
    )
    .await;
}

#[tokio::test]
async fn finished_lines_are_kept_when_the_batch_is_cancelled() {
    let world = World::new();
    let batch = publish_and_run(&world, 1, Answers::Mixed).await;
    stop(&world, batch, Event::CancelRequested).await;
    check(
        &world,
        batch,
        expect![[r#"
        cancelled; 5/1/4
        output: r-3=200
        error: r-1="batch_cancelled" r-2=400 r-4="batch_cancelled" r-5="batch_cancelled"
    "#]],
    )
    .await;
}

#[tokio::test]
async fn every_result_is_kept_when_the_cancel_comes_during_finalizing() {
    let world = World::new();
    let batch = publish_and_run(&world, 3, Answers::Mixed).await;
    apply(&world, batch, Event::AllShardsDone).await;
    apply(&world, batch, Event::CancelRequested).await;
    check(
        &world,
        batch,
        expect![[r#"
        cancelled; 5/3/2
        output: r-1=200 r-3=200 r-5=200
        error: r-2=400 r-4=400
    "#]],
    )
    .await;
}

#[tokio::test]
async fn there_are_no_files_when_the_batch_is_cancelled_while_validating() {
    let world = World::new();
    let batch = world.create_from(b"never read").await;
    apply(&world, batch, Event::CancelRequested).await;
    check(
        &world,
        batch,
        expect![[r#"
        cancelled; 0/0/0
        output: none
        error: none
    "#]],
    )
    .await;
}

#[tokio::test]
async fn results_of_a_parent_and_its_children_are_merged_when_a_shard_was_split() {
    let world = World::new();
    let batch = publish(
        &world,
        Cut {
            lines: 4,
            window_lines: 4,
            shard_lines: 4,
        },
    )
    .await;
    release_all(&world, batch).await;
    let root = ShardId::root(0, 0);
    let lost = SHARD_LOSSES_MAX;
    for _ in 1..lost {
        run_shard(&world, batch, &root, Answers::Good, 0)
            .await
            .expect("a free shard");
        world.advance_ms(world.settings.timing.lease_ms);
        world
            .store
            .apply_lapse(&world.tenant, batch, &root, world.now())
            .await
            .expect("lapse");
    }
    run_shard(&world, batch, &root, Answers::Good, 1)
        .await
        .expect("a free shard");
    world.advance_ms(world.settings.timing.lease_ms);
    let lapsed = world
        .store
        .apply_lapse(&world.tenant, batch, &root, world.now())
        .await
        .expect("lapse");
    let Lapsed::MustSplit(parent) = lapsed else {
        panic!("{lapsed:?}")
    };
    let split = world
        .store
        .split_shard(&world.tenant, batch, &parent, &[1, 2, 3], world.now())
        .await
        .expect("split");
    let SplitShard::Split(children) = split else {
        panic!("{split:?}")
    };
    for child in children {
        run_shard(&world, batch, &child.id, Answers::Mixed, usize::MAX)
            .await
            .expect("a free child");
    }
    apply(&world, batch, Event::AllShardsDone).await;
    check(
        &world,
        batch,
        expect![[r#"
        completed; 4/3/1
        output: r-1=200 r-3=200 r-4=200
        error: r-2=400
    "#]],
    )
    .await;
}

#[tokio::test]
async fn files_live_30_days_when_the_user_asks_for_nothing() {
    let world = World::new();
    let batch = publish_and_run(&world, 3, Answers::Mixed).await;
    apply(&world, batch, Event::AllShardsDone).await;
    assert_eq!(
        world.batch(batch).await.params.output_expires_after,
        None::<ExpiresAfter>
    );
    finalize(&world, batch).await;
    let id = world
        .batch(batch)
        .await
        .run
        .output_file_id
        .expect("an output file");
    let (file, _) = file(&world, id).await;
    assert_eq!(
        file.expires_at,
        Some(file.created_at.plus_ms(30 * 86_400_000))
    );
}

#[tokio::test]
async fn output_is_whole_when_it_has_many_parts() {
    let world = World::new();
    let cut = Cut {
        lines: 20_000,
        window_lines: 10_000,
        shard_lines: 500,
    };
    let batch = publish(&world, cut).await;
    release_all(&world, batch).await;
    for number in 0..40 {
        let shard = ShardId::root(0, number);
        run_shard(&world, batch, &shard, Answers::Long, usize::MAX)
            .await
            .expect("a free shard");
    }
    apply(&world, batch, Event::AllShardsDone).await;
    assert!(finalize_in_steps(&world, batch).await > 1, "it has windows");
    let output = world
        .batch(batch)
        .await
        .run
        .output_file_id
        .expect("an output file");
    assert!(
        file(&world, output).await.0.bytes > 2 * OUTPUT_PART_BYTES as u64,
        "three parts"
    );
    let every: String = (1..=20_000)
        .map(|number| format!(" r-{number}=200"))
        .collect();
    let expected = format!("completed; 20000/20000/0\noutput:{every}\nerror: none\n");
    assert!(
        outcome(&world, batch).await == expected,
        "every line is there, in input order"
    );
}

#[tokio::test]
async fn the_batch_waits_for_a_person_when_a_segment_is_damaged() {
    let world = World::new();
    let batch = publish_and_run(&world, 3, Answers::Good).await;
    apply(&world, batch, Event::AllShardsDone).await;
    let shard = ShardId::root(0, 1);
    let segments = world
        .store
        .load_shard(&world.tenant, batch, &shard)
        .await
        .expect("load")
        .expect("a shard")
        .segments;
    let key = BlobKey::Segment {
        tenant: world.tenant.clone(),
        batch,
        shard,
        segment: segments[0],
    };
    let whole = world.blob(&key).await.expect("the segment");
    for damaged in [None, Some(b"nonsense".to_vec())] {
        match damaged {
            None => world
                .platform
                .blobs
                .delete(&key)
                .await
                .expect("delete the segment"),
            Some(bytes) => {
                world
                    .platform
                    .blobs
                    .put(&key, bytes.into())
                    .await
                    .expect("damage the segment");
            }
        }
        finalize(&world, batch).await;
        assert!(matches!(
            world.batch(batch).await.run.state,
            State::Sealed(_)
        ));
        finalize(&world, batch).await;
        world.advance_ms(3_600_000);
    }
    world
        .platform
        .blobs
        .put(&key, whole.into())
        .await
        .expect("mend the segment");
    finalize(&world, batch).await;
    assert_eq!(
        world.batch(batch).await.run.state,
        State::Ended(Terminal::Completed)
    );
}

#[tokio::test]
async fn the_work_is_dropped_when_another_finalizer_takes_over() {
    let world = World::new();
    let batch = publish_and_run(&world, 3, Answers::Good).await;
    apply(&world, batch, Event::AllShardsDone).await;
    let fuse = Fuse::at(0, When::Stuck);
    let blobs = fuse.wrap(&world.platform).blobs;
    let mut ctx = context(
        &world,
        Platform {
            blobs,
            ..world.platform.clone()
        },
    );
    let hasty = Timing {
        lease_ms: 3,
        ..world.settings.timing
    };
    ctx.store = Store::new(Arc::clone(&world.platform.records), hasty);
    let takeover = async {
        while fuse.calls() == 0 {
            tokio::task::yield_now().await;
        }
        world.advance_ms(world.settings.timing.lease_ms);
        world
            .store
            .claim_stage(&world.tenant, batch, Stage::Finalize, world.now())
            .await
            .expect("claim")
    };
    let (dropped, taken) = tokio::join!(
        handle(&ctx, world.stage_job(batch), world.now(), None),
        takeover
    );
    dropped.expect("a lost lease is no error");
    assert_eq!(
        taken.expect("a lapsed stage").epoch,
        world.batch(batch).await.run.stage.epoch
    );
    assert_eq!(
        world.batch(batch).await.run.state,
        State::Sealed(SealedAs::Completed)
    );
}

/// Finalizes with a crash at call `k`, then again without; returns the outcome and the calls made.
async fn crash_at(k: i64, when: When) -> (String, u64) {
    let world = World::new();
    let batch = publish_and_run(&world, 2, Answers::Mixed).await;
    stop(&world, batch, Event::CancelRequested).await;
    let fuse = Fuse::at(k, when);
    // The error is the crash itself; what counts is what the next run makes of it.
    let _ = handle(
        &context(&world, fuse.wrap(&world.platform)),
        world.stage_job(batch),
        world.now(),
        None,
    )
    .await;
    let calls = fuse.calls();
    // Whoever lives on has given the stage back.
    if when != When::Once {
        world.advance_ms(world.settings.timing.lease_ms + world.settings.timing.takeover_ms);
    }
    finalize(&world, batch).await;
    (outcome(&world, batch).await, calls)
}

#[tokio::test]
async fn fails_at_every_call() {
    for when in [When::Before, When::After] {
        let (expected, calls) = crash_at(i64::MAX, when).await;
        for k in 0..i64::try_from(calls).expect("few calls") {
            let (recovered, _) = crash_at(k, when).await;
            assert_eq!(recovered, expected, "crash {when:?} call {k}");
        }
    }
}

#[tokio::test]
async fn the_next_try_finds_the_stage_free_when_a_call_failed() {
    let (expected, calls) = crash_at(i64::MAX, When::Once).await;
    for k in 0..i64::try_from(calls).expect("few calls") {
        let (recovered, _) = crash_at(k, When::Once).await;
        assert_eq!(recovered, expected, "call {k}");
    }
}

#[tokio::test]
async fn goes_on_from_the_saved_place_when_its_time_was_over() {
    let world = World::new();
    let whole = publish_and_run(&world, 2, Answers::Mixed).await;
    let in_steps = publish_and_run(&world, 2, Answers::Mixed).await;
    for batch in [whole, in_steps] {
        stop(&world, batch, Event::CancelRequested).await;
    }
    finalize(&world, whole).await;
    assert_eq!(finalize_in_steps(&world, in_steps).await, 2, "two windows");
    assert_eq!(
        outcome(&world, in_steps).await,
        outcome(&world, whole).await
    );
    let jobs = world.drain(&QueueName::Finalize).await;
    assert!(
        jobs.iter().any(|job| job.contains(&in_steps.to_string())),
        "it asks for its next run: {jobs:?}"
    );
}

/// As [`crash_at`], with time for one window a run.
async fn crash_in_steps_at(k: i64, when: When) -> (String, u64) {
    let world = World::new();
    let batch = publish_and_run(&world, 2, Answers::Mixed).await;
    stop(&world, batch, Event::CancelRequested).await;
    let fuse = Fuse::at(k, when);
    let ctx = context(&world, fuse.wrap(&world.platform));
    for _ in 0..2 {
        let now = world.now();
        // The error is the crash itself; what counts is what the next run makes of it.
        let _ = handle(&ctx, world.stage_job(batch), now, Some(now)).await;
    }
    let calls = fuse.calls();
    // Whoever lives on has given the stage back.
    if when != When::Once {
        world.advance_ms(world.settings.timing.lease_ms + world.settings.timing.takeover_ms);
    }
    finalize_in_steps(&world, batch).await;
    (outcome(&world, batch).await, calls)
}

#[tokio::test]
async fn fails_at_every_call_around_a_saved_place() {
    for when in [When::Before, When::After] {
        let (expected, calls) = crash_in_steps_at(i64::MAX, when).await;
        for k in 0..i64::try_from(calls).expect("few calls") {
            let (recovered, _) = crash_in_steps_at(k, when).await;
            assert_eq!(recovered, expected, "crash {when:?} call {k}");
        }
    }
}

#[tokio::test]
async fn starts_over_when_the_saved_place_does_not_read() {
    for damage in [None, Some(b"nonsense".as_slice())] {
        let world = World::new();
        let whole = publish_and_run(&world, 2, Answers::Mixed).await;
        let batch = publish_and_run(&world, 2, Answers::Mixed).await;
        for batch in [whole, batch] {
            stop(&world, batch, Event::CancelRequested).await;
        }
        finalize(&world, whole).await;
        let ctx = context(&world, world.platform.clone());
        let now = world.now();
        handle(&ctx, world.stage_job(batch), now, Some(now))
            .await
            .expect("finalize one window");
        let place = BlobKey::Place {
            tenant: world.tenant.clone(),
            batch,
            epoch: world
                .batch(batch)
                .await
                .run
                .saved_place
                .expect("a saved place"),
        };
        let blobs = &world.platform.blobs;
        match damage {
            None => blobs.delete(&place).await.expect("delete the place"),
            Some(bytes) => {
                let put = blobs.put(&place, bytes.into()).await;
                put.expect("damage the place");
            }
        }
        assert_eq!(finalize_in_steps(&world, batch).await, 3, "one in vain");
        assert_eq!(outcome(&world, batch).await, outcome(&world, whole).await);
    }
}

/// Finalizes a batch whose output is a blob of parts: one window, then the rest with a crash at call `k`, then
/// without. Returns the outcome and the calls of the second run.
async fn crash_among_parts_at(k: i64, when: When) -> (String, u64) {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    for (number, answers) in [(0, Answers::Huge), (1, Answers::Good), (2, Answers::Mixed)] {
        run_shard(
            &world,
            batch,
            &ShardId::root(0, number),
            answers,
            usize::MAX,
        )
        .await
        .expect("a free shard");
    }
    apply(&world, batch, Event::AllShardsDone).await;
    let (job, now) = (world.stage_job(batch), world.now());
    let first = context(&world, world.platform.clone());
    handle(&first, job.clone(), now, Some(now))
        .await
        .expect("finalize one window");
    let fuse = Fuse::at(k, when);
    let second = context(&world, fuse.wrap(&world.platform));
    // The error is the crash itself; what counts is what the next run makes of it.
    let _ = handle(&second, job, now, Some(now)).await;
    let calls = fuse.calls();
    // Whoever lives on has given the stage back.
    if when != When::Once {
        world.advance_ms(world.settings.timing.lease_ms + world.settings.timing.takeover_ms);
    }
    finalize_in_steps(&world, batch).await;
    (outcome(&world, batch).await, calls)
}

#[tokio::test]
async fn fails_at_every_call_around_a_saved_place_that_names_parts() {
    // A crash before a call is one after the call before it, and these runs take long.
    for when in [When::After, When::Once] {
        let (expected, calls) = crash_among_parts_at(i64::MAX, when).await;
        assert!(expected.starts_with("completed; 5/4/1"), "{expected}");
        for k in 0..i64::try_from(calls).expect("few calls") {
            let (recovered, _) = crash_among_parts_at(k, when).await;
            assert_eq!(recovered, expected, "crash {when:?} call {k}");
        }
    }
}

//! One port call that fails, each in turn; and commits whose outcome nobody knows.

use batch_core::lifecycle::{Event, SealedAs, State};
use batch_core::message::Lane;
use batch_core::shard::ShardState;

use super::bench::Bench;
use super::faults::{Fuse, When};

const BOTH: [When; 2] = [When::Before, When::After];

#[tokio::test]
async fn commit_of_unknown_outcome_is_repeated_as_it_was_when_more_lines_have_ended() {
    for when in BOTH {
        for call in ["put blob", "transact"] {
            let bench = Bench::new();
            let fuse = Fuse::new(when);
            let mut worker = bench.worker_behind(&fuse);
            let batch = bench.released("tiny", 1, 3).await;
            bench.send(batch, Lane::Bulk).await;
            worker.receive(Lane::Bulk).await;
            worker.feed();
            worker.gate.allow(2);
            worker.answers(1).await;
            bench.advance_ms(2_000);
            fuse.fail_next(call);
            worker.tick().await;
            worker.answers(1).await;
            for _ in 0..2 {
                bench.advance_ms(2_000);
                worker.tick().await;
            }
            let segments = bench.committed(batch).await;
            let lengths: Vec<usize> = segments.iter().map(Vec::len).collect();
            assert_eq!(lengths, [1, 1], "{call} {when:?}");
            assert_eq!(bench.run(batch).await.counts.completed, 2);
        }
    }
}

#[tokio::test]
async fn failed_commit_is_not_tried_again_at_once() {
    let bench = Bench::new();
    let fuse = Fuse::new(When::Before);
    let mut worker = bench.worker_behind(&fuse);
    let batch = bench.released("tiny", 1, 1).await;
    bench.send(batch, Lane::Bulk).await;
    worker.receive(Lane::Bulk).await;
    worker.feed();
    worker.tick().await;
    worker.gate.allow(1);
    fuse.fail_next("put blob");
    worker.answers(1).await;
    let calls = fuse.calls();
    bench.advance_ms(499);
    worker.tick().await;
    assert_eq!(fuse.calls(), calls);
    bench.advance_ms(1);
    worker.tick().await;
    assert_eq!(
        bench.run(batch).await.state,
        State::Sealed(SealedAs::Completed)
    );
}

#[tokio::test]
async fn shard_is_given_back_without_a_loss_when_its_lines_cannot_be_read_now() {
    let bench = Bench::new();
    let fuse = Fuse::new(When::Before);
    let mut worker = bench.worker_behind(&fuse);
    let batch = bench.released("tiny", 1, 1).await;
    bench.send(batch, Lane::Bulk).await;
    fuse.fail_next("get blob");
    worker.receive(Lane::Bulk).await;
    assert!(worker.service.held.is_empty());
    let shard = bench.shard(batch, 0).await;
    assert!(matches!(shard.state, ShardState::Released { .. }));
    assert_eq!(shard.losses, 0);
    bench.advance_ms(1_000);
    worker.receive(Lane::Bulk).await;
    assert_eq!(worker.service.held.len(), 1);
}

#[tokio::test]
async fn results_are_written_before_the_seal_when_the_commit_of_a_cancelled_batch_fails_first() {
    let bench = Bench::new();
    let fuse = Fuse::new(When::Before);
    let mut worker = bench.worker_behind(&fuse);
    let batch = bench.released("tiny", 1, 3).await;
    bench.send(batch, Lane::Bulk).await;
    worker.receive(Lane::Bulk).await;
    worker.feed();
    worker.gate.allow(1);
    worker.answers(1).await;
    let cancel = bench
        .store
        .apply(&bench.tenant, batch, Event::CancelRequested, bench.now());
    cancel.await.expect("cancel");
    fuse.fail_next("put blob");
    for completed in [0, 1] {
        bench.advance_ms(1_000);
        worker.tick().await;
        assert_eq!(bench.run(batch).await.counts.completed, completed);
    }
    assert!(worker.service.held.is_empty());
}

/// Runs a batch to its seal while one call fails. Returns how many calls were made.
async fn run_with_fault(k: u64, when: When) -> u64 {
    let bench = Bench::new();
    let fuse = Fuse::new(when);
    let mut worker = bench.worker_behind(&fuse);
    let batch = bench.released("tiny", 1, 3).await;
    bench.send(batch, Lane::Bulk).await;
    worker.gate.allow(1_000);
    fuse.fail_at(k);
    for round in 0.. {
        assert!(
            round < 60,
            "the batch never ends when call {k} fails {when:?}"
        );
        worker.receive(Lane::Bulk).await;
        worker.feed();
        // One at a time: a shard is committed in parts.
        worker.answers(worker.service.running_lines().min(1)).await;
        bench.advance_ms(1_100);
        worker.tick().await;
        bench.reconcile(batch).await;
        let run = bench.run(batch).await;
        // If the worker could not seal it, reconcile does.
        if !run.state.is_open() || run.shards_done == run.shards_total {
            break;
        }
    }
    let run = bench.run(batch).await;
    assert_eq!(
        (run.counts.completed, run.counts.failed),
        (3, 0),
        "{k} {when:?}"
    );
    assert_eq!(
        bench.committed(batch).await.concat().len(),
        3,
        "{k} {when:?}"
    );
    fuse.calls()
}

#[tokio::test]
async fn every_line_is_counted_once_whichever_call_fails() {
    for when in BOTH {
        let calls = run_with_fault(u64::MAX / 2, when).await;
        for k in 0..calls {
            run_with_fault(k, when).await;
        }
    }
}

#[tokio::test]
async fn hung_step_shows_lines_that_run() {
    let bench = Bench::new();
    let mut worker = bench.worker();
    worker.gate.hang();
    let batch = bench.released("tiny", 1, 1).await;
    bench.send(batch, Lane::Bulk).await;
    worker.receive(Lane::Bulk).await;
    worker.feed();
    worker.gate.wait_until_held();
    assert_eq!(worker.pipeline.progress().sequences(), 1);
    assert_eq!(worker.service.running_lines(), 1);
    assert_eq!(worker.pipeline.progress().steps(), 0);
}

//! The life of a held shard: claimed, committed, renewed, resumed, handed back, lost, stopped.

use batch_core::lifecycle::{Event, SealedAs, State};
use batch_core::message::{Lane, QueueName};
use batch_core::shard::ShardState;
use batch_io::store::ShardClaim;

use super::bench::{Bench, Worker, bulk_or_fast};

/// Publishes one shard of `lines` lines, and gives it to a new worker.
async fn with_shard(bench: &Bench, lines: u32) -> (Worker, batch_core::id::BatchId) {
    let batch = bench.released("tiny", 1, lines).await;
    bench.send(batch, Lane::Bulk).await;
    let mut worker = bench.worker();
    worker.receive(Lane::Bulk).await;
    worker.feed();
    (worker, batch)
}

fn holds_nothing(worker: &Worker) -> bool {
    worker.service.held.is_empty() && worker.service.owners.is_empty()
}

#[tokio::test]
async fn shard_is_run_and_its_batch_sealed_when_all_lines_end() {
    let bench = Bench::new();
    let (mut worker, batch) = with_shard(&bench, 3).await;
    worker.gate.allow(3);
    worker.answers(3).await;
    let run = bench.run(batch).await;
    assert_eq!((run.counts.completed, run.counts.failed), (3, 0));
    assert_eq!(run.state, State::Sealed(SealedAs::Completed));
    assert!(run.tokens.output > 0 && run.cost_picodollars > 0);
    assert_eq!(bench.committed(batch).await.concat().len(), 3);
    assert!(holds_nothing(&worker));
    assert_eq!(bench.waiting(&QueueName::Finalize).await, 1);
    assert_eq!(bench.waiting(&QueueName::Dispatch).await, 1);
}

#[tokio::test]
async fn message_is_gone_when_its_shard_is_claimed() {
    let bench = Bench::new();
    let (worker, _) = with_shard(&bench, 3).await;
    assert_eq!(worker.service.held.len(), 1);
    // Later than any timeout of a message that is only hidden.
    bench.advance_ms(100_000);
    assert_eq!(bench.waiting(&bulk_or_fast(Lane::Bulk)).await, 0);
}

#[tokio::test]
async fn second_message_of_a_held_shard_is_dropped_and_reconcile_sends_another() {
    let bench = Bench::new();
    let (first, batch) = with_shard(&bench, 3).await;
    bench.send(batch, Lane::Bulk).await;
    let mut second = bench.worker();
    second.receive(Lane::Bulk).await;
    assert!(holds_nothing(&second));
    // Later than any timeout of a message that is only hidden.
    bench.advance_ms(100_000);
    assert_eq!(bench.waiting(&bulk_or_fast(Lane::Bulk)).await, 0);
    drop(first);
    bench.reconcile(batch).await;
    second.receive(Lane::Bulk).await;
    assert_eq!(second.service.held.len(), 1);
}

#[tokio::test]
async fn next_holder_runs_only_the_rest_when_a_worker_dies() {
    let bench = Bench::new();
    let (mut first, batch) = with_shard(&bench, 4).await;
    first.gate.allow(2);
    first.answers(2).await;
    bench.advance_ms(2_000);
    first.tick().await;
    assert_eq!(bench.committed(batch).await[0].len(), 2);
    drop(first);

    bench.advance_ms(15_000);
    bench.reconcile(batch).await;
    let mut second = bench.worker();
    second.receive(Lane::Bulk).await;
    second.feed();
    assert_eq!(second.service.running_lines(), 2);
    second.gate.allow(2);
    second.answers(2).await;
    assert_eq!(bench.committed(batch).await.concat().len(), 4);
    assert_eq!(bench.run(batch).await.counts.completed, 4);
    assert_eq!(bench.shard(batch, 0).await.losses, 1);
}

#[tokio::test]
async fn lease_is_renewed_while_no_line_ends() {
    let bench = Bench::new();
    let (mut worker, batch) = with_shard(&bench, 2).await;
    for _ in 0..20 {
        bench.advance_ms(2_000);
        worker.tick().await;
    }
    let shard = bench.shard(batch, 0).await;
    let until = bench.now().plus_ms(15_000);
    assert!(matches!(shard.state, ShardState::Leased { until: held, .. } if held == until));
    assert!(shard.segments.is_empty());
}

#[tokio::test]
async fn lease_is_renewed_when_the_clock_is_set_back() {
    let bench = Bench::new();
    let (mut worker, batch) = with_shard(&bench, 2).await;
    worker.gate.allow(1);
    worker.answers(1).await;
    bench.advance_ms(-3_600_000);
    worker.tick().await;
    assert_eq!(bench.committed(batch).await.concat().len(), 1);
    let registered = bench.store.list_workers(bench.now()).await.expect("list");
    assert_eq!(registered.len(), 1);
}

#[tokio::test]
async fn drain_commits_what_has_ended_and_hands_the_rest_back_without_a_loss() {
    let bench = Bench::new();
    let (mut worker, batch) = with_shard(&bench, 4).await;
    worker.gate.allow(1);
    worker.answers(1).await;
    // A second line has ended, and nobody has taken its answer yet.
    worker.gate.allow(1);
    worker.gate.wait_until_held();
    worker.service.drain(&mut worker.pipeline).await;
    assert!(holds_nothing(&worker));
    assert_eq!(bench.committed(batch).await.concat().len(), 2);
    let shard = bench.shard(batch, 0).await;
    assert!(matches!(shard.state, ShardState::Released { .. }));
    assert_eq!(
        (shard.losses, bench.waiting(&bulk_or_fast(Lane::Bulk)).await),
        (0, 1)
    );
}

#[tokio::test]
async fn shard_is_dropped_and_nothing_counted_when_another_took_it() {
    let bench = Bench::new();
    let (mut worker, batch) = with_shard(&bench, 3).await;
    worker.gate.allow(1);
    worker.answers(1).await;
    bench.advance_ms(15_000);
    assert!(matches!(
        bench.steal(batch, 0).await,
        ShardClaim::Granted { .. }
    ));
    worker.tick().await;
    assert!(holds_nothing(&worker));
    assert_eq!(bench.run(batch).await.counts.completed, 0);
    assert!(bench.committed(batch).await.is_empty());
}

#[tokio::test]
async fn results_are_kept_and_the_shard_is_dropped_when_the_batch_is_cancelled() {
    let bench = Bench::new();
    let (mut worker, batch) = with_shard(&bench, 3).await;
    worker.gate.allow(1);
    worker.answers(1).await;
    let cancel = bench
        .store
        .apply(&bench.tenant, batch, Event::CancelRequested, bench.now());
    cancel.await.expect("cancel");
    bench.advance_ms(1_000);
    worker.tick().await;
    assert!(holds_nothing(&worker));
    assert_eq!(bench.run(batch).await.counts.completed, 1);
}

#[tokio::test]
async fn shard_is_dropped_when_the_batch_is_sealed() {
    let bench = Bench::new();
    let (mut worker, batch) = with_shard(&bench, 3).await;
    worker.gate.allow(1);
    worker.answers(1).await;
    for event in [Event::CancelRequested, Event::GraceOver] {
        let applied = bench.store.apply(&bench.tenant, batch, event, bench.now());
        applied.await.expect("stop the batch");
        bench.advance_ms(10_000);
    }
    let sealed = State::Sealed(SealedAs::Cancelled);
    assert_eq!(bench.run(batch).await.state, sealed);
    worker.tick().await;
    assert!(holds_nothing(&worker));
    assert_eq!(bench.run(batch).await.counts.completed, 0);
}

//! Which shards are taken, and which lines run: two lanes, lone lines, many small batches.

use batch_core::message::{Lane, QueueName};

use super::bench::{Bench, Worker, bulk_or_fast};

/// Returns how many lines of each shard the engine has been given, in the order of the claims.
fn running(worker: &Worker) -> Vec<usize> {
    let held = worker.service.held.values();
    held.map(super::super::held::Held::running_lines).collect()
}

/// Sends the shards of a new batch and claims one of them.
async fn take(bench: &Bench, worker: &mut Worker, lane: Lane, lines: u32) {
    let batch = bench.released("tiny", 1, lines).await;
    bench.send(batch, lane).await;
    worker.receive(lane).await;
}

#[tokio::test]
async fn fast_lane_is_urgent_and_does_not_wait_for_places_of_the_other() {
    let bench = Bench::new();
    let mut worker = bench.worker();
    take(&bench, &mut worker, Lane::Bulk, 20).await;
    worker.feed();
    take(&bench, &mut worker, Lane::Fast, 30).await;
    worker.feed();
    assert_eq!(running(&worker), [20, 30]);
    worker.gate.allow(50);
    worker.answers(50).await;
    assert_eq!(worker.gate.urgent(), 30);
}

#[tokio::test]
async fn lines_wait_here_when_the_engine_has_as_many_as_it_puts_in_order_at_once() {
    let bench = Bench::new();
    let mut worker = bench.worker();
    take(&bench, &mut worker, Lane::Bulk, 1_100).await;
    worker.feed();
    assert_eq!(running(&worker), [1_024]);
    worker.gate.allow(3);
    worker.answers(3).await;
    assert_eq!(running(&worker), [1_021]);
    worker.feed();
    assert_eq!(running(&worker), [1_024]);
}

#[tokio::test]
async fn more_small_shards_are_taken_until_their_lines_fill_the_engine() {
    for (lane, other) in [(Lane::Fast, Lane::Bulk), (Lane::Bulk, Lane::Fast)] {
        let bench = Bench::new();
        let mut worker = bench.worker();
        let mut taken = 0;
        while worker.service.has_room(&worker.pipeline, lane) {
            take(&bench, &mut worker, lane, 1).await;
            taken += 1;
        }
        assert_eq!(taken, 8);
        assert!(worker.service.has_room(&worker.pipeline, other));
    }
}

#[tokio::test]
async fn lone_line_waits_for_the_others_and_nothing_starts_beside_it() {
    let bench = Bench::new();
    let mut worker = bench.worker();
    take(&bench, &mut worker, Lane::Bulk, 2).await;
    worker.feed();
    let lone = bench.lone().await;
    bench.send(lone, Lane::Fast).await;
    worker.receive(Lane::Fast).await;
    worker.feed();
    assert_eq!(running(&worker), [2, 0]);

    // A poll that was under way when the lone line came: its message is for others.
    take(&bench, &mut worker, Lane::Bulk, 2).await;
    assert_eq!(worker.service.held.len(), 2);
    assert_eq!(bench.waiting(&bulk_or_fast(Lane::Bulk)).await, 1);

    worker.gate.allow(3);
    worker.answers(2).await;
    worker.feed();
    assert_eq!(running(&worker), [1]);
    worker.receive(Lane::Bulk).await;
    worker.feed();
    assert_eq!(running(&worker), [1]);
    worker.answers(1).await;
    worker.receive(Lane::Bulk).await;
    worker.feed();
    assert_eq!(running(&worker), [2]);
}

#[tokio::test]
async fn two_lone_lines_do_not_wait_for_each_other() {
    let bench = Bench::new();
    let mut worker = bench.worker();
    for lane in [Lane::Fast, Lane::Bulk] {
        let batch = bench.lone().await;
        bench.send(batch, lane).await;
        let queue = QueueName::Model {
            model: "tiny".to_owned(),
            lane,
        };
        let second = std::time::Duration::from_secs(1);
        let received = bench.platform.queue.receive(&queue, 1, second, second);
        let [message] = received.await.expect("receive").try_into().expect("one");
        let claimed = worker.service.claim_message(&queue, &message);
        claimed.await.expect("claim");
    }
    worker.feed();
    assert_eq!(running(&worker), [1, 0]);
    worker.gate.allow(2);
    worker.answers(1).await;
    worker.feed();
    assert_eq!(running(&worker), [1]);
    worker.answers(1).await;
    assert!(worker.service.held.is_empty());
}

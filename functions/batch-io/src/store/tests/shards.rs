//! Shards: claims, commits, fencing, lapses and splits.

use batch_core::limits::SHARD_LOSSES_MAX;

use super::*;
use crate::IoKind;
use crate::port::WorkKind;

async fn claim(bench: &Bench, batch: BatchId, number: u32) -> ShardClaim {
    let shard = ShardId::root(0, number);
    bench
        .store
        .claim_shard(&bench.tenant, batch, &shard, bench.worker(), bench.now())
        .await
        .unwrap()
}

async fn lapse(bench: &Bench, batch: BatchId, shard: &ShardId) -> Lapsed {
    bench
        .store
        .apply_lapse(&bench.tenant, batch, shard, bench.now())
        .await
        .unwrap()
}

/// Lets workers claim the shard and die, until it must be split or given up.
async fn lost_too_often(bench: &Bench, batch: BatchId, shard: &ShardId) -> Lapsed {
    for _ in 1..SHARD_LOSSES_MAX {
        bench.held_as(batch, shard).await;
        bench.pass_ms(TIMING.lease_ms);
        assert!(matches!(
            lapse(bench, batch, shard).await,
            Lapsed::Released(_)
        ));
    }
    bench.held_as(batch, shard).await;
    bench.pass_ms(TIMING.lease_ms);
    lapse(bench, batch, shard).await
}

async fn split(bench: &Bench, batch: BatchId, shard: &Shard, unfinished: &[u32]) -> SplitShard {
    bench
        .store
        .split_shard(&bench.tenant, batch, shard, unfinished, bench.now())
        .await
        .unwrap()
}

#[tokio::test]
async fn shards_that_are_stored_stay_as_they_are() {
    let bench = Bench::new(ROUGH);
    let batch = bench.released(90).await;
    let held = bench.held(batch, 3).await;
    let again: Vec<Shard> = (0..130).map(|number| shard(number, 4)).collect();
    bench
        .store
        .put_shards(&bench.tenant, batch, &again)
        .await
        .unwrap();
    assert_eq!(bench.shard(batch, 3).await, held);
    let stored = bench.store.list_shards(&bench.tenant, batch).await.unwrap();
    assert_eq!(stored.len(), 130);
    assert!(stored.is_sorted_by_key(|shard| shard.id.clone()));
}

#[tokio::test]
async fn a_claim_is_refused_while_another_holds_the_shard_or_nothing_is_left() {
    let bench = Bench::new(CALM);
    let batch = bench.published(2).await;
    assert_eq!(
        claim(&bench, batch, 0).await,
        ShardClaim::Finished,
        "not released"
    );
    bench
        .store
        .release(&bench.tenant, batch, 0, 0, 2, bench.now())
        .await
        .unwrap();
    assert_eq!(
        claim(&bench, batch, 7).await,
        ShardClaim::Finished,
        "not there"
    );
    let held = bench.held(batch, 0).await;
    let until = bench.now().plus_ms(TIMING.lease_ms);
    assert_eq!(claim(&bench, batch, 0).await, ShardClaim::Busy { until });
    committed(bench.commit(batch, &held, 0, 4, true).await);
    assert_eq!(claim(&bench, batch, 0).await, ShardClaim::Finished, "done");
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    assert_eq!(claim(&bench, batch, 1).await, ShardClaim::Stopped);
    let unknown = bench.batch_id();
    assert_eq!(claim(&bench, unknown, 0).await, ShardClaim::Stopped);
}

#[tokio::test]
async fn a_commit_that_is_repeated_adds_nothing_twice() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let first = bench.held(batch, 0).await;
    let second = committed(bench.commit(batch, &first, 0, 3, false).await);
    assert_eq!(
        committed(bench.commit(batch, &first, 0, 3, false).await),
        second
    );
    let done = committed(bench.commit(batch, &second, 1, 1, true).await);
    assert_eq!(
        committed(bench.commit(batch, &second, 1, 1, true).await),
        done
    );
    assert_eq!(
        committed(bench.commit(batch, &first, 0, 3, false).await),
        done,
        "its segment is there"
    );

    let run = bench.run(batch).await;
    assert_eq!(
        (run.counts.completed, run.counts.failed, run.shards_done),
        (4, 0, 1)
    );
    assert_eq!(
        run.tokens,
        TokenCounts {
            input: 40,
            cached: 4,
            output: 20
        }
    );
    assert_eq!(run.cost_picodollars, 28);
    let names: Vec<String> = done.segments.iter().map(SegmentRef::to_string).collect();
    assert_eq!(
        (done.state, names.join(",")),
        (ShardState::Done, "1-0,1-1".to_owned())
    );
}

#[tokio::test]
async fn a_commit_without_a_segment_renews_the_lease_or_ends_the_shard() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let held = bench.held(batch, 0).await;
    let empty = async |held: &Shard, last| {
        let delta = CommitDelta::default();
        bench
            .store
            .commit_shard(&bench.tenant, batch, held, None, delta, last, bench.now())
            .await
    };
    bench.pass_ms(TIMING.lease_ms + 5);
    let renewed = committed(empty(&held, false).await.unwrap());
    assert!(
        matches!(renewed.state, ShardState::Leased { until, .. } if until == bench.now().plus_ms(TIMING.lease_ms))
    );
    let full = committed(bench.commit(batch, &held, 0, 4, false).await);
    for _ in 0..2 {
        assert_eq!(
            committed(empty(&full, true).await.unwrap()).state,
            ShardState::Done
        );
    }
    assert_eq!(bench.run(batch).await.shards_done, 1);
    let counted = bench
        .store
        .commit_shard(
            &bench.tenant,
            batch,
            &full,
            None,
            completed(1),
            false,
            bench.now(),
        )
        .await;
    assert_eq!(counted.unwrap_err().kind, IoKind::TooLarge);
}

#[tokio::test]
async fn a_shard_has_as_many_results_as_lines() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let held = bench.held(batch, 0).await;
    let held = committed(bench.commit(batch, &held, 0, 2, false).await);
    for (lines, last) in [(3, false), (3, true), (1, true)] {
        let segment = Some(SegmentRef {
            epoch: held.epoch,
            number: 1,
        });
        let commit = bench.store.commit_shard(
            &bench.tenant,
            batch,
            &held,
            segment,
            completed(lines),
            last,
            bench.now(),
        );
        assert_eq!(
            commit.await.unwrap_err().kind,
            IoKind::TooLarge,
            "{lines} more, last: {last}"
        );
    }
    let run = bench.run(batch).await;
    assert_eq!((run.counts.completed, run.shards_done), (2, 0));
}

#[tokio::test]
async fn an_old_epoch_is_fenced_once_another_holds_the_shard() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let first = bench.held(batch, 0).await;
    let old = committed(bench.commit(batch, &first, 0, 1, false).await);
    bench.pass_ms(TIMING.lease_ms);
    let new = bench.held(batch, 0).await;
    assert_eq!(
        bench.commit(batch, &first, 0, 1, false).await,
        Commit::Fenced,
        "it is written, but the shard is another's"
    );
    assert_eq!(
        (new.epoch, new.losses, new.segments.len()),
        (old.epoch + 1, 1, 1)
    );
    assert_eq!(bench.commit(batch, &old, 1, 1, false).await, Commit::Fenced);
    assert!(
        !bench
            .store
            .hand_back(&bench.tenant, batch, &old, bench.now())
            .await
            .unwrap()
    );
    committed(bench.commit(batch, &new, 0, 3, true).await);
    assert_eq!(bench.run(batch).await.counts.completed, 4);
}

#[tokio::test]
async fn a_sealed_batch_takes_no_commit_but_knows_its_own() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let first = bench.held(batch, 0).await;
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    let second = committed(bench.commit(batch, &first, 0, 1, false).await);
    bench.apply(batch, Event::GraceOver).await.unwrap();
    assert_eq!(
        bench.commit(batch, &second, 1, 1, false).await,
        Commit::Closed
    );
    assert_eq!(
        bench.commit(batch, &first, 0, 1, false).await,
        Commit::Ok(second)
    );
    assert_eq!(bench.run(batch).await.counts.completed, 1);
}

#[tokio::test]
async fn a_shard_that_is_handed_back_counts_no_loss() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let held = bench.held(batch, 0).await;
    // The reply to this commit is lost: the worker hands back what it knows.
    committed(bench.commit(batch, &held, 0, 1, false).await);
    for _ in 0..2 {
        assert!(
            bench
                .store
                .hand_back(&bench.tenant, batch, &held, bench.now())
                .await
                .unwrap()
        );
    }
    let waiting = bench.shard(batch, 0).await;
    assert!(matches!(waiting.state, ShardState::Released { .. }));
    assert_eq!((waiting.losses, waiting.segments.len()), (0, 1));
    assert_eq!(
        bench.commit(batch, &held, 1, 1, false).await,
        Commit::Fenced
    );
    bench.held(batch, 0).await;
    assert!(
        !bench
            .store
            .hand_back(&bench.tenant, batch, &held, bench.now())
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn a_lost_message_is_asked_for_again_and_a_lost_lease_is_released() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let id = ShardId::root(0, 0);
    assert_eq!(lapse(&bench, batch, &id).await, Lapsed::Nothing);
    bench.pass_ms(TIMING.message_lost_ms);
    let due = DueRef::Shard {
        tenant: bench.tenant.clone(),
        batch,
        shard: id.clone(),
    };
    assert_eq!(bench.due(WorkKind::Shard).await, std::slice::from_ref(&due));
    assert_eq!(
        lapse(&bench, batch, &id).await,
        Lapsed::Released(bench.shard(batch, 0).await)
    );
    assert_eq!(lapse(&bench, batch, &id).await, Lapsed::Nothing);
    assert_eq!(bench.due(WorkKind::Shard).await, []);

    let held = bench.held(batch, 0).await;
    bench.pass_ms(TIMING.lease_ms - 1);
    assert_eq!(bench.due(WorkKind::Shard).await, []);
    assert_eq!(lapse(&bench, batch, &id).await, Lapsed::Nothing);
    bench.pass_ms(1);
    assert_eq!(bench.due(WorkKind::Shard).await, [due]);
    let Lapsed::Released(waiting) = lapse(&bench, batch, &id).await else {
        panic!("not released")
    };
    assert_eq!((waiting.losses, waiting.epoch > held.epoch), (1, true));
    assert_eq!(
        bench.commit(batch, &held, 0, 1, false).await,
        Commit::Fenced
    );
}

#[tokio::test]
async fn a_stopped_batch_releases_nothing_and_leaves_the_index() {
    let bench = Bench::new(CALM);
    let batch = bench.released(2).await;
    bench.held(batch, 0).await;
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    bench.pass_ms(TIMING.message_lost_ms);
    for number in 0..2 {
        assert_eq!(
            lapse(&bench, batch, &ShardId::root(0, number)).await,
            Lapsed::Stopped
        );
    }
    assert_eq!(bench.due(WorkKind::Shard).await, []);
    assert!(matches!(
        bench.shard(batch, 0).await.state,
        ShardState::Leased { .. }
    ));
}

#[tokio::test]
async fn the_leases_of_a_dead_worker_end_at_once() {
    let bench = Bench::new(CALM);
    let batch = bench.released(3).await;
    let (dead, alive) = (bench.worker(), bench.worker());
    for (number, worker) in [(0, dead), (1, dead), (2, alive)] {
        let shard = ShardId::root(0, number);
        bench
            .store
            .claim_shard(&bench.tenant, batch, &shard, worker, bench.now())
            .await
            .unwrap();
    }
    assert_eq!(
        bench.store.end_leases_of(dead, bench.now()).await.unwrap(),
        2
    );
    assert_eq!(
        bench.store.end_leases_of(dead, bench.now()).await.unwrap(),
        0
    );
    assert_eq!(bench.due(WorkKind::Shard).await.len(), 2);
    let lapsed = lapse(&bench, batch, &ShardId::root(0, 0)).await;
    assert!(matches!(lapsed, Lapsed::Released(shard) if shard.losses == 1));
    assert_eq!(
        lapse(&bench, batch, &ShardId::root(0, 2)).await,
        Lapsed::Nothing
    );
}

#[tokio::test]
async fn a_split_hands_the_unfinished_lines_to_two_children() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let held = bench.held(batch, 0).await;
    committed(bench.commit(batch, &held, 0, 1, false).await);
    bench
        .store
        .hand_back(&bench.tenant, batch, &held, bench.now())
        .await
        .unwrap();
    let Lapsed::MustSplit(read) = lost_too_often(&bench, batch, &ShardId::root(0, 0)).await else {
        panic!("not to be split")
    };
    assert_eq!(
        claim(&bench, batch, 0).await,
        ShardClaim::Finished,
        "it must be split first"
    );

    let SplitShard::Split(children) = split(&bench, batch, &read, &[0, 2, 3]).await else {
        panic!("not split")
    };
    assert_eq!(
        split(&bench, batch, &read, &[0, 2, 3]).await,
        SplitShard::Split(children.clone())
    );
    let subsets: Vec<_> = children
        .iter()
        .map(|child| (child.id.to_string(), child.subset.clone().unwrap()))
        .collect();
    assert_eq!(
        subsets,
        [
            ("000-000000.0".to_owned(), vec![0]),
            ("000-000000.1".to_owned(), vec![2, 3])
        ]
    );
    let run = bench.run(batch).await;
    assert_eq!((run.shards_total, run.shards_done), (2, 0));
    assert_eq!(bench.shard(batch, 0).await.state, ShardState::Split);
    assert_eq!(
        bench.commit(batch, &read, 1, 1, false).await,
        Commit::Fenced
    );

    for (child, lines) in children.iter().zip([1, 2]) {
        let held = bench.held_as(batch, &child.id).await;
        committed(bench.commit(batch, &held, 0, lines, true).await);
    }
    let run = bench.run(batch).await;
    assert_eq!(
        (run.shards_total, run.shards_done, run.counts.completed),
        (2, 2, 4)
    );
}

#[tokio::test]
async fn a_split_of_what_has_changed_or_is_sealed_does_nothing() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let Lapsed::MustSplit(read) = lost_too_often(&bench, batch, &ShardId::root(0, 0)).await else {
        panic!("not to be split")
    };
    // The holder was only slow.
    let slow = committed(bench.commit(batch, &read, 0, 1, false).await);
    assert_eq!(
        split(&bench, batch, &read, &[0, 1, 2, 3]).await,
        SplitShard::Changed
    );
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    bench.apply(batch, Event::GraceOver).await.unwrap();
    assert_eq!(
        split(&bench, batch, &slow, &[1, 2, 3]).await,
        SplitShard::Closed
    );
    assert_eq!(bench.run(batch).await.shards_total, 1);
    assert_eq!(
        bench.store.list_shards(&bench.tenant, batch).await.unwrap(),
        [slow]
    );
}

#[tokio::test]
async fn a_lost_shard_with_every_result_is_done() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let held = bench.held(batch, 0).await;
    committed(bench.commit(batch, &held, 0, 4, false).await);
    bench
        .store
        .hand_back(&bench.tenant, batch, &held, bench.now())
        .await
        .unwrap();
    let Lapsed::MustSplit(read) = lost_too_often(&bench, batch, &ShardId::root(0, 0)).await else {
        panic!("not to be split")
    };
    for _ in 0..2 {
        assert_eq!(
            split(&bench, batch, &read, &[]).await,
            SplitShard::Completed
        );
    }
    let run = bench.run(batch).await;
    assert_eq!(
        (run.shards_total, run.shards_done, run.counts.completed),
        (1, 1, 4)
    );
}

#[tokio::test]
async fn a_lost_shard_without_all_results_is_not_done() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let Lapsed::MustSplit(read) = lost_too_often(&bench, batch, &ShardId::root(0, 0)).await else {
        panic!("not to be split")
    };
    let error = bench
        .store
        .split_shard(&bench.tenant, batch, &read, &[], bench.now())
        .await
        .unwrap_err();
    assert_eq!(error.kind, IoKind::TooLarge);
}

#[tokio::test]
async fn a_line_that_kills_its_worker_runs_alone_and_is_given_up_then() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let held = bench.held(batch, 0).await;
    committed(bench.commit(batch, &held, 0, 3, false).await);
    bench
        .store
        .hand_back(&bench.tenant, batch, &held, bench.now())
        .await
        .unwrap();
    let id = ShardId::root(0, 0);
    let Lapsed::MustSplit(read) = lost_too_often(&bench, batch, &id).await else {
        panic!("not to be split")
    };
    for _ in 0..2 {
        let SplitShard::Split(left) = split(&bench, batch, &read, &[2]).await else {
            panic!("not split")
        };
        let [alone] = left.as_slice() else {
            panic!("{left:?}")
        };
        assert_eq!(
            (&alone.id, alone.alone, alone.lines, alone.losses),
            (&id, true, 1, 0)
        );
        assert_eq!(alone.segments, read.segments);
    }
    let Lapsed::GiveUp(given_up) = lost_too_often(&bench, batch, &id).await else {
        panic!("not given up")
    };
    assert_eq!(
        lapse(&bench, batch, &id).await,
        Lapsed::Nothing,
        "the caller holds it"
    );
    let failed = CommitDelta {
        failed: 1,
        ..CommitDelta::default()
    };
    let segment = SegmentRef {
        epoch: given_up.epoch,
        number: 0,
    };
    for _ in 0..2 {
        let commit = bench.store.commit_shard(
            &bench.tenant,
            batch,
            &given_up,
            Some(segment),
            failed,
            true,
            bench.now(),
        );
        assert_eq!(committed(commit.await.unwrap()).state, ShardState::Done);
    }
    let run = bench.run(batch).await;
    assert_eq!((run.shards_total, run.shards_done), (1, 1));
    assert_eq!(
        (run.counts.completed, run.counts.failed, run.counts.total),
        (3, 1, 4)
    );
}

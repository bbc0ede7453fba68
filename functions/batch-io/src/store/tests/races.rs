//! Two processes at once: whatever the order, one outcome, and sums that add up.

use batch_core::lifecycle::{State, Terminal};
use futures::future::join_all;
use tokio::task::JoinSet;

use super::*;

/// Runs `tasks` of them at the same time on threads of their own.
async fn race<T, F>(tasks: u64, mut task: impl FnMut(u64) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut set = JoinSet::new();
    for number in 0..tasks {
        set.spawn(task(number));
    }
    set.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counts_add_up_when_eight_workers_commit_at_once() {
    let bench = Bench::new(CALM);
    let batch = bench.released(8).await;
    let mut held = Vec::new();
    for number in 0..8 {
        held.push(bench.held(batch, number).await);
    }
    race(8, |number| {
        let (bench, mut shard) = (
            Arc::clone(&bench),
            held[usize::try_from(number).unwrap()].clone(),
        );
        async move {
            for segment in 0..4 {
                let before = bench.run(batch).await.counts;
                // Every other commit is sent twice, as after a lost reply.
                for _ in 0..=segment % 2 {
                    let known = shard.clone();
                    let commit = bench.commit(batch, &known, segment, 1, segment == 3).await;
                    if segment % 2 == 0 {
                        shard = committed(commit);
                    }
                }
                if segment % 2 == 1 {
                    shard = bench.shard(batch, shard.id.number).await;
                }
                let after = bench.run(batch).await.counts;
                assert!(before.completed < after.completed && after.completed <= after.total);
            }
        }
    })
    .await;
    let run = bench.run(batch).await;
    assert_eq!(
        (run.counts.completed, run.counts.failed, run.counts.total),
        (32, 0, 32)
    );
    assert_eq!((run.shards_done, run.shards_total), (8, 8));
    assert_eq!(
        run.tokens,
        TokenCounts {
            input: 320,
            cached: 32,
            output: 160
        }
    );
    assert_eq!(run.cost_picodollars, 224);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_claims_wins() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let claims = race(8, |_| {
        let bench = Arc::clone(&bench);
        async move {
            let (shard, worker) = (ShardId::root(0, 0), bench.worker());
            bench
                .store
                .claim_shard(&bench.tenant, batch, &shard, worker, bench.now())
                .await
                .unwrap()
        }
    })
    .await;
    let granted = claims
        .iter()
        .filter(|claim| matches!(claim, ShardClaim::Granted { .. }))
        .count();
    let busy = claims
        .iter()
        .filter(|claim| matches!(claim, ShardClaim::Busy { .. }))
        .count();
    assert_eq!((granted, busy), (1, 7));
    assert_eq!(bench.shard(batch, 0).await.epoch, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_stages_wins() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    let claims = race(8, |_| {
        let bench = Arc::clone(&bench);
        async move {
            bench
                .store
                .claim_stage(&bench.tenant, batch, Stage::Validate, bench.now())
                .await
                .unwrap()
        }
    })
    .await;
    assert_eq!(claims.iter().flatten().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_create_and_its_retries_at_once_make_no_more_batches_than_first_attempts() {
    let bench = Bench::new(CALM);
    let key = bench.key();
    let create = |retry_count: u32| {
        let bench = Arc::clone(&bench);
        async move {
            let creation = Creation {
                key,
                body_sha256: "body".to_owned(),
                retry_count,
                idempotency_sha256: Some("c0ffee".to_owned()),
            };
            let new = NewBatch {
                creation: Some(creation),
                ..bench.new_batch()
            };
            (new.params.id, bench.store.create_batch(new).await.unwrap())
        }
    };
    let outcomes = race(8, |number| create(u32::try_from(number).unwrap() % 3)).await;
    let made: Vec<BatchId> = outcomes
        .iter()
        .filter(|(_, created)| *created == Created::Made)
        .map(|(batch, _)| *batch)
        .collect();
    assert_eq!(made.len(), 1, "{outcomes:?}");
    assert!(
        outcomes
            .iter()
            .all(|(_, created)| matches!(created, Created::Made)
                || *created == Created::Existing(made[0]))
    );
    assert_eq!(
        bench
            .store
            .list_batches(&bench.tenant, None, 10)
            .await
            .unwrap()
            .items
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_rate_limit_holds_when_many_create_at_once() {
    let bench = Bench::new(CALM);
    let outcomes = race(8, |_| {
        let bench = Arc::clone(&bench);
        async move {
            let new = NewBatch {
                rate_limit_per_hour: 5,
                ..bench.new_batch()
            };
            bench.store.create_batch(new).await.unwrap()
        }
    })
    .await;
    assert_eq!(
        outcomes
            .iter()
            .filter(|created| **created == Created::Made)
            .count(),
        5,
        "{outcomes:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_is_pinned_or_gone_when_create_and_delete_race() {
    for _ in 0..8 {
        let bench = Bench::new(CALM);
        let file = bench.file(Purpose::Batch);
        bench.store.create_file(&file).await.unwrap();
        let new = NewBatch {
            pin: Some(file.id),
            ..bench.new_batch()
        };
        let (created, deleted) = tokio::join!(
            bench.store.create_batch(new),
            bench.store.delete_file(&bench.tenant, file.id, bench.now())
        );
        assert!(deleted.unwrap());
        let collected = bench
            .store
            .collect_file(&bench.tenant, file.id, bench.now())
            .await
            .unwrap();
        match created.unwrap() {
            Created::Made => assert_eq!(collected, FileCollection::Pinned),
            Created::FileGone => assert_eq!(collected, FileCollection::Remove(file.blob)),
            refused @ (Created::RateLimited { .. }
            | Created::Existing(_)
            | Created::IdempotencyMismatch) => panic!("{refused:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_publication_and_a_cancel_leave_one_story() {
    for _ in 0..8 {
        let bench = Bench::new(CALM);
        let batch = bench.created().await;
        let epoch = bench.claim(batch, Stage::Validate).await.epoch;
        let (published, cancelled) = tokio::join!(
            bench.store.publish(
                &bench.tenant,
                batch,
                epoch,
                bench.publication(1),
                bench.now()
            ),
            bench.apply(batch, Event::CancelRequested)
        );
        let run = bench.run(batch).await;
        cancelled.unwrap();
        match published.unwrap() {
            Published::Done(_) => {
                assert!(matches!(run.state, State::Draining(_)) && run.counts.total == 4)
            }
            Published::Fenced => {
                assert!(matches!(run.state, State::Sealed(_)) && run.counts.total == 0)
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commits_and_a_seal_agree_on_what_was_counted() {
    let bench = Bench::new(CALM);
    let batch = bench.released(8).await;
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    // Released before the cancel, claimed too late: nobody may hold them.
    assert_eq!(bench.store.list_released().await.unwrap(), []);

    let other = bench.released(8).await;
    let mut held = Vec::new();
    for number in 0..8 {
        held.push(bench.held(other, number).await);
    }
    bench.apply(other, Event::CancelRequested).await.unwrap();
    let commits = join_all(
        held.iter()
            .map(|shard| bench.commit(other, shard, 0, 4, true)),
    );
    let (commits, sealed) = tokio::join!(commits, bench.apply(other, Event::GraceOver));
    sealed.unwrap();
    let counted = commits
        .iter()
        .filter(|commit| matches!(commit, Commit::Ok(_)))
        .count();
    let epoch = bench.claim(other, Stage::Finalize).await.epoch;
    let finish = Finish {
        output: None,
        error: None,
        manifest: manifest(),
    };
    let Finished::Done(run) = bench.finish(other, epoch, finish).await else {
        panic!("fenced")
    };
    assert_eq!(run.state, State::Ended(Terminal::Cancelled));
    assert_eq!(run.counts.completed, 4 * u64::try_from(counted).unwrap());
    assert_eq!(run.counts.completed + run.counts.failed, run.counts.total);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backlog_is_released_once_when_two_dispatchers_race() {
    let bench = Bench::new(CALM);
    let batch = bench.published(8).await;
    let outcomes = race(4, |_| {
        let bench = Arc::clone(&bench);
        async move {
            bench
                .store
                .release(&bench.tenant, batch, 0, 0, 3, bench.now())
                .await
                .unwrap()
        }
    })
    .await;
    assert_eq!(
        outcomes, [true; 4],
        "who comes later may send the messages again"
    );
    let (_, _, backlog) = bench.store.list_backlogs().await.unwrap().remove(0);
    assert_eq!((backlog.next, backlog.estimated_tokens), (3, 500));
}

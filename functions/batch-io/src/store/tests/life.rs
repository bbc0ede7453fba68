//! The life of a batch by store calls alone, and lists of batches.

use batch_core::lifecycle::{State, Terminal};

use super::*;
use crate::port::WorkKind;

/// Takes a batch from create to its end, every call twice, and returns its last state.
async fn live(weather: Weather) {
    let bench = Bench::new(weather);
    let (store, tenant) = (&bench.store, &bench.tenant);
    let input = bench.file(Purpose::Batch);
    store.create_file(&input).await.unwrap();
    let new = NewBatch {
        pin: Some(input.id),
        ..bench.new_batch()
    };
    let batch = new.params.id;
    for _ in 0..2 {
        assert_eq!(
            store.create_batch(new.clone()).await.unwrap(),
            Created::Made
        );
    }

    let epoch = bench.claim(batch, Stage::Validate).await.epoch;
    let cut: Vec<Shard> = (0..120).map(|number| shard(number, 4)).collect();
    for _ in 0..2 {
        store.put_shards(tenant, batch, &cut).await.unwrap();
        let published = store
            .publish(tenant, batch, epoch, bench.publication(120), bench.now())
            .await
            .unwrap();
        assert!(matches!(published, Published::Done(_)));
    }
    assert!(
        store
            .delete_file(tenant, input.id, bench.now())
            .await
            .unwrap()
    );
    let collected = store
        .collect_file(tenant, input.id, bench.now())
        .await
        .unwrap();
    assert_eq!(collected, FileCollection::Remove(input.blob));

    // The index is late: what a look misses, the next one finds.
    let mut from = 0;
    while from < 120 {
        bench.pass_ms(1_000);
        for (tenant, batch, backlog) in store.list_backlogs().await.unwrap() {
            let count = (backlog.shards - backlog.next).min(50);
            for _ in 0..2 {
                assert!(
                    store
                        .release(
                            &tenant,
                            batch,
                            backlog.slot,
                            backlog.next,
                            count,
                            bench.now()
                        )
                        .await
                        .unwrap()
                );
            }
            from = backlog.next + count;
        }
    }
    bench.pass_ms(1_000);
    for released in store.list_released().await.unwrap() {
        let held = bench.held_as(batch, &released.shard.id).await;
        for _ in 0..2 {
            committed(bench.commit(batch, &held, 0, 4, true).await);
        }
    }
    bench.pass_ms(1_000);
    assert_eq!(
        bench.due(WorkKind::Batch).await,
        [DueRef::Batch {
            tenant: tenant.clone(),
            batch
        }]
    );
    bench.apply(batch, Event::AllShardsDone).await.unwrap();
    let repeated = bench.apply(batch, Event::AllShardsDone).await.unwrap();
    assert_eq!(repeated.effects, []);

    let epoch = bench.claim(batch, Stage::Finalize).await.epoch;
    let output = bench.file(Purpose::BatchOutput);
    let finish = Finish {
        output: Some(output),
        error: None,
        manifest: manifest(),
    };
    for _ in 0..2 {
        assert!(matches!(
            bench.finish(batch, epoch, finish.clone()).await,
            Finished::Done(_)
        ));
    }
    let run = bench.run(batch).await;
    assert_eq!(run.state, State::Ended(Terminal::Completed));
    assert_eq!(
        (run.counts.total, run.counts.completed, run.counts.failed),
        (480, 480, 0)
    );
    let rejected = bench
        .apply(batch, Event::CancelRequested)
        .await
        .unwrap_err();
    assert!(matches!(rejected, ApplyError::Rejected(_)));

    bench.pass_ms(1_000);
    for kind in [WorkKind::Batch, WorkKind::Shard, WorkKind::Backlog] {
        assert_eq!(bench.due(kind).await, [], "{kind:?}");
    }
    assert_eq!(
        bench.due(WorkKind::Outbox).await,
        [DueRef::Outbox {
            tenant: tenant.clone(),
            batch
        }]
    );
    assert!(store.forget_shards(tenant, batch).await.unwrap());
    assert_eq!(store.list_shards(tenant, batch).await.unwrap(), []);
}

#[tokio::test]
async fn a_batch_lives_to_its_end_on_a_calm_day() {
    live(CALM).await;
}

#[tokio::test]
async fn a_batch_lives_to_its_end_in_rough_weather() {
    live(ROUGH).await;
}

#[tokio::test]
async fn a_running_batch_keeps_its_shards() {
    let bench = Bench::new(CALM);
    let batch = bench.published(2).await;
    assert!(
        !bench
            .store
            .forget_shards(&bench.tenant, batch)
            .await
            .unwrap()
    );
    assert_eq!(
        bench
            .store
            .list_shards(&bench.tenant, batch)
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn an_expired_batch_keeps_what_was_done() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let held = bench.held(batch, 0).await;
    bench.pass_ms(24 * HOUR_MS);
    let closed = bench.apply(batch, Event::WindowClosed).await.unwrap();
    assert_eq!(
        closed.run.seal_at,
        Some(bench.now().plus_ms(TIMING.seal_grace_ms))
    );
    assert_eq!(closed.run.moments.finalizing_at, Some(bench.now()));
    committed(bench.commit(batch, &held, 0, 2, false).await);
    let sealed = bench.apply(batch, Event::GraceOver).await.unwrap();
    assert_eq!(sealed.run.moments.finalizing_at, Some(bench.now()));
    let epoch = bench.claim(batch, Stage::Finalize).await.epoch;
    let finish = Finish {
        output: None,
        error: None,
        manifest: manifest(),
    };
    let Finished::Done(run) = bench.finish(batch, epoch, finish).await else {
        panic!("fenced")
    };
    assert_eq!(
        (run.state, run.counts.completed, run.counts.failed),
        (State::Ended(Terminal::Expired), 2, 2)
    );
}

#[tokio::test]
async fn a_batch_that_expires_while_validating_ends_at_once() {
    let bench = Bench::new(CALM);
    let file = bench.file(Purpose::Batch);
    bench.store.create_file(&file).await.unwrap();
    let new = NewBatch {
        pin: Some(file.id),
        ..bench.new_batch()
    };
    let batch = new.params.id;
    bench.store.create_batch(new).await.unwrap();
    bench.pass_ms(24 * HOUR_MS);
    let ended = bench.apply(batch, Event::WindowClosed).await.unwrap();
    assert_eq!(ended.run.state, State::Ended(Terminal::Expired));
    assert_eq!(ended.run.moments.ended_at, Some(bench.now()));
    assert_eq!(
        bench.due(WorkKind::Outbox).await,
        [DueRef::Outbox {
            tenant: bench.tenant.clone(),
            batch
        }]
    );
    bench
        .store
        .delete_file(&bench.tenant, file.id, bench.now())
        .await
        .unwrap();
    let collected = bench
        .store
        .collect_file(&bench.tenant, file.id, bench.now())
        .await
        .unwrap();
    assert_eq!(
        collected,
        FileCollection::Remove(file.blob),
        "no batch pins it any more"
    );
}

#[tokio::test]
async fn pages_of_batches_are_filled_newest_first() {
    for weather in [CALM, ROUGH] {
        let bench = Bench::new(weather);
        let mut batches = Vec::new();
        for number in 0..9 {
            let batch = bench.created().await;
            if number % 2 == 0 {
                let epoch = bench.claim(batch, Stage::Validate).await.epoch;
                assert!(
                    bench
                        .store
                        .reject(&bench.tenant, batch, epoch, vec![], bench.now())
                        .await
                        .unwrap()
                );
            }
            batches.insert(0, batch);
            bench.pass_ms(1);
        }
        let mut after = None;
        let mut listed = Vec::new();
        for (size, more) in [(4, true), (4, true), (1, false)] {
            let page = bench
                .store
                .list_batches(&bench.tenant, after, 4)
                .await
                .unwrap();
            assert_eq!((page.items.len(), page.has_more), (size, more));
            assert!(
                page.items
                    .iter()
                    .all(|view| view.errors.is_some() == view.run.state.is_terminal())
            );
            listed.extend(page.items.iter().map(|view| view.params.id));
            after = listed.last().copied();
        }
        assert_eq!(listed, batches);
        let exact = bench
            .store
            .list_batches(&bench.tenant, None, 9)
            .await
            .unwrap();
        assert!(!exact.has_more);
        let none = bench
            .store
            .list_batches(&bench.tenant, after, 4)
            .await
            .unwrap();
        assert_eq!((none.items.len(), none.has_more), (0, false));
    }
}

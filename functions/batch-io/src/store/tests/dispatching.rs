//! Backlogs, releases, cursors, workers, rates and keys.

use batch_core::worker::WorkerRecord;

use super::*;
use crate::IoKind;

async fn release(bench: &Bench, batch: BatchId, from: u32, count: u32) -> bool {
    bench
        .store
        .release(&bench.tenant, batch, 0, from, count, bench.now())
        .await
        .unwrap()
}

async fn backlogs(bench: &Bench) -> Vec<Backlog> {
    bench
        .store
        .list_backlogs()
        .await
        .unwrap()
        .into_iter()
        .map(|(_, _, backlog)| backlog)
        .collect()
}

#[tokio::test]
async fn a_release_moves_the_backlog_once() {
    let bench = Bench::new(ROUGH);
    let batch = bench.published(200).await;
    bench.pass_ms(ROUGH.index_lag_ms);
    let all = backlogs(&bench).await;
    assert_eq!(
        (all[0].next, all[0].shards, all[0].estimated_tokens),
        (0, 200, 20_000)
    );
    assert!(release(&bench, batch, 0, 98).await);
    assert!(
        release(&bench, batch, 0, 98).await,
        "its messages may have been lost"
    );
    assert!(!release(&bench, batch, 97, 5).await, "another stands there");
    assert!(release(&bench, batch, 98, 98).await);
    assert!(!release(&bench, batch, 196, 5).await, "there are fewer");
    let left = backlogs(&bench).await;
    assert_eq!((left[0].next, left[0].estimated_tokens), (196, 400));
    assert!(release(&bench, batch, 196, 4).await);
    assert_eq!(backlogs(&bench).await, []);

    bench.pass_ms(ROUGH.index_lag_ms);
    let released = bench.store.list_released().await.unwrap();
    assert_eq!(released.len(), 200);
    bench.held(batch, 150).await;
    bench.pass_ms(ROUGH.index_lag_ms);
    assert_eq!(bench.store.list_released().await.unwrap().len(), 199);
    assert_eq!(bench.store.list_leased().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_release_of_children_and_slots_counts_only_its_own_shards() {
    let bench = Bench::new(CALM);
    let batch = bench.published(3).await;
    let child = Shard {
        id: ShardId::root(0, 0).children()[0].clone(),
        ..shard(0, 1)
    };
    let other_slot = Shard {
        id: ShardId::root(1, 0),
        ..shard(0, 4)
    };
    bench
        .store
        .put_shards(&bench.tenant, batch, &[child, other_slot])
        .await
        .unwrap();
    assert!(release(&bench, batch, 0, 1).await);
    assert!(release(&bench, batch, 1, 1).await);
    assert_eq!(backlogs(&bench).await[0].estimated_tokens, 100);
    assert!(release(&bench, batch, 2, 1).await);
}

#[tokio::test]
async fn a_release_of_shards_that_are_not_stored_is_refused() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    let epoch = bench.claim(batch, Stage::Validate).await.epoch;
    bench
        .store
        .publish(
            &bench.tenant,
            batch,
            epoch,
            bench.publication(2),
            bench.now(),
        )
        .await
        .unwrap();
    let error = bench
        .store
        .release(&bench.tenant, batch, 0, 0, 2, bench.now())
        .await
        .unwrap_err();
    assert_eq!(error.kind, IoKind::Corrupt);
    for count in [0, 99] {
        let error = bench
            .store
            .release(&bench.tenant, batch, 0, 0, count, bench.now())
            .await
            .unwrap_err();
        assert_eq!(error.kind, IoKind::TooLarge);
    }
}

#[tokio::test]
async fn a_stopped_batch_releases_nothing_and_leaves_the_backlogs() {
    let bench = Bench::new(CALM);
    let batch = bench.published(3).await;
    assert!(release(&bench, batch, 0, 1).await);
    assert_eq!(bench.store.list_released().await.unwrap().len(), 1);
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    assert_eq!(backlogs(&bench).await.len(), 1);
    assert!(!release(&bench, batch, 1, 2).await);
    assert_eq!(bench.shard(batch, 1).await.state, ShardState::Pending);
    assert_eq!(backlogs(&bench).await, []);
    assert_eq!(bench.store.list_released().await.unwrap(), []);
}

#[tokio::test]
async fn cursors_are_saved_by_one_dispatcher_at_a_time() {
    let bench = Bench::new(CALM);
    let load = async || bench.store.load_cursors::<Vec<u32>>(MODEL).await.unwrap();
    let save = async |epoch, value: Vec<u32>| {
        bench
            .store
            .save_cursors(MODEL, epoch, &value)
            .await
            .unwrap()
    };
    assert_eq!(load().await, Cursors::default());
    assert!(save(0, vec![1]).await);
    assert!(!save(0, vec![2]).await);
    assert_eq!(
        load().await,
        Cursors {
            value: vec![1],
            epoch: 1
        }
    );
    assert!(save(1, vec![3]).await);
    assert!(!save(1, vec![4]).await);
    assert_eq!(
        load().await,
        Cursors {
            value: vec![3],
            epoch: 2
        }
    );
}

#[tokio::test]
async fn workers_are_listed_until_their_registration_ends() {
    let bench = Bench::new(ROUGH);
    let register = async |lease_ms| {
        let worker = WorkerRecord {
            id: bench.worker(),
            models: vec![MODEL.to_owned()],
            loaded: None,
            slots: 2,
            tokens_per_s: 0,
            pid: 1,
            expires_at: bench.now().plus_ms(lease_ms),
        };
        bench.store.register_worker(&worker).await.unwrap();
        worker
    };
    let (short, long) = (register(10).await, register(20).await);
    assert_eq!(
        bench.store.list_workers(bench.now()).await.unwrap(),
        [short, long.clone()]
    );
    bench.pass_ms(10);
    assert_eq!(
        bench.store.list_workers(bench.now()).await.unwrap(),
        std::slice::from_ref(&long)
    );
    assert_eq!(
        bench
            .store
            .remove_expired_workers(bench.now())
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        bench.store.list_workers(UnixMs(0)).await.unwrap(),
        std::slice::from_ref(&long)
    );
    for _ in 0..2 {
        bench.store.remove_worker(long.id).await.unwrap();
    }
    assert_eq!(bench.store.list_workers(UnixMs(0)).await.unwrap(), []);
}

#[tokio::test]
async fn the_last_rate_of_a_model_is_remembered() {
    let bench = Bench::new(ROUGH);
    for (model, rate) in [(MODEL, 100), ("Qwen/Qwen3-8B", 7), (MODEL, 120)] {
        bench.store.record_rate(model, rate).await.unwrap();
    }
    let expected = BTreeMap::from([(MODEL.to_owned(), 120), ("Qwen/Qwen3-8B".to_owned(), 7)]);
    assert_eq!(bench.store.list_rates().await.unwrap(), expected);
}

#[tokio::test]
async fn a_key_is_found_by_its_hash_until_it_is_removed() {
    let bench = Bench::new(CALM);
    let key = KeyRecord {
        id: bench.key(),
        tenant: bench.tenant.clone(),
        created_at: bench.now(),
        name: "laptop".to_owned(),
    };
    assert_eq!(bench.store.find_key("ab12").await.unwrap(), None);
    bench.store.put_key("ab12", &key).await.unwrap();
    assert_eq!(
        bench.store.find_key("ab12").await.unwrap(),
        Some(key.clone())
    );
    assert_eq!(
        bench.store.list_keys().await.unwrap(),
        [("ab12".to_owned(), key)]
    );
    bench.store.remove_key("ab12").await.unwrap();
    assert_eq!(bench.store.find_key("ab12").await.unwrap(), None);
}

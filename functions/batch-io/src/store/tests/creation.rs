//! Creates: retries, idempotency keys, and the rate limit.

use batch_core::limits::{CREATE_RETRY_MS, IDEMPOTENCY_MS};

use super::*;
use crate::port::WorkKind;

fn creation(key: KeyId, body: &str, retry_count: u32) -> Creation {
    Creation {
        key,
        body_sha256: body.to_owned(),
        retry_count,
        idempotency_sha256: None,
    }
}

async fn create(bench: &Bench, creation: Creation) -> (BatchId, Created) {
    let new = NewBatch {
        creation: Some(creation),
        ..bench.new_batch()
    };
    (new.params.id, bench.store.create_batch(new).await.unwrap())
}

#[tokio::test]
async fn a_create_is_made_once_however_often_it_is_asked() {
    let bench = Bench::new(CALM);
    let file = bench.file(Purpose::Batch);
    bench.store.create_file(&file).await.unwrap();
    let keyed = Creation {
        idempotency_sha256: Some("c0ffee".to_owned()),
        ..creation(bench.key(), "body", 0)
    };
    for creation in [None, Some(keyed)] {
        let new = NewBatch {
            creation,
            pin: Some(file.id),
            rate_limit_per_hour: 2,
            ..bench.new_batch()
        };
        for _ in 0..4 {
            assert_eq!(
                bench.store.create_batch(new.clone()).await.unwrap(),
                Created::Made
            );
        }
        let view = bench
            .store
            .load_batch(&bench.tenant, new.params.id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            BatchParams {
                creation: None,
                ..view.params
            },
            new.params
        );
        assert_eq!(view.errors, None);
    }
    let record = bench
        .store
        .load_file_record(&bench.tenant, file.id)
        .await
        .unwrap()
        .unwrap();
    assert!(format!("{record:?}").contains("pins: 2"), "{record:?}");
}

/// Runs `(retry count, what happens)` in turn, all of one body and key, and says which batch each reply names.
async fn check_retries(steps: &[(u32, &str)], expected: &str) {
    let bench = Bench::new(CALM);
    let (key, other) = (bench.key(), bench.key());
    let mut made: Vec<BatchId> = Vec::new();
    let mut seen = Vec::new();
    for (retry_count, what) in steps {
        let last = made.last().copied();
        match *what {
            "create" => {
                let (batch, created) = create(&bench, creation(key, "body", *retry_count)).await;
                match created {
                    Created::Made => {
                        made.push(batch);
                        seen.push(format!("made {}", made.len()));
                    }
                    Created::Existing(existing) => {
                        let number = made.iter().position(|batch| *batch == existing).unwrap() + 1;
                        seen.push(format!("found {number}"));
                    }
                    refused @ (Created::RateLimited { .. }
                    | Created::FileGone
                    | Created::IdempotencyMismatch) => {
                        panic!("{refused:?}")
                    }
                }
            }
            "refuse" => {
                bench
                    .store
                    .refuse_create(
                        &bench.tenant,
                        &creation(key, "body", *retry_count),
                        bench.now(),
                    )
                    .await
                    .unwrap();
            }
            "read" | "read by another key" => {
                let view = bench
                    .store
                    .load_batch(&bench.tenant, last.unwrap())
                    .await
                    .unwrap()
                    .unwrap();
                let reader = if *what == "read" { key } else { other };
                bench
                    .store
                    .mark_seen(&view.params, reader, bench.now())
                    .await
                    .unwrap();
            }
            "10 minutes" => {
                bench.pass_ms(CREATE_RETRY_MS);
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(seen.join(", "), expected, "{steps:?}");
}

#[tokio::test]
async fn a_retry_finds_the_batch_that_its_reply_was_lost_of() {
    check_retries(
        &[(0, "create"), (1, "create"), (2, "create")],
        "made 1, found 1, found 1",
    )
    .await;
    check_retries(&[(1, "create"), (2, "create")], "made 1, found 1").await;
    check_retries(
        &[(0, "create"), (0, "read by another key"), (1, "create")],
        "made 1, found 1",
    )
    .await;
}

#[tokio::test]
async fn a_create_that_is_no_retry_is_a_new_wish() {
    check_retries(&[(0, "create"), (0, "create")], "made 1, made 2").await;
    check_retries(&[(1, "create"), (1, "create")], "made 1, made 2").await;
    check_retries(&[(2, "create"), (1, "create")], "made 1, made 2").await;
}

#[tokio::test]
async fn a_retry_does_not_find_what_its_user_knows_or_what_is_old() {
    check_retries(
        &[(0, "create"), (0, "read"), (1, "create")],
        "made 1, made 2",
    )
    .await;
    check_retries(
        &[(0, "create"), (0, "10 minutes"), (1, "create")],
        "made 1, made 2",
    )
    .await;
}

#[tokio::test]
async fn a_retry_finds_only_the_latest_first_attempt() {
    check_retries(
        &[(0, "create"), (0, "create"), (1, "create")],
        "made 1, made 2, found 2",
    )
    .await;
    check_retries(
        &[(0, "create"), (0, "refuse"), (1, "create")],
        "made 1, made 2",
    )
    .await;
    check_retries(
        &[(0, "create"), (1, "refuse"), (1, "create")],
        "made 1, found 1",
    )
    .await;
}

#[tokio::test]
async fn a_retry_of_another_body_or_key_is_a_new_wish() {
    let bench = Bench::new(CALM);
    let key = bench.key();
    create(&bench, creation(key, "body", 0)).await;
    assert_eq!(
        create(&bench, creation(key, "other body", 1)).await.1,
        Created::Made
    );
    assert_eq!(
        create(&bench, creation(bench.key(), "body", 1)).await.1,
        Created::Made
    );
}

#[tokio::test]
async fn an_idempotency_key_names_one_batch_for_a_day() {
    let bench = Bench::new(CALM);
    let keyed = |body: &str| Creation {
        idempotency_sha256: Some("c0ffee".to_owned()),
        ..creation(bench.key(), body, 0)
    };
    let (batch, created) = create(&bench, keyed("body")).await;
    assert_eq!(created, Created::Made);
    bench.pass_ms(IDEMPOTENCY_MS - 1);
    assert_eq!(
        create(&bench, keyed("body")).await.1,
        Created::Existing(batch)
    );
    assert_eq!(
        create(&bench, keyed("other body")).await.1,
        Created::IdempotencyMismatch
    );
    let found = bench
        .store
        .find_retry(&bench.tenant, &keyed("body"), bench.now())
        .await
        .unwrap();
    assert_eq!(found, Some(Retry::Existing(batch)));
    bench.pass_ms(1);
    assert_eq!(create(&bench, keyed("other body")).await.1, Created::Made);
}

#[tokio::test]
async fn the_rate_limit_counts_the_clock_hour_and_forgets_it() {
    let bench = Bench::new(CALM);
    let limited = || NewBatch {
        rate_limit_per_hour: 2,
        ..bench.new_batch()
    };
    for _ in 0..2 {
        assert_eq!(
            bench.store.create_batch(limited()).await.unwrap(),
            Created::Made
        );
    }
    assert_eq!(
        bench.store.create_batch(limited()).await.unwrap(),
        Created::RateLimited { retry_after_s: 60 }
    );
    bench.pass_ms(HOUR_MS - bench.now().0.rem_euclid(HOUR_MS) - 2_500);
    assert_eq!(
        bench.store.create_batch(limited()).await.unwrap(),
        Created::RateLimited { retry_after_s: 2 }
    );
    bench.pass_ms(2_500);
    assert_eq!(
        bench.store.create_batch(limited()).await.unwrap(),
        Created::Made
    );
    let none = NewBatch {
        rate_limit_per_hour: 0,
        ..bench.new_batch()
    };
    assert!(matches!(
        bench.store.create_batch(none).await.unwrap(),
        Created::RateLimited { .. }
    ));
}

#[tokio::test]
async fn a_retry_after_a_refusal_by_the_rate_limit_makes_a_new_batch() {
    let bench = Bench::new(CALM);
    let key = bench.key();
    create(&bench, creation(key, "body", 0)).await;
    let refused = NewBatch {
        creation: Some(creation(key, "body", 0)),
        rate_limit_per_hour: 1,
        ..bench.new_batch()
    };
    assert!(matches!(
        bench.store.create_batch(refused).await.unwrap(),
        Created::RateLimited { .. }
    ));
    assert_eq!(
        create(&bench, creation(key, "body", 1)).await.1,
        Created::Made
    );
}

#[tokio::test]
async fn the_memory_of_a_create_goes_when_no_retry_needs_it() {
    let bench = Bench::new(CALM);
    create(&bench, creation(bench.key(), "body", 0)).await;
    bench.pass_ms(CREATE_RETRY_MS);
    let due = bench.due(WorkKind::Retention).await;
    let [DueRef::Creation { tenant, name }] = due.as_slice() else {
        panic!("{due:?}")
    };
    bench
        .store
        .forget_creation(tenant, name, UnixMs(bench.now().0 - 1))
        .await
        .unwrap();
    assert_eq!(
        bench.due(WorkKind::Retention).await.len(),
        1,
        "it was not time yet"
    );
    bench
        .store
        .forget_creation(tenant, name, bench.now())
        .await
        .unwrap();
    assert_eq!(bench.due(WorkKind::Retention).await, []);
}

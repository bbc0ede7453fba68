//! Files: readers, lists, pins and the collector.

use super::*;
use crate::port::{QueryOrder, WorkKind};

async fn names(bench: &Bench, query: FileQuery) -> (Vec<FileId>, bool) {
    let listed = bench.store.list_files(&bench.tenant, query).await.unwrap();
    (
        listed.items.iter().map(|file| file.id).collect(),
        listed.has_more,
    )
}

fn query(bench: &Bench) -> FileQuery {
    FileQuery {
        purpose: None,
        after: None,
        order: QueryOrder::Descending,
        limit: 100,
        now: bench.now(),
    }
}

#[tokio::test]
async fn a_file_is_created_once_however_often_it_is_asked() {
    let bench = Bench::new(CALM);
    let file = bench.file(Purpose::Batch);
    bench.store.create_file(&file).await.unwrap();
    bench.store.create_file(&file).await.unwrap();
    assert_eq!(
        bench
            .store
            .load_file(&bench.tenant, file.id, bench.now())
            .await
            .unwrap(),
        Some(file.clone())
    );

    let other = File {
        filename: "other.jsonl".to_owned(),
        ..file
    };
    let error = bench.store.create_file(&other).await.unwrap_err();
    assert_eq!(error.kind, crate::IoKind::Conflict);
}

#[tokio::test]
async fn pages_of_files_are_filled_when_the_ports_pages_are_short() {
    let bench = Bench::new(ROUGH);
    let mut wanted = Vec::new();
    for number in 0..30 {
        let purpose = if number % 3 == 0 {
            Purpose::Batch
        } else {
            Purpose::Vision
        };
        let file = bench.file(purpose);
        bench.store.create_file(&file).await.unwrap();
        if number == 9 {
            assert!(
                bench
                    .store
                    .delete_file(&bench.tenant, file.id, bench.now())
                    .await
                    .unwrap()
            );
        } else if purpose == Purpose::Batch {
            wanted.push(file.id);
        }
        bench.pass_ms(1);
    }
    for order in [QueryOrder::Ascending, QueryOrder::Descending] {
        let mut query = FileQuery {
            purpose: Some(Purpose::Batch),
            order,
            limit: 4,
            ..query(&bench)
        };
        let mut pages = Vec::new();
        loop {
            let (page, has_more) = names(&bench, query).await;
            query.after = page.last().copied();
            pages.push(page);
            if !has_more {
                break;
            }
        }
        let sizes: Vec<usize> = pages.iter().map(Vec::len).collect();
        assert_eq!(sizes, [4, 4, 1], "{order:?}");
        let listed: Vec<FileId> = pages.concat();
        let expected: Vec<FileId> = match order {
            QueryOrder::Ascending => wanted.clone(),
            QueryOrder::Descending => wanted.iter().rev().copied().collect(),
        };
        assert_eq!(listed, expected, "{order:?}");
    }
}

#[tokio::test]
async fn a_full_page_says_that_nothing_follows_when_nothing_does() {
    let bench = Bench::new(ROUGH);
    let file = bench.file(Purpose::Batch);
    bench.store.create_file(&file).await.unwrap();
    assert_eq!(
        names(
            &bench,
            FileQuery {
                limit: 1,
                ..query(&bench)
            }
        )
        .await,
        (vec![file.id], false)
    );
    let beyond = FileQuery {
        after: Some(file.id),
        ..query(&bench)
    };
    assert_eq!(names(&bench, beyond).await, (vec![], false));
}

#[tokio::test]
async fn a_deleted_file_is_gone_for_readers_and_goes_when_nothing_pins_it() {
    let bench = Bench::new(CALM);
    let file = bench.file(Purpose::Batch);
    bench.store.create_file(&file).await.unwrap();
    let new = NewBatch {
        pin: Some(file.id),
        ..bench.new_batch()
    };
    let batch = new.params.id;
    assert_eq!(bench.store.create_batch(new).await.unwrap(), Created::Made);

    assert!(
        bench
            .store
            .delete_file(&bench.tenant, file.id, bench.now())
            .await
            .unwrap()
    );
    assert!(
        !bench
            .store
            .delete_file(&bench.tenant, file.id, bench.now())
            .await
            .unwrap()
    );
    assert_eq!(
        bench
            .store
            .load_file(&bench.tenant, file.id, bench.now())
            .await
            .unwrap(),
        None
    );
    assert_eq!(names(&bench, query(&bench)).await, (vec![], false));
    let found = DueRef::File {
        tenant: bench.tenant.clone(),
        file: file.id,
    };
    assert_eq!(bench.due(WorkKind::Retention).await, [found]);
    let collected = bench
        .store
        .collect_file(&bench.tenant, file.id, bench.now())
        .await
        .unwrap();
    assert_eq!(collected, FileCollection::Pinned);
    assert_eq!(
        bench.due(WorkKind::Retention).await,
        [],
        "a pinned file must not block the index"
    );

    bench.apply(batch, Event::CancelRequested).await.unwrap();
    for _ in 0..2 {
        let collected = bench
            .store
            .collect_file(&bench.tenant, file.id, bench.now())
            .await
            .unwrap();
        assert_eq!(collected, FileCollection::Remove(file.blob.clone()));
    }
    bench
        .store
        .forget_file(&bench.tenant, file.id)
        .await
        .unwrap();
    let collected = bench
        .store
        .collect_file(&bench.tenant, file.id, bench.now())
        .await
        .unwrap();
    assert_eq!(collected, FileCollection::Nothing);
}

#[tokio::test]
async fn an_expired_file_is_no_longer_pinned_once_the_collector_has_it() {
    let bench = Bench::new(CALM);
    let file = bench.file(Purpose::Batch);
    bench.store.create_file(&file).await.unwrap();
    let early = bench
        .store
        .collect_file(&bench.tenant, file.id, bench.now())
        .await
        .unwrap();
    assert_eq!(early, FileCollection::Nothing);

    bench.pass_ms(720 * HOUR_MS);
    assert_eq!(
        bench
            .store
            .load_file(&bench.tenant, file.id, bench.now())
            .await
            .unwrap(),
        None
    );
    let late = bench
        .store
        .collect_file(&bench.tenant, file.id, bench.now())
        .await
        .unwrap();
    assert_eq!(late, FileCollection::Remove(file.blob));
    let new = NewBatch {
        pin: Some(file.id),
        ..bench.new_batch()
    };
    let batch = new.params.id;
    assert_eq!(
        bench.store.create_batch(new).await.unwrap(),
        Created::FileGone
    );
    assert_eq!(
        bench.store.load_batch(&bench.tenant, batch).await.unwrap(),
        None
    );
}

#[tokio::test]
async fn a_record_of_a_newer_version_is_refused() {
    let bench = Bench::new(CALM);
    let file = bench.file(Purpose::Batch);
    bench.store.create_file(&file).await.unwrap();
    let key = paths::file(&bench.tenant, file.id);
    let newer = crate::port::Update {
        set: vec![(
            "schema".to_owned(),
            crate::port::Attr::Int(i64::from(SCHEMA) + 1),
        )],
        ..crate::port::Update::default()
    };
    assert!(
        bench
            .store
            .act(actions::update(key, newer, crate::port::Condition::Exists))
            .await
            .unwrap()
    );
    let error = bench
        .store
        .load_file(&bench.tenant, file.id, bench.now())
        .await
        .unwrap_err();
    assert_eq!(error.kind, crate::IoKind::Denied);
    let why = error.source.expect("the cause is told").to_string();
    assert_eq!(
        why,
        "the record has version 2, and this program knows 1: update it"
    );
}

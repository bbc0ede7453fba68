//! The blobs port: whole writes, ranges, parts, removal.

use std::sync::Arc;

use batch_core::blob_key::BlobKey;
use batch_core::id::{BatchId, FileId, TenantId};
use batch_core::time::UnixMs;
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};

use super::{Subject, expect_kind};
use crate::port::blob_rules::{PART_BYTES_MIN, PART_NUMBER_MAX};
use crate::port::{BlobReader, Blobs, MultipartId, PartTag};
use crate::{IoError, IoKind};

type Store = Subject<dyn Blobs>;

/// Checks every property of the port.
///
/// # Panics
///
/// Where a property does not hold.
pub async fn run(store: &Store) {
    a_blob_comes_back_as_it_was_put(store).await;
    a_missing_blob_is_not_found(store).await;
    a_put_replaces_and_changes_the_tag(store).await;
    one_of_many_first_puts_wins(store).await;
    a_stream_is_stored_whole(store).await;
    a_broken_or_dropped_stream_stores_nothing(store).await;
    ranges_are_clipped(store).await;
    a_reader_keeps_the_blob_that_it_began(store).await;
    parts_make_a_blob_in_the_order_of_their_numbers(store).await;
    a_part_that_is_stored_again_replaces_the_first(store).await;
    ranges_of_other_blobs_are_parts(store).await;
    parts_that_make_no_blob_are_refused(store).await;
    an_ended_multipart_is_not_found(store).await;
    deletes_tolerate_absence(store).await;
    a_prefix_removes_what_starts_with_it(store).await;
}

fn tenant(name: &str) -> TenantId {
    name.to_owned().try_into().expect("a tenant")
}

fn key(name: &str) -> BlobKey {
    BlobKey::File {
        tenant: tenant(name),
        file: FileId::new(UnixMs(1), [7; 16]),
    }
}

/// Bytes that differ from place to place, so that a misplaced chunk shows.
fn sample(len: usize, seed: u32) -> Bytes {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let byte = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    std::iter::repeat_with(byte).take(len).collect()
}

async fn read(store: &Store, key: &BlobKey, start: u64, end: Option<u64>) -> Vec<u8> {
    let found = store
        .port
        .get(key, start, end)
        .await
        .expect("the blob is opened");
    let chunks: Vec<Bytes> = found.body.try_collect().await.expect("the blob is read");
    chunks.concat()
}

async fn put(store: &Store, key: &BlobKey, body: &Bytes) {
    store
        .port
        .put(key, body.clone())
        .await
        .expect("the blob is put");
}

async fn missing(store: &Store, key: &BlobKey) {
    expect_kind(store.port.head(key).await, IoKind::NotFound);
}

async fn begin(store: &Store, key: &BlobKey) -> MultipartId {
    store
        .port
        .multipart_begin(key)
        .await
        .expect("the multipart begins")
}

async fn part(
    store: &Store,
    key: &BlobKey,
    id: &MultipartId,
    number: u32,
    body: &Bytes,
) -> PartTag {
    let tag = store
        .port
        .multipart_put(key, id, number, body.clone())
        .await
        .expect("the part is put");
    assert_eq!((tag.number, tag.bytes), (number, body.len() as u64));
    tag
}

const MIN: usize = PART_BYTES_MIN as usize;

async fn a_blob_comes_back_as_it_was_put(store: &Store) {
    for len in [0, 1, 1000, 256 * 1024, 256 * 1024 + 1, 3_000_000] {
        let (key, body) = (key(&format!("round-{len}")), sample(len, 1));
        let meta = store
            .port
            .put(&key, body.clone())
            .await
            .expect("the blob is put");
        assert_eq!(meta.bytes, len as u64);
        assert!(
            meta.etag.len() > 2 && meta.etag.starts_with('"') && meta.etag.ends_with('"'),
            "{}",
            meta.etag
        );
        assert_eq!(store.port.head(&key).await.expect("it is there"), meta);
        let found = store.port.get(&key, 0, None).await.expect("it is there");
        assert_eq!(found.meta, meta);
        let chunks: Vec<Bytes> = found.body.try_collect().await.expect("it is read");
        assert!(chunks.concat() == body, "{len} bytes come back");
    }
}

async fn a_missing_blob_is_not_found(store: &Store) {
    let key = key("missing");
    missing(store, &key).await;
    expect_kind(store.port.get(&key, 0, None).await, IoKind::NotFound);
    expect_kind(store.port.get(&key, 5, Some(9)).await, IoKind::NotFound);
}

async fn a_put_replaces_and_changes_the_tag(store: &Store) {
    let key = key("replace");
    let mut tags = Vec::new();
    for seed in 0..20 {
        let meta = store
            .port
            .put(&key, sample(100, seed))
            .await
            .expect("the blob is put");
        assert!(!tags.contains(&meta.etag), "the tag changes with the bytes");
        tags.push(meta.etag);
    }
    assert!(read(store, &key, 0, None).await == sample(100, 19));
    put(store, &key, &sample(3, 50)).await;
    assert!(read(store, &key, 0, None).await == sample(3, 50));
}

async fn one_of_many_first_puts_wins(store: &Store) {
    for round in 0..5_u32 {
        let key = key(&format!("first-{round}"));
        let tasks = (0..4_u32).map(|n| {
            let (blobs, key) = (Arc::clone(&store.port), key.clone());
            tokio::spawn(async move { (n, blobs.put_if_absent(&key, sample(5000, n)).await) })
        });
        let mut winners = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            match task.await.expect("the task ends well") {
                (n, Ok(_)) => winners.push(n),
                (_, Err(error)) => assert_eq!(error.kind, IoKind::Conflict, "{error}"),
            }
        }
        assert_eq!(winners.len(), 1);
        assert!(read(store, &key, 0, None).await == sample(5000, winners[0]));
        expect_kind(
            store.port.put_if_absent(&key, Bytes::new()).await,
            IoKind::Conflict,
        );
    }
}

fn chunks(body: &Bytes, len: usize) -> Vec<Result<Bytes, IoError>> {
    body.chunks(len)
        .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
        .collect()
}

async fn a_stream_is_stored_whole(store: &Store) {
    for (len, chunk) in [
        (0, 1),
        (1, 1),
        (2000, 7),
        (1_500_000, 100_000),
        (2_000_000, 2_000_000),
        (262_144, 131_072),
    ] {
        let (key, body) = (key(&format!("stream-{len}")), sample(len, 2));
        let stream: BlobReader = stream::iter(chunks(&body, chunk)).boxed();
        let meta = store
            .port
            .put_stream(&key, stream)
            .await
            .expect("the stream is stored");
        assert_eq!(store.port.head(&key).await.expect("it is there"), meta);
        assert!(
            read(store, &key, 0, None).await == body,
            "{len} bytes in chunks of {chunk} come back"
        );
    }
}

async fn a_broken_or_dropped_stream_stores_nothing(store: &Store) {
    let (new, old) = (key("broken-new"), key("broken-old"));
    put(store, &old, &sample(10, 3)).await;
    for key in [&new, &old] {
        let mut parts = chunks(&sample(1_000_000, 4), 100_000);
        parts.push(Err(IoError::new(
            "read the test's stream",
            "",
            IoKind::Denied,
        )));
        parts.extend(chunks(&sample(10, 4), 10));
        expect_kind(
            store
                .port
                .put_stream(key, stream::iter(parts).boxed())
                .await,
            IoKind::Denied,
        );
        let endless = stream::iter(chunks(&sample(1_000_000, 4), 100_000))
            .chain(stream::pending())
            .boxed();
        let dropped = store.port.put_stream(key, endless);
        let soon = tokio::time::timeout(std::time::Duration::from_millis(50), dropped);
        assert!(soon.await.is_err(), "a stream without end is not stored");
    }
    missing(store, &new).await;
    assert!(read(store, &old, 0, None).await == sample(10, 3));
}

async fn ranges_are_clipped(store: &Store) {
    let len = 600_000;
    let (key, body) = (key("ranges"), sample(len, 5));
    put(store, &key, &body).await;
    let len = len as u64;
    let table = [
        (0, Some(0), 0..0),
        (0, Some(1), 0..1),
        (0, Some(len), 0..len),
        (0, Some(len + 5), 0..len),
        (len - 1, None, len - 1..len),
        (len, None, len..len),
        (len + 7, None, len..len),
        (len + 7, Some(len + 9), len..len),
        (10, Some(5), 0..0),
        (262_143, Some(262_145), 262_143..262_145),
        (100_000, Some(500_000), 100_000..500_000),
        (u64::MAX, Some(u64::MAX), len..len),
    ];
    for (start, end, expected) in table {
        let found = store
            .port
            .get(&key, start, end)
            .await
            .expect("the blob is opened");
        assert_eq!(found.meta.bytes, len, "the size is that of the whole blob");
        let chunks: Vec<Bytes> = found.body.try_collect().await.expect("the range is read");
        let expected = &body[expected.start as usize..expected.end as usize];
        assert!(chunks.concat() == expected, "{start}..{end:?}");
    }
}

async fn a_reader_keeps_the_blob_that_it_began(store: &Store) {
    let (key, body) = (key("reader"), sample(2_000_000, 6));
    put(store, &key, &body).await;
    let mut first = store
        .port
        .get(&key, 0, None)
        .await
        .expect("the blob is opened")
        .body;
    let mut found = first
        .try_next()
        .await
        .expect("it is read")
        .expect("it has bytes")
        .to_vec();
    put(store, &key, &sample(10, 7)).await;
    store.port.delete(&key).await.expect("it is deleted");
    loop {
        match first.try_next().await {
            Ok(Some(chunk)) => found.extend_from_slice(&chunk),
            Ok(None) => break,
            // A connection that broke cannot go on with what is gone; it must say so, and give nothing else.
            Err(error) if !store.calm && error.kind == IoKind::Busy => {
                assert!(body.starts_with(&found));
                return;
            }
            Err(error) => panic!("it is read: {error}"),
        }
    }
    assert!(found == body);
}

async fn parts_make_a_blob_in_the_order_of_their_numbers(store: &Store) {
    let key = key("parts");
    put(store, &key, &sample(9, 8)).await;
    let id = begin(store, &key).await;
    let bodies = [sample(MIN, 9), sample(MIN + 3, 10), sample(2, 11)];
    let third = part(store, &key, &id, PART_NUMBER_MAX, &bodies[2]).await;
    let first = part(store, &key, &id, 1, &bodies[0]).await;
    let second = part(store, &key, &id, 5, &bodies[1]).await;
    part(store, &key, &id, 6, &sample(1, 12)).await;
    assert!(
        read(store, &key, 0, None).await == sample(9, 8),
        "an unfinished blob is not there"
    );
    let meta = store
        .port
        .multipart_finish(&key, &id, &[first, second, third])
        .await
        .expect("it is finished");
    assert_eq!(store.port.head(&key).await.expect("it is there"), meta);
    assert!(read(store, &key, 0, None).await == bodies.concat());
}

async fn a_part_that_is_stored_again_replaces_the_first(store: &Store) {
    let key = key("again");
    let id = begin(store, &key).await;
    let stale = part(store, &key, &id, 1, &sample(100, 13)).await;
    let fresh = part(store, &key, &id, 1, &sample(100, 14)).await;
    expect_kind(
        store.port.multipart_finish(&key, &id, &[stale]).await,
        IoKind::NotFound,
    );
    store
        .port
        .multipart_finish(&key, &id, &[fresh])
        .await
        .expect("it is finished");
    assert!(read(store, &key, 0, None).await == sample(100, 14));
}

async fn ranges_of_other_blobs_are_parts(store: &Store) {
    let (source, key) = (key("copy-source"), key("copy"));
    let body = sample(2 * MIN, 15);
    put(store, &source, &body).await;
    let id = begin(store, &key).await;
    let (len, min) = (body.len() as u64, PART_BYTES_MIN);
    let copy = async |number, start, end| {
        store
            .port
            .multipart_copy(&key, &id, number, &source, start, end)
            .await
    };
    let first = copy(1, 7, 7 + min).await.expect("the range is copied");
    assert_eq!((first.number, first.bytes), (1, min));
    let last = copy(2, len - 1, len).await.expect("the range is copied");
    expect_kind(copy(3, len - 1, len + 1).await, IoKind::TooLarge);
    expect_kind(copy(3, 5, 5).await, IoKind::TooLarge);
    expect_kind(copy(3, 6, 5).await, IoKind::TooLarge);
    expect_kind(copy(0, 0, 5).await, IoKind::TooLarge);
    let nowhere = super::blobs::key("copy-nowhere");
    expect_kind(
        store
            .port
            .multipart_copy(&key, &id, 3, &nowhere, 0, 5)
            .await,
        IoKind::NotFound,
    );
    store
        .port
        .multipart_finish(&key, &id, &[first, last])
        .await
        .expect("it is finished");
    let expected = [&body[7..7 + MIN], &body[body.len() - 1..]].concat();
    assert!(read(store, &key, 0, None).await == expected);
}

async fn parts_that_make_no_blob_are_refused(store: &Store) {
    let key = key("refused");
    let id = begin(store, &key).await;
    expect_kind(
        store.port.multipart_put(&key, &id, 0, sample(1, 1)).await,
        IoKind::TooLarge,
    );
    expect_kind(
        store
            .port
            .multipart_put(&key, &id, PART_NUMBER_MAX + 1, sample(1, 1))
            .await,
        IoKind::TooLarge,
    );
    let small = part(store, &key, &id, 1, &sample(MIN - 1, 16)).await;
    let last = part(store, &key, &id, 2, &sample(1, 17)).await;
    let finish = async |parts: &[&PartTag]| {
        let parts: Vec<PartTag> = parts.iter().copied().cloned().collect();
        store.port.multipart_finish(&key, &id, &parts).await
    };
    expect_kind(finish(&[&small, &last]).await, IoKind::TooLarge);
    expect_kind(finish(&[]).await, IoKind::TooLarge);
    let enough = part(store, &key, &id, 3, &sample(MIN, 18)).await;
    expect_kind(finish(&[&enough, &last]).await, IoKind::TooLarge);
    expect_kind(finish(&[&enough, &enough]).await, IoKind::TooLarge);
    let absent = PartTag {
        number: 4,
        ..last.clone()
    };
    expect_kind(finish(&[&enough, &absent]).await, IoKind::NotFound);
    missing(store, &key).await;
    finish(&[&last]).await.expect("a single part may be small");
}

async fn an_ended_multipart_is_not_found(store: &Store) {
    let (finished, aborted) = (key("ended-finished"), key("ended-aborted"));
    let id = begin(store, &finished).await;
    let tag = part(store, &finished, &id, 1, &sample(5, 19)).await;
    store
        .port
        .multipart_finish(&finished, &id, std::slice::from_ref(&tag))
        .await
        .expect("it is finished");
    // S3 may answer a repetition with the blob that is there, as long as it remembers the multipart.
    let again = store
        .port
        .multipart_finish(&finished, &id, std::slice::from_ref(&tag))
        .await;
    match again {
        Ok(again) => assert_eq!(again.bytes, 5, "the blob that is there"),
        Err(error) => assert_eq!(error.kind, IoKind::NotFound, "{error}"),
    }
    expect_kind(
        store
            .port
            .multipart_put(&finished, &id, 2, sample(5, 1))
            .await,
        IoKind::NotFound,
    );
    expect_kind(
        store
            .port
            .multipart_copy(&finished, &id, 2, &finished, 0, 1)
            .await,
        IoKind::NotFound,
    );
    store
        .port
        .multipart_abort(&finished, &id)
        .await
        .expect("there is nothing to abort");
    assert!(
        read(store, &finished, 0, None).await == sample(5, 19),
        "a finished blob stays"
    );

    let id = begin(store, &aborted).await;
    let tag = part(store, &aborted, &id, 1, &sample(5, 20)).await;
    store
        .port
        .multipart_abort(&aborted, &id)
        .await
        .expect("it is aborted");
    store
        .port
        .multipart_abort(&aborted, &id)
        .await
        .expect("there is nothing to abort");
    expect_kind(
        store
            .port
            .multipart_put(&aborted, &id, 2, sample(5, 1))
            .await,
        IoKind::NotFound,
    );
    expect_kind(
        store.port.multipart_finish(&aborted, &id, &[tag]).await,
        IoKind::NotFound,
    );
    missing(store, &aborted).await;
}

async fn deletes_tolerate_absence(store: &Store) {
    let key = key("delete");
    put(store, &key, &sample(5, 21)).await;
    for _ in 0..2 {
        store.port.delete(&key).await.expect("it is deleted");
        missing(store, &key).await;
    }
    put(store, &key, &sample(6, 21)).await;
    assert!(read(store, &key, 0, None).await == sample(6, 21));
}

async fn a_prefix_removes_what_starts_with_it(store: &Store) {
    let batch = |n: u8| BatchId::new(UnixMs(1), [n; 16]);
    let index = |tenant_name: &str, n, window| BlobKey::Index {
        tenant: tenant(tenant_name),
        batch: batch(n),
        window,
    };
    let gone: Vec<_> = (0..3).map(|window| index("prefix", 1, window)).collect();
    let kept = [
        index("prefix", 2, 0),
        index("prefix-2", 1, 0),
        key("prefix"),
    ];
    for key in gone.iter().chain(&kept) {
        put(store, key, &sample(5, 22)).await;
    }
    let prefix = format!("index/prefix/{}/", batch(1));
    assert_eq!(
        store
            .port
            .delete_prefix(&prefix)
            .await
            .expect("they are deleted"),
        3
    );
    assert_eq!(
        store
            .port
            .delete_prefix(&prefix)
            .await
            .expect("nothing is left"),
        0
    );
    for key in &gone {
        missing(store, key).await;
    }
    for key in &kept {
        store.port.head(key).await.expect("the others stay");
    }
    // A prefix may end inside a name.
    assert_eq!(
        store
            .port
            .delete_prefix("index/prefix")
            .await
            .expect("they are deleted"),
        2
    );
    missing(store, &kept[0]).await;
    store
        .port
        .head(&kept[2])
        .await
        .expect("the other class stays");
    expect_kind(store.port.delete_prefix("").await, IoKind::TooLarge);
    // A blob may come back to where a prefix was removed.
    put(store, &gone[0], &sample(5, 23)).await;
    assert!(
        store
            .port
            .head(&gone[0])
            .now_or_never()
            .is_none_or(|meta| meta.is_ok())
    );
    assert!(read(store, &gone[0], 0, None).await == sample(5, 23));
}

//! Queries of a partition and of the work index.

use std::collections::BTreeMap;

use batch_core::time::UnixMs;

use super::{Store, action, add, done, due, item, put, text, update};
use crate::port::record_rules::{PAGE_BYTES_MAX, item_bytes};
use crate::port::{ActionKind, Item, QueryOrder, RecordKey, Update, WorkKind};

/// Checks every property of queries.
pub(super) async fn run(store: &Store) {
    queries_sort_by_bytes(store).await;
    queries_keep_to_their_prefix_and_side(store).await;
    pages_end_at_their_limit_and_size(store).await;
    the_index_lists_what_is_due(store).await;
    the_index_follows_its_items(store).await;
}

/// Reads all pages of a query, and returns the sort keys.
pub(super) async fn sorts(
    store: &Store,
    partition: &str,
    prefix: &str,
    after: Option<&str>,
    order: QueryOrder,
) -> Vec<String> {
    let (mut found, mut after) = (Vec::new(), after.map(str::to_owned));
    for _ in 0..1000 {
        let page = store
            .port
            .query(partition, prefix, after.as_deref(), order, 3)
            .await
            .expect("a page is read");
        assert!(page.items.len() <= 3, "a page holds no more than its limit");
        assert!(page.items.iter().all(|(key, _)| key.partition == partition));
        found.extend(page.items.into_iter().map(|(key, _)| key.sort));
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
    panic!("a query ends");
}

async fn queries_sort_by_bytes(store: &Store) {
    let mut keys = [
        "a",
        "B",
        "a/",
        "a0",
        "aa",
        "b",
        "é",
        "\u{ffff}",
        "\u{e000}",
        "\u{10000}",
        "10",
        "9",
        "~",
        " ",
    ]
    .map(str::to_owned)
    .to_vec();
    done(
        store,
        keys.iter()
            .map(|sort| put(&RecordKey::new("bytes", sort.as_str()), item(&[])))
            .collect(),
    )
    .await;
    keys.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    assert_eq!(
        sorts(store, "bytes", "", None, QueryOrder::Ascending).await,
        keys
    );
    keys.reverse();
    assert_eq!(
        sorts(store, "bytes", "", None, QueryOrder::Descending).await,
        keys
    );
}

async fn queries_keep_to_their_prefix_and_side(store: &Store) {
    use QueryOrder::{Ascending, Descending};
    let keys = ["a", "b", "b/1", "b/2", "b/2/x", "b/3", "b0", "c"];
    for partition in ["side", "side2"] {
        done(
            store,
            keys.iter()
                .map(|sort| put(&RecordKey::new(partition, *sort), item(&[])))
                .collect(),
        )
        .await;
    }
    let table: [(&str, Option<&str>, QueryOrder, &[&str]); 14] = [
        ("b/", None, Ascending, &["b/1", "b/2", "b/2/x", "b/3"]),
        ("b/", None, Descending, &["b/3", "b/2/x", "b/2", "b/1"]),
        (
            "b",
            None,
            Ascending,
            &["b", "b/1", "b/2", "b/2/x", "b/3", "b0"],
        ),
        ("x", None, Ascending, &[]),
        ("x", None, Descending, &[]),
        ("b/", Some("b/2"), Ascending, &["b/2/x", "b/3"]),
        ("b/", Some("b/2"), Descending, &["b/1"]),
        ("b/", Some("b/25"), Ascending, &["b/3"]),
        ("b/", Some("b/25"), Descending, &["b/2/x", "b/2", "b/1"]),
        ("b/", Some("a"), Ascending, &["b/1", "b/2", "b/2/x", "b/3"]),
        ("b/", Some("a"), Descending, &[]),
        ("b/", Some("c"), Ascending, &[]),
        ("b/", Some("c"), Descending, &["b/3", "b/2/x", "b/2", "b/1"]),
        ("", Some("b/3"), Ascending, &["b0", "c"]),
    ];
    for (prefix, after, order, expected) in table {
        assert_eq!(
            sorts(store, "side", prefix, after, order).await,
            expected,
            "{prefix:?} {after:?} {order:?}"
        );
    }
    assert!(sorts(store, "side3", "", None, Ascending).await.is_empty());
}

async fn pages_end_at_their_limit_and_size(store: &Store) {
    let large = item(&[("b", text(&"x".repeat(300 * 1024)))]);
    for n in 0..8 {
        done(
            store,
            vec![put(&RecordKey::new("pages", format!("{n}")), large.clone())],
        )
        .await;
    }
    let (mut found, mut after) = (BTreeMap::new(), None);
    for _ in 0..200 {
        let page = store
            .port
            .query("pages", "", after.as_deref(), QueryOrder::Ascending, 100)
            .await;
        let page = page.expect("a page is read");
        let bytes: usize = page
            .items
            .iter()
            .map(|(key, item)| item_bytes(key, item))
            .sum();
        assert!(bytes <= PAGE_BYTES_MAX, "a page of {bytes} bytes");
        let before = found.len();
        let count = page.items.len();
        found.extend(page.items);
        assert_eq!(found.len(), before + count, "no item comes twice");
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 8);
    assert!(found.values().all(|item| *item == large));
}

/// Reads the index of one partition, when it has caught up.
async fn entries(store: &Store, partition: &str, kind: WorkKind, until: i64) -> Vec<(String, i64)> {
    (store.advance)(store.lag).await;
    let found = store
        .port
        .due(kind, UnixMs(until), 1000)
        .await
        .expect("the index is read");
    assert!(
        found
            .iter()
            .all(|(_, due)| due.kind == kind && due.at.0 <= until)
    );
    let ours = found
        .into_iter()
        .filter(|(key, _)| key.partition == partition);
    let mut entries: Vec<_> = ours.map(|(key, due)| (key.sort, due.at.0)).collect();
    // The order between suffixes is open.
    entries.sort_by_key(|(_, at)| *at);
    entries
}

async fn the_index_lists_what_is_due(store: &Store) {
    let at = |sort: &str, kind, at| {
        put(
            &RecordKey::new("due", sort),
            Item {
                due: Some(due(kind, at)),
                ..item(&[])
            },
        )
    };
    done(
        store,
        vec![
            at("late", WorkKind::Batch, 300),
            at("early", WorkKind::Batch, -100),
            at("on time", WorkKind::Batch, 200),
            at("other", WorkKind::Shard, 100),
            put(&RecordKey::new("due", "never"), item(&[])),
        ],
    )
    .await;
    let owned = |pairs: &[(&str, i64)]| {
        pairs
            .iter()
            .map(|(sort, at)| ((*sort).to_owned(), *at))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        entries(store, "due", WorkKind::Batch, 200).await,
        owned(&[("early", -100), ("on time", 200)])
    );
    assert_eq!(
        entries(store, "due", WorkKind::Batch, 199).await,
        owned(&[("early", -100)])
    );
    assert_eq!(
        entries(store, "due", WorkKind::Shard, 1000).await,
        owned(&[("other", 100)])
    );
    assert_eq!(entries(store, "due", WorkKind::Backlog, 1000).await, []);
    let few = store
        .port
        .due(WorkKind::Batch, UnixMs(1000), 2)
        .await
        .expect("the index is read");
    assert_eq!(few.len(), 2);
}

async fn the_index_follows_its_items(store: &Store) {
    let key = |sort: &str| RecordKey::new("follow", sort);
    let entry = |at| Some(due(WorkKind::Retention, at));
    for sort in ["deleted", "moved", "replaced", "removed", "kept"] {
        done(
            store,
            vec![put(
                &key(sort),
                Item {
                    due: entry(10),
                    ..item(&[])
                },
            )],
        )
        .await;
    }
    assert_eq!(
        entries(store, "follow", WorkKind::Retention, 100)
            .await
            .len(),
        5
    );
    done(
        store,
        vec![
            action(&key("deleted"), ActionKind::Delete, None),
            update(
                &key("moved"),
                Update {
                    due: Some(entry(20)),
                    ..Update::default()
                },
            ),
            put(&key("replaced"), item(&[])),
            update(
                &key("removed"),
                Update {
                    due: Some(None),
                    ..Update::default()
                },
            ),
            add(&key("kept"), "n", 1),
            update(
                &key("added"),
                Update {
                    due: Some(entry(30)),
                    ..Update::default()
                },
            ),
        ],
    )
    .await;
    let expected =
        [("kept", 10), ("moved", 20), ("added", 30)].map(|(sort, at)| (sort.to_owned(), at));
    assert_eq!(
        entries(store, "follow", WorkKind::Retention, 100).await,
        expected
    );
}

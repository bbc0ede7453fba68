//! The records port: conditions, updates, transactions.

mod queries;

use std::sync::Arc;

use batch_core::time::UnixMs;

use super::{Subject, expect_kind};
use crate::IoKind;
use crate::port::record_rules::{ACTIONS_MAX, ITEM_BYTES_MAX, SORT_BYTES_MAX};
use crate::port::{
    Action, ActionKind, Attr, Condition, Due, Item, QueryOrder, RecordKey, Records, TransactError,
    Update, WorkKind,
};

use queries::sorts;

type Store = Subject<dyn Records>;

/// Checks every property of the port.
///
/// # Panics
///
/// Where a property does not hold.
pub async fn run(store: &Store) {
    an_item_comes_back_as_it_was_put(store).await;
    a_put_replaces_everything(store).await;
    conditions_decide_as_documented(store).await;
    updates_change_only_what_they_name(store).await;
    deletes_remove_and_tolerate_absence(store).await;
    a_conflict_names_every_failed_action_and_changes_nothing(store).await;
    requests_over_a_limit_are_refused_and_change_nothing(store).await;
    updates_that_cannot_be_made_change_nothing(store).await;
    the_largest_transaction_is_done(store).await;
    concurrent_additions_lose_nothing(store).await;
    concurrent_creations_have_one_winner(store).await;
    queries::run(store).await;
}

fn int(number: i64) -> Attr {
    Attr::Int(number)
}

fn text(text: &str) -> Attr {
    Attr::Text(text.to_owned())
}

fn item(attrs: &[(&str, Attr)]) -> Item {
    Item {
        attrs: attrs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        due: None,
    }
}

fn due(kind: WorkKind, at: i64) -> Due {
    Due {
        kind,
        at: UnixMs(at),
    }
}

fn action(key: &RecordKey, kind: ActionKind, condition: Option<Condition>) -> Action {
    Action {
        key: key.clone(),
        kind,
        condition,
    }
}

fn put(key: &RecordKey, item: Item) -> Action {
    action(key, ActionKind::Put(item), None)
}

fn update(key: &RecordKey, update: Update) -> Action {
    action(key, ActionKind::Update(update), None)
}

fn add(key: &RecordKey, name: &str, number: i64) -> Action {
    update(
        key,
        Update {
            add: vec![(name.to_owned(), number)],
            ..Update::default()
        },
    )
}

async fn done(store: &Store, actions: Vec<Action>) {
    store
        .port
        .transact(actions)
        .await
        .expect("the transaction is done");
}

async fn conflict(store: &Store, actions: Vec<Action>) -> Vec<usize> {
    match store.port.transact(actions).await {
        Err(TransactError::Conflict(positions)) => positions,
        other => panic!("expected a conflict, but got {other:?}"),
    }
}

async fn refused(store: &Store, actions: Vec<Action>) {
    match store.port.transact(actions).await {
        Err(TransactError::Io(error)) => assert_eq!(error.kind, IoKind::TooLarge, "{error}"),
        other => panic!("expected a refusal, but got {other:?}"),
    }
}

async fn get(store: &Store, key: &RecordKey) -> Option<Item> {
    store.port.get(key).await.expect("the item is read")
}

async fn an_item_comes_back_as_it_was_put(store: &Store) {
    let odd = RecordKey::new("round trip/ü\u{10ffff}\"'%", "sört/\u{1}\u{7f}");
    let attrs = [
        ("empty", text("")),
        ("long", text(&"long ".repeat(10_000))),
        ("least", int(i64::MIN)),
        ("most", int(i64::MAX)),
        ("zero", int(0)),
        ("odd \u{2028}\u{85} name", text("\u{0}\n\"\\\u{10ffff}{}")),
        ("digits", text("12")),
    ];
    let items = [
        item(&attrs),
        item(&[]),
        Item {
            due: Some(due(WorkKind::Outbox, i64::MAX)),
            ..item(&attrs)
        },
    ];
    assert_eq!(get(store, &odd).await, None);
    for expected in items {
        done(store, vec![put(&odd, expected.clone())]).await;
        assert_eq!(get(store, &odd).await.as_ref(), Some(&expected));
        let page = store
            .port
            .query(&odd.partition, "", Some("!"), QueryOrder::Ascending, 10)
            .await;
        for (key, found) in page.expect("a page is read").items {
            assert_eq!((&key, &found), (&odd, &expected));
        }
    }
    done(store, vec![action(&odd, ActionKind::Delete, None)]).await;
}

async fn a_put_replaces_everything(store: &Store) {
    let key = RecordKey::new("replace", "a");
    done(
        store,
        vec![put(
            &key,
            Item {
                due: Some(due(WorkKind::Outbox, 5)),
                ..item(&[("old", int(1))])
            },
        )],
    )
    .await;
    done(store, vec![put(&key, item(&[("new", int(2))]))]).await;
    assert_eq!(get(store, &key).await, Some(item(&[("new", int(2))])));
}

async fn conditions_decide_as_documented(store: &Store) {
    use Condition::{Absent, All, AtMost, BelowOrAbsent, Equals, Exists, OneOf};
    let there = RecordKey::new("conditions", "there");
    let gone = RecordKey::new("conditions", "gone");
    done(
        store,
        vec![put(
            &there,
            item(&[("n", int(7)), ("t", text("7")), ("m", int(-7))]),
        )],
    )
    .await;
    let n = || "n".to_owned();
    let named = |name: &str, value| Equals(name.to_owned(), value);
    // What must hold; whether it does of the item that is there, and of the one that is not.
    let table = [
        (Exists, true, false),
        (Absent, false, true),
        (named("n", int(7)), true, false),
        (named("n", int(8)), false, false),
        (named("n", text("7")), false, false),
        (named("t", text("7")), true, false),
        (named("t", int(7)), false, false),
        (named("none", text("")), false, false),
        (OneOf(n(), vec![int(6), int(7)]), true, false),
        (OneOf(n(), vec![int(6), text("7")]), false, false),
        (OneOf(n(), vec![]), false, false),
        (OneOf("none".to_owned(), vec![int(0)]), false, false),
        (BelowOrAbsent(n(), 8), true, true),
        (BelowOrAbsent(n(), 7), false, true),
        (BelowOrAbsent("m".to_owned(), 0), true, true),
        (BelowOrAbsent("none".to_owned(), i64::MIN), true, true),
        (BelowOrAbsent("t".to_owned(), 100), false, true),
        (AtMost(n(), 7), true, false),
        (AtMost(n(), 6), false, false),
        (AtMost("none".to_owned(), 6), false, false),
        (AtMost("t".to_owned(), 100), false, false),
        (All(vec![]), true, true),
        (All(vec![Exists, named("n", int(7))]), true, false),
        (All(vec![Exists, named("n", int(8))]), false, false),
        (All(vec![Exists, All(vec![Absent])]), false, false),
    ];
    for (condition, holds_there, holds_gone) in table {
        for (key, holds) in [(&there, holds_there), (&gone, holds_gone)] {
            let outcome = store
                .port
                .transact(vec![action(
                    key,
                    ActionKind::Check,
                    Some(condition.clone()),
                )])
                .await;
            match outcome {
                Ok(()) => assert!(holds, "{condition:?} holds of '{}'", key.sort),
                Err(TransactError::Conflict(_)) => {
                    assert!(!holds, "{condition:?} does not hold of '{}'", key.sort)
                }
                Err(error) => panic!("{condition:?}: {error:?}"),
            }
        }
    }
    assert_eq!(get(store, &gone).await, None, "a check makes nothing");
}

async fn updates_change_only_what_they_name(store: &Store) {
    let key = RecordKey::new("updates", "a");
    done(store, vec![add(&key, "n", 3)]).await;
    assert_eq!(
        get(store, &key).await,
        Some(item(&[("n", int(3))])),
        "an addition makes item and attribute"
    );
    done(
        store,
        vec![update(&RecordKey::new("updates", "b"), Update::default())],
    )
    .await;
    assert_eq!(
        get(store, &RecordKey::new("updates", "b")).await,
        Some(item(&[])),
        "an empty update makes an item"
    );
    let change = Update {
        set: vec![("t".to_owned(), text("x")), ("u".to_owned(), int(1))],
        add: vec![("n".to_owned(), -5), ("o".to_owned(), 0)],
        remove: vec!["none".to_owned()],
        due: Some(Some(due(WorkKind::Outbox, 1))),
    };
    done(store, vec![update(&key, change)]).await;
    let now = Item {
        due: Some(due(WorkKind::Outbox, 1)),
        ..item(&[
            ("n", int(-2)),
            ("o", int(0)),
            ("t", text("x")),
            ("u", int(1)),
        ])
    };
    assert_eq!(get(store, &key).await, Some(now));
    let change = Update {
        set: vec![("u".to_owned(), text("now a text"))],
        remove: vec!["t".to_owned(), "o".to_owned()],
        ..Update::default()
    };
    done(store, vec![update(&key, change)]).await;
    let now = Item {
        due: Some(due(WorkKind::Outbox, 1)),
        ..item(&[("n", int(-2)), ("u", text("now a text"))])
    };
    assert_eq!(
        get(store, &key).await,
        Some(now),
        "no change of the index entry leaves it"
    );
    done(
        store,
        vec![update(
            &key,
            Update {
                due: Some(None),
                ..Update::default()
            },
        )],
    )
    .await;
    assert_eq!(
        get(store, &key).await,
        Some(item(&[("n", int(-2)), ("u", text("now a text"))]))
    );
    let absent = RecordKey::new("updates", "absent");
    let guarded = Action {
        condition: Some(Condition::Exists),
        ..add(&absent, "n", 1)
    };
    assert_eq!(conflict(store, vec![guarded]).await, [0]);
    assert_eq!(get(store, &absent).await, None);
}

async fn deletes_remove_and_tolerate_absence(store: &Store) {
    let key = RecordKey::new("deletes", "a");
    done(store, vec![put(&key, item(&[("n", int(1))]))]).await;
    let guarded = |n| {
        action(
            &key,
            ActionKind::Delete,
            Some(Condition::Equals("n".to_owned(), int(n))),
        )
    };
    assert_eq!(conflict(store, vec![guarded(2)]).await, [0]);
    assert!(get(store, &key).await.is_some());
    done(store, vec![guarded(1)]).await;
    assert_eq!(get(store, &key).await, None);
    done(store, vec![action(&key, ActionKind::Delete, None)]).await;
    assert_eq!(
        conflict(
            store,
            vec![action(&key, ActionKind::Delete, Some(Condition::Exists))]
        )
        .await,
        [0]
    );
}

async fn a_conflict_names_every_failed_action_and_changes_nothing(store: &Store) {
    let keys: Vec<_> = (0..5)
        .map(|n| RecordKey::new("conflict", format!("{n}")))
        .collect();
    done(
        store,
        vec![
            put(&keys[0], item(&[("n", int(0))])),
            put(&keys[3], item(&[("n", int(3))])),
        ],
    )
    .await;
    let actions = vec![
        add(&keys[0], "n", 1),
        action(&keys[1], ActionKind::Check, Some(Condition::Exists)),
        put(&keys[2], item(&[])),
        action(&keys[3], ActionKind::Delete, Some(Condition::Absent)),
        action(
            &keys[4],
            ActionKind::Put(item(&[])),
            Some(Condition::Absent),
        ),
    ];
    assert_eq!(conflict(store, actions.clone()).await, [1, 3]);
    let expected = [
        Some(item(&[("n", int(0))])),
        None,
        None,
        Some(item(&[("n", int(3))])),
        None,
    ];
    for (key, expected) in keys.iter().zip(expected) {
        assert_eq!(get(store, key).await, expected);
    }
    done(
        store,
        vec![
            put(&keys[1], item(&[])),
            action(&keys[3], ActionKind::Delete, None),
        ],
    )
    .await;
    done(store, actions).await;
    assert_eq!(get(store, &keys[0]).await, Some(item(&[("n", int(1))])));
    assert_eq!(
        sorts(store, "conflict", "", None, QueryOrder::Ascending).await,
        ["0", "1", "2", "4"]
    );
}

async fn requests_over_a_limit_are_refused_and_change_nothing(store: &Store) {
    let key = |n: usize| RecordKey::new("limits", format!("{n:03}"));
    let many = |count: usize| {
        (0..count)
            .map(|n| put(&key(n), item(&[])))
            .collect::<Vec<_>>()
    };
    let large = |bytes: usize| item(&[("b", text(&"x".repeat(bytes)))]);
    let named_twice = Update {
        set: vec![("n".to_owned(), int(1))],
        add: vec![("n".to_owned(), 1)],
        ..Update::default()
    };
    refused(store, vec![]).await;
    refused(store, many(ACTIONS_MAX + 1)).await;
    refused(
        store,
        vec![
            put(&key(0), item(&[])),
            add(&key(1), "n", 1),
            action(&key(0), ActionKind::Delete, None),
        ],
    )
    .await;
    refused(store, vec![put(&RecordKey::new("", "a"), item(&[]))]).await;
    refused(store, vec![put(&RecordKey::new("limits", ""), item(&[]))]).await;
    refused(
        store,
        vec![put(
            &RecordKey::new("limits", "x".repeat(SORT_BYTES_MAX + 1)),
            item(&[]),
        )],
    )
    .await;
    refused(
        store,
        vec![put(&key(0), item(&[])), put(&key(1), large(ITEM_BYTES_MAX))],
    )
    .await;
    refused(
        store,
        (0..11)
            .map(|n| put(&key(n), large(ITEM_BYTES_MAX - 100)))
            .collect(),
    )
    .await;
    refused(store, vec![action(&key(0), ActionKind::Check, None)]).await;
    refused(store, vec![update(&key(0), named_twice)]).await;
    refused(store, vec![add(&key(0), "", 1)]).await;
    refused(store, vec![put(&key(0), item(&[("", int(1))]))]).await;
    expect_kind(
        store
            .port
            .query("limits", "", None, QueryOrder::Ascending, 0)
            .await,
        IoKind::TooLarge,
    );
    expect_kind(
        store.port.due(WorkKind::Batch, UnixMs(0), 0).await,
        IoKind::TooLarge,
    );
    assert!(
        sorts(store, "limits", "", None, QueryOrder::Ascending)
            .await
            .is_empty()
    );
}

async fn updates_that_cannot_be_made_change_nothing(store: &Store) {
    let (key, other) = (RecordKey::new("cannot", "a"), RecordKey::new("cannot", "b"));
    let half = text(&"x".repeat(ITEM_BYTES_MAX / 2));
    let start = item(&[
        ("t", text("no number")),
        ("n", int(i64::MAX)),
        ("half", half.clone()),
    ]);
    done(store, vec![put(&key, start.clone())]).await;
    refused(store, vec![put(&other, item(&[])), add(&key, "t", 1)]).await;
    refused(store, vec![put(&other, item(&[])), add(&key, "n", 1)]).await;
    let grow = Update {
        set: vec![("more".to_owned(), half)],
        ..Update::default()
    };
    refused(store, vec![put(&other, item(&[])), update(&key, grow)]).await;
    assert_eq!(get(store, &key).await, Some(start));
    assert_eq!(get(store, &other).await, None);
}

async fn the_largest_transaction_is_done(store: &Store) {
    let actions = (0..ACTIONS_MAX)
        .map(|n| put(&RecordKey::new("largest", format!("{n:03}")), item(&[])))
        .collect();
    done(store, actions).await;
    let found = sorts(store, "largest", "", None, QueryOrder::Ascending).await;
    assert_eq!(
        found,
        (0..ACTIONS_MAX)
            .map(|n| format!("{n:03}"))
            .collect::<Vec<_>>()
    );
}

/// Repeats a transaction while the store is busy with others.
async fn insist(records: &dyn Records, actions: Vec<Action>) -> Result<(), TransactError> {
    for _ in 0..200 {
        match records.transact(actions.clone()).await {
            Err(TransactError::Io(error)) if error.kind == IoKind::Busy => {
                tokio::task::yield_now().await
            }
            outcome => return outcome,
        }
    }
    panic!("a busy store is free at some time");
}

async fn concurrent_additions_lose_nothing(store: &Store) {
    let (sum, mirror) = (RecordKey::new("sum", "a"), RecordKey::new("sum", "b"));
    let tasks = (1..=8).map(|n| {
        let records = Arc::clone(&store.port);
        let actions = vec![add(&sum, "n", n), add(&mirror, "n", -n)];
        tokio::spawn(async move {
            for _ in 0..10 {
                insist(&*records, actions.clone())
                    .await
                    .expect("the addition is done");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("the task ends well");
    }
    assert_eq!(get(store, &sum).await, Some(item(&[("n", int(360))])));
    assert_eq!(get(store, &mirror).await, Some(item(&[("n", int(-360))])));
}

async fn concurrent_creations_have_one_winner(store: &Store) {
    for round in 0..5 {
        let key = RecordKey::new("creations", format!("{round}"));
        let tasks = (0..4).map(|n| {
            let records = Arc::clone(&store.port);
            let create = action(
                &key,
                ActionKind::Put(item(&[("by", int(n))])),
                Some(Condition::Absent),
            );
            tokio::spawn(async move { insist(&*records, vec![create]).await.is_ok().then_some(n) })
        });
        let mut winners = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            winners.extend(task.await.expect("the task ends well"));
        }
        assert_eq!(winners.len(), 1);
        assert_eq!(
            get(store, &key).await,
            Some(item(&[("by", int(winners[0]))]))
        );
    }
}

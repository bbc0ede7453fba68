use std::sync::Arc;
use std::time::Duration;

use batch_core::message::QueueName;
use batch_core::time::UnixMs;

use super::*;
use crate::memory;
use crate::platform::system_randomness;
use crate::port::{Action, ActionKind, Attr, Condition, Due, Item, RecordKey, Update, WorkKind};

fn counted() -> (Counts, Platform) {
    let counts = Counts::default();
    let platform = memory::platform(Arc::new(|| UnixMs(0)), system_randomness());
    let platform = counts.wrap(&platform, "test");
    (counts, platform)
}

fn units(counts: &Counts, operation: Operation) -> f64 {
    let read = counts.read();
    read.get(&("test", operation))
        .map_or(0.0, |tally| tally.units)
}

fn put(sort: &str, bytes: usize, due: Option<i64>) -> Action {
    let item = Item {
        attrs: [("a".to_owned(), Attr::Text("x".repeat(bytes)))].into(),
        due: due.map(|at| Due {
            kind: WorkKind::Shard,
            at: UnixMs(at),
        }),
    };
    Action {
        key: RecordKey::new("p", sort),
        kind: ActionKind::Put(item),
        condition: None,
    }
}

#[tokio::test]
async fn writes_cost_a_unit_a_kilobyte_and_twice_that_together() {
    let (counts, platform) = counted();
    let records = &platform.records;
    records.transact(vec![put("a", 10, None)]).await.unwrap();
    assert_eq!(units(&counts, Operation::WriteItem), 1.0);
    records.transact(vec![put("b", 1_500, None)]).await.unwrap();
    assert_eq!(units(&counts, Operation::WriteItem), 3.0);
    // The larger of what was there and what comes counts: 2 units and 1, each twice.
    let both = vec![put("a", 10, None), put("b", 10, None)];
    records.transact(both).await.unwrap();
    assert_eq!(units(&counts, Operation::TransactItems), 6.0);
    assert_eq!(units(&counts, Operation::WriteIndex), 0.0);
}

#[tokio::test]
async fn index_costs_one_to_enter_or_leave_and_two_to_move() {
    let (counts, platform) = counted();
    let cases = [
        // (due, units so far)
        (None, 0.0),
        (Some(1), 1.0),
        (Some(1), 1.0),
        (Some(2), 3.0),
        (None, 4.0),
    ];
    for (due, expected) in cases {
        platform
            .records
            .transact(vec![put("a", 1, due)])
            .await
            .unwrap();
        assert_eq!(units(&counts, Operation::WriteIndex), expected, "{due:?}");
    }
}

#[tokio::test]
async fn refused_condition_is_billed_and_changes_no_index() {
    let (counts, platform) = counted();
    let action = Action {
        kind: ActionKind::Update(Update {
            due: Some(Some(Due {
                kind: WorkKind::Shard,
                at: UnixMs(1),
            })),
            ..Update::default()
        }),
        condition: Some(Condition::Exists),
        ..put("a", 1, None)
    };
    let refused = platform.records.transact(vec![action]).await;
    assert!(refused.is_err());
    assert_eq!(units(&counts, Operation::TransactItems), 2.0);
    assert_eq!(units(&counts, Operation::WriteIndex), 0.0);
}

#[tokio::test]
async fn reads_cost_a_unit_for_four_kilobytes_even_of_nothing() {
    let (counts, platform) = counted();
    let records = &platform.records;
    records.get(&RecordKey::new("p", "a")).await.unwrap();
    assert_eq!(units(&counts, Operation::GetItem), 1.0);
    let large = [put("a", 3_000, Some(1)), put("b", 3_000, Some(1))];
    records.transact(large.to_vec()).await.unwrap();
    let order = crate::port::QueryOrder::Ascending;
    records.query("p", "", None, order, 10).await.unwrap();
    assert_eq!(units(&counts, Operation::Query), 2.0);
    records.due(WorkKind::Shard, UnixMs(1), 10).await.unwrap();
    assert_eq!(units(&counts, Operation::QueryIndex), 4.0);
}

#[tokio::test]
async fn ten_messages_or_64_kilobytes_are_one_request() {
    let (counts, platform) = counted();
    let queue = QueueName::Dispatch;
    let send = |bodies| platform.queue.send(&queue, bodies, Duration::ZERO);
    send(vec!["x".to_owned(); 11]).await.unwrap();
    assert_eq!(units(&counts, Operation::SendMessages), 2.0);
    send(vec!["x".repeat(65 * 1024)]).await.unwrap();
    assert_eq!(units(&counts, Operation::SendMessages), 4.0);
    let nothing = platform
        .queue
        .receive(
            &QueueName::Validate,
            1,
            Duration::from_secs(1),
            Duration::ZERO,
        )
        .await;
    assert_eq!(nothing.unwrap(), []);
    assert_eq!(units(&counts, Operation::ReceiveNothing), 1.0);
}

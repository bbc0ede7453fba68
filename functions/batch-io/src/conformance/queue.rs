//! The queue port: every message comes, at least once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use batch_core::message::{Lane, QueueName};
use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::{Subject, expect_kind};
use crate::IoKind;
use crate::port::queue_rules::{
    DELAY_MAX, MESSAGE_BYTES_MAX, RECEIVE_MAX, VISIBILITY_MAX, WAIT_MAX,
};
use crate::port::{Message, Queue, Receipt};

type Subjects = Subject<dyn Queue>;

/// Checks every property of the port, one after the other.
///
/// # Panics
///
/// Where a property does not hold.
pub async fn run(queue: &Subjects) {
    for property in properties(queue) {
        property.await;
    }
}

/// Checks every property of the port at once, for a subject whose time is real. Every property has queues of
/// its own.
///
/// # Panics
///
/// Where a property does not hold.
pub async fn run_at_once(queue: &Subjects) {
    futures::future::join_all(properties(queue)).await;
}

fn properties(queue: &Subjects) -> Vec<BoxFuture<'_, ()>> {
    let mut properties = vec![
        a_message_comes_as_it_was_sent(queue).boxed(),
        every_message_comes_though_many_are_sent(queue).boxed(),
        queues_do_not_mix(queue).boxed(),
        an_undeleted_message_comes_again(queue).boxed(),
        stale_and_foreign_receipts_do_no_harm(queue).boxed(),
        a_long_poll_ends_when_a_message_comes(queue).boxed(),
        a_long_poll_ends_when_nothing_comes(queue).boxed(),
        requests_over_a_limit_are_refused(queue).boxed(),
    ];
    if queue.calm {
        properties.extend([
            a_message_in_flight_is_invisible(queue).boxed(),
            an_extension_moves_the_timeout(queue).boxed(),
            a_delayed_message_comes_after_its_delay(queue).boxed(),
            concurrent_receivers_share_the_messages(queue).boxed(),
            depth_counts_what_is_not_in_flight(queue).boxed(),
        ]);
    }
    properties
}

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// Far enough from both ends of a minute for a service whose time is real.
const HALF_A_MINUTE: Duration = Duration::from_secs(30);

fn named(name: &str) -> QueueName {
    QueueName::Model {
        model: name.to_owned(),
        lane: Lane::Bulk,
    }
}

async fn send(subject: &Subjects, name: &QueueName, bodies: &[&str]) {
    let bodies = bodies.iter().map(|body| (*body).to_owned()).collect();
    subject
        .port
        .send(name, bodies, Duration::ZERO)
        .await
        .expect("the messages are sent");
}

async fn receive(subject: &Subjects, name: &QueueName, visibility: Duration) -> Vec<Message> {
    let messages = subject
        .port
        .receive(name, RECEIVE_MAX, visibility, Duration::ZERO)
        .await;
    let messages = messages.expect("a receive is answered");
    assert!(messages.len() <= RECEIVE_MAX);
    messages
}

/// Receives, and lets time pass, until nothing comes any more.
async fn drain(subject: &Subjects, name: &QueueName, visibility: Duration) -> Vec<Message> {
    let (mut messages, mut quiet) = (Vec::new(), 0);
    while quiet < 3 {
        let some = receive(subject, name, visibility).await;
        quiet = if some.is_empty() { quiet + 1 } else { 0 };
        if some.is_empty() {
            (subject.advance)(SECOND).await;
        }
        messages.extend(some);
        assert!(messages.len() < 10_000, "messages end");
    }
    messages
}

async fn delete(subject: &Subjects, name: &QueueName, messages: &[Message]) {
    for message in messages {
        subject
            .port
            .delete(name, &message.receipt)
            .await
            .expect("the message is deleted");
    }
}

fn bodies(messages: &[Message]) -> BTreeSet<&str> {
    messages
        .iter()
        .map(|message| message.body.as_str())
        .collect()
}

async fn a_message_comes_as_it_was_sent(subject: &Subjects) {
    let name = named("as-sent");
    let odd = "{\"text\": \"\\u0000 ü \u{10ffff} '\"}\n";
    let large = "x".repeat(MESSAGE_BYTES_MAX);
    for body in [odd, large.as_str(), "1"] {
        send(subject, &name, &[body]).await;
        let messages = drain(subject, &name, VISIBILITY_MAX).await;
        assert!(!messages.is_empty());
        assert!(
            messages
                .iter()
                .all(|message| message.body == body && message.receives == 1)
        );
        delete(subject, &name, &messages).await;
    }
    subject
        .port
        .send(&name, Vec::new(), Duration::ZERO)
        .await
        .expect("nothing is sent");
    assert!(drain(subject, &name, MINUTE).await.is_empty());
}

async fn every_message_comes_though_many_are_sent(subject: &Subjects) {
    let name = named("many");
    let sent: Vec<String> = (0..57).map(|n| format!("{n}")).collect();
    subject
        .port
        .send(&name, sent.clone(), Duration::ZERO)
        .await
        .expect("the messages are sent");
    let messages = drain(subject, &name, VISIBILITY_MAX).await;
    assert_eq!(bodies(&messages), sent.iter().map(String::as_str).collect());
    delete(subject, &name, &messages).await;
    (subject.advance)(VISIBILITY_MAX).await;
    assert!(
        drain(subject, &name, MINUTE).await.is_empty(),
        "deleted messages stay away"
    );
}

async fn queues_do_not_mix(subject: &Subjects) {
    let fast = QueueName::Model {
        model: "mix".to_owned(),
        lane: Lane::Fast,
    };
    let names = [
        QueueName::Validate,
        QueueName::Finalize,
        QueueName::Dispatch,
        fast,
        named("mix"),
        named("mix-2"),
    ];
    for (n, name) in names.iter().enumerate() {
        send(subject, name, &[&format!("{n}")]).await;
    }
    for (n, name) in names.iter().enumerate() {
        let messages = drain(subject, name, MINUTE).await;
        assert_eq!(bodies(&messages), BTreeSet::from([format!("{n}").as_str()]));
        // A receipt of another queue means nothing here.
        let other = &names[(n + 1) % names.len()];
        subject
            .port
            .extend(other, &messages[0].receipt, Duration::ZERO)
            .await
            .expect("it has no effect");
        delete(subject, name, &messages).await;
    }
}

async fn an_undeleted_message_comes_again(subject: &Subjects) {
    let name = named("again");
    send(subject, &name, &["a"]).await;
    let first = drain(subject, &name, MINUTE).await;
    assert!(!first.is_empty());
    (subject.advance)(2 * MINUTE).await;
    let second = drain(subject, &name, MINUTE).await;
    assert_eq!(bodies(&second), BTreeSet::from(["a"]));
    assert!(second.iter().all(|message| message.receives == 2));
    delete(subject, &name, &second).await;
    (subject.advance)(2 * MINUTE).await;
    assert!(drain(subject, &name, MINUTE).await.is_empty());
}

async fn stale_and_foreign_receipts_do_no_harm(subject: &Subjects) {
    let name = named("stale");
    send(subject, &name, &["a"]).await;
    let first = drain(subject, &name, MINUTE).await;
    (subject.advance)(2 * MINUTE).await;
    let second = drain(subject, &name, MINUTE).await;
    for message in &first {
        subject
            .port
            .extend(&name, &message.receipt, Duration::ZERO)
            .await
            .expect("a stale extension is ignored");
    }
    if subject.calm {
        assert!(
            receive(subject, &name, MINUTE).await.is_empty(),
            "a stale extension shows nothing"
        );
    }
    for _ in 0..2 {
        delete(subject, &name, &first).await;
        delete(subject, &name, &second).await;
    }
    for message in &second {
        subject
            .port
            .extend(&name, &message.receipt, MINUTE)
            .await
            .expect("an extension of nothing is ignored");
    }
    for receipt in ["", "-", "x", "1", "99999999-1", "1-99999999999999999999"] {
        let receipt = Receipt(receipt.to_owned());
        subject
            .port
            .delete(&name, &receipt)
            .await
            .expect("no receipt of ours is ignored");
        subject
            .port
            .extend(&name, &receipt, MINUTE)
            .await
            .expect("no receipt of ours is ignored");
    }
    (subject.advance)(2 * MINUTE).await;
    assert!(drain(subject, &name, MINUTE).await.is_empty());
}

async fn a_long_poll_ends_when_a_message_comes(subject: &Subjects) {
    let name = named("long");
    let (queue, from) = (Arc::clone(&subject.port), name.clone());
    let poll = tokio::spawn(async move { queue.receive(&from, 1, MINUTE, WAIT_MAX).await });
    tokio::task::yield_now().await;
    send(subject, &name, &["a"]).await;
    (subject.advance)(SECOND).await;
    let messages = poll
        .await
        .expect("the task ends well")
        .expect("a receive is answered");
    assert_eq!(bodies(&messages), BTreeSet::from(["a"]));
    delete(subject, &name, &messages).await;
    let copies = drain(subject, &name, MINUTE).await;
    delete(subject, &name, &copies).await;
}

async fn a_long_poll_ends_when_nothing_comes(subject: &Subjects) {
    let name = named("nothing");
    let messages = subject
        .port
        .receive(&name, 10, MINUTE, Duration::from_millis(50))
        .await;
    assert_eq!(messages.expect("a receive is answered"), []);
}

async fn requests_over_a_limit_are_refused(subject: &Subjects) {
    let (name, port, over) = (named("limits"), &subject.port, Duration::from_millis(1));
    let body = || vec!["a".to_owned()];
    expect_kind(
        port.send(
            &name,
            vec!["x".repeat(MESSAGE_BYTES_MAX + 1)],
            Duration::ZERO,
        )
        .await,
        IoKind::TooLarge,
    );
    expect_kind(
        port.send(&name, vec![String::new()], Duration::ZERO).await,
        IoKind::TooLarge,
    );
    expect_kind(
        port.send(&name, body(), DELAY_MAX + over).await,
        IoKind::TooLarge,
    );
    let receive =
        async |limit, visibility, wait| port.receive(&name, limit, visibility, wait).await;
    expect_kind(receive(0, MINUTE, Duration::ZERO).await, IoKind::TooLarge);
    expect_kind(
        receive(RECEIVE_MAX + 1, MINUTE, Duration::ZERO).await,
        IoKind::TooLarge,
    );
    expect_kind(
        receive(1, VISIBILITY_MAX + over, Duration::ZERO).await,
        IoKind::TooLarge,
    );
    expect_kind(receive(1, MINUTE, WAIT_MAX + over).await, IoKind::TooLarge);
    let receipt = Receipt("1-1".to_owned());
    expect_kind(
        port.extend(&name, &receipt, VISIBILITY_MAX + over).await,
        IoKind::TooLarge,
    );
    assert!(drain(subject, &name, MINUTE).await.is_empty());
}

async fn a_message_in_flight_is_invisible(subject: &Subjects) {
    let name = named("flight");
    send(subject, &name, &["a", "b"]).await;
    let first = subject
        .port
        .receive(&name, 1, MINUTE, Duration::ZERO)
        .await
        .expect("a receive is answered");
    let second = subject
        .port
        .receive(&name, 10, MINUTE, Duration::ZERO)
        .await
        .expect("a receive is answered");
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first[0].body, second[0].body);
    assert!(receive(subject, &name, MINUTE).await.is_empty());
    (subject.advance)(HALF_A_MINUTE).await;
    assert!(receive(subject, &name, MINUTE).await.is_empty());
    (subject.advance)(MINUTE).await;
    let again = receive(subject, &name, Duration::ZERO).await;
    assert_eq!(bodies(&again), BTreeSet::from(["a", "b"]));
    let at_once = receive(subject, &name, MINUTE).await;
    assert!(
        at_once.iter().all(|message| message.receives == 3),
        "a timeout of nothing hides nothing"
    );
    delete(subject, &name, &at_once).await;
}

async fn an_extension_moves_the_timeout(subject: &Subjects) {
    let name = named("extend");
    send(subject, &name, &["a"]).await;
    let held = receive(subject, &name, MINUTE).await;
    for _ in 0..3 {
        (subject.advance)(HALF_A_MINUTE).await;
        subject
            .port
            .extend(&name, &held[0].receipt, MINUTE)
            .await
            .expect("it is extended");
        assert!(receive(subject, &name, MINUTE).await.is_empty());
    }
    subject
        .port
        .extend(&name, &held[0].receipt, Duration::ZERO)
        .await
        .expect("it is given back");
    let again = receive(subject, &name, MINUTE).await;
    assert_eq!(again[0].receives, 2);
    (subject.advance)(2 * MINUTE).await;
    subject
        .port
        .extend(&name, &again[0].receipt, MINUTE)
        .await
        .expect("too late an extension is ignored");
    let mut last = receive(subject, &name, MINUTE).await;
    if last.is_empty() {
        // An emulator of SQS may still take the receipt, as long as nobody has a newer one.
        (subject.advance)(2 * MINUTE).await;
        last = receive(subject, &name, MINUTE).await;
    }
    assert_eq!(last[0].receives, 3);
    delete(subject, &name, &last).await;
}

async fn a_delayed_message_comes_after_its_delay(subject: &Subjects) {
    let name = named("delay");
    subject
        .port
        .send(&name, vec!["a".to_owned()], MINUTE)
        .await
        .expect("the message is sent");
    (subject.advance)(HALF_A_MINUTE).await;
    assert!(receive(subject, &name, MINUTE).await.is_empty());
    (subject.advance)(MINUTE).await;
    let messages = receive(subject, &name, MINUTE).await;
    assert_eq!((messages.len(), messages[0].receives), (1, 1));
    delete(subject, &name, &messages).await;
}

async fn concurrent_receivers_share_the_messages(subject: &Subjects) {
    let name = named("share");
    let sent: Vec<String> = (0..40).map(|n| format!("{n}")).collect();
    subject
        .port
        .send(&name, sent, Duration::ZERO)
        .await
        .expect("the messages are sent");
    let tasks = (0..4).map(|_| {
        let (queue, name) = (Arc::clone(&subject.port), name.clone());
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let some = queue
                    .receive(&name, 3, MINUTE, Duration::ZERO)
                    .await
                    .expect("a receive is answered");
                if some.is_empty() {
                    return mine;
                }
                mine.extend(some);
            }
        })
    });
    let mut all = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        all.extend(task.await.expect("the task ends well"));
    }
    assert_eq!(
        (all.len(), bodies(&all).len()),
        (40, 40),
        "no message comes twice while it is in flight"
    );
    delete(subject, &name, &all).await;
}

async fn depth_counts_what_is_not_in_flight(subject: &Subjects) {
    let name = named("depth");
    let depth = async || {
        subject
            .port
            .depth(&name)
            .await
            .expect("the queue is measured")
    };
    assert_eq!(depth().await, 0);
    send(subject, &name, &["a", "b"]).await;
    subject
        .port
        .send(&name, vec!["c".to_owned()], MINUTE)
        .await
        .expect("the message is sent");
    assert_eq!(depth().await, 3);
    let held = receive(subject, &name, MINUTE).await;
    assert_eq!((held.len(), depth().await), (2, 1));
    delete(subject, &name, &held).await;
    assert_eq!(depth().await, 1);
    (subject.advance)(2 * MINUTE).await;
    let last = receive(subject, &name, MINUTE).await;
    delete(subject, &name, &last).await;
    assert_eq!(depth().await, 0);
}

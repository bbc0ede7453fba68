//! Messages in, failures and waits out, over the real embedded queue.

use batch_core::message::{DispatchJob, Lane};
use batch_io::embedded::Embedded;
use batch_io::{IoKind, Platform};
use serde_json::json;

use super::*;

const QUEUE: QueueName = QueueName::Dispatch;
const HIDDEN: Duration = Duration::from_secs(900);

fn platform(dir: &std::path::Path) -> Platform {
    Embedded::open(dir).unwrap().platform()
}

/// Puts bodies into the queue, and receives them as Lambda's poller would.
async fn receive(platform: &Platform, bodies: &[&str]) -> SqsEvent {
    let bodies: Vec<String> = bodies.iter().map(ToString::to_string).collect();
    let count = bodies.len();
    let port = &platform.queue;
    port.send(&QUEUE, bodies, Duration::ZERO).await.unwrap();
    let mut records = Vec::new();
    while records.len() < count {
        let received = port.receive(&QUEUE, 10, HIDDEN, HIDDEN.min(Duration::from_secs(20)));
        for message in received.await.unwrap() {
            records.push(json!({
                "messageId": format!("id of {}", message.body),
                "receiptHandle": message.receipt.0,
                "body": message.body,
                "attributes": {"ApproximateReceiveCount": message.receives.to_string()},
                "messageAttributes": {},
            }));
        }
    }
    serde_json::from_value(json!({"Records": records})).unwrap()
}

fn failures(answer: &SqsBatchResponse) -> Vec<&str> {
    answer
        .batch_item_failures
        .iter()
        .map(|failure| failure.item_identifier.as_str())
        .collect()
}

#[tokio::test]
async fn only_failed_messages_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let platform = platform(dir.path());
    let good = r#"{"schema":1,"model":"a"}"#;
    let bad = r#"{"schema":1,"model":"b"}"#;
    let event = receive(&platform, &[good, bad]).await;
    let mut inbox = Inbox::<DispatchJob>::read(QUEUE, event);
    for (ticket, job) in inbox.take_jobs() {
        if job.model.as_deref() == Some("b") {
            inbox.fail(ticket, &IoError::new("try", "b", IoKind::Busy));
        }
    }
    let answer = inbox.settle(&platform).await;
    assert_eq!(failures(&answer), [format!("id of {bad}")]);
}

#[tokio::test]
async fn a_failed_message_comes_back_long_before_its_visibility_ends() {
    let dir = tempfile::tempdir().unwrap();
    let platform = platform(dir.path());
    let event = receive(&platform, &["poison"]).await;
    let inbox = Inbox::<DispatchJob>::read(QUEUE, event);
    inbox.settle(&platform).await;
    let wait = Duration::from_secs(20);
    let again = platform.queue.receive(&QUEUE, 1, HIDDEN, wait);
    assert_eq!(again.await.unwrap()[0].receives, 2);
}

#[tokio::test]
async fn messages_that_hold_no_job_are_reported_and_never_handled() {
    let dir = tempfile::tempdir().unwrap();
    let platform = platform(dir.path());
    let poison = [
        "",
        "not JSON",
        "{}",
        "[1]",
        r#"{"schema":1}"#,
        r#"{"schema":99,"tenant":"of the future"}"#,
        r#"{"schema":-1,"model":null}"#,
    ];
    let records: Vec<_> = poison
        .iter()
        .map(|body| json!({"messageId": body, "body": body}))
        .collect();
    let event = serde_json::from_value(json!({"Records": records})).unwrap();
    let mut inbox = Inbox::<batch_core::message::StageJob>::read(QueueName::Validate, event);
    assert!(inbox.take_jobs().is_empty());
    assert_eq!(failures(&inbox.settle(&platform).await), poison);
}

#[tokio::test]
async fn an_unnamed_failure_fails_the_whole_event() {
    let dir = tempfile::tempdir().unwrap();
    let platform = platform(dir.path());
    let event = serde_json::from_value(json!({"Records": [{"body": "poison"}]})).unwrap();
    let queue = QueueName::Model {
        model: "m".to_owned(),
        lane: Lane::Fast,
    };
    let inbox = Inbox::<DispatchJob>::read(queue, event);
    assert_eq!(failures(&inbox.settle(&platform).await), [""]);
}

#[test]
fn refusals_say_nothing_of_the_message() {
    let secret = |body: &str| read_job::<DispatchJob>(Some(body)).unwrap_err().to_string();
    for body in [
        r#""my secret""#,
        r#"{"schema":1,"model":["my secret"]}"#,
        "my secret",
    ] {
        assert!(!secret(body).contains("secret"), "{}", secret(body));
    }
}

#[test]
fn failing_message_comes_back_later_each_time() {
    for (receives, seconds) in [(0, 5), (1, 5), (2, 10), (4, 40), (7, 300), (u32::MAX, 300)] {
        assert_eq!(
            backoff(receives),
            Duration::from_secs(seconds),
            "{receives}"
        );
    }
}

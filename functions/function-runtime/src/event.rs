//! What kind of event came, told by its shape.

use aws_lambda_events::sqs::SqsEvent;
use serde_json::Value;

/// An event of a function that works on its own.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Messages of a queue.
    Messages(SqsEvent),
    /// A rule of EventBridge fired.
    Tick,
}

/// Nothing that a function of ours is bound to sends this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event that is neither messages of SQS nor a tick of a schedule")]
pub struct UnknownEvent;

impl Event {
    /// Reads an event.
    ///
    /// # Errors
    ///
    /// [`UnknownEvent`]. It says nothing of what came: a stranger may have written it.
    pub fn read(event: Value) -> Result<Self, UnknownEvent> {
        if event.get("Records").is_some() {
            return serde_json::from_value(event)
                .map(Event::Messages)
                .map_err(|_| UnknownEvent);
        }
        let is_tick = event.get("source").and_then(Value::as_str) == Some("aws.events");
        is_tick.then_some(Event::Tick).ok_or(UnknownEvent)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_and_ticks_are_told_apart_by_shape() {
        let message = json!({"messageId": "m", "receiptHandle": "r", "body": "{}",
            "attributes": {"ApproximateReceiveCount": "3"}, "messageAttributes": {},
            "eventSource": "aws:sqs", "awsRegion": "us-east-1"});
        let read = Event::read(json!({"Records": [message]}));
        assert!(matches!(read, Ok(Event::Messages(event)) if event.records.len() == 1));
        // Source: an EventBridge rule's event, https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-run-lambda-schedule.html
        let tick = json!({"version": "0", "id": "53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa",
            "detail-type": "Scheduled Event", "source": "aws.events", "account": "123456789012",
            "time": "2015-10-08T16:53:06Z", "region": "us-east-1",
            "resources": ["arn:aws:events:us-east-1:123456789012:rule/my-scheduled-rule"], "detail": {}});
        assert_eq!(Event::read(tick), Ok(Event::Tick));
    }

    #[test]
    fn other_shapes_are_refused() {
        for event in [
            json!({}),
            json!(null),
            json!([]),
            json!({"Records": 3}),
            json!({"source": "aws.s3"}),
        ] {
            assert_eq!(Event::read(event.clone()), Err(UnknownEvent), "{event}");
        }
    }
}

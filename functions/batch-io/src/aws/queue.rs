//! Queues in SQS. A queue's address is the deployment's prefix and the queue's name: nothing is looked up.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, MessageSystemAttributeName, QueueAttributeName,
    SendMessageBatchRequestEntry,
};
use batch_core::message::QueueName;

use super::failure::{self, Place};
use super::patience;
use crate::port::queue_rules::{self, QueueLimit};
use crate::port::{Message, Queue, Receipt};
use crate::{IoError, IoKind};

/// Most messages of a send.
const SEND_MAX: usize = 10;

/// Most bytes of a send, all messages together: 1 MiB.
const SEND_BYTES_MAX: usize = 1024 * 1024;

/// Sends of what SQS took only in part.
const SEND_TRIES: u32 = 2;

/// The queues of one deployment.
#[derive(Debug)]
pub(super) struct SqsQueue {
    client: Client,
    url_prefix: String,
}

impl SqsQueue {
    pub(super) fn new(client: Client, url_prefix: &str) -> Self {
        Self {
            client,
            url_prefix: url_prefix.to_owned(),
        }
    }

    fn url(&self, queue: &QueueName) -> String {
        format!("{}{queue}", self.url_prefix)
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        bodies: &[String],
        delay_s: i32,
    ) -> Result<(), IoError> {
        let url = self.url(queue);
        let mut left: Vec<usize> = (0..bodies.len()).collect();
        for tries in 0.. {
            let entries = left.iter().map(|at| entry(*at, &bodies[*at], delay_s));
            let sent = self.client.send_message_batch().queue_url(&url);
            let sent = sent.set_entries(Some(entries.collect())).send().await;
            let sent = sent.map_err(|error| failed("send to queue", queue, &url, &error))?;
            let Some(first) = sent.failed.first() else {
                return Ok(());
            };
            if first.sender_fault || tries + 1 == SEND_TRIES {
                return Err(refused_entry(queue, first));
            }
            left = sent
                .failed
                .iter()
                .filter_map(|failed| failed.id.parse().ok())
                .collect();
            patience::pause(tries).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Queue for SqsQueue {
    async fn send(
        &self,
        queue: &QueueName,
        bodies: Vec<String>,
        delay: Duration,
    ) -> Result<(), IoError> {
        queue_rules::check_send(&bodies, delay)
            .map_err(|limit| refused("send to queue", queue, limit))?;
        let mut rest = bodies.as_slice();
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(batch_len(rest));
            self.send_batch(queue, batch, seconds(delay)).await?;
            rest = after;
        }
        Ok(())
    }

    /// A wait of less than a second is one of a second: SQS counts in seconds, and a poll that does not wait
    /// asks only some of its servers.
    async fn receive(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Message>, IoError> {
        const DOING: &str = "receive from queue";
        queue_rules::check_receive(limit, visibility, wait)
            .map_err(|limit| refused(DOING, queue, limit))?;
        let url = self.url(queue);
        let received = self
            .client
            .receive_message()
            .queue_url(&url)
            .max_number_of_messages(i32::try_from(limit).unwrap_or(i32::MAX))
            .visibility_timeout(seconds(visibility))
            .wait_time_seconds(seconds(wait))
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount)
            .send()
            .await
            .map_err(|error| failed(DOING, queue, &url, &error))?;
        let messages = received.messages.unwrap_or_default().into_iter();
        messages.map(|message| read(queue, message)).collect()
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), IoError> {
        const DOING: &str = "extend in queue";
        queue_rules::check_visibility(visibility).map_err(|limit| refused(DOING, queue, limit))?;
        let url = self.url(queue);
        if receipt.0.is_empty() {
            return Ok(());
        }
        let extended = self
            .client
            .change_message_visibility()
            .queue_url(&url)
            .receipt_handle(&receipt.0)
            .visibility_timeout(seconds(visibility))
            .send()
            .await;
        match extended {
            Err(error) if !is_stale(&error) => Err(failed(DOING, queue, &url, &error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn delete(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), IoError> {
        let url = self.url(queue);
        if receipt.0.is_empty() {
            return Ok(());
        }
        let deletion = self.client.delete_message().queue_url(&url);
        match deletion.receipt_handle(&receipt.0).send().await {
            Err(error) if !is_stale(&error) => {
                Err(failed("delete from queue", queue, &url, &error))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, IoError> {
        const COUNTED: [QueueAttributeName; 2] = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ];
        let url = self.url(queue);
        let measured = self
            .client
            .get_queue_attributes()
            .queue_url(&url)
            .set_attribute_names(Some(COUNTED.to_vec()))
            .send()
            .await
            .map_err(|error| failed("measure queue", queue, &url, &error))?;
        let attributes = measured.attributes.unwrap_or_default();
        let count = |name| {
            attributes
                .get(name)
                .and_then(|count| count.parse::<u64>().ok())
        };
        Ok(COUNTED.iter().filter_map(count).sum())
    }
}

/// Returns how many of these messages go into one send. Each of them fits.
fn batch_len(bodies: &[String]) -> usize {
    let mut bytes = 0;
    let fits = |body: &&String| {
        bytes += body.len();
        bytes <= SEND_BYTES_MAX
    };
    bodies.iter().take(SEND_MAX).take_while(fits).count().max(1)
}

fn entry(at: usize, body: &str, delay_s: i32) -> SendMessageBatchRequestEntry {
    SendMessageBatchRequestEntry::builder()
        .id(at.to_string())
        .message_body(body)
        .delay_seconds(delay_s)
        .build()
        .expect("an entry has its id and its body")
}

/// Rounds up: nothing may come before its time.
fn seconds(span: Duration) -> i32 {
    let whole = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    i32::try_from(whole).unwrap_or(i32::MAX)
}

fn read(queue: &QueueName, message: aws_sdk_sqs::types::Message) -> Result<Message, IoError> {
    let receives = message
        .attributes
        .as_ref()
        .and_then(|attributes| attributes.get(&MessageSystemAttributeName::ApproximateReceiveCount))
        .and_then(|count| count.parse().ok());
    let (Some(body), Some(receipt), Some(receives)) =
        (message.body, message.receipt_handle, receives)
    else {
        let why = "SQS gave a message without a body, a receipt or a count";
        return Err(
            IoError::new("receive from queue", queue.to_string(), IoKind::Corrupt).because(why),
        );
    };
    Ok(Message {
        body,
        receipt: Receipt(receipt),
        receives,
    })
}

/// The receipt means nothing (any more), or the message has been in flight for as long as it may. Neither
/// is the caller's fault: the message comes again, or it is gone.
fn is_stale<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> bool {
    let code = error
        .code()
        .map(|code| code.rsplit(['.', '#']).next().unwrap_or(code));
    matches!(
        code,
        Some(
            "MessageNotInflight"
                | "ReceiptHandleIsInvalid"
                | "InvalidIdFormat"
                | "InvalidParameterValue"
                | "InvalidParameterValueException"
        )
    )
}

fn refused(doing: &'static str, queue: &QueueName, limit: QueueLimit) -> IoError {
    IoError::new(doing, queue.to_string(), IoKind::TooLarge).because(limit)
}

fn refused_entry(queue: &QueueName, entry: &BatchResultErrorEntry) -> IoError {
    let kind = if entry.sender_fault {
        IoKind::TooLarge
    } else {
        IoKind::Busy
    };
    let why = format!(
        "{}: {}",
        entry.code,
        entry.message.as_deref().unwrap_or("no message")
    );
    IoError::new("send to queue", queue.to_string(), kind).because(why)
}

fn failed<E>(
    doing: &'static str,
    queue: &QueueName,
    url: &str,
    error: &SdkError<E, HttpResponse>,
) -> IoError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    failure::failed(doing, queue.to_string(), Place::Queue(url), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_cut_by_count_and_by_bytes() {
        let small = vec!["x".to_owned(); 23];
        assert_eq!(batch_len(&small), 10);
        assert_eq!(batch_len(&small[20..]), 3);
        let half = vec!["x".repeat(SEND_BYTES_MAX / 2); 3];
        assert_eq!(batch_len(&half), 2);
        let more_than_half = vec!["x".repeat(SEND_BYTES_MAX / 2 + 1); 3];
        assert_eq!(batch_len(&more_than_half), 1);
        assert_eq!(batch_len(&["x".repeat(SEND_BYTES_MAX), "y".to_owned()]), 1);
    }

    #[test]
    fn spans_are_rounded_up_to_seconds() {
        assert_eq!(seconds(Duration::ZERO), 0);
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(20)), 20);
        assert_eq!(seconds(Duration::from_millis(1001)), 2);
    }
}

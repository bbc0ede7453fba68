//! The messages of one event: read, handled by the caller, and settled.
//!
//! Lambda deletes all messages of an event that are not reported as failed. A failed one would stay hidden
//! for its queue's whole visibility timeout, six times the function's; so its timeout is set to a wait
//! that doubles with every try.

use std::time::Duration;

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use batch_core::message::{QueueName, SCHEMA, retry_wait};
use batch_io::port::Receipt;
use batch_io::{IoError, Platform};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// How long a message waits after its first failure.
const BACKOFF: Duration = Duration::from_secs(5);

/// How long it waits at most. With eight tries, 5 + 10 + 20 + 40 + 80 + 160 + 300 s of trouble (ten minutes)
/// pass before it is dead.
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// Stands for a message whose job is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(usize);

/// What is kept of a message to settle it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Envelope {
    /// Empty if the event has none: reported, it fails the whole event.
    id: String,
    receipt: Option<Receipt>,
    receives: u32,
    failed: bool,
}

/// The messages of one event.
#[derive(Debug)]
pub struct Inbox<J> {
    queue: QueueName,
    envelopes: Vec<Envelope>,
    jobs: Vec<(Ticket, J)>,
}

/// Why a message cannot be read. Says nothing of what is in it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Unreadable {
    #[error("the message has no body")]
    Empty,
    #[error("the message's schema is {0}, but this version knows {SCHEMA}: deploy the newer one")]
    Newer(u32),
    #[error("the message is no job: {0:?} error in column {1}")]
    NoJob(serde_json::error::Category, usize),
}

impl<J: DeserializeOwned> Inbox<J> {
    /// Reads the messages of an event of `queue`. Those that hold no job of ours have failed: they end in
    /// the dead-letter queue, where a person finds them.
    #[must_use]
    pub fn read(queue: QueueName, event: SqsEvent) -> Self {
        let mut inbox = Self {
            queue,
            envelopes: Vec::with_capacity(event.records.len()),
            jobs: Vec::with_capacity(event.records.len()),
        };
        for (index, message) in event.records.into_iter().enumerate() {
            let read = read_job(message.body.as_deref());
            inbox.envelopes.push(envelope(message));
            match read {
                Ok(job) => inbox.jobs.push((Ticket(index), job)),
                Err(error) => inbox.refuse(Ticket(index), &error),
            }
        }
        inbox
    }

    fn refuse(&mut self, ticket: Ticket, error: &Unreadable) {
        let envelope = &mut self.envelopes[ticket.0];
        envelope.failed = true;
        tracing::error!(
            queue = %self.queue,
            message.id = envelope.id,
            message.receives = envelope.receives,
            %error,
            "cannot read a message: it goes to the dead-letter queue"
        );
    }
}

impl<J> Inbox<J> {
    /// Returns the jobs to do, once.
    pub fn take_jobs(&mut self) -> Vec<(Ticket, J)> {
        std::mem::take(&mut self.jobs)
    }

    /// Notes that a message could not be handled now.
    pub fn fail(&mut self, ticket: Ticket, error: &IoError) {
        let envelope = &mut self.envelopes[ticket.0];
        envelope.failed = true;
        tracing::warn!(
            queue = %self.queue,
            message.id = envelope.id,
            message.receives = envelope.receives,
            %error,
            source = ?error.source,
            "could not handle a message: it comes back"
        );
    }

    /// Lets the failed messages come back later, and returns the answer that names them.
    pub async fn settle(self, platform: &Platform) -> SqsBatchResponse {
        let mut answer = SqsBatchResponse::default();
        for failed in self
            .envelopes
            .into_iter()
            .filter(|envelope| envelope.failed)
        {
            if let Some(receipt) = &failed.receipt {
                let wait = backoff(failed.receives);
                // Without it the message comes back all the same, only later.
                if let Err(error) = platform.queue.extend(&self.queue, receipt, wait).await {
                    tracing::warn!(queue = %self.queue, message.id = failed.id, %error, "could not bring a message back sooner");
                }
            }
            answer.add_failure(failed.id);
        }
        answer
    }
}

fn envelope(message: SqsMessage) -> Envelope {
    let receives = message
        .attributes
        .get("ApproximateReceiveCount")
        .and_then(|count| count.parse().ok());
    Envelope {
        id: message.message_id.unwrap_or_default(),
        receipt: message.receipt_handle.map(Receipt),
        receives: receives.unwrap_or(1),
        failed: false,
    }
}

fn read_job<J: DeserializeOwned>(body: Option<&str>) -> Result<J, Unreadable> {
    /// What every job of every version has.
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let body = body.ok_or(Unreadable::Empty)?;
    let no_job = |error: serde_json::Error| Unreadable::NoJob(error.classify(), error.column());
    let Version { schema } = serde_json::from_str(body).map_err(no_job)?;
    if schema > SCHEMA {
        return Err(Unreadable::Newer(schema));
    }
    serde_json::from_str(body).map_err(no_job)
}

/// Returns how long a message waits whose handler has failed, by how often it was received.
fn backoff(receives: u32) -> Duration {
    retry_wait(receives, BACKOFF, BACKOFF_MAX)
}

#[cfg(test)]
mod tests;

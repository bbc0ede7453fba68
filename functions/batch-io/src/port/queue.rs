//! The queue port: at-least-once messages with a visibility timeout.

use std::time::Duration;

use async_trait::async_trait;
use batch_core::message::QueueName;

use crate::IoError;

/// Names one receipt of one message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receipt(pub String);

/// A received message, invisible to others until its timeout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// JSON.
    pub body: String,
    /// For extend and delete.
    pub receipt: Receipt,
    /// How often it was received, this time included.
    pub receives: u32,
}

/// At-least-once messages: late, double and out of order.
///
/// Source: SQS standard queues.
#[async_trait]
pub trait Queue: Send + Sync + 'static {
    /// Sends messages (each 1 byte to 1 MiB), visible after `delay` (at most 15 min). Any number of them,
    /// none included.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `TooLarge`. Some may have been sent.
    async fn send(
        &self,
        queue: &QueueName,
        bodies: Vec<String>,
        delay: Duration,
    ) -> Result<(), IoError>;

    /// Waits up to `wait` (at most 20 s) for up to `limit` messages (1 to 10), each invisible for
    /// `visibility` (at most 12 h). Returns as soon as there is one.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `TooLarge` for a value outside.
    async fn receive(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Message>, IoError>;

    /// Makes a received message visible again after `visibility` (at most 12 h) from now. No error, and no
    /// effect, if the receipt is stale or its timeout over.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `TooLarge` for a value outside.
    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), IoError>;

    /// Removes a message. No error if it is gone; a stale receipt may leave it.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    async fn delete(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), IoError>;

    /// Returns how many messages are visible or delayed, roughly; not those in flight.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    async fn depth(&self, queue: &QueueName) -> Result<u64, IoError>;
}

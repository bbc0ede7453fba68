//! Counts requests of queues.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use batch_core::message::QueueName;

use super::{Meter, Operation};
use crate::IoError;
use crate::port::{Message, Queue, Receipt};

/// Messages of one request.
const BATCH_MESSAGES: usize = 10;

/// Bytes that are billed as one request.
const REQUEST_BYTES: usize = 64 * 1024;

/// A queue that counts.
pub(super) struct Counted {
    inner: Arc<dyn Queue>,
    meter: Meter,
}

impl Counted {
    pub(super) fn new(inner: Arc<dyn Queue>, meter: Meter) -> Self {
        Self { inner, meter }
    }
}

#[async_trait]
impl Queue for Counted {
    async fn send(
        &self,
        queue: &QueueName,
        bodies: Vec<String>,
        delay: Duration,
    ) -> Result<(), IoError> {
        let requests: Vec<f64> = bodies
            .chunks(BATCH_MESSAGES)
            .map(|chunk| requests(chunk.iter().map(String::len).sum()))
            .collect();
        self.inner.send(queue, bodies, delay).await?;
        let units = requests.iter().sum();
        self.meter
            .add(Operation::SendMessages, requests.len() as u64, units);
        Ok(())
    }

    async fn receive(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Message>, IoError> {
        let messages = self.inner.receive(queue, limit, visibility, wait).await?;
        let operation = if messages.is_empty() {
            Operation::ReceiveNothing
        } else {
            Operation::ReceiveMessages
        };
        let bytes = messages.iter().map(|message| message.body.len()).sum();
        self.meter.add(operation, 1, requests(bytes));
        Ok(messages)
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), IoError> {
        self.meter.one(Operation::ChangeVisibility);
        self.inner.extend(queue, receipt, visibility).await
    }

    async fn delete(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), IoError> {
        self.meter.one(Operation::DeleteMessage);
        self.inner.delete(queue, receipt).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, IoError> {
        self.meter.one(Operation::GetQueueAttributes);
        self.inner.depth(queue).await
    }
}

fn requests(bytes: usize) -> f64 {
    bytes.div_ceil(REQUEST_BYTES).max(1) as f64
}

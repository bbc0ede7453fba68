//! Queues for the conformance suite: made at their first use, and in a time that runs faster.
//!
//! The suite's minute is six seconds here. Durations that break a limit go through as they are.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use batch_core::message::QueueName;
use batch_io::IoError;
use batch_io::port::queue_rules::{DELAY_MAX, VISIBILITY_MAX};
use batch_io::port::{Message, Queue, Receipt};
use tokio::sync::Mutex;

/// How much faster.
pub(crate) const TIMES_FASTER: u32 = 10;

/// A queue port in a faster time.
pub(crate) struct Faster {
    queue: Arc<dyn Queue>,
    sqs: aws_sdk_sqs::Client,
    prefix: String,
    made: Mutex<HashSet<String>>,
}

impl Faster {
    pub(crate) fn new(queue: Arc<dyn Queue>, sqs: aws_sdk_sqs::Client, prefix: String) -> Self {
        Self {
            queue,
            sqs,
            prefix,
            made: Mutex::default(),
        }
    }

    async fn made(&self, queue: &QueueName) -> &dyn Queue {
        let name = format!("{}{queue}", self.prefix);
        let mut made = self.made.lock().await;
        if !made.contains(&name) {
            self.sqs
                .create_queue()
                .queue_name(&name)
                .send()
                .await
                .unwrap();
            made.insert(name);
        }
        &*self.queue
    }
}

fn faster(span: Duration, limit: Duration) -> Duration {
    if span > limit {
        span
    } else {
        span / TIMES_FASTER
    }
}

#[async_trait]
impl Queue for Faster {
    async fn send(
        &self,
        queue: &QueueName,
        bodies: Vec<String>,
        delay: Duration,
    ) -> Result<(), IoError> {
        let delay = faster(delay, DELAY_MAX);
        self.made(queue).await.send(queue, bodies, delay).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Message>, IoError> {
        let visibility = faster(visibility, VISIBILITY_MAX);
        self.made(queue)
            .await
            .receive(queue, limit, visibility, wait)
            .await
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), IoError> {
        let visibility = faster(visibility, VISIBILITY_MAX);
        self.made(queue)
            .await
            .extend(queue, receipt, visibility)
            .await
    }

    async fn delete(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), IoError> {
        self.made(queue).await.delete(queue, receipt).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, IoError> {
        self.made(queue).await.depth(queue).await
    }
}

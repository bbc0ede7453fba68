//! Receives messages and claims their shards.

use std::time::Duration;

use batch_core::batch::BatchParams;
use batch_core::blob_key::BlobKey;
use batch_core::message::{Lane, QueueName, SCHEMA, ShardJob, retry_wait};
use batch_core::shard::Shard;
use batch_core::time::UnixMs;
use batch_io::port::{Message, read_named};
use batch_io::store::ShardClaim;
use batch_io::{IoError, IoKind};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::held::{Claimed, Held};
use super::{Context, Service, chain, warn_on_error};
use crate::pipeline::LineKey;

/// How long a message waits after its first failed claim, and a poll after a failed one.
const BACKOFF: Duration = Duration::from_secs(1);

/// How long a message waits at most after a failed claim.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// One long poll of one queue. It is never dropped half-way: a received message would hide until its timeout.
pub(super) struct Receiving {
    queue: QueueName,
    pending: Option<BoxFuture<'static, Result<Vec<Message>, IoError>>>,
}

impl std::fmt::Debug for Receiving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiving")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl Receiving {
    pub(super) fn new(model: &str, lane: Lane) -> Self {
        Self {
            queue: QueueName::Model {
                model: model.to_owned(),
                lane,
            },
            pending: None,
        }
    }

    /// Begins a poll unless one is under way.
    pub(super) fn start(&mut self, context: &Context) {
        if self.pending.is_some() {
            return;
        }
        let queue = std::sync::Arc::clone(&context.platform.queue);
        let name = self.queue.clone();
        let timing = context.store.timing();
        let visibility = Duration::from_millis(timing.lease_ms.unsigned_abs());
        let wait = Duration::from_millis(timing.control_ms.unsigned_abs());
        let poll = async move {
            let received = queue.receive(&name, 1, visibility, wait).await;
            if received.is_err() {
                // Here, and not where the error is handled: commits must go on meanwhile.
                tokio::time::sleep(BACKOFF).await;
            }
            received
        };
        self.pending = Some(poll.boxed());
    }

    /// Returns whether no poll is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.pending.is_none()
    }

    /// Waits for the poll; for ever if there is none.
    pub(super) async fn next(&mut self) -> Result<Vec<Message>, IoError> {
        match &mut self.pending {
            Some(pending) => {
                let messages = pending.await;
                self.pending = None;
                messages
            }
            None => std::future::pending().await,
        }
    }

    /// Ends the poll, and shows what it received to others at once.
    pub(super) async fn give_back(&mut self, context: &Context) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        for message in warn_on_error("receive shards", pending.await).unwrap_or_default() {
            let shown = context
                .platform
                .queue
                .extend(&self.queue, &message.receipt, Duration::ZERO)
                .await;
            warn_on_error("give a message back", shown);
        }
    }
}

impl Service {
    /// Claims the shards of received messages.
    pub(super) async fn claim(
        &mut self,
        model: &str,
        messages: Result<Vec<Message>, IoError>,
        lane: Lane,
    ) {
        let messages = match messages {
            Ok(messages) => messages,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "receive shards");
                return;
            }
        };
        let queue = QueueName::Model {
            model: model.to_owned(),
            lane,
        };
        for message in messages {
            // It was polled for before the worker took a shard that must run alone.
            let settled = if self.runs_alone() {
                self.show_again(&queue, &message, Duration::ZERO).await
            } else {
                self.claim_message(&queue, &message).await
            };
            if let Err(error) = settled {
                tracing::warn!(error = %chain(&error), "claim a shard");
                let wait = backoff(message.receives);
                let shown = self.show_again(&queue, &message, wait).await;
                warn_on_error("give a message back", shown);
            }
        }
    }

    /// Claims the shard of a message, and drops the message: from here on the lease brings the shard back.
    pub(super) async fn claim_message(
        &mut self,
        queue: &QueueName,
        message: &Message,
    ) -> Result<(), IoError> {
        let port = std::sync::Arc::clone(&self.context.platform.queue);
        let job: ShardJob = match serde_json::from_str(&message.body) {
            Ok(job) => job,
            Err(error) => {
                tracing::error!(%error, "read a shard message; it is dropped");
                return port.delete(queue, &message.receipt).await;
            }
        };
        if job.schema > SCHEMA {
            tracing::error!(
                schema = job.schema,
                "a message of a newer version: update this worker"
            );
            return Ok(());
        }
        let now = (self.context.platform.clock)();
        let claim = self
            .context
            .store
            .claim_shard(&job.tenant, job.batch, &job.shard, self.context.worker, now)
            .await?;
        match claim {
            ShardClaim::Granted { shard, params, .. } => {
                self.take(queue, shard, &params, now).await?;
                port.delete(queue, &message.receipt).await
            }
            // Whoever holds the shard has its lease, and reconcile sends another message when that is over.
            // A message that waited for it would end in the dead-letter queue.
            ShardClaim::Finished | ShardClaim::Stopped | ShardClaim::Busy { .. } => {
                port.delete(queue, &message.receipt).await
            }
        }
    }

    async fn show_again(
        &self,
        queue: &QueueName,
        message: &Message,
        wait: Duration,
    ) -> Result<(), IoError> {
        let port = &self.context.platform.queue;
        port.extend(queue, &message.receipt, wait).await
    }

    /// Opens a shard that this worker has just claimed. If its blobs cannot be read at the moment, it is given
    /// back, which is no loss: three losses would split it for nothing.
    async fn take(
        &mut self,
        queue: &QueueName,
        shard: Shard,
        params: &BatchParams,
        now: UnixMs,
    ) -> Result<(), IoError> {
        let claimed = Claimed {
            shard: shard.clone(),
            params,
            queue: queue.clone(),
            now,
        };
        let Err(error) = self.open_shard(claimed).await else {
            return Ok(());
        };
        match error.kind {
            IoKind::Busy | IoKind::Conflict | IoKind::Denied => {
                let (tenant, batch) = (&params.tenant, params.id);
                let returned = self
                    .context
                    .store
                    .hand_back(tenant, batch, &shard, now)
                    .await;
                warn_on_error("give a shard back", returned);
            }
            // It would fail at once again: the lease slows it down, and the losses lead to a split.
            IoKind::NotFound | IoKind::TooLarge | IoKind::Corrupt => {}
        }
        Err(error)
    }

    async fn open_shard(&mut self, claimed: Claimed<'_>) -> Result<(), IoError> {
        let (tenant, batch) = (claimed.params.tenant.clone(), claimed.params.id);
        let (lines, segments) = self.fetch(&claimed).await?;
        let next_key = &mut self.next_key;
        let opened = Held::open(claimed, &lines, &segments, || {
            *next_key += 1;
            LineKey(*next_key)
        });
        let held = opened.map_err(|fault| {
            IoError::new("open shard", format!("{tenant}/{batch}"), IoKind::Corrupt).because(fault)
        })?;
        tracing::info!(batch.id = %batch, shard.id = %held.shard.id, lines = held.open_lines(), epoch = held.shard.epoch, "shard claimed");
        let id = self.next_held;
        self.next_held += 1;
        self.owners.extend(held.open_keys().map(|key| (key, id)));
        self.held.insert(id, held);
        Ok(())
    }

    async fn fetch(&self, claimed: &Claimed<'_>) -> Result<(Bytes, Vec<Bytes>), IoError> {
        let blobs = &*self.context.platform.blobs;
        let (tenant, batch) = (&claimed.params.tenant, claimed.params.id);
        let shard: &Shard = &claimed.shard;
        let lines = read_named(
            blobs,
            &BlobKey::Shard {
                tenant: tenant.clone(),
                batch,
                shard: shard.id.to_root(),
            },
        )
        .await?;
        let mut segments = Vec::with_capacity(shard.segments.len());
        for segment in &shard.segments {
            let key = BlobKey::Segment {
                tenant: tenant.clone(),
                batch,
                shard: shard.id.clone(),
                segment: *segment,
            };
            segments.push(read_named(blobs, &key).await?);
        }
        Ok((lines, segments))
    }
}

/// Returns how long a message waits whose claim has failed, by how often it was received.
fn backoff(receives: u32) -> Duration {
    retry_wait(receives, BACKOFF, BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_waits_longer_after_each_failed_claim() {
        for (receives, seconds) in [(0, 1), (1, 1), (2, 2), (4, 8), (7, 60), (u32::MAX, 60)] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(backoff(receives), wait, "{receives}");
        }
    }
}

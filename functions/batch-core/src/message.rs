//! What travels in queues. A message only says "look": the records decide.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{BatchId, FileId, TenantId, UploadId};
use crate::shard::ShardId;

/// The version of all message and record forms. A process refuses a newer one.
pub const SCHEMA: u32 = 1;

/// Which of a model's two queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Batches of at most one shard's work, and urgent ones.
    Fast,
    /// Everything else.
    Bulk,
}

/// Names a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum QueueName {
    /// [`StageJob`]s for validate.
    Validate,
    /// [`StageJob`]s for finalize.
    Finalize,
    /// [`DispatchJob`]s.
    Dispatch,
    /// [`AssembleJob`]s.
    Assemble,
    /// [`ShardJob`]s of one model.
    Model {
        /// Model id.
        model: String,
        /// Which of the two.
        lane: Lane,
    },
}

/// Returns how long a message waits whose handler has failed, by how often it was received: `first`, then twice
/// as long each time, `longest` at most.
#[must_use]
pub fn retry_wait(receives: u32, first: Duration, longest: Duration) -> Duration {
    let doublings = receives.saturating_sub(1).min(16);
    first.saturating_mul(1 << doublings).min(longest)
}

/// Most characters of a model's part of a queue name: SQS takes 80, and a deployment's own prefix, `model-`
/// and the lane need room.
pub const QUEUE_SLUG_CHARS_MAX: usize = 40;

/// Returns what a queue name says for a model: its id with every character outside `A-Z a-z 0-9 - _`
/// replaced by `-`, clipped. Terraform names the queues by the same rule.
#[must_use]
pub fn queue_slug(model: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    model
        .chars()
        .take(QUEUE_SLUG_CHARS_MAX)
        .map(|c| if legal(c) { c } else { '-' })
        .collect()
}

impl fmt::Display for QueueName {
    /// Writes the name of the queue, without a deployment's prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueName::Validate => f.write_str("validate"),
            QueueName::Finalize => f.write_str("finalize"),
            QueueName::Dispatch => f.write_str("dispatch"),
            QueueName::Assemble => f.write_str("assemble"),
            QueueName::Model { model, lane } => {
                let lane = match lane {
                    Lane::Fast => "fast",
                    Lane::Bulk => "bulk",
                };
                write!(f, "model-{}-{lane}", queue_slug(model))
            }
        }
    }
}

/// Asks for the parts of a large upload to be put together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssembleJob {
    /// Version.
    pub schema: u32,
    /// Owner.
    pub tenant: TenantId,
    /// The upload, completed by its user.
    pub upload: UploadId,
    /// The file that it becomes.
    pub file: FileId,
}

/// Asks a stage to look at a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageJob {
    /// Version.
    pub schema: u32,
    /// Owner.
    pub tenant: TenantId,
    /// Batch.
    pub batch: BatchId,
}

/// Asks the dispatcher to look at a model, or at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchJob {
    /// Version.
    pub schema: u32,
    /// Model id; all models if none.
    pub model: Option<String>,
}

/// Asks a worker to claim a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardJob {
    /// Version.
    pub schema: u32,
    /// Owner.
    pub tenant: TenantId,
    /// Batch.
    pub batch: BatchId,
    /// Shard.
    pub shard: ShardId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_names_hold_what_sqs_takes() {
        let fast = |model: &str| {
            QueueName::Model {
                model: model.to_owned(),
                lane: Lane::Fast,
            }
            .to_string()
        };
        assert_eq!(fast("llama-3.1/8b"), "model-llama-3-1-8b-fast");
        assert_eq!(
            fast(&"é".repeat(60)),
            format!("model-{}-fast", "-".repeat(40))
        );
        assert_eq!(QueueName::Assemble.to_string(), "assemble");
    }
}

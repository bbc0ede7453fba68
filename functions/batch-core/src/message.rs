//! What travels in queues. A message only says "look": the records decide.

use serde::{Deserialize, Serialize};

use crate::id::{BatchId, TenantId};
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
    /// [`ShardJob`]s of one model.
    Model {
        /// Model id.
        model: String,
        /// Which of the two.
        lane: Lane,
    },
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

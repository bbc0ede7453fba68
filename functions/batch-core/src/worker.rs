//! The record of a worker process.

use serde::{Deserialize, Serialize};

use crate::id::WorkerId;
use crate::time::UnixMs;

/// A worker, as it registers itself. Gone when `expires_at` passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Name; new at every start.
    pub id: WorkerId,
    /// The models that it can serve.
    pub models: Vec<String>,
    /// The model that it has loaded.
    pub loaded: Option<String>,
    /// Shards that it holds at once.
    pub slots: u32,
    /// Measured tokens (prompt and output) a second for the loaded model; 0 while unknown.
    pub tokens_per_s: u32,
    /// Operating system's process id, where a supervisor shares the machine.
    pub pid: u32,
    /// When it is gone unless it registers again.
    pub expires_at: UnixMs,
}

//! The record of a file.

use serde::{Deserialize, Serialize};

use crate::blob_key::BlobKey;
use crate::id::{FileId, TenantId};
use crate::time::UnixMs;

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Purpose {
    /// Input of a batch.
    #[serde(rename = "batch")]
    Batch,
    /// Output or errors of a batch; never uploaded.
    #[serde(rename = "batch_output")]
    BatchOutput,
    /// Stored and returned, nothing more.
    #[serde(rename = "assistants")]
    Assistants,
    /// Stored and returned, nothing more.
    #[serde(rename = "fine-tune")]
    FineTune,
    /// Stored and returned, nothing more.
    #[serde(rename = "vision")]
    Vision,
    /// Stored and returned, nothing more.
    #[serde(rename = "user_data")]
    UserData,
    /// Stored and returned, nothing more.
    #[serde(rename = "evals")]
    Evals,
}

/// How long a file lives after its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiresAfter {
    /// Seconds, 3,600 to 2,592,000.
    pub seconds: u32,
}

/// Whether a file can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status", content = "details")]
pub enum FileStatus {
    /// Received; its parts are being put together.
    Uploaded,
    /// Ready.
    Processed,
    /// It cannot be used, and why.
    Error(String),
}

/// A file. Its bytes never change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Name.
    pub id: FileId,
    /// Owner.
    pub tenant: TenantId,
    /// Size.
    pub bytes: u64,
    /// When it was created.
    pub created_at: UnixMs,
    /// When it is gone; never, if none.
    pub expires_at: Option<UnixMs>,
    /// As the user gave it. Never a path of ours.
    pub filename: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Whether it can be read.
    pub status: FileStatus,
    /// Where its bytes are.
    pub blob: BlobKey,
    /// Version of this record's form.
    pub schema: u32,
}

//! The record of an upload in parts.

use serde::{Deserialize, Serialize};

use crate::blob_key::BlobKey;
use crate::file::{ExpiresAfter, Purpose};
use crate::id::{FileId, PartId, TenantId, UploadId};
use crate::time::UnixMs;

/// Where an upload stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status", content = "file")]
pub enum UploadStatus {
    /// Parts may be added.
    Pending,
    /// It became this file.
    Completed(FileId),
    /// The user dropped it.
    Cancelled,
}

/// An upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// Name.
    pub id: UploadId,
    /// Owner.
    pub tenant: TenantId,
    /// Bytes that all parts must add up to.
    pub bytes: u64,
    /// When it was created.
    pub created_at: UnixMs,
    /// When it is gone unless completed.
    pub expires_at: UnixMs,
    /// Name of the file to be.
    pub filename: String,
    /// As the user gave it.
    pub mime_type: String,
    /// Purpose of the file to be.
    pub purpose: Purpose,
    /// Life of the file to be.
    pub expires_after: Option<ExpiresAfter>,
    /// Where it stands.
    pub status: UploadStatus,
    /// Version of this record's form.
    pub schema: u32,
}

/// One part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadPart {
    /// Name.
    pub id: PartId,
    /// Its upload.
    pub upload: UploadId,
    /// Size.
    pub bytes: u64,
    /// When it arrived.
    pub created_at: UnixMs,
    /// Where its bytes are.
    pub blob: BlobKey,
}

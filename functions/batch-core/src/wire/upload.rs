//! Uploads and their parts as clients see them.

use serde::Serialize;

use crate::file::File;
use crate::time::UnixMs;
use crate::upload::{Upload, UploadPart, UploadStatus};
use crate::wire::{FileObject, purpose};

/// An upload object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UploadObject {
    id: String,
    object: &'static str,
    bytes: u64,
    created_at: i64,
    expires_at: i64,
    filename: String,
    purpose: &'static str,
    status: &'static str,
    file: Option<FileObject>,
}

impl UploadObject {
    /// Shows an upload at `now`; `file` is what it became.
    #[must_use]
    pub fn new(upload: &Upload, file: Option<&File>, now: UnixMs) -> Self {
        Self {
            id: upload.id.to_string(),
            object: "upload",
            bytes: upload.bytes,
            created_at: upload.created_at.secs(),
            expires_at: upload.expires_at.secs(),
            filename: upload.filename.clone(),
            purpose: purpose::name(upload.purpose),
            status: status_name(upload, now),
            file: file.map(FileObject::from),
        }
    }
}

/// Returns the word for where an upload stands at `now`.
#[must_use]
pub fn status_name(upload: &Upload, now: UnixMs) -> &'static str {
    match upload.status {
        UploadStatus::Pending if now >= upload.expires_at => "expired",
        UploadStatus::Pending => "pending",
        UploadStatus::Completed(_) => "completed",
        UploadStatus::Cancelled => "cancelled",
    }
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartObject {
    id: String,
    object: &'static str,
    created_at: i64,
    upload_id: String,
}

impl From<&UploadPart> for PartObject {
    fn from(part: &UploadPart) -> Self {
        Self {
            id: part.id.to_string(),
            object: "upload.part",
            created_at: part.created_at.secs(),
            upload_id: part.upload.to_string(),
        }
    }
}

//! The record of an upload in parts, and what a file is put together of.

use serde::{Deserialize, Serialize};

use crate::blob_key::BlobKey;
use crate::external::PinnedObject;
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

/// What one part adds to a file: a range of its blob, which may also hold the form that carried it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Part.
    pub part: PartId,
    /// First byte in the part's blob.
    pub start: u64,
    /// Beyond the last byte.
    pub end: u64,
}

impl Piece {
    /// Returns its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

impl From<&UploadPart> for Piece {
    fn from(part: &UploadPart) -> Self {
        Self {
            part: part.id,
            start: 0,
            end: part.bytes,
        }
    }
}

/// Where the bytes of a file come from that is put together by a job of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssemblySource {
    /// Parts of an upload, in the file's order.
    Parts(Vec<Piece>),
    /// An object outside the service.
    Object(PinnedObject),
}

/// A file that is still to be put together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembly {
    /// The upload that its user completed, or that an import made.
    pub upload: Upload,
    /// The file to be.
    pub file: FileId,
    /// Of what.
    pub source: AssemblySource,
    /// MD5 that the whole must have, lower-case hexadecimal.
    pub md5: Option<String>,
}

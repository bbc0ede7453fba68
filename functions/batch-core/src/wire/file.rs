//! Files as clients see them.

use serde::Serialize;

use crate::file::{File, FileStatus};
use crate::wire::purpose;

/// A file object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileObject {
    id: String,
    object: &'static str,
    bytes: u64,
    created_at: i64,
    /// Absent where a file lives for ever, as in OpenAI's answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<i64>,
    filename: String,
    purpose: &'static str,
    status: &'static str,
    status_details: Option<String>,
}

impl From<&File> for FileObject {
    fn from(file: &File) -> Self {
        let (status, status_details) = match &file.status {
            FileStatus::Uploaded => ("uploaded", None),
            FileStatus::Processed => ("processed", None),
            FileStatus::Error(why) => ("error", Some(why.clone())),
        };
        Self {
            id: file.id.to_string(),
            object: "file",
            bytes: file.bytes,
            created_at: file.created_at.secs(),
            expires_at: file.expires_at.map(|at| at.secs()),
            filename: file.filename.clone(),
            purpose: purpose::name(file.purpose),
            status,
            status_details,
        }
    }
}

/// The answer to a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Deleted {
    id: String,
    object: &'static str,
    deleted: bool,
}

impl Deleted {
    /// Says that a file is gone.
    #[must_use]
    pub fn file(id: impl ToString) -> Self {
        Self {
            id: id.to_string(),
            object: "file",
            deleted: true,
        }
    }
}

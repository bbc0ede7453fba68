//! Names of blobs. Every blob has one variant here, and its path is made in one place.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{BatchId, FileId, PartId, TenantId, UploadId};
use crate::shard::{SegmentRef, ShardId};

/// Names a blob. Paths are `<class>/<tenant>/...` and never hold a user's text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "class")]
pub enum BlobKey {
    /// The bytes of a file that a user sent.
    File {
        /// Owner.
        tenant: TenantId,
        /// File.
        file: FileId,
    },
    /// One part of an upload.
    Part {
        /// Owner.
        tenant: TenantId,
        /// Upload.
        upload: UploadId,
        /// Part.
        part: PartId,
    },
    /// The lines of one shard, as the user wrote them.
    Shard {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
        /// Shard; a child reads its root's blob.
        shard: ShardId,
    },
    /// Line numbers and custom ids of one window, in input order.
    Index {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
        /// Window, from 0.
        window: u32,
    },
    /// Results of some lines of one shard.
    Segment {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
        /// Shard.
        shard: ShardId,
        /// Which.
        segment: SegmentRef,
    },
    /// How far the finalizer of this epoch came before its time was over.
    Place {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
        /// Stage epoch.
        epoch: u64,
    },
    /// The output file of a batch, written by the finalizer of this epoch.
    Output {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
        /// Stage epoch.
        epoch: u64,
    },
    /// The error file of a batch, written by the finalizer of this epoch.
    Errors {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
        /// Stage epoch.
        epoch: u64,
    },
}

impl BlobKey {
    /// Returns what the paths of all parts of an upload begin with, and no other path does.
    #[must_use]
    pub fn parts_prefix(tenant: &TenantId, upload: UploadId) -> String {
        format!("uploads/{tenant}/{upload}/")
    }

    /// Returns the path below the bucket or the data folder.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            BlobKey::File { tenant, file } => format!("files/{tenant}/{file}"),
            BlobKey::Part {
                tenant,
                upload,
                part,
            } => format!("{}{part}", Self::parts_prefix(tenant, *upload)),
            BlobKey::Shard {
                tenant,
                batch,
                shard,
            } => format!("shards/{tenant}/{batch}/{shard}"),
            BlobKey::Index {
                tenant,
                batch,
                window,
            } => format!("index/{tenant}/{batch}/{window:06}"),
            BlobKey::Segment {
                tenant,
                batch,
                shard,
                segment,
            } => {
                format!("results/{tenant}/{batch}/{shard}/{segment}")
            }
            BlobKey::Place {
                tenant,
                batch,
                epoch,
            } => format!("results/{tenant}/{batch}/place-{epoch}"),
            BlobKey::Output {
                tenant,
                batch,
                epoch,
            } => format!("outputs/{tenant}/{batch}/output-{epoch}"),
            BlobKey::Errors {
                tenant,
                batch,
                epoch,
            } => format!("outputs/{tenant}/{batch}/errors-{epoch}"),
        }
    }
}

impl fmt::Display for BlobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

//! The work index, read back into names of things.

use batch_core::id::{BatchId, FileId, TenantId, UploadId};
use batch_core::shard::ShardId;
use batch_core::time::UnixMs;

use super::paths::BatchRecord;
use super::{Store, paths};
use crate::port::{RecordKey, WorkKind};
use crate::{IoError, IoKind};

/// Something that may need a look. The index is late: whoever looks reads the record first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DueRef {
    /// A batch.
    Batch {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
    },
    /// A released or leased shard.
    Shard {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
        /// Shard.
        shard: ShardId,
    },
    /// Unreleased shards of one model of a batch.
    Backlog {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
        /// Model's slot.
        slot: u16,
    },
    /// A file: deleted or expired.
    File {
        /// Owner.
        tenant: TenantId,
        /// File.
        file: FileId,
    },
    /// An upload whose parts can go.
    Upload {
        /// Owner.
        tenant: TenantId,
        /// Upload.
        upload: UploadId,
    },
    /// The memory of a create that no retry needs any more.
    Creation {
        /// Owner.
        tenant: TenantId,
        /// Which.
        name: String,
    },
    /// The notification of an ended batch.
    Outbox {
        /// Owner.
        tenant: TenantId,
        /// Batch.
        batch: BatchId,
    },
}

impl Store {
    /// Lists at most `limit` things of one kind that are due at `now`.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Corrupt` if the index names what no version of ours wrote.
    pub async fn due(
        &self,
        kind: WorkKind,
        now: UnixMs,
        limit: usize,
    ) -> Result<Vec<DueRef>, IoError> {
        let hits = self.records.due(kind, now, limit).await?;
        hits.iter()
            .map(|(key, _)| parse(key).ok_or_else(|| corrupt(key)))
            .collect()
    }
}

fn corrupt(key: &RecordKey) -> IoError {
    IoError::new(
        "read work index",
        format!("{}/{}", key.partition, key.sort),
        IoKind::Corrupt,
    )
    .because("the key names nothing that is ever due")
}

fn parse(key: &RecordKey) -> Option<DueRef> {
    let (tenant, class, rest) = paths::parse_partition(&key.partition)?;
    let sort = key.sort.as_str();
    match (class, rest) {
        ("batches", None) => {
            let (batch, record) = BatchRecord::parse(sort)?;
            (record == BatchRecord::Run).then_some(DueRef::Batch { tenant, batch })
        }
        ("batch", Some(batch)) => {
            let batch = batch.parse().ok()?;
            if let Some(shard) = sort.strip_prefix(paths::SHARD) {
                Some(DueRef::Shard {
                    tenant,
                    batch,
                    shard: shard.parse().ok()?,
                })
            } else {
                Some(DueRef::Backlog {
                    tenant,
                    batch,
                    slot: sort.strip_prefix(paths::BACKLOG)?.parse().ok()?,
                })
            }
        }
        ("files", None) => Some(DueRef::File {
            tenant,
            file: sort.parse().ok()?,
        }),
        ("uploads", None) => Some(DueRef::Upload {
            tenant,
            upload: sort.parse().ok()?,
        }),
        ("creates", None) => Some(DueRef::Creation {
            tenant,
            name: sort.to_owned(),
        }),
        ("outbox", None) => Some(DueRef::Outbox {
            tenant,
            batch: sort.parse().ok()?,
        }),
        (_, None | Some(_)) => None,
    }
}

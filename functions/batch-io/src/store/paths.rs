//! Where records are: every partition and sort key is made, and read back, here alone.
//!
//! Partitions of a tenant's data start with the tenant, which holds no slash; sort keys start with an id that
//! sorts by time.

use batch_core::id::{BatchId, FileId, PartId, TenantId, UploadId, WorkerId};
use batch_core::shard::ShardId;

use crate::port::RecordKey;

/// Partition of all workers.
pub(super) const WORKERS: &str = "workers";

/// Partition of all API keys.
pub(super) const KEYS: &str = "keys";

/// Partition of the dispatcher's cursors.
pub(super) const DISPATCH: &str = "dispatch";

/// Partition of the models' measured rates.
pub(super) const RATES: &str = "rates";

/// What sort keys of shards start with.
pub(super) const SHARD: &str = "shard/";

/// What sort keys of backlogs start with.
pub(super) const BACKLOG: &str = "backlog/";

/// What sort keys of parts start with.
pub(super) const PART: &str = "part/";

/// What sort keys of the pieces of a file to be start with.
pub(super) const PIECES: &str = "pieces/";

/// Which of the records of a batch. Their names sort as the variants do not: `errors`, `params`, `run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchRecord {
    /// What was asked.
    Params,
    /// How it goes.
    Run,
    /// Why the input was rejected.
    Errors,
}

impl BatchRecord {
    pub(super) fn name(self) -> &'static str {
        match self {
            BatchRecord::Params => "params",
            BatchRecord::Run => "run",
            BatchRecord::Errors => "errors",
        }
    }

    pub(super) fn key(self, tenant: &TenantId, batch: BatchId) -> RecordKey {
        RecordKey::new(batches(tenant), format!("{batch}/{}", self.name()))
    }

    /// Reads a sort key of the batches' partition.
    pub(super) fn parse(sort: &str) -> Option<(BatchId, BatchRecord)> {
        let (batch, name) = sort.split_once('/')?;
        let record = [BatchRecord::Params, BatchRecord::Run, BatchRecord::Errors]
            .into_iter()
            .find(|record| record.name() == name)?;
        Some((batch.parse().ok()?, record))
    }
}

pub(super) fn batches(tenant: &TenantId) -> String {
    format!("{tenant}/batches")
}

pub(super) fn files(tenant: &TenantId) -> String {
    format!("{tenant}/files")
}

pub(super) fn file(tenant: &TenantId, file: FileId) -> RecordKey {
    RecordKey::new(files(tenant), file.to_string())
}

pub(super) fn upload(tenant: &TenantId, upload: UploadId) -> RecordKey {
    RecordKey::new(format!("{tenant}/uploads"), upload.to_string())
}

pub(super) fn parts(tenant: &TenantId, upload: UploadId) -> String {
    format!("{tenant}/upload/{upload}")
}

pub(super) fn part(tenant: &TenantId, upload: UploadId, part: PartId) -> RecordKey {
    RecordKey::new(parts(tenant, upload), format!("{PART}{part}"))
}

/// Some of the pieces that an upload's file is to be put together of.
pub(super) fn pieces(tenant: &TenantId, upload: UploadId, number: u32) -> RecordKey {
    RecordKey::new(parts(tenant, upload), format!("{PIECES}{number:05}"))
}

/// Partition of a batch's shards and backlogs.
pub(super) fn work(tenant: &TenantId, batch: BatchId) -> String {
    format!("{tenant}/batch/{batch}")
}

pub(super) fn shard(tenant: &TenantId, batch: BatchId, shard: &ShardId) -> RecordKey {
    RecordKey::new(work(tenant, batch), format!("{SHARD}{shard}"))
}

/// A sort key after the shards of lower number and their children, and before this shard of the input.
pub(super) fn before_shard(root: &ShardId) -> String {
    match root.number.checked_sub(1) {
        // Children go on with a dot, which is below the slash.
        Some(number) => format!("{SHARD}{}/", ShardId::root(root.slot, number)),
        None => format!("{SHARD}{:03}-", root.slot),
    }
}

pub(super) fn backlog(tenant: &TenantId, batch: BatchId, slot: u16) -> RecordKey {
    RecordKey::new(work(tenant, batch), format!("{BACKLOG}{slot:03}"))
}

pub(super) fn worker(worker: WorkerId) -> RecordKey {
    RecordKey::new(WORKERS, worker.to_string())
}

pub(super) fn api_key(hash_hex: &str) -> RecordKey {
    RecordKey::new(KEYS, hash_hex)
}

pub(super) fn cursors(model: &str) -> RecordKey {
    RecordKey::new(DISPATCH, model)
}

pub(super) fn rate(model: &str) -> RecordKey {
    RecordKey::new(RATES, model)
}

/// The counter of a tenant's creates in the current hour.
pub(super) fn hour(tenant: &TenantId) -> RecordKey {
    RecordKey::new(creates(tenant), "hour")
}

pub(super) fn creates(tenant: &TenantId) -> String {
    format!("{tenant}/creates")
}

/// The tokens that a tenant has waiting.
pub(super) fn quota(tenant: &TenantId) -> RecordKey {
    RecordKey::new(format!("{tenant}/quota"), "enqueued")
}

/// The bill of an ended batch.
pub(super) fn ledger(tenant: &TenantId, batch: BatchId) -> RecordKey {
    RecordKey::new(format!("{tenant}/ledger"), batch.to_string())
}

/// The notification of an ended batch.
pub(super) fn outbox(tenant: &TenantId, batch: BatchId) -> RecordKey {
    RecordKey::new(format!("{tenant}/outbox"), batch.to_string())
}

/// Splits a partition of a tenant's data into the tenant, the class, and the rest.
pub(super) fn parse_partition(partition: &str) -> Option<(TenantId, &str, Option<&str>)> {
    let (tenant, rest) = partition.split_once('/')?;
    let (class, rest) = rest
        .split_once('/')
        .map_or((rest, None), |(class, rest)| (class, Some(rest)));
    Some((TenantId::try_from(tenant.to_owned()).ok()?, class, rest))
}

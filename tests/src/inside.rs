//! Looks inside a data directory: which results are committed, and what the workers' logs say of lines.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use batch_core::blob_key::BlobKey;
use batch_core::format::segment;
use batch_core::id::{BatchId, TenantId};
use batch_core::settings::Timing;
use batch_io::embedded::Embedded;
use batch_io::store::Store;
use futures::TryStreamExt as _;
use serde_json::Value;

/// Committed records of the result files by line number.
pub type Committed = BTreeMap<u64, Vec<u8>>;

/// Reads every result of a batch that a shard's record names: what a commit has made to exist.
///
/// # Errors
///
/// If the directory does not read.
pub async fn committed(data: &Path, batch: &str) -> anyhow::Result<Committed> {
    let embedded = Embedded::open(data)?;
    let store = Store::new(Arc::clone(&embedded.records), Timing::EMBEDDED);
    let (tenant, batch): (TenantId, BatchId) = (TenantId::default_tenant(), batch.parse()?);
    let mut committed = Committed::new();
    for shard in store.list_shards(&tenant, batch).await? {
        for segment in shard.segments {
            let key = BlobKey::Segment {
                tenant: tenant.clone(),
                batch,
                shard: shard.id.clone(),
                segment,
            };
            let chunks: Vec<_> = embedded
                .blobs
                .get(&key, 0, None)
                .await?
                .body
                .try_collect()
                .await?;
            for result in segment::decode(&chunks.concat()) {
                let result = result?;
                let earlier = committed.insert(result.line.0, result.record.to_vec());
                anyhow::ensure!(
                    earlier.is_none(),
                    "line {} is committed twice",
                    result.line.0
                );
            }
        }
    }
    Ok(committed)
}

/// Returns the numbers of a batch's lines that workers gave to their engine, in that order, from a log.
#[must_use]
pub fn submissions(log: &str, batch: &str) -> Vec<u64> {
    events(log, "line submitted")
        .filter(|fields| fields["batch.id"] == batch)
        .filter_map(|fields| fields["line.no"].as_u64())
        .collect()
}

/// Returns the fields of every event with this message in a JSON log. A line that a kill tore is left out.
pub fn events<'a>(log: &'a str, message: &'a str) -> impl Iterator<Item = Value> + 'a {
    log.lines()
        .filter(move |line| line.contains(message))
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|mut event| event["fields"].take())
        .filter(move |fields| fields["message"] == message)
}

//! The end of a line that keeps killing its worker: an error line, committed like any result.

use batch_core::batch::TokenCounts;
use batch_core::blob_key::BlobKey;
use batch_core::format;
use batch_core::format::segment::LineResult;
use batch_core::id::{BatchId, LineNo, RequestId, TenantId};
use batch_core::output::{ErrorBody, http_error};
use batch_core::shard::{SegmentRef, Shard};
use batch_core::time::UnixMs;
use batch_io::IoError;
use batch_io::port::read_named;
use batch_io::store::{Commit, CommitDelta};
use bytes::Bytes;

use crate::Context;
use crate::shards::{corrupt, root_lines};

/// Writes the error line of a shard of one line, which the caller holds, and commits it as the last.
///
/// Returns false if the batch was sealed or the shard taken meanwhile.
///
/// # Errors
///
/// [`IoError`]: `Corrupt` if the line or its custom_id cannot be read. Run it again: a new lease follows.
pub(crate) async fn commit_crash(
    ctx: &Context,
    tenant: &TenantId,
    batch: BatchId,
    held: &Shard,
    now: UnixMs,
) -> Result<bool, IoError> {
    let lines = root_lines(ctx, tenant, batch, held).await?;
    let key = BlobKey::Shard {
        tenant: tenant.clone(),
        batch,
        shard: held.id.to_root(),
    };
    let (_, line) = lines.first().copied().ok_or_else(|| corrupt(&key))?;
    let record = crash_record(ctx, tenant, batch, held.window, line, now).await?;
    let mut blob = Vec::new();
    let result = LineResult {
        line,
        ok: false,
        tokens: TokenCounts::default(),
        record: &record,
    };
    format::segment::encode_result(&mut blob, &result);
    let segment = SegmentRef {
        epoch: held.epoch,
        number: 0,
    };
    let key = BlobKey::Segment {
        tenant: tenant.clone(),
        batch,
        shard: held.id.clone(),
        segment,
    };
    ctx.platform.blobs.put(&key, Bytes::from(blob)).await?;
    let delta = CommitDelta {
        failed: 1,
        ..CommitDelta::default()
    };
    let commit = ctx
        .store
        .commit_shard(tenant, batch, held, Some(segment), delta, true, now)
        .await?;
    let committed = matches!(commit, Commit::Ok(_));
    if committed {
        tracing::error!(batch.id = %batch, shard.id = %held.id, line.no = line.0, "gave up a line that kept killing its worker");
    }
    Ok(committed)
}

/// Renders the error line, with the custom_id that the window's index has.
async fn crash_record(
    ctx: &Context,
    tenant: &TenantId,
    batch: BatchId,
    window: u32,
    line: LineNo,
    now: UnixMs,
) -> Result<Vec<u8>, IoError> {
    let key = BlobKey::Index {
        tenant: tenant.clone(),
        batch,
        window,
    };
    let index = read_named(&*ctx.platform.blobs, &key).await?;
    let error = ErrorBody {
        message: "The worker crashed each time it ran this request, also when it ran nothing else."
            .to_owned(),
        kind: "server_error".to_owned(),
        param: None,
        code: Some("worker_crash".to_owned()),
    };
    let request = RequestId::new(now, (ctx.platform.random)()).to_string();
    for entry in format::index::decode(&index) {
        let entry = entry.map_err(|error| corrupt(&key).because(error))?;
        if entry.line == line {
            return Ok(http_error(
                batch,
                line,
                entry.custom_id_json,
                &request,
                500,
                &error,
            ));
        }
    }
    Err(corrupt(&key))
}

//! Shards whose lease lapsed or whose message got lost.

use std::collections::HashSet;

use batch_core::blob_key::BlobKey;
use batch_core::format;
use batch_core::id::{BatchId, LineNo, TenantId};
use batch_core::shard::{Shard, ShardId, ShardState};
use batch_io::port::read_named;
use batch_io::store::{Lapsed, SplitShard};
use batch_io::{IoError, IoKind};

use crate::batches::seal_if_done;
use crate::messages::ask_worker;
use crate::pass::Pass;
use crate::{Context, give_up};

/// Releases, splits or gives up a shard that is due.
///
/// # Errors
///
/// [`IoError`]: `Corrupt` if its lines or results cannot be read.
pub(crate) async fn look_at(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    batch: BatchId,
    shard: &ShardId,
) -> Result<(), IoError> {
    let Some(before) = pass.ctx.store.load_shard(tenant, batch, shard).await? else {
        return Ok(());
    };
    let waited = matches!(before.state, ShardState::Released { .. });
    match pass
        .ctx
        .store
        .apply_lapse(tenant, batch, shard, pass.now)
        .await?
    {
        Lapsed::Nothing | Lapsed::Stopped => Ok(()),
        // Where every waiting shard can have its message, this one's is late, not lost; the next check asks again.
        Lapsed::Released(_) if waited && !pass.lacks_messages(&before.model).await? => Ok(()),
        Lapsed::Released(shard) => resend(pass, tenant, batch, &[shard]).await,
        Lapsed::MustSplit(shard) => split(pass, tenant, batch, &shard).await,
        Lapsed::GiveUp(shard) => {
            if give_up::commit_crash(pass.ctx, tenant, batch, &shard, pass.now).await? {
                pass.report.lines_given_up += 1;
            }
            seal_if_done(pass, tenant, batch).await
        }
    }
}

async fn resend(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    batch: BatchId,
    shards: &[Shard],
) -> Result<(), IoError> {
    let Some(run) = pass.ctx.store.load_run(tenant, batch).await? else {
        return Ok(());
    };
    for shard in shards {
        ask_worker(pass.ctx, tenant, &run, batch, shard, delay_ms(pass, shard)).await?;
        pass.report.shards_resent += 1;
        tracing::info!(batch.id = %batch, shard.id = %shard.id, losses = shard.losses, "asked for a shard again");
    }
    Ok(())
}

/// Returns how long a shard's message should wait: one that backs off is checked that much later.
fn delay_ms(pass: &Pass<'_>, shard: &Shard) -> i64 {
    match shard.state {
        ShardState::Released { check_at } => {
            check_at.since_ms(pass.now) - pass.ctx.store.timing().message_lost_ms
        }
        ShardState::Pending | ShardState::Leased { .. } | ShardState::Done | ShardState::Split => 0,
    }
}

async fn split(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    batch: BatchId,
    shard: &Shard,
) -> Result<(), IoError> {
    let unfinished = unfinished(pass.ctx, tenant, batch, shard).await?;
    match pass
        .ctx
        .store
        .split_shard(tenant, batch, shard, &unfinished, pass.now)
        .await?
    {
        SplitShard::Split(shards) => {
            pass.report.shards_split += 1;
            let lines = unfinished.len();
            tracing::warn!(batch.id = %batch, shard.id = %shard.id, lines, "split a shard that kept getting lost");
            resend(pass, tenant, batch, &shards).await
        }
        SplitShard::Completed => seal_if_done(pass, tenant, batch).await,
        SplitShard::Changed | SplitShard::Closed => Ok(()),
    }
}

/// Returns which lines of the root's blob belong to the shard and have no result, as ordinals.
async fn unfinished(
    ctx: &Context,
    tenant: &TenantId,
    batch: BatchId,
    shard: &Shard,
) -> Result<Vec<u32>, IoError> {
    let mut finished: HashSet<LineNo> = HashSet::new();
    for segment in &shard.segments {
        let key = BlobKey::Segment {
            tenant: tenant.clone(),
            batch,
            shard: shard.id.clone(),
            segment: *segment,
        };
        let blob = read_named(&*ctx.platform.blobs, &key).await?;
        for result in format::segment::decode(&blob) {
            finished.insert(result.map_err(|error| corrupt(&key).because(error))?.line);
        }
    }
    let lines = root_lines(ctx, tenant, batch, shard).await?;
    Ok(lines
        .into_iter()
        .filter(|(_, line)| !finished.contains(line))
        .map(|(ordinal, _)| ordinal)
        .collect())
}

/// Returns the lines of a shard with their ordinals in the root's blob.
pub(crate) async fn root_lines(
    ctx: &Context,
    tenant: &TenantId,
    batch: BatchId,
    shard: &Shard,
) -> Result<Vec<(u32, LineNo)>, IoError> {
    let key = BlobKey::Shard {
        tenant: tenant.clone(),
        batch,
        shard: shard.id.to_root(),
    };
    let blob = read_named(&*ctx.platform.blobs, &key).await?;
    let mut lines = Vec::new();
    for (ordinal, line) in (0..).zip(format::shard::decode(&blob)) {
        let line = line.map_err(|error| corrupt(&key).because(error))?.line;
        if shard
            .subset
            .as_ref()
            .is_none_or(|subset| subset.binary_search(&ordinal).is_ok())
        {
            lines.push((ordinal, line));
        }
    }
    Ok(lines)
}

/// Says that a blob does not hold what it should.
pub(crate) fn corrupt(key: &BlobKey) -> IoError {
    IoError::new("read the lines of blob", key.to_string(), IoKind::Corrupt)
}

//! The messages that reconcile sends again.

use std::time::Duration;

use batch_core::batch::BatchRun;
use batch_core::id::{BatchId, FileId, TenantId, UploadId};
use batch_core::message::{AssembleJob, DispatchJob, Lane, QueueName, SCHEMA, ShardJob, StageJob};
use batch_core::shard::Shard;
use batch_io::IoError;
use batch_io::port::queue_rules::DELAY_MAX;

use crate::Context;

/// Asks for a stage of a batch.
pub(crate) async fn ask_stage(
    ctx: &Context,
    queue: &QueueName,
    tenant: &TenantId,
    batch: BatchId,
) -> Result<(), IoError> {
    let job = StageJob {
        schema: SCHEMA,
        tenant: tenant.clone(),
        batch,
    };
    ctx.platform.send(queue, &[job], Duration::ZERO).await
}

/// Asks for a file to be put together.
pub(crate) async fn ask_assemble(
    ctx: &Context,
    tenant: &TenantId,
    upload: UploadId,
    file: FileId,
) -> Result<(), IoError> {
    let job = AssembleJob {
        schema: SCHEMA,
        tenant: tenant.clone(),
        upload,
        file,
    };
    ctx.platform
        .send(&QueueName::Assemble, &[job], Duration::ZERO)
        .await
}

/// Asks for a dispatch of a model.
pub(crate) async fn ask_dispatch(ctx: &Context, model: &str) -> Result<(), IoError> {
    let job = DispatchJob {
        schema: SCHEMA,
        model: Some(model.to_owned()),
    };
    ctx.platform
        .send(&QueueName::Dispatch, &[job], Duration::ZERO)
        .await
}

/// Sends the message of a released shard again, visible after `delay_ms`.
pub(crate) async fn ask_worker(
    ctx: &Context,
    tenant: &TenantId,
    run: &BatchRun,
    batch: BatchId,
    shard: &Shard,
    delay_ms: i64,
) -> Result<(), IoError> {
    let lane = if run.shards_total > 1 {
        Lane::Bulk
    } else {
        Lane::Fast
    };
    let queue = QueueName::Model {
        model: shard.model.clone(),
        lane,
    };
    let delay = Duration::from_millis(delay_ms.max(0).unsigned_abs()).min(DELAY_MAX);
    let job = ShardJob {
        schema: SCHEMA,
        tenant: tenant.clone(),
        batch,
        shard: shard.id.clone(),
    };
    ctx.platform.send(&queue, &[job], delay).await
}

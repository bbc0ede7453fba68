//! The messages that reconcile sends again.

use std::time::Duration;

use batch_core::batch::BatchRun;
use batch_core::id::{BatchId, TenantId};
use batch_core::message::{DispatchJob, Lane, QueueName, SCHEMA, ShardJob, StageJob};
use batch_core::shard::Shard;
use batch_io::IoError;

use crate::Context;

/// The longest delay of a message: SQS's 15 minutes.
const DELAY_MS_MAX: i64 = 900_000;

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
    let body = serde_json::to_string(&job).expect("a job is plain JSON");
    ctx.platform
        .queue
        .send(queue, vec![body], Duration::ZERO)
        .await
}

/// Asks for a dispatch of a model.
pub(crate) async fn ask_dispatch(ctx: &Context, model: &str) -> Result<(), IoError> {
    let job = DispatchJob {
        schema: SCHEMA,
        model: Some(model.to_owned()),
    };
    let body = serde_json::to_string(&job).expect("a job is plain JSON");
    ctx.platform
        .queue
        .send(&QueueName::Dispatch, vec![body], Duration::ZERO)
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
    let delay = Duration::from_millis(delay_ms.clamp(0, DELAY_MS_MAX).unsigned_abs());
    let job = ShardJob {
        schema: SCHEMA,
        tenant: tenant.clone(),
        batch,
        shard: shard.id.clone(),
    };
    let body = serde_json::to_string(&job).expect("a job is plain JSON");
    ctx.platform.queue.send(&queue, vec![body], delay).await
}

//! The messages of released shards.

use batch_core::dispatch::Release;
use batch_core::message::{QueueName, SCHEMA, ShardJob};
use batch_core::shard::ShardId;

/// Returns the queue of a release, and one message for each of its shards.
pub(crate) fn shard_jobs(model: &str, release: &Release) -> (QueueName, Vec<ShardJob>) {
    let queue = QueueName::Model {
        model: model.to_owned(),
        lane: release.lane,
    };
    let job = |number| ShardJob {
        schema: SCHEMA,
        tenant: release.tenant.clone(),
        batch: release.batch,
        shard: ShardId::root(release.slot, number),
    };
    let numbers = release.from..release.from.saturating_add(release.count);
    (queue, numbers.map(job).collect())
}

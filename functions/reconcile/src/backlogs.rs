//! Models with unreleased shards and nothing in their queues: somebody forgot to dispatch.

use std::collections::BTreeSet;

use batch_io::IoError;

use crate::messages::ask_dispatch;
use crate::pass::Pass;

/// Asks for a dispatch of every model that has unreleased shards and no released one.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn ask_for_dispatch(pass: &mut Pass<'_>) -> Result<(), IoError> {
    let backlogs = pass.ctx.store.list_backlogs().await?;
    let mut starved: BTreeSet<String> = backlogs
        .into_iter()
        .map(|(_, _, backlog)| backlog.model)
        .collect();
    if starved.is_empty() {
        return Ok(());
    }
    for waiting in pass.ctx.store.list_released().await? {
        starved.remove(&waiting.shard.model);
    }
    for model in starved {
        ask_dispatch(pass.ctx, &model).await?;
        pass.report.dispatches += 1;
    }
    Ok(())
}

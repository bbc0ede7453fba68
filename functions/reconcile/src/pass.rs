//! What one run carries along: its moment, its report, and what the queues held.

use std::collections::BTreeMap;

use batch_core::message::{Lane, QueueName};
use batch_core::time::UnixMs;
use batch_io::IoError;

use crate::Context;
use crate::report::Report;

/// One run over the work index.
///
/// A queue that held messages before the run sent any is busy, not forgotten: sending more of them would
/// only lengthen it.
#[derive(Debug)]
pub(crate) struct Pass<'c> {
    /// The outside.
    pub(crate) ctx: &'c Context,
    /// When the run is.
    pub(crate) now: UnixMs,
    /// What it did so far.
    pub(crate) report: Report,
    /// Nothing waits for validate.
    pub(crate) validate_is_idle: bool,
    /// Nothing waits for finalize.
    pub(crate) finalize_is_idle: bool,
    /// Whether a model lacks messages, as first asked.
    models: BTreeMap<String, bool>,
}

impl<'c> Pass<'c> {
    /// Begins a run.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub(crate) async fn begin(ctx: &'c Context, now: UnixMs) -> Result<Self, IoError> {
        let queue = &ctx.platform.queue;
        Ok(Self {
            ctx,
            now,
            report: Report::default(),
            validate_is_idle: queue.depth(&QueueName::Validate).await? == 0,
            finalize_is_idle: queue.depth(&QueueName::Finalize).await? == 0,
            models: BTreeMap::new(),
        })
    }

    /// Returns whether fewer messages wait for a model's workers than shards do: some were lost. Which ones
    /// nobody can tell, and one too many does no harm.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub(crate) async fn lacks_messages(&mut self, model: &str) -> Result<bool, IoError> {
        if let Some(lacks) = self.models.get(model) {
            return Ok(*lacks);
        }
        let mut messages = 0;
        for lane in [Lane::Fast, Lane::Bulk] {
            messages += self
                .ctx
                .platform
                .queue
                .depth(&QueueName::Model {
                    model: model.to_owned(),
                    lane,
                })
                .await?;
        }
        let released = self.ctx.store.list_released().await?;
        let waiting = released.iter().filter(|one| one.shard.model == model);
        let lacks = messages < waiting.count() as u64;
        self.models.insert(model.to_owned(), lacks);
        Ok(lacks)
    }
}

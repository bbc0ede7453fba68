//! Which model is served next: the loaded one as long as it has work, then the one that others wait for.

use std::time::Duration;

use batch_core::message::{Lane, QueueName};
use batch_core::time::UnixMs;

use super::{Service, has_passed, told_to_stop, warn_on_error};
use crate::pipeline::Pipeline;

/// How long a model is served while others wait, if its own queue never ends: 10 minutes.
const RESIDENCY_MAX_MS: i64 = 600_000;

/// How often a worker that has loaded nothing looks for work.
const LOOK: Duration = Duration::from_millis(500);

/// The turn of the loaded model.
#[derive(Debug)]
pub(super) struct Turn {
    since: UnixMs,
    wanted: Option<usize>,
}

impl Turn {
    pub(super) fn new(now: UnixMs) -> Self {
        Self {
            since: now,
            wanted: None,
        }
    }

    /// Returns the model to swap to, once nothing is held.
    pub(super) fn wanted(&self) -> Option<usize> {
        self.wanted
    }
}

impl Service {
    /// Waits until a model has work, and returns it. The only model is returned at once, so that it is loaded
    /// when the first shard comes. None if told to stop.
    pub(super) async fn first_model(&mut self) -> Option<usize> {
        let mut stop = self.stop.clone();
        loop {
            let now = (self.context.platform.clock)();
            if self.context.models.len() == 1 && self.failures.may_load(0, now) {
                return Some(0);
            }
            if let Some(model) = self.model_with_work(None).await {
                return Some(model);
            }
            tokio::select! {
                () = told_to_stop(&mut stop) => {
                    return None;
                }
                () = tokio::time::sleep(LOOK) => self.register(None).await,
            }
        }
    }

    /// Decides whether to leave the loaded model: it has nothing to do, or it has had its time, and another waits.
    pub(super) async fn consider_swap(&self, pipeline: &Pipeline, turn: &mut Turn, now: UnixMs) {
        if turn.wanted.is_some() || self.context.models.len() < 2 {
            return;
        }
        let idle = self.held.is_empty() && self.waiting_messages(pipeline.model_id()).await == 0;
        if idle || has_passed(turn.since, now, RESIDENCY_MAX_MS) {
            turn.wanted = self.model_with_work(Some(pipeline.model_id())).await;
        }
    }

    /// Returns the model after `current` that has messages, in the order of the catalog, round and round.
    async fn model_with_work(&self, current: Option<&str>) -> Option<usize> {
        let now = (self.context.platform.clock)();
        let models = &self.context.models;
        let start = current
            .and_then(|id| models.iter().position(|model| model.id == id))
            .map_or(0, |at| at + 1);
        for offset in 0..models.len() {
            let index = (start + offset) % models.len();
            if Some(models[index].id.as_str()) != current
                && self.failures.may_load(index, now)
                && self.waiting_messages(&models[index].id).await > 0
            {
                return Some(index);
            }
        }
        None
    }

    /// Returns how many messages a model has; 0 if the queue does not say.
    pub(super) async fn waiting_messages(&self, model: &str) -> u64 {
        let mut waiting = 0;
        for lane in [Lane::Fast, Lane::Bulk] {
            let queue = QueueName::Model {
                model: model.to_owned(),
                lane,
            };
            waiting += warn_on_error(
                "look at a queue",
                self.context.platform.queue.depth(&queue).await,
            )
            .unwrap_or(0);
        }
        waiting
    }
}

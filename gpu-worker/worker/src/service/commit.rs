//! Commits, the look for stopped batches, and the drain.

use std::collections::BTreeMap;
use std::time::Duration;

use batch_core::blob_key::BlobKey;
use batch_core::id::BatchId;
use batch_core::lifecycle::{Effect, Event, State};
use batch_core::message::{DispatchJob, QueueName, SCHEMA, ShardJob, StageJob};
use batch_io::IoError;
use batch_io::store::Commit;

use super::held::Held;
use super::{SLOTS, Service, chain, warn_on_error};
use crate::pipeline::Pipeline;

/// Messages of a model below which a worker that is done with a shard asks for more: two for each of its slots.
const LOW_MESSAGES: u64 = 2 * SLOTS as u64;

impl Service {
    /// Writes the shard's results so far, and renews its lease. Trouble leaves the draft for the next time.
    /// Returns whether the shard is settled: its draft is written, or it is no longer held.
    pub(super) async fn commit(&mut self, pipeline: &Pipeline, id: u64) -> bool {
        match self.try_commit(id).await {
            Ok(Commit::Ok(shard)) => {
                let now = (self.context.platform.clock)();
                let Some(held) = self.held.get_mut(&id) else {
                    return true;
                };
                if held.committed(shard, now) {
                    self.finish_shard(pipeline, id).await;
                }
                true
            }
            Ok(Commit::Fenced | Commit::Closed) => {
                tracing::info!(shard = id, "the shard is no longer this worker's");
                self.abandon(pipeline, id);
                true
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "commit results; tried again");
                let now = (self.context.platform.clock)();
                if let Some(held) = self.held.get_mut(&id) {
                    held.commit_failed(now);
                }
                false
            }
        }
    }

    /// Commits until nothing finished is unwritten: a draft of unknown outcome goes first, and alone. Returns
    /// false on trouble.
    async fn flush(&mut self, pipeline: &Pipeline, id: u64) -> bool {
        while self.held.get(&id).is_some_and(Held::has_unwritten) {
            if !self.commit(pipeline, id).await {
                return false;
            }
        }
        true
    }

    async fn try_commit(&mut self, id: u64) -> Result<Commit, IoError> {
        let now = (self.context.platform.clock)();
        let Some(held) = self.held.get_mut(&id) else {
            return Ok(Commit::Fenced);
        };
        let draft = held.draft();
        let segment = match draft.segment {
            Some((segment, bytes)) => {
                let key = BlobKey::Segment {
                    tenant: held.tenant.clone(),
                    batch: held.batch,
                    shard: held.shard.id.clone(),
                    segment,
                };
                self.context.platform.blobs.put(&key, bytes).await?;
                Some(segment)
            }
            None => None,
        };
        self.context
            .store
            .commit_shard(
                &held.tenant,
                held.batch,
                &held.shard,
                segment,
                draft.delta,
                draft.last,
                now,
            )
            .await
    }

    /// The shard is done: seals the batch if it was the last, and asks for more work.
    async fn finish_shard(&mut self, pipeline: &Pipeline, id: u64) {
        let Some(held) = self.held.remove(&id) else {
            return;
        };
        tracing::info!(batch.id = %held.batch, shard.id = %held.shard.id, "shard done");
        if let Err(error) = self.seal_if_done(&held).await {
            // Reconcile looks at the batch soon: the last commit made it due.
            tracing::warn!(error = %chain(&*error), "seal a batch");
        }
        let rate = self.rate.tokens_per_s();
        if rate > 0 {
            warn_on_error(
                "record the rate",
                self.context
                    .store
                    .record_rate(pipeline.model_id(), rate)
                    .await,
            );
        }
        self.ask_for_shards(pipeline.model_id()).await;
    }

    /// Asks for more shards if few wait. Otherwise dispatch's own next turn is soon enough: it keeps two turns'
    /// work in the queues, and every run of it reads all that is released.
    async fn ask_for_shards(&self, model: &str) {
        if self.waiting_messages(model).await >= LOW_MESSAGES {
            return;
        }
        let job = DispatchJob {
            schema: SCHEMA,
            model: Some(model.to_owned()),
        };
        warn_on_error(
            "ask for shards",
            self.context
                .platform
                .send(&QueueName::Dispatch, &[job], Duration::ZERO)
                .await,
        );
    }

    async fn seal_if_done(
        &self,
        held: &Held,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let now = (self.context.platform.clock)();
        let Some(run) = self
            .context
            .store
            .load_run(&held.tenant, held.batch)
            .await?
        else {
            return Ok(());
        };
        if !run.state.is_open() || !run.shards_are_done() {
            return Ok(());
        }
        let applied = self
            .context
            .store
            .apply(&held.tenant, held.batch, Event::AllShardsDone, now)
            .await?;
        if applied.effects.contains(&Effect::Finalize) {
            let job = StageJob {
                schema: SCHEMA,
                tenant: held.tenant.clone(),
                batch: held.batch,
            };
            self.context
                .platform
                .send(&QueueName::Finalize, &[job], Duration::ZERO)
                .await?;
        }
        Ok(())
    }

    /// Looks whether the batches of held shards are being stopped: one look a batch.
    pub(super) async fn control(&mut self, pipeline: &Pipeline) {
        let mut seen: BTreeMap<BatchId, Option<State>> = BTreeMap::new();
        for id in self.held.keys().copied().collect::<Vec<_>>() {
            let Some(held) = self.held.get(&id) else {
                continue;
            };
            let state = match seen.get(&held.batch) {
                Some(state) => *state,
                None => {
                    let run = self.context.store.load_run(&held.tenant, held.batch).await;
                    let Some(run) = warn_on_error("look at a batch", run) else {
                        continue;
                    };
                    let state = run.map(|run| run.state);
                    seen.insert(held.batch, state);
                    state
                }
            };
            match state {
                Some(State::InProgress) => {}
                // What is finished counts until the seal: a commit that failed is tried until then.
                Some(State::Draining(_)) => {
                    if self.flush(pipeline, id).await {
                        self.abandon(pipeline, id);
                    }
                }
                Some(State::Validating | State::Sealed(_) | State::Ended(_)) | None => {
                    self.abandon(pipeline, id);
                }
            }
        }
    }

    /// Drops a shard whose results nobody wants any more.
    fn abandon(&mut self, pipeline: &Pipeline, id: u64) {
        let Some(held) = self.held.remove(&id) else {
            return;
        };
        for key in held.open_keys() {
            self.owners.remove(&key);
            pipeline.cancel(key);
        }
    }

    /// Commits what is finished, and gives the rest back: no loss is counted.
    pub(super) async fn drain(&mut self, pipeline: &mut Pipeline) {
        tracing::info!(shards = self.held.len(), "drain");
        self.save(pipeline).await;
        for (_, held) in std::mem::take(&mut self.held) {
            warn_on_error("give a shard back", self.hand_back(&held).await);
        }
        self.owners.clear();
    }

    /// Commits what is finished, before the process ends.
    pub(super) async fn save(&mut self, pipeline: &mut Pipeline) {
        let now = (self.context.platform.clock)();
        while let Some(answer) = pipeline.try_next(now) {
            self.take_answer(answer);
        }
        for id in self.held.keys().copied().collect::<Vec<_>>() {
            self.flush(pipeline, id).await;
        }
    }

    async fn hand_back(&self, held: &Held) -> Result<(), IoError> {
        let now = (self.context.platform.clock)();
        if self
            .context
            .store
            .hand_back(&held.tenant, held.batch, &held.shard, now)
            .await?
        {
            let job = ShardJob {
                schema: SCHEMA,
                tenant: held.tenant.clone(),
                batch: held.batch,
                shard: held.shard.id.clone(),
            };
            self.context
                .platform
                .send(&held.queue, &[job], Duration::ZERO)
                .await?;
        }
        Ok(())
    }
}

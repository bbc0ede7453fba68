//! The long-running worker: one model at a time, as many shards as keep its engine busy.
//!
//! Every promise is a conditional write of the store: a worker that lost its lease learns it from a refused
//! commit, never from a clock.

mod commit;
mod feed;
mod held;
mod loading;
mod meter;
mod shards;
mod swap;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use batch_core::catalog::Catalog;
use batch_core::id::WorkerId;
use batch_core::message::Lane;
use batch_core::settings::Timing;
use batch_core::time::UnixMs;
use batch_core::worker::WorkerRecord;
use batch_io::store::Store;
use batch_io::{IoError, Platform};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::http::{Served, ServerAway};
use crate::model::{EngineOptions, Loader};
use crate::pipeline::{EngineStopped, LineAnswer, LineKey, Pipeline, Stopped};
use held::Held;
use loading::{Failures, Loading};
use meter::{RateMeter, StallWatch};
use shards::Receiving;

/// Shards held at once: two, so that the tail of one overlaps the head of the next.
pub const SLOTS: usize = 2;

/// How long the engine may work without finishing a step before the process gives up on it.
///
/// Ten minutes: a full step of a large model takes minutes on an old core, and killing it would blame its lines.
const ENGINE_STALL: Duration = Duration::from_secs(600);

/// How often a worker that waits looks up.
const TICK: Duration = Duration::from_millis(100);

/// A model that this worker can serve.
#[derive(Debug, Clone)]
pub struct ServableModel {
    /// Its id in the catalog.
    pub id: String,
    /// Where it is.
    pub place: Place,
}

/// Where a model is.
#[derive(Debug, Clone)]
pub enum Place {
    /// In a file or a folder of this machine.
    Files(PathBuf),
    /// At a server.
    Server(Served),
}

/// What a worker needs.
#[derive(Debug)]
pub struct Context {
    /// Ports, clock, randomness.
    pub platform: Platform,
    /// Records.
    pub store: Store,
    /// All models.
    pub catalog: Arc<Catalog>,
    /// The models on this machine.
    pub models: Vec<ServableModel>,
    /// This worker's name.
    pub worker: WorkerId,
    /// How engines are set up.
    pub options: EngineOptions,
    /// How models get onto the device.
    pub loader: Arc<dyn Loader>,
}

/// Why a worker ends early. Its shards come back by their leases.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The device failed.
    #[error(transparent)]
    Engine(#[from] EngineStopped),
    /// The engine hangs.
    #[error("the engine has finished no step in {} s", .0.as_secs())]
    EngineStalled(Duration),
}

/// Serves shards until `stop` turns true; then commits what is finished and gives the rest back.
///
/// # Errors
///
/// [`ServiceError`] if the engine cannot go on. Trouble with the ports is logged and tried again.
pub async fn run(context: Context, stop: watch::Receiver<bool>) -> Result<(), ServiceError> {
    Service::new(context, stop).serve().await
}

#[derive(Debug)]
struct Service {
    context: Context,
    stop: watch::Receiver<bool>,
    held: BTreeMap<u64, Held>,
    owners: BTreeMap<LineKey, u64>,
    failures: Failures,
    next_held: u64,
    next_key: u64,
    answers: u64,
    registered_at: Option<UnixMs>,
    controlled_at: UnixMs,
    rate: RateMeter,
    stall: StallWatch,
}

/// Why a model's turn ends.
#[derive(Debug)]
enum TurnEnd {
    Stop,
    Swap(usize),
    /// The model's server is not well.
    Away(ServerAway),
}

impl Service {
    fn new(context: Context, stop: watch::Receiver<bool>) -> Self {
        let now = (context.platform.clock)();
        Self {
            context,
            stop,
            held: BTreeMap::new(),
            owners: BTreeMap::new(),
            failures: Failures::default(),
            next_held: 0,
            next_key: 0,
            answers: 0,
            registered_at: None,
            controlled_at: now,
            rate: RateMeter::default(),
            stall: StallWatch::default(),
        }
    }

    async fn serve(&mut self) -> Result<(), ServiceError> {
        if self.context.models.is_empty() {
            tracing::error!(
                "no model of the catalog is on this machine: fetch one with 'nightshift models pull ID', then start again"
            );
        }
        let mut next = None;
        loop {
            let wanted = match next.take() {
                Some(model) => Some(model),
                None => self.first_model().await,
            };
            let Some(model) = wanted else { break };
            let mut pipeline = match self.load(model).await {
                Loading::Loaded(pipeline) => *pipeline,
                Loading::Failed => continue,
                Loading::Stopped => break,
            };
            match self.serve_model(&mut pipeline).await {
                Ok(TurnEnd::Stop) => {
                    self.drain(&mut pipeline).await;
                    break;
                }
                Ok(TurnEnd::Swap(model)) => next = Some(model),
                Ok(TurnEnd::Away(why)) => {
                    // Nothing is lost: another worker may reach the server.
                    self.drain(&mut pipeline).await;
                    self.tell_away(model, &why);
                }
                Err(error) => {
                    self.save(&mut pipeline).await;
                    return Err(error);
                }
            }
        }
        let removed = self.context.store.remove_worker(self.context.worker).await;
        warn_on_error("remove this worker's record", removed);
        Ok(())
    }

    async fn serve_model(&mut self, pipeline: &mut Pipeline) -> Result<TurnEnd, ServiceError> {
        let clock = Arc::clone(&self.context.platform.clock);
        let mut stop = self.stop.clone();
        let mut tick = tokio::time::interval(tick_of(self.context.store.timing()));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut fast = Receiving::new(pipeline.model_id(), Lane::Fast);
        let mut bulk = Receiving::new(pipeline.model_id(), Lane::Bulk);
        let mut turn = swap::Turn::new(clock());
        self.registered_at = None;
        self.rate = RateMeter::default();
        self.stall = StallWatch::default();
        loop {
            self.feed(pipeline);
            let may_claim = turn.wanted().is_none() && !self.runs_alone();
            if may_claim && self.has_room(pipeline, Lane::Fast) {
                fast.start(&self.context);
            }
            if may_claim && self.has_room(pipeline, Lane::Bulk) {
                bulk.start(&self.context);
            }
            tokio::select! {
                biased;
                () = told_to_stop(&mut stop) => {
                    give_back(&mut fast, &mut bulk, &self.context).await;
                    return Ok(TurnEnd::Stop);
                }
                _ = tick.tick() => {
                    self.tick(pipeline, &mut turn).await?;
                }
                answer = pipeline.next(&*clock) => match answer {
                    Ok(answer) => {
                        if let Some(finished) = self.take_answer(answer) {
                            self.commit(pipeline, finished).await;
                        }
                    }
                    Err(Stopped::Engine(error)) => return Err(error.into()),
                    Err(Stopped::Away(why)) => {
                        give_back(&mut fast, &mut bulk, &self.context).await;
                        return Ok(TurnEnd::Away(why));
                    }
                },
                messages = fast.next() => self.claim(pipeline.model_id(), messages, Lane::Fast).await,
                messages = bulk.next() => self.claim(pipeline.model_id(), messages, Lane::Bulk).await,
            }
            if let Some(next) = turn.wanted()
                && self.held.is_empty()
                && fast.is_quiet()
                && bulk.is_quiet()
            {
                return Ok(TurnEnd::Swap(next));
            }
        }
    }

    /// Takes in the answer of a line, and returns its shard if that was the last line without a result.
    fn take_answer(&mut self, answer: LineAnswer) -> Option<u64> {
        self.answers += 1;
        let id = self.owners.remove(&answer.key)?;
        let held = self.held.get_mut(&id)?;
        let request_id = batch_core::id::RequestId::new(
            (self.context.platform.clock)(),
            (self.context.platform.random)(),
        );
        held.finish_line(answer.key, &answer.result, &request_id.to_string());
        held.is_finished().then_some(id)
    }

    async fn tick(
        &mut self,
        pipeline: &Pipeline,
        turn: &mut swap::Turn,
    ) -> Result<(), ServiceError> {
        let now = (self.context.platform.clock)();
        let timing = *self.context.store.timing();
        self.measure(pipeline)?;
        let due = self.held.iter();
        let due = due.filter(|(_, held)| held.is_commit_due(now, &timing));
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.commit(pipeline, id).await;
        }
        if has_passed(self.controlled_at, now, timing.control_ms) {
            self.controlled_at = now;
            self.control(pipeline).await;
            self.consider_swap(pipeline, turn, now).await;
        }
        self.register(Some(pipeline.model_id())).await;
        Ok(())
    }

    /// Looks how fast the engine is, and whether it moves.
    fn measure(&mut self, pipeline: &Pipeline) -> Result<(), ServiceError> {
        // Tokio's, so that a simulated time rules it, too.
        let now = tokio::time::Instant::now().into_std();
        let progress = pipeline.progress();
        self.rate
            .observe(now, progress.tokens(), progress.sequences() > 0);
        let moved = progress.steps() + self.answers;
        let stalled = self.stall.observe(now, moved, self.running_lines() > 0);
        if stalled > ENGINE_STALL {
            return Err(ServiceError::EngineStalled(stalled));
        }
        Ok(())
    }

    /// Registers this worker, if its registration is a third over.
    async fn register(&mut self, loaded: Option<&str>) {
        let now = (self.context.platform.clock)();
        let expiry_ms = self.context.store.timing().worker_expiry_ms;
        if self
            .registered_at
            .is_some_and(|at| !has_passed(at, now, expiry_ms / 3))
        {
            return;
        }
        self.registered_at = Some(now);
        let models = self.context.models.iter();
        let record = WorkerRecord {
            id: self.context.worker,
            models: models.map(|model| model.id.clone()).collect(),
            loaded: loaded.map(str::to_owned),
            slots: SLOTS as u32,
            tokens_per_s: self.rate.tokens_per_s(),
            pid: std::process::id(),
            expires_at: now.plus_ms(expiry_ms),
        };
        warn_on_error(
            "register this worker",
            self.context.store.register_worker(&record).await,
        );
    }
}

async fn give_back(fast: &mut Receiving, bulk: &mut Receiving, context: &Context) {
    for receiving in [fast, bulk] {
        receiving.give_back(context).await;
    }
}

/// Returns whether a span has passed since a moment. A moment ahead of `now` means that the clock was set back:
/// waiting for it could take hours.
fn has_passed(since: UnixMs, now: UnixMs, span_ms: i64) -> bool {
    !(0..span_ms).contains(&now.since_ms(since))
}

/// Returns how often due commits are looked for: twenty times between two, and at least once a second.
fn tick_of(timing: &Timing) -> Duration {
    Duration::from_millis((timing.commit_ms / 20).clamp(10, 1_000).unsigned_abs())
}

async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody can tell any more: the process is ending.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn warn_on_error<T>(doing: &'static str, result: Result<T, IoError>) -> Option<T> {
    result
        .inspect_err(|error| tracing::warn!(error = %chain(error), "{doing}"))
        .ok()
}

/// Renders an error with its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

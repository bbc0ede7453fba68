//! The long-running worker: one model at a time, as many shards as keep its engine busy.
//!
//! Every promise is a conditional write of the store: a worker that lost its lease learns it from a refused
//! commit, never from a clock.

mod commit;
mod held;
mod shards;
mod swap;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use batch_core::catalog::Catalog;
use batch_core::id::WorkerId;
use batch_core::message::Lane;
use batch_core::time::UnixMs;
use batch_core::worker::WorkerRecord;
use batch_io::store::Store;
use batch_io::{IoError, Platform};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::model::{EngineOptions, LoadError};
use crate::pipeline::{EngineStopped, LineAnswer, LineKey, Pipeline};
use held::Held;
use shards::Receiving;

/// Shards held at once: two, so that the tail of one overlaps the head of the next.
pub const SLOTS: usize = 2;

/// How long the engine may work without finishing a step before the process gives up on it.
const ENGINE_STALL_MS: i64 = 120_000;

/// How often due commits are looked for.
const TICK: Duration = Duration::from_millis(100);

/// A model that this worker can load.
#[derive(Debug, Clone)]
pub struct ServableModel {
    /// Its id in the catalog.
    pub id: String,
    /// Where it is.
    pub path: PathBuf,
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
}

/// Why a worker ends early. Its shards come back by their leases.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The device failed.
    #[error(transparent)]
    Engine(#[from] EngineStopped),
    /// The engine hangs.
    #[error("the engine has finished no step in {0} ms")]
    EngineStalled(i64),
    /// A model does not load.
    #[error("load model {model}")]
    Load {
        /// Which.
        model: String,
        /// Why.
        #[source]
        source: LoadError,
    },
}

/// Serves shards until `stop` turns true; then commits what is finished and gives the rest back.
///
/// # Errors
///
/// [`ServiceError`] if the engine cannot go on. Trouble with the ports is logged and tried again.
pub async fn run(context: Context, stop: watch::Receiver<bool>) -> Result<(), ServiceError> {
    let now = (context.platform.clock)();
    let mut service = Service {
        context,
        stop,
        held: BTreeMap::new(),
        owners: BTreeMap::new(),
        next_held: 0,
        next_key: 0,
        registered_at: UnixMs(i64::MIN / 2),
        controlled_at: now,
        rate: RateMeter::default(),
    };
    service.serve().await
}

#[derive(Debug)]
struct Service {
    context: Context,
    stop: watch::Receiver<bool>,
    held: BTreeMap<u64, Held>,
    owners: BTreeMap<LineKey, u64>,
    next_held: u64,
    next_key: u64,
    registered_at: UnixMs,
    controlled_at: UnixMs,
    rate: RateMeter,
}

/// Why a model's turn ends.
#[derive(Debug, PartialEq, Eq)]
enum TurnEnd {
    Stop,
    Swap(usize),
}

impl Service {
    async fn serve(&mut self) -> Result<(), ServiceError> {
        let mut turn = self.first_model().await;
        while let Some(model) = turn.take() {
            let Some(mut pipeline) = self.load(model).await? else {
                break;
            };
            match self.serve_model(&mut pipeline).await? {
                TurnEnd::Stop => self.drain(&mut pipeline).await,
                TurnEnd::Swap(next) => turn = Some(next),
            }
        }
        let removed = self.context.store.remove_worker(self.context.worker).await;
        warn_on_error("remove this worker's record", removed);
        Ok(())
    }

    /// Loads on a thread of its own, and stays registered meanwhile. None if it was told to stop.
    async fn load(&mut self, model: usize) -> Result<Option<Pipeline>, ServiceError> {
        let ServableModel { id, path } = self.context.models[model].clone();
        let options = EngineOptions {
            context_tokens: self
                .context
                .catalog
                .resolve(&id)
                .and_then(|model| model.context_tokens)
                .map(|n| n as usize),
            ..self.context.options
        };
        tracing::info!(model.id = %id, "load a model");
        let mut stop = self.stop.clone();
        let mut loading = {
            let id = id.clone();
            tokio::task::spawn_blocking(move || crate::model::load(&id, &path, &options))
        };
        loop {
            tokio::select! {
                loaded = &mut loading => {
                    let loaded = loaded.map_err(|error| EngineStopped(error.to_string()))?;
                    let model = loaded.map_err(|source| ServiceError::Load { model: id.clone(), source })?;
                    tracing::info!(model.id = %id, "model loaded");
                    return Ok(Some(Pipeline::start(model)));
                }
                stopped = stop.wait_for(|stop| *stop) => {
                    drop(stopped);
                    return Ok(None);
                }
                () = tokio::time::sleep(TICK) => self.register(Some(&id)).await,
            }
        }
    }

    async fn serve_model(&mut self, pipeline: &mut Pipeline) -> Result<TurnEnd, ServiceError> {
        let clock = Arc::clone(&self.context.platform.clock);
        let mut stop = self.stop.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut fast = Receiving::new(pipeline.model_id(), Lane::Fast);
        let mut bulk = Receiving::new(pipeline.model_id(), Lane::Bulk);
        let mut turn = swap::Turn::new(clock());
        self.registered_at = UnixMs(i64::MIN / 2);
        loop {
            let may_claim = turn.wanted().is_none() && !self.runs_alone();
            if may_claim && self.has_room(pipeline, Lane::Fast) {
                fast.start(&self.context);
            }
            if may_claim && self.has_room(pipeline, Lane::Bulk) {
                bulk.start(&self.context);
            }
            tokio::select! {
                biased;
                stopped = stop.wait_for(|stop| *stop) => {
                    drop(stopped);
                    for receiving in [&mut fast, &mut bulk] {
                        receiving.give_back(&self.context).await;
                    }
                    return Ok(TurnEnd::Stop);
                }
                _ = tick.tick() => {
                    self.tick(pipeline, &mut turn).await?;
                }
                answer = pipeline.next(&*clock) => self.take_answer(pipeline, answer?).await,
                messages = fast.next() => self.claim(pipeline, messages, Lane::Fast).await,
                messages = bulk.next() => self.claim(pipeline, messages, Lane::Bulk).await,
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

    async fn take_answer(&mut self, pipeline: &Pipeline, answer: LineAnswer) {
        let Some(id) = self.owners.remove(&answer.key) else {
            return;
        };
        let Some(held) = self.held.get_mut(&id) else {
            return;
        };
        let request_id = batch_core::id::RequestId::new(
            (self.context.platform.clock)(),
            (self.context.platform.random)(),
        );
        held.finish_line(answer.key, &answer.result, &request_id.to_string());
        if held.is_finished() {
            self.commit(pipeline, id).await;
        }
    }

    async fn tick(
        &mut self,
        pipeline: &Pipeline,
        turn: &mut swap::Turn,
    ) -> Result<(), ServiceError> {
        let now = (self.context.platform.clock)();
        let timing = *self.context.store.timing();
        self.rate.observe(
            now,
            pipeline.progress().tokens(),
            pipeline.progress().sequences() > 0,
        );
        let stalled_ms = self.rate.stalled_ms(
            now,
            pipeline.progress().steps(),
            pipeline.progress().sequences(),
        );
        if stalled_ms > ENGINE_STALL_MS {
            return Err(ServiceError::EngineStalled(stalled_ms));
        }
        let due: Vec<u64> = self
            .held
            .iter()
            .filter(|(_, held)| {
                held.is_finished() || now.since_ms(held.committed_at) >= timing.commit_ms
            })
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.commit(pipeline, id).await;
        }
        self.start_waiting(pipeline);
        if now.since_ms(self.controlled_at) >= timing.control_ms {
            self.controlled_at = now;
            self.control(pipeline).await;
            self.consider_swap(pipeline, turn, now).await;
        }
        if now.since_ms(self.registered_at) >= timing.worker_expiry_ms / 3 {
            self.register(Some(pipeline.model_id())).await;
        }
        Ok(())
    }

    async fn register(&mut self, loaded: Option<&str>) {
        let now = (self.context.platform.clock)();
        let timing = self.context.store.timing();
        if now.since_ms(self.registered_at) < timing.worker_expiry_ms / 3 {
            return;
        }
        self.registered_at = now;
        let record = WorkerRecord {
            id: self.context.worker,
            models: self
                .context
                .models
                .iter()
                .map(|model| model.id.clone())
                .collect(),
            loaded: loaded.map(str::to_owned),
            slots: SLOTS as u32,
            tokens_per_s: self.rate.tokens_per_s(),
            pid: std::process::id(),
            expires_at: now.plus_ms(timing.worker_expiry_ms),
        };
        warn_on_error(
            "register this worker",
            self.context.store.register_worker(&record).await,
        );
    }
}

/// Measures tokens a second while the engine is busy, and notices when it hangs.
#[derive(Debug, Default)]
struct RateMeter {
    last: Option<(UnixMs, u64)>,
    busy_ms: i64,
    tokens: u64,
    last_step: Option<(UnixMs, u64)>,
}

impl RateMeter {
    fn observe(&mut self, now: UnixMs, tokens: u64, busy: bool) {
        if let Some((then, before)) = self.last
            && busy
            && tokens >= before
        {
            self.busy_ms += now.since_ms(then);
            self.tokens += tokens - before;
            // Halving keeps the last minute or two in view.
            if self.busy_ms > 60_000 {
                self.busy_ms /= 2;
                self.tokens /= 2;
            }
        }
        self.last = Some((now, tokens));
    }

    fn tokens_per_s(&self) -> u32 {
        if self.busy_ms < 1_000 {
            return 0;
        }
        u32::try_from(self.tokens * 1_000 / self.busy_ms.cast_unsigned()).unwrap_or(u32::MAX)
    }

    fn stalled_ms(&mut self, now: UnixMs, steps: u64, sequences: u64) -> i64 {
        match self.last_step {
            Some((since, before)) if before == steps && sequences > 0 => now.since_ms(since),
            Some(_) | None => {
                self.last_step = Some((now, steps));
                0
            }
        }
    }
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

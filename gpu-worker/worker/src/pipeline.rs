//! Runs lines through one model: one that is loaded here, or one that a server has.
//!
//! Knows nothing of shards or leases: the service's worker and `nightshift run` share it.

mod engine_runner;
mod engine_thread;
mod prepare_thread;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batch_core::batch::{Endpoint, TokenCounts};
use batch_core::id::{BatchId, LineNo};
use batch_core::output::{self, ErrorBody};
use batch_core::time::UnixMs;
use batch_io::{Clock, Randomness};

use crate::http::{Client, Courier, Outside, Route, Served, ServerAway, look};
use crate::model::LoadedModel;
use crate::openai::LineError;
use engine_runner::EngineRunner;

/// Lines of one kind that the engine is given ahead: what it puts in order at once. Among more lines it finds
/// more that are equal or share a prefix, and starts the long ones earlier.
///
/// Bounded by lines, since the tokens of one are known only once it is prepared. It costs its prompt, 4 B a
/// token: 4 MB for 1,024 lines of 1,000 tokens, about as much as the text that it replaces.
const LINES_AHEAD: usize = 1024;

/// Names a line within one pipeline. Chosen by the caller, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LineKey(pub u64);

/// One line to run.
#[derive(Debug, Clone)]
pub struct LineJob {
    /// Its name here.
    pub key: LineKey,
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// The batch's id, or the run's.
    pub run: Arc<str>,
    /// A JSON string, as the user wrote it: draws without a seed depend on it.
    pub custom_id_json: String,
    /// Line number in the input.
    pub line: LineNo,
    /// When the batch was created.
    pub created_at: UnixMs,
    /// `batch_req_...`.
    pub request_id: String,
    /// As the user wrote it.
    pub body: String,
    /// Prefix pages are shared within one salt only.
    pub salt: u64,
}

/// What became of a line.
#[derive(Debug)]
pub struct LineAnswer {
    /// Which.
    pub key: LineKey,
    /// The response's body, or the error that takes its place.
    pub result: Result<Answered, LineFault>,
}

/// Why a line has an error for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineFault {
    /// In our words.
    Line(LineError),
    /// In those of the model's server.
    Server(ServerError),
}

/// An error that a server answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// HTTP status.
    pub status: u16,
    /// A JSON object, as it came.
    pub body: String,
}

/// A good answer.
#[derive(Debug)]
pub struct Answered {
    /// HTTP status, from 200 to 299.
    pub status: u16,
    /// JSON; a server's as it came.
    pub body: String,
    /// Tokens to bill.
    pub tokens: TokenCounts,
}

/// Renders the record of the output or error file for an answer.
#[must_use]
pub fn answer_record(
    batch: BatchId,
    line: LineNo,
    custom_id_json: &str,
    request_id: &str,
    result: &Result<Answered, LineFault>,
) -> Vec<u8> {
    match result {
        Ok(Answered { status, body, .. })
        | Err(LineFault::Server(ServerError { status, body })) => {
            output::answered(batch, line, custom_id_json, request_id, *status, body)
        }
        Err(LineFault::Line(error)) => {
            let body = ErrorBody {
                message: error.message.clone(),
                kind: error.kind.to_owned(),
                param: error.param.clone(),
                code: error.code.clone(),
            };
            output::http_error(batch, line, custom_id_json, request_id, error.status, &body)
        }
    }
}

/// The engine's thread is gone: its device failed. The process should end.
#[derive(Debug, thiserror::Error)]
#[error("the engine stopped: {0}")]
pub struct EngineStopped(pub String);

/// Why a pipeline answers no more lines.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// For good.
    #[error(transparent)]
    Engine(#[from] EngineStopped),
    /// Until its server is well again. Lines without an answer are as good as never sent.
    #[error(transparent)]
    Away(#[from] ServerAway),
}

/// Counters that other threads may read at any time.
#[derive(Debug, Default)]
pub struct Progress {
    steps: AtomicU64,
    tokens: AtomicU64,
    sequences: AtomicU64,
}

impl Progress {
    /// Returns steps so far: a hung engine shows by a number that stays.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Returns prompt and generated tokens so far, cached ones not included.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Returns sequences that wait or run in the engine, or lines that a server has not answered.
    #[must_use]
    pub fn sequences(&self) -> u64 {
        self.sequences.load(Ordering::Relaxed)
    }

    pub(crate) fn publish(&self, steps: u64, tokens: u64, sequences: u64) {
        self.steps.store(steps, Ordering::Relaxed);
        self.tokens.store(tokens, Ordering::Relaxed);
        self.sequences.store(sequences, Ordering::Relaxed);
    }
}

/// A model at work.
pub struct Pipeline {
    model_id: String,
    /// Lines of one kind that are given ahead.
    lines_ahead: usize,
    sequences_at_once: usize,
    runner: Runner,
    progress: Arc<Progress>,
}

/// Who answers.
enum Runner {
    Engine(EngineRunner),
    Server(Courier),
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("model_id", &self.model_id)
            .finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Starts the engine's threads. They end when the pipeline is dropped.
    #[must_use]
    pub fn start(model: LoadedModel) -> Self {
        let progress = Arc::new(Progress::default());
        let sequences_at_once = model.sequences;
        Self {
            model_id: model.id.clone(),
            lines_ahead: lines_ahead(sequences_at_once),
            sequences_at_once,
            runner: Runner::Engine(EngineRunner::start(model, &progress)),
            progress,
        }
    }

    /// Makes sure that a server is well, and starts the thread that carries lines of the model `id` to it. The
    /// thread ends when the pipeline is dropped.
    ///
    /// # Errors
    ///
    /// [`ServerAway`] if the server is not well.
    pub async fn connect(
        id: &str,
        served: &Served,
        clock: Clock,
        random: Randomness,
    ) -> Result<Self, ServerAway> {
        let model = served.server.model_name(id);
        look(&Client::new(served)?, id, model).await?;
        let progress = Arc::new(Progress::default());
        let requests_max = served.server.requests_max;
        let route = Route {
            id: id.to_owned(),
            model: model.to_owned(),
            requests_max,
            // Not the one above: its connections belong to this runtime, which may be busy.
            client: Client::new(served)?,
            outside: Outside { clock, random },
            progress: Arc::clone(&progress),
        };
        let sequences_at_once = requests_max as usize;
        Ok(Self {
            model_id: id.to_owned(),
            // The server puts nothing in order: enough that it never waits for lines.
            lines_ahead: 2 * sequences_at_once,
            sequences_at_once,
            runner: Runner::Server(Courier::start(route)),
            progress,
        })
    }

    /// Returns the model's id.
    #[must_use]
    pub fn model_id(&self) -> &str {
        &self.model_id
    }

    /// Returns the pipeline's counters.
    #[must_use]
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Returns how many sequences the engine runs at once, or how many requests a server gets at once, at most:
    /// fewer open lines than that leave it idle.
    #[must_use]
    pub fn sequences_at_once(&self) -> usize {
        self.sequences_at_once
    }

    /// Returns how many lines of one kind are to be given ahead: enough to put in order, and never so few that the
    /// engine could wait for more.
    #[must_use]
    pub fn lines_ahead(&self) -> usize {
        self.lines_ahead
    }

    /// Adds a line. Its answer comes from [`Pipeline::next`].
    pub fn submit(&self, job: LineJob) {
        self.add(job, false);
    }

    /// Adds a line that starts before those that are not urgent, three times of four while both wait.
    pub fn submit_urgent(&self, job: LineJob) {
        self.add(job, true);
    }

    fn add(&self, job: LineJob, urgent: bool) {
        match &self.runner {
            Runner::Engine(engine) => engine.submit(job, urgent),
            Runner::Server(server) => server.submit(job, urgent),
        }
    }

    /// Drops a line. Its answer may still come.
    pub fn cancel(&self, key: LineKey) {
        match &self.runner {
            Runner::Engine(engine) => engine.cancel(key),
            Runner::Server(server) => server.cancel(key),
        }
    }

    /// Waits for the next line to end. Safe to drop while it waits.
    ///
    /// # Errors
    ///
    /// [`Stopped`] if the device failed, or the server is away: lines that have not ended never will.
    pub async fn next(&mut self, now: impl Fn() -> UnixMs) -> Result<LineAnswer, Stopped> {
        match &mut self.runner {
            Runner::Engine(engine) => Ok(engine.next(&self.model_id, now).await?),
            Runner::Server(server) => server.next().await,
        }
    }

    /// Returns the next line that has ended already. None if there is none, and none will come if the pipeline
    /// stopped.
    pub fn try_next(&mut self, now: UnixMs) -> Option<LineAnswer> {
        match &mut self.runner {
            Runner::Engine(engine) => engine.try_next(&self.model_id, now),
            Runner::Server(server) => server.try_next(),
        }
    }
}

fn lines_ahead(sequences_at_once: usize) -> usize {
    LINES_AHEAD.max(2 * sequences_at_once)
}

/// Runs `body` on a thread of its own. A panic there, or no thread at all, ends the pipeline with a word to `failed`:
/// its lines would wait for ever otherwise.
pub(crate) fn spawn(
    name: &'static str,
    failed: impl Fn(String) + Clone + Send + 'static,
    body: impl FnOnce() + Send + 'static,
) {
    let panicked = failed.clone();
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            panicked(format!("the {name} thread panicked"));
        }
    };
    if let Err(error) = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(guarded)
    {
        failed(format!("no thread could be started: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_of_many_sequences_is_given_more_than_it_runs() {
        assert_eq!([64, 512, 2000].map(lines_ahead), [1024, 1024, 4000]);
    }
}

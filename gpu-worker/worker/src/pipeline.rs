//! Runs lines through one loaded model: prepares them on one thread, generates on another.
//!
//! Knows nothing of shards or leases: the service's worker and `nightshift run` share it.

mod engine_thread;
mod prepare_thread;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use batch_core::batch::{Endpoint, TokenCounts};
use batch_core::id::{BatchId, LineNo};
use batch_core::output::{self, ErrorBody};
use batch_core::time::UnixMs;
use inference::engine::Generation;
use tokio::sync::mpsc as async_mpsc;

use crate::model::{LoadedModel, ModelText};
use crate::openai::{self, AnswerShape, Answerer, LineError};

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
    pub result: Result<Answered, LineError>,
}

/// A good answer.
#[derive(Debug)]
pub struct Answered {
    /// JSON on one line.
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
    result: &Result<Answered, LineError>,
) -> Vec<u8> {
    match result {
        Ok(answered) => {
            output::success(batch, line, custom_id_json, request_id, 200, &answered.body)
        }
        Err(error) => {
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

    /// Returns sequences that wait or run in the engine.
    #[must_use]
    pub fn sequences(&self) -> u64 {
        self.sequences.load(Ordering::Relaxed)
    }
}

enum ToPrepare {
    Run { job: Box<LineJob>, urgent: bool },
    Cancel(LineKey),
}

struct Finished {
    key: LineKey,
    request_id: String,
    outcome: Result<(AnswerShape, Vec<Generation>), LineError>,
}

enum FromEngine {
    Line(Box<Finished>),
    Stopped(String),
}

/// A loaded model at work.
pub struct Pipeline {
    model_id: String,
    text: Arc<ModelText>,
    fingerprint: String,
    sequences_at_once: usize,
    to_prepare: mpsc::Sender<ToPrepare>,
    from_engine: async_mpsc::UnboundedReceiver<FromEngine>,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("model_id", &self.model_id)
            .finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Starts the two threads. They end when the pipeline is dropped.
    #[must_use]
    pub fn start(model: LoadedModel) -> Self {
        let LoadedModel {
            id,
            text,
            engine,
            sequences,
        } = model;
        let fingerprint = engine.fingerprint().to_owned();
        let context_tokens = engine.context_tokens();
        let (to_prepare, prepare_inbox) = mpsc::channel();
        let (to_engine, engine_inbox) = mpsc::channel();
        let (results, from_engine) = async_mpsc::unbounded_channel();
        let progress = Arc::new(Progress::default());
        spawn("prepare", results.clone(), {
            let (text, results) = (Arc::clone(&text), results.clone());
            move || prepare_thread::run(&prepare_inbox, &to_engine, &results, &text, context_tokens)
        });
        spawn("engine", results.clone(), {
            let (progress, text) = (Arc::clone(&progress), Arc::clone(&text));
            move || engine_thread::run(engine, &engine_inbox, &results, &progress, &text)
        });
        Self {
            model_id: id,
            text,
            fingerprint,
            sequences_at_once: sequences,
            to_prepare,
            from_engine,
            progress,
        }
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

    /// Returns how many sequences the engine runs at once: fewer open lines than that leave it idle.
    #[must_use]
    pub fn sequences_at_once(&self) -> usize {
        self.sequences_at_once
    }

    /// Returns how many lines of one kind the engine is to be given ahead: enough to put in order, and never so
    /// few that it could wait for more.
    #[must_use]
    pub fn lines_ahead(&self) -> usize {
        lines_ahead(self.sequences_at_once)
    }

    /// Adds a line. Its answer comes from [`Pipeline::next`].
    pub fn submit(&self, job: LineJob) {
        self.prepare(job, false);
    }

    /// Adds a line that starts before those that are not urgent, three times of four while both wait.
    pub fn submit_urgent(&self, job: LineJob) {
        self.prepare(job, true);
    }

    fn prepare(&self, job: LineJob, urgent: bool) {
        let job = Box::new(job);
        // A send fails only when the engine is gone; `next` reports that.
        let _ = self.to_prepare.send(ToPrepare::Run { job, urgent });
    }

    /// Drops a line. Its answer may still come.
    pub fn cancel(&self, key: LineKey) {
        let _ = self.to_prepare.send(ToPrepare::Cancel(key));
    }

    /// Waits for the next line to end. Safe to drop while it waits.
    ///
    /// # Errors
    ///
    /// [`EngineStopped`] if the device failed: lines that have not ended never will.
    pub async fn next(&mut self, now: impl Fn() -> UnixMs) -> Result<LineAnswer, EngineStopped> {
        match self.from_engine.recv().await {
            Some(FromEngine::Line(finished)) => Ok(self.render(*finished, now())),
            Some(FromEngine::Stopped(why)) => Err(EngineStopped(why)),
            None => Err(EngineStopped("its thread ended".to_owned())),
        }
    }

    /// Returns the next line that has ended already. None if there is none, and none will come if the device
    /// failed.
    pub fn try_next(&mut self, now: UnixMs) -> Option<LineAnswer> {
        match self.from_engine.try_recv() {
            Ok(FromEngine::Line(finished)) => Some(self.render(*finished, now)),
            Ok(FromEngine::Stopped(_)) | Err(_) => None,
        }
    }

    fn render(&self, finished: Finished, now: UnixMs) -> LineAnswer {
        let answerer = Answerer {
            model: &self.model_id,
            fingerprint: &self.fingerprint,
            request_id: &finished.request_id,
            now,
        };
        let result = finished.outcome.and_then(|(shape, generations)| {
            let tokens = openai::token_counts(&shape, &generations);
            let body = openai::answer(&shape, &generations, &answerer, &*self.text)?;
            Ok(Answered { body, tokens })
        });
        LineAnswer {
            key: finished.key,
            result,
        }
    }
}

fn lines_ahead(sequences_at_once: usize) -> usize {
    LINES_AHEAD.max(2 * sequences_at_once)
}

/// Runs `body` on a thread of its own. A panic there, or no thread at all, ends the pipeline with a word:
/// its lines would wait for ever otherwise.
fn spawn(
    name: &'static str,
    results: async_mpsc::UnboundedSender<FromEngine>,
    body: impl FnOnce() + Send + 'static,
) {
    let failed = results.clone();
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            // The receiver is gone only when the pipeline is being dropped.
            let _ = results.send(FromEngine::Stopped(format!("the {name} thread panicked")));
        }
    };
    if let Err(error) = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(guarded)
    {
        let _ = failed.send(FromEngine::Stopped(format!(
            "no thread could be started: {error}"
        )));
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

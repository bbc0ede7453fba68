//! An engine that works by the simulated clock: so many lines a second, in the order in which they come.
//!
//! The engine's thread is a real one. [`Metronome::beat`] moves the clock and waits until every engine has done
//! its part, so that simulated time never runs ahead of them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use inference::backend::BackendError;
use inference::engine::{Engine, FinishReason, Generation, Outcome, Request, RequestId, Stats};
use worker::model::{CpuLoader, EngineOptions, LoadError, LoadedModel, Loader};

/// Beats of all engines.
#[derive(Debug, Default)]
pub(super) struct Metronome {
    beat: Mutex<Beat>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Beat {
    number: u64,
    /// Engines that have not finished this beat.
    working: usize,
    /// Engines that wait for the next beat.
    parked: usize,
    is_over: bool,
}

impl Metronome {
    /// Begins a beat, and blocks until every engine has done its part.
    pub(super) fn beat(&self) {
        let mut beat = self.lock();
        beat.number += 1;
        beat.working += std::mem::take(&mut beat.parked);
        self.changed.notify_all();
        let done = self
            .changed
            .wait_while(beat, |beat| beat.working > 0 && !beat.is_over);
        drop(done);
    }

    /// Lets every engine go.
    pub(super) fn end(&self) {
        let mut beat = self.lock();
        beat.is_over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Beat> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_work(&self) {
        self.lock().working += 1;
    }

    fn end_work(&self) {
        let mut beat = self.lock();
        beat.working = beat.working.saturating_sub(1);
        self.changed.notify_all();
    }

    /// Waits for the next beat; false if there is none.
    fn wait(&self) -> bool {
        let mut beat = self.lock();
        let now = beat.number;
        beat.working = beat.working.saturating_sub(1);
        beat.parked += 1;
        self.changed.notify_all();
        let next = self
            .changed
            .wait_while(beat, |beat| beat.number == now && !beat.is_over);
        !next.unwrap_or_else(PoisonError::into_inner).is_over
    }
}

/// Puts a paced engine behind the text side of the tiny model.
#[derive(Debug)]
pub(super) struct PacedLoader {
    pub(super) metronome: Arc<Metronome>,
    /// Lines that an engine answers in one beat.
    pub(super) lines_per_beat: f64,
    /// Lines that it is said to run at once.
    pub(super) sequences: usize,
}

/// Returns the folder of the tiny model.
pub(super) fn tiny_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu-worker/inference/tests/data/tiny")
}

impl Loader for PacedLoader {
    fn load(
        &self,
        id: &str,
        path: &Path,
        options: &EngineOptions,
    ) -> Result<LoadedModel, LoadError> {
        let model = CpuLoader.load(id, path, options)?;
        let engine = Paced {
            metronome: Arc::clone(&self.metronome),
            lines_per_beat: self.lines_per_beat,
            credit: 0.0,
            is_idle: true,
            waiting: VecDeque::new(),
            ended: Vec::new(),
            stats: Stats::default(),
        };
        Ok(LoadedModel {
            engine: Box::new(engine),
            sequences: self.sequences,
            ..model
        })
    }
}

struct Paced {
    metronome: Arc<Metronome>,
    lines_per_beat: f64,
    credit: f64,
    is_idle: bool,
    waiting: VecDeque<Request>,
    ended: Vec<(RequestId, Outcome)>,
    stats: Stats,
}

impl Paced {
    fn answer(&mut self, request: &Request) {
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        self.stats.prompt_tokens += u64::from(prompt_tokens);
        self.stats.completion_tokens += u64::from(request.max_tokens);
        let generation = Generation {
            text: "ok".to_owned(),
            tokens: Vec::new(),
            logprobs: None,
            finish_reason: FinishReason::Length,
            prompt_tokens,
            cached_tokens: 0,
            completion_tokens: request.max_tokens,
        };
        self.ended.push((request.id, Outcome::Finished(generation)));
    }
}

impl Engine for Paced {
    fn submit(&mut self, request: Request) {
        if std::mem::take(&mut self.is_idle) {
            self.metronome.start_work();
        }
        self.waiting.push_back(request);
    }

    fn abort(&mut self, id: RequestId) {
        self.waiting.retain(|request| request.id != id);
    }

    fn step(&mut self) -> Result<bool, BackendError> {
        if self.waiting.is_empty() {
            self.credit = 0.0;
            if !std::mem::replace(&mut self.is_idle, true) {
                self.metronome.end_work();
            }
            return Ok(false);
        }
        if !self.metronome.wait() {
            return Ok(false);
        }
        self.stats.steps += 1;
        self.credit += self.lines_per_beat;
        while self.credit >= 1.0
            && let Some(request) = self.waiting.pop_front()
        {
            self.credit -= 1.0;
            self.answer(&request);
        }
        Ok(true)
    }

    fn take(&mut self) -> Vec<(RequestId, Outcome)> {
        std::mem::take(&mut self.ended)
    }

    fn stats(&self) -> Stats {
        Stats {
            running: self.waiting.len(),
            ..self.stats
        }
    }

    fn fingerprint(&self) -> &str {
        "simulated"
    }

    fn context_tokens(&self) -> u32 {
        4_096
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        if !self.is_idle {
            self.metronome.end_work();
        }
    }
}

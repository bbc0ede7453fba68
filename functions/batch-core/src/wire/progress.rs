//! The `progress` of a batch: an extension that tells users why and how long they wait.

use serde::Serialize;

use crate::batch::BatchRun;
use crate::lifecycle::{State, Terminal};
use crate::time::UnixMs;
use crate::worker::WorkerRecord;

/// What a batch is doing, finer than its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The input file is being read.
    Validating,
    /// No line has a result yet.
    Waiting,
    /// Lines get results.
    Running,
    /// Work in hand is being committed after cancel or expiry.
    Stopping,
    /// The result files are being written.
    Finalizing,
    /// Nothing changes any more.
    Ended,
}

/// Why no line runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitingReason {
    /// No worker that can serve its models is registered.
    NoWorker,
    /// Workers are there, and other batches or the loading of the model come first.
    Queued,
}

/// How far a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// Lines with a result, a second, since it began.
    pub lines_per_s: Option<f64>,
    /// Tokens (prompt and output) a second, since it began.
    pub tokens_per_s: Option<f64>,
    /// Seconds until the last line, if the pace stays.
    pub eta_s: Option<u64>,
    /// Why no line runs.
    pub waiting_reason: Option<WaitingReason>,
}

/// What the progress is made of.
#[derive(Debug, Clone, Copy)]
pub struct ProgressInput<'a> {
    /// The batch.
    pub run: &'a BatchRun,
    /// Workers that are registered now.
    pub workers: &'a [WorkerRecord],
    /// Now.
    pub now: UnixMs,
}

impl Progress {
    /// Derives the progress.
    #[must_use]
    pub fn new(input: ProgressInput<'_>) -> Self {
        let ProgressInput { run, workers, now } = input;
        let done = run.counts.completed + run.counts.failed;
        let phase = match run.state {
            State::Validating => Phase::Validating,
            State::InProgress if done == 0 => Phase::Waiting,
            State::InProgress => Phase::Running,
            State::Draining(_) => Phase::Stopping,
            State::Sealed(_) => Phase::Finalizing,
            State::Ended(_) => Phase::Ended,
        };
        let until = run
            .moments
            .ended_at
            .or(run.moments.finalizing_at)
            .unwrap_or(now);
        let elapsed_ms = run
            .moments
            .in_progress_at
            .map(|since| until.since_ms(since))
            .filter(|ms| *ms > 0 && done > 0);
        let per_s = |count: u64| {
            elapsed_ms.map(|ms| rounded(as_f64(count) * 1000.0 / as_f64(ms.unsigned_abs())))
        };
        // Of a stopped batch, `failed` counts lines that never ran.
        let ran = match run.state {
            State::Ended(Terminal::Cancelled | Terminal::Expired) => run.counts.completed,
            State::Validating
            | State::InProgress
            | State::Draining(_)
            | State::Sealed(_)
            | State::Ended(Terminal::Completed | Terminal::Failed) => done,
        };
        let lines_per_s = per_s(ran);
        let left = run.counts.total.saturating_sub(done);
        let eta_s = match phase {
            Phase::Running => elapsed_ms
                .map(|ms| as_f64(left) * as_f64(ms.unsigned_abs()) / as_f64(done) / 1000.0),
            Phase::Waiting => estimate_s(run, workers),
            Phase::Validating | Phase::Stopping | Phase::Finalizing | Phase::Ended => None,
        };
        Self {
            phase,
            lines_per_s,
            tokens_per_s: per_s(run.tokens.input + run.tokens.output),
            eta_s: eta_s.map(whole_seconds),
            waiting_reason: (phase == Phase::Waiting).then(|| waiting_reason(run, workers)),
        }
    }
}

fn waiting_reason(run: &BatchRun, workers: &[WorkerRecord]) -> WaitingReason {
    let served = |model: &String| workers.iter().any(|worker| worker.models.contains(model));
    if run.models.iter().any(served) {
        WaitingReason::Queued
    } else {
        WaitingReason::NoWorker
    }
}

/// Guesses from the measured rates of the workers that have the batch's models loaded.
fn estimate_s(run: &BatchRun, workers: &[WorkerRecord]) -> Option<f64> {
    let loaded = workers.iter().filter(|worker| {
        worker
            .loaded
            .as_ref()
            .is_some_and(|model| run.models.contains(model))
    });
    let rate: u64 = loaded.map(|worker| u64::from(worker.tokens_per_s)).sum();
    (rate > 0).then(|| as_f64(run.estimated_tokens) / as_f64(rate))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "rates are rounded to three digits anyway"
)]
fn as_f64(count: u64) -> f64 {
    count as f64
}

fn rounded(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to a year of seconds first"
)]
fn whole_seconds(seconds: f64) -> u64 {
    seconds.ceil().clamp(0.0, 31_536_000.0) as u64
}

//! Progress on stderr: a bar on a terminal, a plain line every few seconds elsewhere.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use crate::say::aside;
use batch_core::batch::TokenCounts;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Between two plain lines.
const PLAIN_PERIOD: Duration = Duration::from_secs(5);

/// The progress of one run.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    lines: usize,
    /// Done in this run and in earlier ones.
    done: usize,
    failed: usize,
    tokens: u64,
    /// When the lines began to run, loading left out, and how many were done then.
    began: (Instant, usize),
    said: Instant,
}

impl Progress {
    pub(super) fn new(lines: usize, done: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(lines as u64), ProgressDrawTarget::stderr());
            let template = "{bar:30} {pos}/{len} lines  {msg}  {elapsed} gone, {eta} to go";
            bar.set_style(
                ProgressStyle::with_template(template)
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.set_position(done as u64);
            bar.reset_eta();
            bar
        });
        let progress = Self {
            bar,
            lines,
            done,
            failed: 0,
            tokens: 0,
            began: (Instant::now(), done),
            said: Instant::now(),
        };
        if done > 0 {
            progress.say(&format!(
                "going on: {done} of {lines} lines are done already"
            ));
        }
        progress
    }

    pub(super) fn say(&self, message: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(message.to_owned()),
            None => aside(message),
        }
    }

    /// A model is loaded: from here on the lines run.
    pub(super) fn begin(&mut self) {
        self.began = (Instant::now(), self.done);
        self.tokens = 0;
    }

    pub(super) fn line(&mut self, ok: bool, tokens: TokenCounts) {
        let (began, first) = self.began;
        self.done += 1;
        self.failed += usize::from(!ok);
        self.tokens += tokens.input + tokens.output;
        let seconds = began.elapsed().as_secs_f64().max(1e-3);
        let rate = self.tokens as f64 / seconds;
        let failed = if self.failed > 0 {
            format!(", {} failed", self.failed)
        } else {
            String::new()
        };
        if let Some(bar) = &self.bar {
            bar.set_position(self.done as u64);
            bar.set_message(format!("{rate:.0} tokens/s{failed}"));
        } else if self.said.elapsed() >= PLAIN_PERIOD {
            self.said = Instant::now();
            let eta = (self.lines - self.done) as f64 * seconds / (self.done - first) as f64;
            self.say(&format!(
                "{}/{} lines, {rate:.0} tokens/s{failed}, {eta:.0} s to go",
                self.done, self.lines
            ));
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

//! One line a step, as it happens.

use std::time::Instant;

use serde_json::json;

use crate::say::answer;

/// The steps, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Reach,
    Key,
    Models,
    WrongKey,
    Upload,
    Create,
    Validate,
    Worker,
    Complete,
    Output,
    Limits,
    Large,
    CleanUp,
}

impl Step {
    /// Returns its name for programs.
    fn id(self) -> &'static str {
        match self {
            Step::Reach => "reach",
            Step::Key => "key",
            Step::Models => "models",
            Step::WrongKey => "wrong_key",
            Step::Upload => "upload",
            Step::Create => "create",
            Step::Validate => "validate",
            Step::Worker => "worker",
            Step::Complete => "complete",
            Step::Output => "output",
            Step::Limits => "limits",
            Step::Large => "large",
            Step::CleanUp => "clean_up",
        }
    }

    /// Returns what it shows, for people.
    fn words(self) -> &'static str {
        match self {
            Step::Reach => "the API answers",
            Step::Key => "the key is accepted",
            Step::Models => "models are listed",
            Step::WrongKey => "a wrong key is refused",
            Step::Upload => "a file is uploaded",
            Step::Create => "a batch is created",
            Step::Validate => "the batch is validated",
            Step::Worker => "a worker runs it",
            Step::Complete => "the batch is completed",
            Step::Output => "both files are downloaded",
            Step::Limits => "sizes of uploads",
            Step::Large => "16 MiB in parts come back",
            Step::CleanUp => "files are deleted",
        }
    }
}

/// Prints the steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) as_json: bool,
}

impl Report {
    /// Takes a step, and prints how it went and how long it took. A step gives a value and a few words.
    ///
    /// # Errors
    ///
    /// That the step failed; why was printed.
    pub(super) fn step<T>(
        self,
        step: Step,
        take: impl FnOnce() -> anyhow::Result<(T, String)>,
    ) -> anyhow::Result<T> {
        let began = Instant::now();
        let taken = take();
        let seconds = began.elapsed().as_secs_f64();
        match taken {
            Ok((value, detail)) => {
                self.print(step, true, seconds, &detail)?;
                Ok(value)
            }
            Err(error) => {
                self.print(step, false, seconds, &format!("{error:#}"))?;
                anyhow::bail!("the check failed at: {}", step.words())
            }
        }
    }

    fn print(self, step: Step, ok: bool, seconds: f64, detail: &str) -> anyhow::Result<()> {
        if self.as_json {
            let seconds = (seconds * 1000.0).round() / 1000.0;
            return answer(json!({
                "step": step.id(), "ok": ok, "seconds": seconds, "detail": detail,
            }));
        }
        let word = if ok { "ok" } else { "FAILED" };
        let line = format!("{word:6}  {:26} {seconds:7.2} s  {detail}", step.words());
        answer(line.trim_end())
    }
}

//! One call of the `nightshift` program, from its start to its end.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::environment;

/// Longer than any call of the tests may take.
const LIMIT: Duration = Duration::from_secs(240);

/// How a call ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it said besides, logs and progress included.
    pub stderr: String,
}

impl Ended {
    /// Returns the last words: the line that begins with the program's name, and all that follows.
    ///
    /// # Panics
    ///
    /// If there are none.
    #[must_use]
    pub fn last_words(&self) -> &str {
        let at = if self.stderr.starts_with("nightshift: ") {
            Some(0)
        } else {
            self.stderr.find("\nnightshift: ")
        };
        self.stderr[at.unwrap_or_else(|| panic!("no last words in {self:?}"))..].trim()
    }

    /// Checks that it failed as a user can bear: this exit code, one line, no backtrace, all of `words` in it.
    ///
    /// # Panics
    ///
    /// If not.
    #[track_caller]
    pub fn check_refusal(&self, code: i32, words: &[&str]) {
        let said = self.last_words();
        assert_eq!(self.code, Some(code), "{said}");
        assert_eq!(said.lines().count(), 1, "more than one line: {said}");
        for word in words {
            assert!(said.contains(word), "'{word}' is not in: {said}");
        }
        for mark in ["panicked", "RUST_BACKTRACE", "stack backtrace"] {
            assert!(
                !self.stderr.contains(mark),
                "'{mark}' is in: {}",
                self.stderr
            );
        }
    }

    /// Reads the last line of its output as JSON.
    ///
    /// # Panics
    ///
    /// If it failed, or that line is no JSON.
    #[track_caller]
    #[expect(
        clippy::must_use_candidate,
        reason = "its checks alone are worth a call"
    )]
    pub fn summary(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        let line = self.stdout.lines().last().expect("it prints a summary");
        serde_json::from_str(line).expect("the summary is JSON")
    }
}

/// Returns the program with these arguments, with none of the caller's own settings.
pub fn nightshift(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(environment::nightshift());
    command.args(args);
    without_settings(&mut command);
    command
}

/// Takes the variables out that change what the program does, but for where models are.
pub fn without_settings(command: &mut Command) {
    for name in [
        "NIGHTSHIFT_API_KEY",
        "NIGHTSHIFT_CONFIG",
        "NIGHTSHIFT_DATA",
        "NIGHTSHIFT_LOG",
        "NIGHTSHIFT_PYTHON",
        "RUST_BACKTRACE",
    ] {
        command.env_remove(name);
    }
}

/// Runs a command to its end.
///
/// # Panics
///
/// If it does not start, or does not end in 4 minutes.
pub fn run(command: &mut Command) -> Ended {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the command");
    let began = Instant::now();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let reading = [
        std::thread::spawn(move || stdout.map(read_all).unwrap_or_default()),
        std::thread::spawn(move || stderr.map(read_all).unwrap_or_default()),
    ];
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for the command") {
            break status;
        }
        if began.elapsed() > LIMIT {
            child.kill().expect("kill the command");
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let [stdout, stderr] = reading.map(|thread| thread.join().expect("a reader does not panic"));
    Ended {
        code: status.code(),
        stdout,
        stderr,
    }
}

fn read_all(mut pipe: impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    // What was read until an error is still worth showing.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

//! A `nightshift up` that a test starts, kills and starts again.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::client::Client;
use crate::command::nightshift;

/// How a service is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Worker processes.
    pub workers: u16,
    /// The configuration file's text; the built-in one if none.
    pub config: Option<String>,
    /// Filter of the logs, as `NIGHTSHIFT_LOG` takes it.
    pub log: String,
    /// Environment variables besides.
    pub env: Vec<(String, String)>,
    /// The data directory, if not one of its own that goes with it.
    pub data: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 1,
            config: None,
            log: "info,worker=debug".to_owned(),
            env: Vec::new(),
            data: None,
        }
    }
}

/// A service with its data directory. Dropping it kills the process and removes the data.
#[derive(Debug)]
pub struct Service {
    folder: tempfile::TempDir,
    options: Options,
    process: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    base_url: String,
    api_key: String,
}

impl Service {
    /// Starts a service on a free port with an empty data directory.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start(options: Options) -> Self {
        let folder = tempfile::tempdir().expect("make a temporary folder");
        let mut service = Self {
            folder,
            options,
            process: None,
        };
        service.restart();
        service
    }

    /// Starts it (again) on the same data directory.
    ///
    /// # Panics
    ///
    /// If it runs already or does not start.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
            .expect("open the log");
        let mut command = nightshift(["up"]);
        command
            .args(["--listen", "127.0.0.1:0", "--json", "--data"])
            .arg(self.data());
        command.args(["--workers", &self.options.workers.to_string()]);
        if let Some(config) = &self.options.config {
            let path = self.folder.path().join("config.toml");
            std::fs::write(&path, config).expect("write the configuration");
            command.arg("--config").arg(path);
        }
        command
            .env("NIGHTSHIFT_LOG", &self.options.log)
            .envs(self.options.env.iter().map(|(name, value)| (name, value)));
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("start nightshift");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its output is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("read its first line");
        assert!(
            !line.is_empty(),
            "nightshift did not start: {}",
            self.log_text()
        );
        let ready: serde_json::Value = serde_json::from_str(&line).expect("its first line is JSON");
        let text = |name: &str| {
            ready[name]
                .as_str()
                .expect("the line has both fields")
                .to_owned()
        };
        self.process = Some(Running {
            child,
            base_url: text("base_url"),
            api_key: text("api_key"),
        });
    }

    /// Sets how many workers the next start has.
    pub fn set_workers(&mut self, workers: u16) {
        self.options.workers = workers;
    }

    /// Returns a client for it.
    #[must_use]
    pub fn client(&self) -> Client {
        let running = self.running();
        Client::new(&running.base_url, &running.api_key)
    }

    /// Returns `http://host:port/v1`.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.running().base_url
    }

    /// Returns its API key.
    #[must_use]
    pub fn api_key(&self) -> &str {
        &self.running().api_key
    }

    /// Returns its data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.options
            .data
            .clone()
            .unwrap_or_else(|| self.folder.path().join("data"))
    }

    /// Returns a folder for the test's own files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns everything that it and its workers have logged, in all starts.
    #[must_use]
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("service.log")
    }

    /// Returns the process ids of its workers.
    #[must_use]
    pub fn workers(&self) -> Vec<Pid> {
        children(pid(&self.running().child))
    }

    /// Kills its workers with SIGKILL and returns how many there were.
    pub fn kill_workers(&self) -> usize {
        self.signal_workers(Signal::KILL)
    }

    /// Sends its workers a signal and returns how many there were.
    pub fn signal_workers(&self, signal: Signal) -> usize {
        let workers = self.workers();
        for worker in &workers {
            // It may have ended by itself just now.
            let _ = kill_process(*worker, signal);
        }
        workers.len()
    }

    /// Waits until its log has `times` lines with `words`, and returns whether it got there within `limit`.
    pub async fn has_logged(&self, words: &str, times: usize, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            if self.log_text().matches(words).count() >= times {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills it and all its workers with SIGKILL, and waits until they are gone.
    ///
    /// # Panics
    ///
    /// If they are not gone after 10 s.
    pub fn kill_all(&mut self) {
        let Some(mut running) = self.process.take() else {
            return;
        };
        let workers = children(pid(&running.child));
        running.child.kill().expect("kill nightshift");
        for worker in &workers {
            let _ = kill_process(*worker, Signal::KILL);
        }
        running.child.wait().expect("wait for nightshift");
        let until = Instant::now() + Duration::from_secs(10);
        while workers
            .iter()
            .any(|worker| test_kill_process(*worker).is_ok() && !is_zombie(*worker))
        {
            assert!(Instant::now() < until, "a worker outlives SIGKILL");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends it SIGINT, waits for its end, and returns its status and how long that took.
    ///
    /// # Panics
    ///
    /// If it has not ended after 30 s.
    pub fn stop(&mut self) -> (ExitStatus, Duration) {
        let mut running = self.process.take().expect("it runs");
        let began = Instant::now();
        kill_process(pid(&running.child), Signal::INT).expect("signal nightshift");
        loop {
            if let Some(status) = running.child.try_wait().expect("wait for nightshift") {
                return (status, began.elapsed());
            }
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "it does not stop: {}",
                self.log_text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn running(&self) -> &Running {
        self.process.as_ref().expect("it runs")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Reads a process's children from `/proc`.
fn children(parent: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|process| {
            stat(*process)
                .is_some_and(|(_, its_parent)| its_parent == parent.as_raw_nonzero().get())
        })
        .filter_map(Pid::from_raw)
        .collect()
}

fn is_zombie(process: Pid) -> bool {
    stat(process.as_raw_nonzero().get()).is_none_or(|(state, _)| state == 'Z')
}

/// Returns a process's state and parent.
fn stat(process: i32) -> Option<(char, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

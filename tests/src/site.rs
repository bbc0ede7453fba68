//! A running service, wherever it runs: what the scenarios need of it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use batch_core::id::{KeyId, TenantId};
use batch_core::wire::hash_key;
use batch_io::aws::{Aws, Deployment};
use batch_io::store::{KeyRecord, Store};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::client::Client;
use crate::environment::nightshift;
use crate::service::Service;

/// A running service.
pub trait Site {
    /// Returns the address that the SDKs get as `base_url`.
    fn base_url(&self) -> &str;

    /// Returns its API key.
    fn api_key(&self) -> &str;

    /// Kills every worker with SIGKILL, sees to it that others start, and returns how many were killed.
    fn replace_workers(&mut self) -> usize;

    /// Returns what its processes have logged, as far as this machine has it.
    fn log_text(&self) -> String;

    /// Returns how long a batch may take that a message or a tick got lost of.
    fn patience(&self) -> Duration;

    /// Returns whether API Gateway and S3 answer what the service cannot see.
    fn is_behind_gateway(&self) -> bool;

    /// Returns a client for it.
    fn client(&self) -> Client {
        Client::new(self.base_url(), self.api_key())
    }
}

impl Site for Service {
    fn base_url(&self) -> &str {
        Service::base_url(self)
    }

    fn api_key(&self) -> &str {
        Service::api_key(self)
    }

    fn replace_workers(&mut self) -> usize {
        // Its supervisor starts others.
        self.kill_workers()
    }

    fn log_text(&self) -> String {
        Service::log_text(self)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(120)
    }

    fn is_behind_gateway(&self) -> bool {
        false
    }
}

/// The stack that `localstack/stack up` has started and described in a file, as one tenant of its own.
#[derive(Debug)]
pub struct Stack {
    described: Value,
    api_key: String,
    started: Vec<Child>,
}

impl Stack {
    /// Reads the description that `NIGHTSHIFT_STACK` names, and makes a tenant with a key in the deployment that
    /// the environment describes.
    ///
    /// # Panics
    ///
    /// If there is none: `tests/run-localstack` starts the stack and sets the environment.
    #[must_use]
    pub fn of_environment() -> Self {
        let path = std::env::var_os("NIGHTSHIFT_STACK")
            .map(PathBuf::from)
            .expect("NIGHTSHIFT_STACK names a running stack: run tests/run-localstack");
        let text = std::fs::read_to_string(&path).expect("read the stack's description");
        Self {
            described: serde_json::from_str(&text).expect("the stack's description is JSON"),
            // A thread of its own, since the caller may be on a runtime that must not be blocked.
            api_key: std::thread::spawn(make_tenant)
                .join()
                .expect("make a tenant"),
            started: Vec::new(),
        }
    }

    fn text(&self, name: &str) -> &str {
        self.described[name]
            .as_str()
            .unwrap_or_else(|| panic!("the stack's description has no {name}"))
    }

    /// Returns the most memory, in KiB, that any process of the function `name` has had at once.
    #[must_use]
    pub fn peak_kib_of_function(&self, name: &str) -> Option<u64> {
        let wanted = format!(
            "AWS_LAMBDA_FUNCTION_NAME={}-{name}",
            self.text("deployment")
        );
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter(|entry| {
                let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
                environment
                    .split(|byte| *byte == 0)
                    .any(|variable| variable == wanted.as_bytes())
            })
            .filter_map(|entry| {
                let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
                let line = status
                    .lines()
                    .find_map(|line| line.strip_prefix("VmHWM:"))?;
                line.trim().trim_end_matches(" kB").trim().parse().ok()
            })
            .max()
    }

    /// Starts a worker with the stack's own environment.
    fn start_worker(&mut self) {
        let environment = self.described["worker_environment"]
            .as_object()
            .expect("the stack's description has the worker's environment");
        let log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.text("worker_log"))
            .expect("open the worker's log");
        let child = Command::new(nightshift())
            .arg("worker")
            .envs(
                environment
                    .iter()
                    .filter_map(|(name, value)| Some((name, value.as_str()?))),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start a worker");
        self.started.push(child);
    }
}

/// Writes a key of a new tenant into the deployment, and returns it.
fn make_tenant() -> String {
    let deployment = Deployment::from_env().expect("the environment describes the deployment");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("start a runtime");
    runtime.block_on(async {
        let platform = Aws::connect(&deployment.resources).await.platform();
        let store = Store::new(Arc::clone(&platform.records), deployment.settings.timing);
        let now = (platform.clock)();
        let id = KeyId::new(now, (platform.random)());
        let key = format!("nsk_{id}");
        let record = KeyRecord {
            id,
            tenant: TenantId::try_from(id.to_string()).expect("an id names a tenant"),
            name: "scenario".to_owned(),
            created_at: now,
        };
        store
            .put_key(&hash_key(&key), &record)
            .await
            .expect("store the key");
        key
    })
}

impl Site for Stack {
    fn base_url(&self) -> &str {
        self.text("base_url")
    }

    fn api_key(&self) -> &str {
        &self.api_key
    }

    fn replace_workers(&mut self) -> usize {
        let pid = self.described["worker_pid"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        let killed = pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok());
        self.start_worker();
        usize::from(killed)
    }

    fn log_text(&self) -> String {
        ["worker_log", "emulator_log"]
            .map(|name| std::fs::read_to_string(self.text(name)).unwrap_or_default())
            .join("\n")
    }

    fn patience(&self) -> Duration {
        // A rule ticks once a minute, and what is lost may need two of its ticks.
        Duration::from_secs(360)
    }

    fn is_behind_gateway(&self) -> bool {
        true
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for child in &mut self.started {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

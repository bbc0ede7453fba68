//! Keeps worker processes running: restarts those that die, kills those that hang, frees what they held.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use batch_core::id::WorkerId;
use batch_io::Platform;
use batch_io::store::Store;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Wait before the first restart; it doubles with each death in a row.
const BACKOFF_MIN: Duration = Duration::from_millis(200);

/// Longest wait before a restart.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// A worker that lived so long starts anew with the shortest wait.
const HEALTHY: Duration = Duration::from_secs(30);

/// How long workers get to commit after a stop: all must be over within 10 s.
const DRAIN: Duration = Duration::from_secs(5);

/// What the supervisor needs.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    pub(super) data: PathBuf,
    pub(super) config_file: Option<PathBuf>,
    pub(super) workers: usize,
    pub(super) threads: Option<usize>,
    pub(super) json: bool,
    pub(super) platform: Platform,
    pub(super) store: Store,
    pub(super) stopped: watch::Receiver<bool>,
}

/// Frees the leases of a former run, and starts the workers. The handle ends when all have stopped.
pub(super) async fn start(fleet: Fleet) -> anyhow::Result<JoinHandle<()>> {
    for worker in fleet
        .store
        .list_workers(batch_core::time::UnixMs(0))
        .await
        .context("read the former workers")?
    {
        fleet.free(worker.id).await;
    }
    let executable = std::env::current_exe().context("find this program")?;
    Ok(tokio::spawn(async move {
        let mut slots = tokio::task::JoinSet::new();
        for _ in 0..fleet.workers {
            slots.spawn(keep_running(fleet.clone(), executable.clone()));
        }
        while slots.join_next().await.is_some() {}
    }))
}

async fn keep_running(mut fleet: Fleet, executable: PathBuf) {
    let mut backoff = BACKOFF_MIN;
    while !*fleet.stopped.borrow_and_update() {
        let worker = WorkerId::new((fleet.platform.clock)(), (fleet.platform.random)());
        let started = Instant::now();
        match fleet.spawn(&executable, worker) {
            Ok(child) => fleet.watch(child, worker).await,
            Err(error) => tracing::error!(%error, "start a worker"),
        }
        fleet.free(worker).await;
        if *fleet.stopped.borrow() {
            return;
        }
        backoff = if started.elapsed() >= HEALTHY {
            BACKOFF_MIN
        } else {
            (backoff * 2).min(BACKOFF_MAX)
        };
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            _ = fleet.stopped.changed() => {}
        }
    }
}

impl Fleet {
    fn spawn(&self, executable: &PathBuf, worker: WorkerId) -> std::io::Result<Child> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self
            .threads
            .unwrap_or_else(|| (cores / self.workers.max(1)).max(1));
        let mut command = Command::new(executable);
        command.arg("worker").arg("--data").arg(&self.data);
        if let Some(file) = &self.config_file {
            command.arg("--config").arg(file);
        }
        command.args(["--parent", &std::process::id().to_string()]);
        command.args([
            "--id",
            &worker.to_string(),
            "--threads",
            &threads.to_string(),
        ]);
        if self.json {
            command.arg("--json");
        }
        // A terminal's Ctrl-C must reach the parent alone, which then drains its children in order.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    /// Waits until the child ends; ends it when told to stop, or when it has not registered for the life of a
    /// registration and one lease beyond.
    async fn watch(&mut self, mut child: Child, worker: WorkerId) {
        let timing = *self.store.timing();
        let look = Duration::from_millis(timing.lease_ms.unsigned_abs() / 3);
        let patience =
            Duration::from_millis((timing.lease_ms + timing.worker_expiry_ms).unsigned_abs());
        // The monotonic clock: a machine that slept, or was set right, has no hung workers.
        let mut seen_at = Instant::now();
        loop {
            tokio::select! {
                status = child.wait() => {
                    match status {
                        Ok(status) => tracing::warn!(%status, worker.id = %worker, "a worker ended; it is started again"),
                        Err(error) => tracing::error!(%error, worker.id = %worker, "wait for a worker"),
                    }
                    return;
                }
                () = told_to_stop(&mut self.stopped) => {
                    terminate(&mut child).await;
                    return;
                }
                () = tokio::time::sleep(look) => {
                    let now = (self.platform.clock)();
                    match self.store.list_workers(now).await {
                        Ok(alive) if alive.iter().any(|record| record.id == worker) => seen_at = Instant::now(),
                        Ok(_) => {}
                        Err(error) => tracing::warn!(%error, "read the workers"),
                    }
                    if seen_at.elapsed() > patience {
                        tracing::error!(worker.id = %worker, "a worker hangs; it is killed");
                        if let Err(error) = child.kill().await {
                            tracing::error!(%error, worker.id = %worker, "kill a worker");
                        }
                        return;
                    }
                }
            }
        }
    }

    /// Ends the leases of a worker that is gone, so that the next reconcile gives its shards to others.
    async fn free(&self, worker: WorkerId) {
        let now = (self.platform.clock)();
        if let Err(error) = self.store.end_leases_of(worker, now).await {
            tracing::warn!(%error, worker.id = %worker, "end the leases of a worker");
        }
        if let Err(error) = self.store.remove_worker(worker).await {
            tracing::warn!(%error, worker.id = %worker, "remove a worker's record");
        }
    }
}

async fn terminate(child: &mut Child) {
    if let Some(pid) = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(rustix::process::Pid::from_raw)
        && let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::TERM)
    {
        tracing::warn!(%error, "stop a worker");
    }
    if tokio::time::timeout(DRAIN, child.wait()).await.is_err() {
        tracing::warn!("a worker did not stop in time; it is killed, and its leases are freed");
        if let Err(error) = child.kill().await {
            tracing::error!(%error, "kill a worker");
        }
    }
}

async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the service.
    let _ = stopped.wait_for(|stop| *stop).await;
}

//! The loop itself, in real time: which model is served, and how it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use batch_core::message::{Lane, QueueName};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::bench::Bench;
use super::engine::{Fault, Gate, Load, ScriptedLoader};
use crate::service::{ServiceError, run};

struct Running {
    loader: Arc<ScriptedLoader>,
    stop: watch::Sender<bool>,
    served: JoinHandle<Result<(), ServiceError>>,
}

impl Running {
    fn start<const N: usize>(bench: &Bench, script: [(&str, Load); N]) -> Self {
        let script = script.map(|(id, load)| (id.to_owned(), load));
        let loader = Arc::new(ScriptedLoader {
            script: BTreeMap::from(script),
            ..ScriptedLoader::default()
        });
        let context = bench.context(bench.platform.clone(), Arc::clone(&loader));
        let (stop, stopped) = watch::channel(false);
        Self {
            loader,
            stop,
            served: tokio::spawn(run(context, stopped)),
        }
    }

    async fn stop(self) -> Vec<String> {
        self.stop.send(true).expect("the worker listens");
        let served = self.served.await.expect("the worker does not panic");
        served.expect("the worker drains");
        let loads = self.loader.loads.lock();
        loads.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Waits until the worker has sealed so many batches.
async fn sealed(bench: &Bench, batches: usize) {
    for _ in 0..batches {
        let hidden = Duration::from_secs(600);
        let queue = &bench.platform.queue;
        let long = Duration::from_secs(20);
        let received = queue.receive(&QueueName::Finalize, 1, hidden, long);
        assert_eq!(
            received.await.expect("receive").len(),
            1,
            "no batch was sealed"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_models_are_served_when_one_does_not_load() {
    for load in [Load::Damaged, Load::Panics] {
        let bench = Bench::in_real_time();
        let broken = bench.released("small", 1, 1).await;
        let good = bench.released("tiny", 1, 1).await;
        bench.send(broken, Lane::Fast).await;
        bench.send(good, Lane::Fast).await;
        let running = Running::start(&bench, [("small", load), ("tiny", Load::Fine)]);
        sealed(&bench, 1).await;
        assert_eq!(bench.run(good).await.counts.completed, 1);
        assert!(bench.run(broken).await.state.is_open());
        assert_eq!(running.stop().await, ["small", "tiny"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_is_swapped_when_the_other_has_work() {
    let bench = Bench::in_real_time();
    for model in ["small", "tiny"] {
        let batch = bench.released(model, 1, 2).await;
        bench.send(batch, Lane::Bulk).await;
    }
    let running = Running::start(&bench, [("small", Load::Fine), ("tiny", Load::Fine)]);
    sealed(&bench, 2).await;
    assert_eq!(running.stop().await, ["small", "tiny"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_stops_at_once_while_a_model_loads() {
    let bench = Bench::in_real_time();
    let gate = Arc::new(Gate::default());
    let running = Running::start(&bench, [("tiny", Load::Waits(Arc::clone(&gate)))]);
    wait_until_held(&gate).await;
    running.stop().await;
    assert!(
        bench
            .store
            .list_workers(bench.now())
            .await
            .expect("list")
            .is_empty()
    );
    // The thread that loads would keep this test from ending.
    gate.allow(1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_lines_are_kept_when_the_device_fails() {
    for fault in [Fault::Error, Fault::Panic] {
        let bench = Bench::in_real_time();
        let batch = bench.released("tiny", 1, 2).await;
        bench.send(batch, Lane::Bulk).await;
        let gate = Arc::new(Gate::default());
        let running = Running::start(&bench, [("tiny", Load::Gated(Arc::clone(&gate)))]);
        wait_until_held(&gate).await;
        gate.allow(1);
        wait_until_held(&gate).await;
        gate.fail(fault);
        let served = running.served.await.expect("the worker does not panic");
        assert!(matches!(served, Err(ServiceError::Engine(_))), "{fault:?}");
        assert_eq!(bench.run(batch).await.counts.completed, 1, "{fault:?}");
    }
}

async fn wait_until_held(gate: &Arc<Gate>) {
    let gate = Arc::clone(gate);
    let waited = tokio::task::spawn_blocking(move || gate.wait_until_held());
    waited.await.expect("the gate is reached");
}

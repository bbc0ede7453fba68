//! The functions as tasks: each takes messages from its queue, as a Lambda would.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use batch_core::catalog::Catalog;
use batch_core::message::{AssembleJob, DispatchJob, QueueName, SCHEMA, StageJob, retry_wait};
use batch_core::settings::Settings;
use batch_core::time::UnixMs;
use batch_io::port::Message;
use batch_io::store::Store;
use batch_io::{IoError, IoKind, Platform};
use futures::FutureExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Batches that are validated, and that are finalized, at once.
const STAGE_TASKS: usize = 2;

/// How long a queue is waited on before the stop is looked at again.
const POLL: Duration = Duration::from_secs(10);

/// How long to wait after trouble with a queue.
const BACKOFF: Duration = Duration::from_secs(1);

/// The longest wait of a message whose handler fails again and again.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// How long a stop waits for a stage that is at work; its lease brings the rest back.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// The running tasks.
#[derive(Debug)]
pub(super) struct Stages {
    tasks: JoinSet<()>,
}

impl Stages {
    /// Waits a little for the tasks to end, then ends them: losing a process at any point loses nothing.
    pub(super) async fn join(mut self) {
        let _ = tokio::time::timeout(STOP_GRACE, async {
            while self.tasks.join_next().await.is_some() {}
        })
        .await;
        self.tasks.abort_all();
    }
}

/// Starts validate, dispatch, finalize, assemble and reconcile.
pub(super) fn start(
    platform: &Platform,
    store: &Store,
    catalog: &Arc<Catalog>,
    settings: Settings,
    stopped: &watch::Receiver<bool>,
) -> Stages {
    let mut tasks = JoinSet::new();
    let visibility = Duration::from_millis(settings.timing.lease_ms.unsigned_abs());
    let serve = Serve {
        platform: platform.clone(),
        visibility,
        stopped: stopped.clone(),
    };
    for _ in 0..STAGE_TASKS {
        let context = Arc::new(validate::Context {
            platform: platform.clone(),
            store: store.clone(),
            catalog: Arc::clone(catalog),
            settings,
        });
        tasks.spawn(
            serve
                .clone()
                .queue(QueueName::Validate, move |job: StageJob, now| {
                    let context = Arc::clone(&context);
                    async move { validate::handle(&context, job, now).await }
                }),
        );
        let context = Arc::new(finalize::Context {
            platform: platform.clone(),
            store: store.clone(),
        });
        tasks.spawn(
            serve
                .clone()
                .queue(QueueName::Finalize, move |job: StageJob, now| {
                    let context = Arc::clone(&context);
                    async move { finalize::handle(&context, job, now, None).await }
                }),
        );
    }
    let context = Arc::new(assemble::Context {
        platform: platform.clone(),
        store: store.clone(),
    });
    tasks.spawn(
        serve
            .clone()
            .queue(QueueName::Assemble, move |job: AssembleJob, _| {
                let context = Arc::clone(&context);
                async move { assemble::handle(&context, job).await }
            }),
    );
    let context = Arc::new(dispatch::Context {
        platform: platform.clone(),
        store: store.clone(),
        catalog: Arc::clone(catalog),
    });
    let by_message = Arc::clone(&context);
    tasks.spawn(
        serve
            .clone()
            .queue(QueueName::Dispatch, move |job: DispatchJob, now| {
                let context = Arc::clone(&by_message);
                async move { dispatch::handle(&context, job, now).await.map(|_| ()) }
            }),
    );
    tasks.spawn(
        serve
            .clone()
            .every("dispatch", settings.timing.dispatch_ms, move |now| {
                let context = Arc::clone(&context);
                async move {
                    dispatch::handle(
                        &context,
                        DispatchJob {
                            schema: SCHEMA,
                            model: None,
                        },
                        now,
                    )
                    .await
                    .map(|_| ())
                }
            }),
    );
    let context = Arc::new(reconcile::Context {
        platform: platform.clone(),
        store: store.clone(),
    });
    tasks.spawn(
        serve.every("reconcile", settings.timing.reconcile_ms, move |now| {
            let context = Arc::clone(&context);
            async move { reconcile::handle(&context, now).await.map(|_| ()) }
        }),
    );
    Stages { tasks }
}

#[derive(Debug, Clone)]
struct Serve {
    platform: Platform,
    visibility: Duration,
    stopped: watch::Receiver<bool>,
}

impl Serve {
    /// Handles the messages of a queue until the stop. A message whose handler failed comes back.
    async fn queue<J, H, F>(mut self, queue: QueueName, handle: H)
    where
        J: DeserializeOwned,
        H: Fn(J, UnixMs) -> F,
        F: Future<Output = Result<(), IoError>>,
    {
        while !*self.stopped.borrow_and_update() {
            let received = tokio::select! {
                received = self.platform.queue.receive(&queue, 1, self.visibility, POLL) => received,
                _ = self.stopped.changed() => continue,
            };
            let messages = match received {
                Ok(messages) => messages,
                Err(error) => {
                    log(&error, "receive messages");
                    tokio::time::sleep(BACKOFF).await;
                    continue;
                }
            };
            for message in messages {
                self.settle(&queue, &message, &handle).await;
            }
        }
    }

    /// Handles one message, and drops it, or lets it come back: later each time.
    async fn settle<J, H, F>(&self, queue: &QueueName, message: &Message, handle: &H)
    where
        J: DeserializeOwned,
        H: Fn(J, UnixMs) -> F,
        F: Future<Output = Result<(), IoError>>,
    {
        let handled = match serde_json::from_str::<J>(&message.body) {
            Ok(job) => survive(|| handle(job, (self.platform.clock)())).await,
            Err(error) => {
                tracing::error!(%error, ?queue, "read a message; it is dropped");
                Ok(())
            }
        };
        let port = &self.platform.queue;
        let settled = match handled {
            Ok(()) => port.delete(queue, &message.receipt).await,
            Err(error) => {
                log(&error, "handle a message; it comes back");
                let wait = backoff(message.receives);
                port.extend(queue, &message.receipt, wait).await
            }
        };
        if let Err(error) = settled {
            log(&error, "settle a message");
        }
    }

    /// Calls a function again and again until the stop.
    async fn every<H, F>(mut self, name: &'static str, period_ms: i64, handle: H)
    where
        H: Fn(UnixMs) -> F,
        F: Future<Output = Result<(), IoError>>,
    {
        let period = Duration::from_millis(period_ms.max(100).unsigned_abs());
        while !*self.stopped.borrow_and_update() {
            if let Err(error) = survive(|| handle((self.platform.clock)())).await {
                log(&error, name);
            }
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                _ = self.stopped.changed() => {}
            }
        }
    }
}

/// Turns a panic of a handler into an error: its task would end, and nobody would serve its queue any more.
async fn survive<F>(call: impl FnOnce() -> F) -> Result<(), IoError>
where
    F: Future<Output = Result<(), IoError>>,
{
    let guarded = AssertUnwindSafe(async move { call().await });
    // The panic's message is on stderr already.
    guarded.catch_unwind().await.unwrap_or_else(|_| {
        Err(IoError::new(
            "call a function that panicked",
            "handler",
            IoKind::Corrupt,
        ))
    })
}

/// Returns how long a message waits whose handler has failed, by how often it was received.
fn backoff(receives: u32) -> Duration {
    retry_wait(receives, BACKOFF, BACKOFF_MAX)
}

fn log(error: &IoError, doing: &str) {
    let cause = std::error::Error::source(error)
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    tracing::warn!("{doing}: {error}{cause}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_a_handler_is_an_error() {
        let panics = survive(|| async { panic!("a bug") }).await;
        assert_eq!(panics.map_err(|error| error.kind), Err(IoKind::Corrupt));
        assert!(survive(|| async { Ok(()) }).await.is_ok());
    }

    #[test]
    fn failing_message_comes_back_later_each_time() {
        for (receives, seconds) in [(0, 1), (1, 1), (2, 2), (4, 8), (7, 60), (u32::MAX, 60)] {
            assert_eq!(
                backoff(receives),
                Duration::from_secs(seconds),
                "{receives}"
            );
        }
    }
}

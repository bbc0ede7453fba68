//! The functions as tasks: each takes messages from its queue, as a Lambda would.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use batch_core::catalog::Catalog;
use batch_core::message::{DispatchJob, QueueName, SCHEMA, StageJob};
use batch_core::settings::Settings;
use batch_io::store::Store;
use batch_io::{IoError, Platform};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Batches that are validated, and that are finalized, at once.
const STAGE_TASKS: usize = 2;

/// How long a queue is waited on before the stop is looked at again.
const POLL: Duration = Duration::from_secs(10);

/// How long to wait after trouble with a queue.
const BACKOFF: Duration = Duration::from_secs(1);

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

/// Starts validate, dispatch, finalize and reconcile.
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
            catalog: Arc::clone(catalog),
            settings,
        });
        tasks.spawn(
            serve
                .clone()
                .queue(QueueName::Finalize, move |job: StageJob, now| {
                    let context = Arc::clone(&context);
                    async move { finalize::handle(&context, job, now).await }
                }),
        );
    }
    let context = Arc::new(dispatch::Context {
        platform: platform.clone(),
        store: store.clone(),
        catalog: Arc::clone(catalog),
        settings,
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
        catalog: Arc::clone(catalog),
        settings,
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
        H: Fn(J, batch_core::time::UnixMs) -> F,
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
                let handled = match serde_json::from_str::<J>(&message.body) {
                    Ok(job) => handle(job, (self.platform.clock)()).await,
                    Err(error) => {
                        tracing::error!(%error, ?queue, "read a message; it is dropped");
                        Ok(())
                    }
                };
                let settled = match handled {
                    Ok(()) => self.platform.queue.delete(&queue, &message.receipt).await,
                    Err(error) => {
                        log(&error, "handle a message; it comes back");
                        self.platform
                            .queue
                            .extend(&queue, &message.receipt, BACKOFF)
                            .await
                    }
                };
                if let Err(error) = settled {
                    log(&error, "settle a message");
                }
            }
        }
    }

    /// Calls a function again and again until the stop.
    async fn every<H, F>(mut self, name: &'static str, period_ms: i64, handle: H)
    where
        H: Fn(batch_core::time::UnixMs) -> F,
        F: Future<Output = Result<(), IoError>>,
    {
        let period = Duration::from_millis(period_ms.max(100).unsigned_abs());
        while !*self.stopped.borrow_and_update() {
            if let Err(error) = handle((self.platform.clock)()).await {
                log(&error, name);
            }
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                _ = self.stopped.changed() => {}
            }
        }
    }
}

fn log(error: &IoError, doing: &str) {
    let cause = std::error::Error::source(error)
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    tracing::warn!("{doing}: {error}{cause}");
}

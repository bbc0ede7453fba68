//! What a function has once it is started, and how it serves the events of its kind.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use anyhow::Context as _;
use batch_core::catalog::Catalog;
use batch_core::external::ImportLocations;
use batch_core::message::QueueName;
use batch_core::settings::Settings;
use batch_core::time::UnixMs;
use batch_io::aws::{Aws, Deployment, Profile};
use batch_io::store::Store;
use batch_io::{IoError, Platform};
use serde::de::DeserializeOwned;

use crate::event::Event;
use crate::inbox::Inbox;
use crate::metrics::{Metrics, Unit};
use crate::serve::{Failure, Invocation, serve_events};
use crate::survive::survive;

/// A started function: the deployment that it belongs to, and the ports to its state.
#[derive(Debug, Clone)]
pub struct Function {
    /// Name of the deployment.
    pub deployment: String,
    /// Ports, clock and randomness.
    pub platform: Platform,
    /// Typed access to the records.
    pub store: Store,
    /// The models on offer.
    pub catalog: Arc<Catalog>,
    /// Limits and times.
    pub settings: Settings,
    /// Groups of workers, by name.
    pub profiles: BTreeMap<String, Profile>,
    /// Where inputs may be imported from.
    pub imports: ImportLocations,
}

impl Function {
    /// Reads the deployment from the environment and makes its clients. Calls nothing.
    ///
    /// # Errors
    ///
    /// What is wrong with the environment.
    pub(crate) async fn connect() -> anyhow::Result<Self> {
        let deployment = Deployment::from_env().context("read the deployment")?;
        let platform = Aws::connect(&deployment.resources).await.platform();
        let store = Store::new(Arc::clone(&platform.records), deployment.settings.timing);
        Ok(Self {
            deployment: deployment.name,
            platform,
            store,
            catalog: Arc::new(deployment.catalog),
            settings: deployment.settings,
            profiles: deployment.profiles,
            imports: deployment.imports,
        })
    }

    /// Serves the messages of `queue`, one after the other.
    ///
    /// A message is reported as failed, and comes back after a while that doubles with each try, if its
    /// handler fails, panics, or is not done shortly before the function's deadline; or if it cannot be
    /// read. Its queue counts the tries and moves it to the dead-letter queue.
    ///
    /// # Errors
    ///
    /// The Runtime API is out of reach.
    pub async fn serve_queue<J, H, Fut>(&self, queue: QueueName, handle: H) -> anyhow::Result<()>
    where
        J: DeserializeOwned,
        H: Fn(J, UnixMs, Invocation) -> Fut,
        Fut: Future<Output = Result<(), IoError>>,
    {
        let (queue, handle) = (&queue, &handle);
        serve_events(move |event, invocation| async move {
            let Event::Messages(messages) = event else {
                return Err(Failure::new(
                    "UnknownEvent",
                    "this function takes messages of SQS",
                ));
            };
            let mut inbox = Inbox::read(queue.clone(), messages);
            for (ticket, job) in inbox.take_jobs() {
                let now = (self.platform.clock)();
                if let Err(error) = survive(invocation, now, || handle(job, now, invocation)).await
                {
                    inbox.fail(ticket, &error);
                }
            }
            Ok(inbox.settle(&self.platform).await)
        })
        .await
    }

    /// Serves the ticks of a schedule.
    ///
    /// # Errors
    ///
    /// The Runtime API is out of reach.
    pub async fn serve_schedule<H, Fut>(&self, handle: H) -> anyhow::Result<()>
    where
        H: Fn(UnixMs, Invocation) -> Fut,
        Fut: Future<Output = Result<(), IoError>>,
    {
        let handle = &handle;
        serve_events(move |event, invocation| async move {
            let Event::Tick = event else {
                return Err(Failure::new(
                    "UnknownEvent",
                    "this function takes ticks of a schedule",
                ));
            };
            let now = (self.platform.clock)();
            survive(invocation, now, || handle(now, invocation)).await?;
            Ok(())
        })
        .await
    }

    /// Writes metrics of this deployment, with further dimensions.
    pub fn emit(&self, dimensions: &[(&'static str, &str)], values: &[(&'static str, Unit, u64)]) {
        let mut all = vec![("Deployment", self.deployment.as_str())];
        all.extend_from_slice(dimensions);
        Metrics {
            at: (self.platform.clock)(),
            dimensions: &all,
            values,
        }
        .emit();
    }
}

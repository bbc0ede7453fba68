//! The loop over the Runtime API, and its end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use batch_core::time::UnixMs;
use batch_io::IoError;
use lambda_runtime::layers::TracingLayer;
use lambda_runtime::tower::ServiceExt as _;
use lambda_runtime::tower::layer::layer_fn;
use lambda_runtime::{
    Context, Diagnostic, Error, LambdaEvent, LambdaInvocation, Runtime, Service, service_fn,
};
use serde::Serialize;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

use crate::event::{Event, UnknownEvent};

/// What is kept of an invocation's time to answer it.
const ANSWER_MS: i64 = 2_000;

/// One event's frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invocation {
    /// When Lambda ends the process if the event is not answered.
    pub deadline: UnixMs,
}

impl Invocation {
    /// Returns how long a handler may work at `now`, so that its answer still goes out: a function that
    /// Lambda ends answers nothing, and all its messages stay hidden for their queue's whole visibility
    /// timeout.
    #[must_use]
    pub fn time_left(self, now: UnixMs) -> Duration {
        let left_ms = self.deadline.since_ms(now) - ANSWER_MS;
        Duration::from_millis(u64::try_from(left_ms).unwrap_or(0))
    }
}

impl From<&Context> for Invocation {
    fn from(context: &Context) -> Self {
        Self {
            deadline: UnixMs(i64::try_from(context.deadline).unwrap_or(i64::MAX)),
        }
    }
}

/// The answer to an event that could not be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    kind: &'static str,
    message: String,
}

impl Failure {
    /// Makes a failure; a caller of the function sees both.
    pub fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl From<IoError> for Failure {
    fn from(error: IoError) -> Self {
        tracing::error!(%error, source = ?error.source, "could not serve an event");
        Self::new("IoError", error.to_string())
    }
}

impl From<UnknownEvent> for Failure {
    fn from(error: UnknownEvent) -> Self {
        Self::new("UnknownEvent", error.to_string())
    }
}

impl From<Failure> for Diagnostic {
    fn from(failure: Failure) -> Self {
        Self {
            error_type: failure.kind.to_owned(),
            error_message: failure.message,
        }
    }
}

/// Serves messages and ticks, as [`serve_json`] does; anything else is refused.
///
/// # Errors
///
/// The Runtime API is out of reach.
pub async fn serve_events<R, H, Fut>(handle: H) -> anyhow::Result<()>
where
    R: Serialize,
    H: Fn(Event, Invocation) -> Fut,
    Fut: Future<Output = Result<R, Failure>>,
{
    let handle = &handle;
    serve_json(
        move |event, invocation| async move { handle(Event::read(event)?, invocation).await },
    )
    .await
}

/// Serves events, one at a time, until the process is told to stop. `handle` gets their JSON.
///
/// # Errors
///
/// The Runtime API is out of reach.
pub async fn serve_json<R, H, Fut>(handle: H) -> anyhow::Result<()>
where
    R: Serialize,
    H: Fn(Value, Invocation) -> Fut,
    Fut: Future<Output = Result<R, Failure>>,
{
    let service = service_fn(move |event: LambdaEvent<Value>| {
        handle(event.payload, Invocation::from(&event.context))
    });
    drive(Runtime::new(service)).await
}

/// Runs a runtime until the process is told to stop, and then until the event at hand is answered.
///
/// Lambda sends a SIGTERM only to functions with an extension, and ends the others without a word; emulators
/// and people send one to all.
///
/// # Errors
///
/// The Runtime API is out of reach.
pub async fn drive<S>(runtime: Runtime<S>) -> anyhow::Result<()>
where
    S: Service<LambdaInvocation, Response = (), Error = Error>,
{
    let mut terminated = signal(SignalKind::terminate()).context("listen to SIGTERM")?;
    let idle = Arc::new(Mutex::new(()));
    let busy = Arc::clone(&idle);
    let gate = layer_fn(move |service: S| {
        let busy = Arc::clone(&busy);
        service.map_future(move |served: S::Future| {
            let busy = Arc::clone(&busy);
            async move {
                let _at_work = busy.lock().await;
                served.await
            }
        })
    });
    let stopped = async {
        terminated.recv().await;
        let _ = idle.lock().await;
    };
    tokio::select! {
        ended = runtime.layer(gate).layer(TracingLayer::new()).run() => {
            ended.map_err(anyhow::Error::from_boxed).context("talk to the Lambda Runtime API")
        }
        () = stopped => {
            tracing::info!("told to stop, and idle: ending");
            Ok(())
        }
    }
}

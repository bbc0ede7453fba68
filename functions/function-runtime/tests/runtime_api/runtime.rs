//! The Lambda service's side of the Runtime API, and a function's process that talks to it.
//!
//! Source: <https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html>

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

/// How long an invocation may take; Lambda would end the process then.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// After this a test has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a function did with an event, or with its start.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// It asked for the next event.
    Asked,
    /// It answered.
    Answer(Value),
    /// It failed, and said so.
    Failure(Value),
}

/// What the service and the test share.
struct Desk {
    events: Mutex<mpsc::UnboundedReceiver<Value>>,
    outcomes: mpsc::UnboundedSender<Outcome>,
    numbers: std::sync::atomic::AtomicU64,
}

/// A function's process, the way Lambda holds it.
pub(crate) struct Process {
    child: Child,
    began: Instant,
    events: mpsc::UnboundedSender<Value>,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    log: Option<JoinHandle<Vec<String>>>,
    service: JoinHandle<()>,
}

impl Process {
    /// Starts a function with Lambda's environment and `environment`, and nothing else.
    pub(crate) async fn start(name: &str, environment: &[(String, String)]) -> Self {
        Self::start_without("", name, environment).await
    }

    /// Starts a function that lacks a variable of its environment.
    pub(crate) async fn start_without(
        missing: &str,
        name: &str,
        environment: &[(String, String)],
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (events, to_serve) = mpsc::unbounded_channel();
        let (to_see, outcomes) = mpsc::unbounded_channel();
        let desk = Arc::new(Desk {
            events: Mutex::new(to_serve),
            outcomes: to_see,
            numbers: std::sync::atomic::AtomicU64::new(1),
        });
        let service = tokio::spawn(async move {
            axum::serve(listener, routes(desk)).await.unwrap();
        });
        let began = Instant::now();
        let lambda = [
            ("AWS_LAMBDA_RUNTIME_API", address.to_string()),
            ("AWS_LAMBDA_FUNCTION_NAME", format!("nightshift-{name}")),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256".to_owned()),
            ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".to_owned()),
        ];
        let lambda = lambda.map(|(name, value)| (name.to_owned(), value));
        let all = lambda.iter().chain(environment);
        let mut child = Command::new(program(name))
            .env_clear()
            .envs(all.filter(|(name, _)| name != missing).cloned())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let log = tokio::spawn(async move {
            let mut log = Vec::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                log.push(line);
            }
            log
        });
        Self {
            child,
            began,
            events,
            outcomes,
            log: Some(log),
            service,
        }
    }

    /// Waits until the function asks for its first event, and returns how long that took.
    pub(crate) async fn ready(&mut self) -> Duration {
        assert_eq!(self.outcome().await, Outcome::Asked);
        self.began.elapsed()
    }

    /// Hands an event to a function that waits for one, and returns what it makes of it.
    pub(crate) async fn invoke(&mut self, event: Value) -> Outcome {
        self.hand(event);
        let outcome = self.outcome().await;
        assert_eq!(self.outcome().await, Outcome::Asked);
        outcome
    }

    /// Hands an event to a function, and waits for nothing.
    pub(crate) fn hand(&self, event: Value) {
        self.events.send(event).unwrap();
    }

    /// Returns what the function does next.
    pub(crate) async fn outcome(&mut self) -> Outcome {
        let outcome = tokio::time::timeout(PATIENCE, self.outcomes.recv()).await;
        outcome.expect("the function hangs").unwrap()
    }

    /// Sends a SIGTERM.
    pub(crate) fn terminate(&self) {
        let id = i32::try_from(self.child.id().unwrap()).unwrap();
        let id = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    }

    /// Waits for the end, and returns the exit status and the lines of the log.
    pub(crate) async fn end(mut self) -> (ExitStatus, Vec<String>) {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = ended.expect("the function does not end").unwrap();
        (status, self.log.take().unwrap().await.unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.service.abort();
    }
}

/// Returns where cargo put a function's program: beside this test's folder.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap();
    let program = folder.join(format!("nightshift-{name}"));
    assert!(
        program.exists(),
        "{} is not there: cargo build --workspace --all-features --bins",
        program.display()
    );
    program
}

fn routes(desk: Arc<Desk>) -> Router {
    const INVOCATION: &str = "/2018-06-01/runtime/invocation";
    Router::new()
        .route(&format!("{INVOCATION}/next"), get(next))
        .route(&format!("{INVOCATION}/{{id}}/response"), post(respond))
        .route(&format!("{INVOCATION}/{{id}}/error"), post(fail))
        .with_state(desk)
}

async fn next(State(desk): State<Arc<Desk>>) -> Response {
    desk.outcomes.send(Outcome::Asked).unwrap();
    let Some(event) = desk.events.lock().await.recv().await else {
        return StatusCode::GONE.into_response();
    };
    let number = desk
        .numbers
        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let deadline = SystemTime::now() + TIME_LIMIT;
    let deadline = deadline.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    (
        [
            ("Lambda-Runtime-Aws-Request-Id", format!("request-{number}")),
            (
                "Lambda-Runtime-Deadline-Ms",
                deadline.as_millis().to_string(),
            ),
            (
                "Lambda-Runtime-Invoked-Function-Arn",
                "arn:aws:lambda:us-east-1:000000000000:function:test".to_owned(),
            ),
        ],
        event.to_string(),
    )
        .into_response()
}

async fn respond(State(desk): State<Arc<Desk>>, id: Path<String>, body: Bytes) -> StatusCode {
    assert!(id.starts_with("request-"), "{}", *id);
    let answer = serde_json::from_slice(&body).unwrap();
    desk.outcomes.send(Outcome::Answer(answer)).unwrap();
    StatusCode::ACCEPTED
}

async fn fail(
    State(desk): State<Arc<Desk>>,
    id: Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    assert!(id.starts_with("request-"), "{}", *id);
    assert!(headers.contains_key("lambda-runtime-function-error-type"));
    let failure = serde_json::from_slice(&body).unwrap();
    desk.outcomes.send(Outcome::Failure(failure)).unwrap();
    StatusCode::ACCEPTED
}

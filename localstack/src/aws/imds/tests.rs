//! The watcher against a metadata service over real HTTP.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, put};
use tokio::net::TcpListener;

use super::*;

/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(20);

const SPOT: &str = "spot/instance-action";
const STATE: &str = "autoscaling/target-lifecycle-state";

/// What the metadata service knows.
#[derive(Debug, Default)]
struct Machine {
    values: BTreeMap<String, String>,
    tokens: u32,
    /// Tokens before this one are too old.
    valid_from: u32,
    looks: u32,
    /// Looks that are answered with a 500.
    broken_looks: u32,
}

#[derive(Clone)]
struct FakeImds {
    machine: Arc<Mutex<Machine>>,
    /// Tells of each look.
    looked: mpsc::Sender<String>,
}

async fn token(State(fake): State<FakeImds>, headers: HeaderMap) -> Result<String, StatusCode> {
    if !headers.contains_key("x-aws-ec2-metadata-token-ttl-seconds") {
        return Err(StatusCode::BAD_REQUEST);
    }
    let mut machine = fake.machine.lock().unwrap();
    machine.tokens += 1;
    Ok(machine.tokens.to_string())
}

async fn value(
    State(fake): State<FakeImds>,
    Path(path): Path<String>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    let mut machine = fake.machine.lock().unwrap();
    let token = headers
        .get("x-aws-ec2-metadata-token")
        .and_then(|token| token.to_str().ok()?.parse::<u32>().ok());
    if token.is_none_or(|token| token < machine.valid_from) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    machine.looks += 1;
    // The test may be over.
    let _ = fake.looked.send(path.clone());
    if machine.looks <= machine.broken_looks {
        return Err(StatusCode::INTERNAL_SERVER_ERROR);
    }
    machine
        .values
        .get(&path)
        .cloned()
        .ok_or(StatusCode::NOT_FOUND)
}

/// A watcher and the service that it asks.
struct Watched {
    machine: Arc<Mutex<Machine>>,
    looked: mpsc::Receiver<String>,
    notices: mpsc::Receiver<Notice>,
    _runtime: tokio::runtime::Runtime,
}

impl Watched {
    fn start(machine: Machine) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let machine = Arc::new(Mutex::new(machine));
        let (looked, looks) = mpsc::channel();
        let fake = FakeImds {
            machine: Arc::clone(&machine),
            looked,
        };
        let router = Router::new()
            .route("/latest/api/token", put(token))
            .route("/latest/meta-data/{*path}", get(value))
            .with_state(fake);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}/", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, router).await });
        let (tell, notices) = mpsc::channel();
        let tell = move |notice| tell.send(notice).unwrap();
        watch(Imds::at(&endpoint), Duration::from_millis(1), tell).unwrap();
        Self {
            machine,
            looked: looks,
            notices,
            _runtime: runtime,
        }
    }

    fn set(&self, path: &str, value: &str) {
        let mut machine = self.machine.lock().unwrap();
        machine.values.insert(path.to_owned(), value.to_owned());
    }

    /// Waits until both values have been looked at `times` more.
    fn wait_for_looks(&self, times: usize) {
        for _ in 0..times {
            let is_state = |path: String| path == STATE;
            while !is_state(self.looked.recv_timeout(LONG).unwrap()) {}
        }
    }

    fn notice(&self) -> Notice {
        self.notices.recv_timeout(LONG).unwrap()
    }
}

fn machine(values: &[(&str, &str)]) -> Machine {
    let owned = |(path, value): &(&str, &str)| ((*path).to_owned(), (*value).to_owned());
    Machine {
        values: values.iter().map(owned).collect(),
        ..Machine::default()
    }
}

#[test]
fn spot_notice_is_told_when_it_comes() {
    let watched = Watched::start(machine(&[(STATE, "InService")]));
    watched.wait_for_looks(3);
    assert!(
        watched.notices.try_recv().is_err(),
        "nothing has happened yet"
    );
    watched.set(
        SPOT,
        r#"{"action": "terminate", "time": "2026-11-30T08:22:00Z"}"#,
    );
    assert_eq!(watched.notice(), Notice::Spot);
}

#[test]
fn auto_scaling_is_told_when_the_machine_leaves_service() {
    for state in ["Terminated", "Warmed:Stopped"] {
        let watched = Watched::start(machine(&[(STATE, "InService")]));
        watched.wait_for_looks(1);
        watched.set(STATE, state);
        assert_eq!(watched.notice(), Notice::AutoScaling, "{state}");
    }
}

#[test]
fn machine_outside_a_group_and_on_demand_has_no_notice() {
    let watched = Watched::start(machine(&[]));
    watched.wait_for_looks(3);
    assert!(watched.notices.try_recv().is_err());
}

#[test]
fn token_that_is_too_old_is_renewed() {
    let watched = Watched::start(machine(&[(STATE, "InService")]));
    watched.wait_for_looks(1);
    watched.machine.lock().unwrap().valid_from = 2;
    watched.wait_for_looks(2);
    assert_eq!(watched.machine.lock().unwrap().tokens, 2);
}

#[test]
fn trouble_of_the_service_is_waited_out() {
    let watched = Watched::start(Machine {
        broken_looks: 3,
        ..machine(&[(SPOT, r#"{"action": "stop"}"#)])
    });
    assert_eq!(watched.notice(), Notice::Spot);
    assert_eq!(watched.machine.lock().unwrap().looks, 4);
}

#[test]
fn watch_ends_without_a_notice_where_nothing_answers() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (tell, notices) = mpsc::channel();
    let tell = move |notice| tell.send(notice).unwrap();
    let watching = watch(Imds::at(&endpoint), Duration::from_millis(1), tell).unwrap();
    watching.join().unwrap();
    assert!(notices.recv().is_err(), "nobody is left to tell");
}

#[test]
fn every_action_but_none_takes_the_machine() {
    for (action, takes) in [
        (
            r#"{"action":"terminate","time":"2026-11-30T08:22:00Z"}"#,
            true,
        ),
        (r#"{"action":"stop"}"#, true),
        (r#"{"action":"hibernate"}"#, true),
        (r#"{"action":"none"}"#, false),
        ("what is this", true),
    ] {
        assert_eq!(takes_the_machine(action), takes, "{action}");
    }
}

#[test]
fn only_states_outside_of_service_end_the_work() {
    for (state, leaves) in [
        ("InService", false),
        ("Detached", false),
        ("Standby", false),
        ("Terminated", true),
        ("Terminated\n", true),
        ("Warmed:Hibernated", true),
        ("Warmed:Terminated", true),
    ] {
        assert_eq!(leaves_service(state), leaves, "{state}");
    }
}

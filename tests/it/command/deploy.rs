//! `nightshift deploy`: the check against a real service, and what both commands refuse.

use serde_json::{Value, json};
use system_tests::catalog::{self, DEFAULT_MODEL};
use system_tests::command::{Ended, nightshift, run};
use system_tests::environment;
use system_tests::service::{Options, Service};

use super::Bench;

/// The steps of a check without `--large`, in order.
const STEPS: [&str; 12] = [
    "reach",
    "key",
    "models",
    "wrong_key",
    "upload",
    "create",
    "validate",
    "worker",
    "complete",
    "output",
    "limits",
    "clean_up",
];

/// Runs `nightshift deploy check` on a service, with `args` besides.
fn check(service: &Service, key: &str, args: &[&str]) -> Ended {
    let mut command = nightshift(["deploy", "check", "--base-url", service.base_url()]);
    run(command.args(args).env("NIGHTSHIFT_API_KEY", key))
}

/// Reads the steps that `--json` prints.
fn steps(ended: &Ended) -> Vec<Value> {
    let lines = ended.stdout.lines();
    let read = |line| serde_json::from_str(line).expect("a step is JSON");
    lines.map(read).collect()
}

fn names(steps: &[Value]) -> Vec<&str> {
    let name = |step: &'_ Value| step["step"].is_string();
    assert!(steps.iter().all(name), "{steps:?}");
    steps
        .iter()
        .filter_map(|step| step["step"].as_str())
        .collect()
}

async fn files_left(service: &Service) -> usize {
    let (_, list) = service
        .client()
        .call("GET", "/files", None)
        .await
        .expect("list the files");
    list["data"].as_array().expect("it is a list").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn check_takes_every_step_on_a_working_service_and_leaves_no_file() {
    let Some(model) = environment::model() else {
        return;
    };
    let service = Service::start(Options {
        config: Some(catalog::entry(DEFAULT_MODEL, &model)),
        ..Options::default()
    });
    let ended = check(&service, service.api_key(), &["--large", "--json"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let steps = steps(&ended);
    let mut expected = STEPS.to_vec();
    expected.insert(11, "large");
    assert_eq!(names(&steps), expected);
    assert!(steps.iter().all(|step| step["ok"] == true), "{steps:?}");
    assert_eq!(files_left(&service).await, 0);
    assert!(
        !ended.stdout.contains(service.api_key()),
        "a key is never shown"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn check_prints_a_line_a_step_for_people() {
    let bench = Bench::new();
    let service = Service::start(Options {
        config: Some(bench.read("config.toml")),
        ..Options::default()
    });
    let ended = check(&service, service.api_key(), &["--model", "tiny"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(
        ended.stdout.lines().count(),
        STEPS.len(),
        "{}",
        ended.stdout
    );
    for line in ended.stdout.lines() {
        assert!(line.starts_with("ok      "), "{line}");
    }
    for words in ["4.4 MiB", "part_size=8", "ingest"] {
        assert!(ended.stdout.contains(words), "{}", ended.stdout);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_says_what_to_look_at_when_no_worker_comes() {
    let bench = Bench::new();
    let service = Service::start(Options {
        workers: 0,
        config: Some(bench.read("config.toml")),
        ..Options::default()
    });
    let ended = check(&service, service.api_key(), &["--json", "--timeout", "1"]);
    ended.check_refusal(1, &["the check failed at", "a worker runs it"]);
    let steps = steps(&ended);
    let last = steps.last().expect("it takes steps");
    assert_eq!(
        (&last["step"], &last["ok"]),
        (&json!("worker"), &json!(false))
    );
    let detail = last["detail"].as_str().expect("it says why");
    for words in ["no worker came", "quotas", "--timeout"] {
        assert!(detail.contains(words), "{detail}");
    }
    let (_, list) = service
        .client()
        .call("GET", "/batches", None)
        .await
        .expect("list the batches");
    let status = &list["data"][0]["status"];
    assert!(status == "cancelling" || status == "cancelled", "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_stops_at_a_key_or_a_model_that_is_wrong() {
    let bench = Bench::new();
    let service = Service::start(Options {
        workers: 0,
        config: Some(bench.read("config.toml")),
        ..Options::default()
    });
    let key = service.api_key().to_owned();
    for (key, args, step, words) in [
        ("nsk_wrong", &["--json"][..], "key", "nightshift deploy key"),
        (
            &key,
            &["--json", "--model", "huge"],
            "models",
            "there is: tiny",
        ),
    ] {
        let ended = check(&service, key, args);
        ended.check_refusal(1, &["the check failed at"]);
        let steps = steps(&ended);
        let last = steps.last().expect("it takes steps");
        assert_eq!((&last["step"], &last["ok"]), (&json!(step), &json!(false)));
        assert!(last["detail"].to_string().contains(words), "{last}");
    }
}

#[test]
fn check_tells_apart_what_keeps_it_from_the_service() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("take a port");
    let nobody = taken.local_addr().expect("it has an address");
    drop(taken);
    // A server that answers in plain text is none for TLS.
    let plain = Service::start(Options {
        workers: 0,
        ..Options::default()
    });
    let tls = plain.base_url().replace("http://", "https://");
    let no_stage = plain.base_url().replace("/v1", "/v2");
    for (base_url, words) in [
        (format!("http://{nobody}/v1"), "refuses connections"),
        ("http://no-such-host.invalid/v1".to_owned(), "DNS"),
        (tls, "TLS"),
        (no_stage, "ends with the stage, /v1"),
    ] {
        let mut command = nightshift(["deploy", "check", "--base-url", &base_url]);
        let ended = run(command.args(["--api-key", "nsk_any"]));
        ended.check_refusal(1, &["the API answers"]);
        assert!(ended.stdout.contains(words), "{base_url}: {}", ended.stdout);
    }
}

#[test]
fn check_takes_the_address_from_terraforms_outputs() {
    let bench = Bench::new();
    let service = Service::start(Options {
        config: Some(bench.read("config.toml")),
        ..Options::default()
    });
    let outputs = json!({
        "api_base_url": {"sensitive": false, "type": "string", "value": service.base_url()},
        "ingest_base_url": {"value": "https://ingest.example/v1"},
    });
    let file = bench.write("outputs.json", outputs.to_string());
    let mut command = nightshift(["deploy", "check", "--outputs"]);
    command
        .arg(file)
        .env("NIGHTSHIFT_API_KEY", service.api_key());
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(
        ended.stdout.contains("https://ingest.example/v1"),
        "{}",
        ended.stdout
    );
}

#[test]
fn usage_is_refused_with_what_to_do() {
    let bench = Bench::new();
    let empty = bench.write("empty.json", "{}");
    let other = bench.write("other.json", r#"{"x": {"value": 1}}"#);
    let (empty, other) = (empty.display().to_string(), other.display().to_string());
    for (args, words) in [
        (&["--base-url", "http://127.0.0.1:1/v1"][..], "--api-key"),
        (&["--api-key", "k", "--base-url", "here"], "no base URL"),
        (&["--api-key", "k", "--outputs", &empty], "terraform apply"),
        (&["--api-key", "k", "--outputs", &other], "api_base_url"),
    ] {
        let mut command = nightshift(["deploy", "check"]);
        run(command.args(args)).check_refusal(2, &[words]);
    }
}

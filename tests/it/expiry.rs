//! Windows close, and every line is accounted for.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use system_tests::catalog::{
    self, DEFAULT_MODEL, INPUT_PER_MILLION, OUTPUT_PER_MILLION, ids, requests,
};
use system_tests::client::Results;
use system_tests::environment;
use system_tests::proof::{self, Counts};
use system_tests::service::{Options, Service};

const LONG: Duration = Duration::from_secs(120);

/// A window that the test setting shortens.
const WINDOW: &str = "1h";

/// Adds up what the output file says, at half the list price.
fn cost_of(results: &Results) -> f64 {
    let tokens = |name: &str| -> f64 {
        let used = results
            .output
            .iter()
            .map(|record| record["response"]["body"]["usage"][name].as_f64());
        used.sum::<Option<f64>>()
            .expect("every answer has its usage")
    };
    (tokens("prompt_tokens") * INPUT_PER_MILLION + tokens("completion_tokens") * OUTPUT_PER_MILLION)
        / 2.0
        / 1e6
}

#[track_caller]
fn check_cost(batch: &Value, results: &Results) {
    let amount = batch["cost"]["amount"]
        .as_f64()
        .expect("a batch shows its cost");
    let expected = cost_of(results);
    assert!(
        (amount - expected).abs() <= 1e-9,
        "{amount} for what costs {expected}"
    );
}

/// Reports 57, 65.
#[tokio::test(flavor = "multi_thread")]
async fn finished_lines_are_kept_and_the_others_are_batch_expired_when_the_window_closes_mid_run() {
    let Some(model) = environment::model() else {
        return;
    };
    let entry = catalog::entry_with(DEFAULT_MODEL, &model, "tokens_per_s = 4");
    // Slow enough that 400 lines cannot end in 9 s, on any machine: in f32 each step waits for all weights.
    let config = format!(
        "{entry}[engine]\nthreads = 1\nsequences = 8\nprecision = \"f32\"\n[testing]\nwindow_seconds = 9\n"
    );
    let service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    assert!(
        service.has_logged("model loaded", 1, LONG).await,
        "{}",
        service.log_text()
    );
    let client = service.client();
    let batch = client
        .submit_within(requests(DEFAULT_MODEL, 400, 16), WINDOW)
        .await
        .expect("submit");
    let mut counts = Counts::default();
    let until = tokio::time::Instant::now() + LONG;
    let ended = loop {
        let seen = client.batch(&batch).await.expect("read the batch");
        counts.follow(&seen);
        if seen["status"] == "expired" {
            break seen;
        }
        let status = seen["status"].as_str().expect("a batch has a status");
        assert!(
            ["validating", "in_progress", "finalizing"].contains(&status),
            "{seen}"
        );
        assert!(
            tokio::time::Instant::now() < until,
            "it does not expire: {seen}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(
        ended["expired_at"].is_u64() && ended["completed_at"].is_null(),
        "{ended}"
    );
    assert!(counts.completed > 0, "no line was finished: {ended}");
    assert!(counts.failed > 0, "no line was left: {ended}");
    let results = proof::complete(&client, &ended, &ids(400)).await;
    proof::check_unexecuted(&results, "batch_expired");
    check_cost(&ended, &results);
    let cancel = client.cancel(&batch).await.expect("cancel");
    assert_eq!(
        (cancel.status, cancel.should_retry.as_deref()),
        (409, Some("false")),
        "{}",
        cancel.body
    );
    assert_eq!(
        client.batch(&batch).await.expect("read it"),
        ended,
        "report 63: the end stays as it was"
    );
}

/// Reports 57, 73.
#[tokio::test(flavor = "multi_thread")]
async fn every_line_is_batch_expired_and_costs_nothing_when_no_worker_ran_any() {
    let config = catalog::entry("tiny", &catalog::tiny_model()) + "[testing]\nwindow_seconds = 3\n";
    let service = Service::start(Options {
        workers: 0,
        config: Some(config),
        ..Options::default()
    });
    let client = service.client();
    let batch = client
        .submit_within(requests("tiny", 25, 4), WINDOW)
        .await
        .expect("submit");
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    assert_eq!(ended["status"], "expired", "{ended}");
    let results = proof::complete(&client, &ended, &ids(25)).await;
    assert_eq!(results.output.len(), 0);
    proof::check_unexecuted(&results, "batch_expired");
    check_cost(&ended, &results);
    assert_eq!(ended["usage"]["total_tokens"], 0, "{ended}");
}

/// Report 67: a window closes on time by the clock, whether the service runs or not.
#[tokio::test(flavor = "multi_thread")]
async fn batch_expires_when_its_window_closes_while_the_service_is_down() {
    let config = catalog::entry("tiny", &catalog::tiny_model()) + "[testing]\nwindow_seconds = 4\n";
    let mut service = Service::start(Options {
        workers: 0,
        config: Some(config),
        ..Options::default()
    });
    let batch = service
        .client()
        .submit_within(requests("tiny", 25, 4), WINDOW)
        .await
        .expect("submit");
    let expires_at = service.client().batch(&batch).await.expect("read it")["expires_at"].as_u64();
    while service.client().batch(&batch).await.expect("read it")["status"] == "validating" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    service.kill_all();
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("it is after 1970")
            .as_secs()
    };
    while Some(now()) <= expires_at {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    service.set_workers(1);
    service.restart();
    let client = service.client();
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    assert_eq!(ended["status"], "expired", "{ended}");
    let results = proof::complete(&client, &ended, &ids(25)).await;
    proof::check_unexecuted(&results, "batch_expired");
    check_cost(&ended, &results);
}

#[tokio::test(flavor = "multi_thread")]
async fn cost_is_half_the_list_price_of_what_was_answered_when_all_is() {
    let config = catalog::entry("tiny", &catalog::tiny_model());
    let service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    let client = service.client();
    let batch = client
        .submit(requests("tiny", 25, 4))
        .await
        .expect("submit");
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    assert_eq!(ended["status"], "completed", "{ended}");
    let results = proof::complete(&client, &ended, &ids(25)).await;
    check_cost(&ended, &results);
}

//! Batches are cancelled at odd moments, and what is finished stays.

use std::time::Duration;

use serde_json::json;
use system_tests::catalog::{self, DEFAULT_MODEL, ids, requests};
use system_tests::client::Client;
use system_tests::environment;
use system_tests::proof::{self, Counts};
use system_tests::random::Chances;
use system_tests::service::{Options, Service};

/// From the cancel to the end of the batch.
const BAR: Duration = Duration::from_secs(15);

const LONG: Duration = Duration::from_secs(120);

/// A service whose only model answers at once.
fn tiny_service(workers: u16) -> Service {
    let config = catalog::entry("tiny", &catalog::tiny_model());
    Service::start(Options {
        workers,
        config: Some(config),
        ..Options::default()
    })
}

/// Cancels a batch after `moment` and checks everything that it promises. Returns how it ended, and its lines in
/// the output file.
async fn cancel_after(
    client: Client,
    lines: usize,
    max_tokens: u32,
    moment: Duration,
) -> (String, u64) {
    let batch = client
        .submit(requests(DEFAULT_MODEL, lines, max_tokens))
        .await
        .expect("submit");
    tokio::time::sleep(moment).await;
    let before = client.batch(&batch).await.expect("read the batch");
    let mut counts = Counts::default();
    counts.follow(&before);
    let cancel = client.cancel(&batch).await.expect("cancel");
    let ended = client
        .wait(&batch, BAR)
        .await
        .expect("it ends within the bar");
    counts.follow(&ended);
    let status = ended["status"]
        .as_str()
        .expect("a batch has a status")
        .to_owned();
    if cancel.status == 409 {
        assert_eq!(status, "completed", "{ended}");
        assert_eq!(cancel.should_retry.as_deref(), Some("false"));
        proof::complete(&client, &ended, &ids(lines)).await;
        return (status, counts.completed);
    }
    assert_eq!(cancel.status, 200, "{}", cancel.body);
    assert!(cancel.body["cancelling_at"].is_u64(), "{}", cancel.body);
    assert!(
        cancel.body["status"] == "cancelling" || cancel.body["status"] == "cancelled",
        "{}",
        cancel.body
    );
    assert_eq!(status, "cancelled", "{ended}");
    assert!(
        ended["cancelled_at"].is_u64() && ended["completed_at"].is_null(),
        "{ended}"
    );
    if counts.total == 0 {
        assert!(
            ended["output_file_id"].is_null() && ended["error_file_id"].is_null(),
            "{ended}"
        );
    } else {
        let results = proof::complete(&client, &ended, &ids(lines)).await;
        proof::check_unexecuted(&results, "batch_cancelled");
    }
    let again = client.cancel(&batch).await.expect("cancel again");
    assert_eq!(
        (again.status, &again.body),
        (200, &ended),
        "a repeated cancel changes nothing"
    );
    (status, counts.completed)
}

/// Reports 57, 59, 61, 65.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_batch_ends_in_time_and_keeps_finished_lines_when_cancelled_at_random_moments() {
    let Some(model) = environment::model() else {
        return;
    };
    let mut chances = Chances::from_environment();
    let config = catalog::entry_with(DEFAULT_MODEL, &model, "tokens_per_s = 4");
    let service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    assert!(
        service.has_logged("model loaded", 1, LONG).await,
        "{}",
        service.log_text()
    );
    // One in validation, one at once, then all along the run of all of them, which takes some 20 s.
    let big = (20_000, Duration::ZERO);
    let small = [0, 300, 3_000, 6_000, 9_000, 12_000, 18_000, 30_000]
        .map(|longest| (40, chances.span_ms(longest)));
    let cancels: Vec<_> = std::iter::once(big)
        .chain(small)
        .map(|(lines, moment)| tokio::spawn(cancel_after(service.client(), lines, 8, moment)))
        .collect();
    let mut kept = 0;
    for cancel in cancels {
        let (_, completed) = cancel.await.expect("every batch ends as promised");
        kept += completed;
    }
    assert!(kept > 0, "no line was finished before its cancel");
}

/// Reports 57, 59.
#[tokio::test(flavor = "multi_thread")]
async fn every_line_is_batch_cancelled_when_no_worker_ran_any() {
    let service = tiny_service(0);
    let client = service.client();
    let batch = client
        .submit(requests("tiny", 30, 4))
        .await
        .expect("submit");
    let waiting = wait_for_status(&client, &batch, "in_progress").await;
    assert_eq!(
        waiting["progress"]["waiting_reason"], "no_worker",
        "report 73: {waiting}"
    );
    let cancel = client.cancel(&batch).await.expect("cancel");
    assert_eq!(
        (cancel.status, &cancel.body["status"]),
        (200, &json!("cancelling")),
        "{}",
        cancel.body
    );
    let repeated = client.cancel(&batch).await.expect("cancel again");
    assert_eq!(repeated.status, 200, "{}", repeated.body);
    let ended = client
        .wait(&batch, BAR)
        .await
        .expect("it ends within the bar");
    assert_eq!(ended["status"], "cancelled", "{ended}");
    let results = proof::complete(&client, &ended, &ids(30)).await;
    assert_eq!(results.output.len(), 0);
    proof::check_unexecuted(&results, "batch_cancelled");
    assert_eq!(ended["cost"]["amount"], 0.0, "{ended}");
}

/// Report 61.
#[tokio::test(flavor = "multi_thread")]
async fn cancel_is_a_conflict_that_is_not_retried_when_the_batch_has_ended_otherwise() {
    let service = tiny_service(1);
    let client = service.client();
    let good = client.submit(requests("tiny", 3, 4)).await.expect("submit");
    let bad = client
        .submit(requests("no-such-model", 3, 4))
        .await
        .expect("submit");
    for (batch, status) in [(good, "completed"), (bad, "failed")] {
        let ended = client.wait(&batch, LONG).await.expect("it ends");
        assert_eq!(ended["status"], status, "{ended}");
        let cancel = client.cancel(&batch).await.expect("cancel");
        assert_eq!(
            (cancel.status, cancel.should_retry.as_deref()),
            (409, Some("false")),
            "{}",
            cancel.body
        );
        let message = cancel.body["error"]["message"]
            .as_str()
            .expect("an error has a message");
        assert!(message.contains(status), "{message}");
        assert_eq!(
            client.batch(&batch).await.expect("read it"),
            ended,
            "report 63: the end stays as it was"
        );
    }
}

/// Report 59: a cancel while the result files are being written, as near to that as a test gets.
#[tokio::test(flavor = "multi_thread")]
async fn batch_ends_when_cancelled_around_its_completion() {
    let mut chances = Chances::from_environment();
    let service = tiny_service(1);
    let client = service.client();
    for _ in 0..12 {
        let batch = client
            .submit(requests("tiny", 200, 2))
            .await
            .expect("submit");
        let moment = chances.span_ms(2_500);
        let until = tokio::time::Instant::now() + moment;
        while tokio::time::Instant::now() < until {
            if client.batch(&batch).await.expect("read it")["status"] == "finalizing" {
                break;
            }
        }
        let cancel = client.cancel(&batch).await.expect("cancel");
        let ended = client
            .wait(&batch, BAR)
            .await
            .expect("it ends within the bar");
        match cancel.status {
            200 => assert_eq!(ended["status"], "cancelled", "{ended}"),
            409 => assert_eq!(ended["status"], "completed", "{ended}"),
            other => panic!("{other}: {}", cancel.body),
        }
        if Counts::of(&ended).total > 0 {
            let results = proof::complete(&client, &ended, &ids(200)).await;
            proof::check_unexecuted(&results, "batch_cancelled");
        }
    }
}

/// Reports 59, 67: the promise to cancel survives the process that gave it.
#[tokio::test(flavor = "multi_thread")]
async fn batch_ends_cancelled_when_everything_is_killed_after_the_cancel() {
    let mut chances = Chances::from_environment();
    let mut service = tiny_service(0);
    for _ in 0..3 {
        let client = service.client();
        let batch = client
            .submit(requests("tiny", 30, 4))
            .await
            .expect("submit");
        tokio::time::sleep(chances.span_ms(300)).await;
        assert_eq!(client.cancel(&batch).await.expect("cancel").status, 200);
        tokio::time::sleep(chances.span_ms(300)).await;
        service.kill_all();
        service.restart();
        let client = service.client();
        let ended = client
            .wait(&batch, BAR)
            .await
            .expect("it ends within the bar");
        assert_eq!(ended["status"], "cancelled", "{ended}");
        if Counts::of(&ended).total > 0 {
            let results = proof::complete(&client, &ended, &ids(30)).await;
            proof::check_unexecuted(&results, "batch_cancelled");
        }
    }
}

async fn wait_for_status(client: &Client, batch: &str, status: &str) -> serde_json::Value {
    let until = tokio::time::Instant::now() + LONG;
    loop {
        let seen = client.batch(batch).await.expect("read the batch");
        if seen["status"] == status {
            return seen;
        }
        assert!(
            tokio::time::Instant::now() < until,
            "never {status}: {seen}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

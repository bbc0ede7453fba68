//! Batches that end in every way.

use std::time::Duration;

use serde_json::{Value, json};

use crate::catalog::{self, DEFAULT_MODEL, ids, requests};
use crate::client::Client;
use crate::proof::{self, Counts};
use crate::site::Site;

/// Between two looks at a batch.
const POLL: Duration = Duration::from_millis(250);

/// Polls until `done` says so, and follows the counts: none may go back.
async fn follow(
    client: &Client,
    batch: &str,
    limit: Duration,
    done: impl Fn(&Value) -> bool,
) -> Value {
    let mut counts = Counts::default();
    let until = tokio::time::Instant::now() + limit;
    loop {
        let seen = client.batch(batch).await.expect("read the batch");
        counts.follow(&seen);
        if done(&seen) {
            return seen;
        }
        assert!(
            tokio::time::Instant::now() < until,
            "not there after {limit:?}: {seen}"
        );
        tokio::time::sleep(POLL).await;
    }
}

fn has_ended(batch: &Value) -> bool {
    matches!(
        batch["status"].as_str(),
        Some("completed" | "failed" | "expired" | "cancelled")
    )
}

/// A batch of good lines, bad lines and an unserved parameter completes, each line in its file, in input order.
///
/// # Panics
///
/// If not.
pub async fn mixed_batch(site: &dyn Site) {
    let client = site.client();
    let ids = ids(12);
    let lines: Vec<String> = ids
        .iter()
        .enumerate()
        .map(|(at, id)| match at {
            3 => catalog::line(id, DEFAULT_MODEL, 0),
            7 => json!({
                "custom_id": id, "method": "POST", "url": "/v1/chat/completions",
                "body": {"model": DEFAULT_MODEL, "messages": "not a list"},
            })
            .to_string(),
            _ => catalog::line(id, DEFAULT_MODEL, 6),
        })
        .collect();
    let batch = client
        .submit(catalog::file(&lines))
        .await
        .expect("submit the batch");
    let ended = follow(&client, &batch, site.patience(), has_ended).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let results = proof::complete(&client, &ended, &ids).await;
    assert_eq!(results.error_ids(), ["line-3", "line-7"]);
}

/// A batch that is cancelled while it runs keeps what is done.
///
/// # Panics
///
/// If not.
pub async fn cancel(site: &dyn Site) {
    let client = site.client();
    let ids = ids(200);
    let batch = client
        .submit(requests(DEFAULT_MODEL, ids.len(), 160))
        .await
        .expect("submit the batch");
    follow(&client, &batch, site.patience(), |seen| {
        assert!(
            !has_ended(seen),
            "it ended before it could be cancelled: {seen}"
        );
        seen["status"] == "in_progress"
    })
    .await;
    let cancelled = client.cancel(&batch).await.expect("cancel");
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    let ended = follow(&client, &batch, site.patience(), has_ended).await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
    let results = proof::complete(&client, &ended, &ids).await;
    proof::check_unexecuted(&results, "batch_cancelled");
    assert!(!results.errors.is_empty(), "no line was left to cancel");
}

/// A batch whose window closes while it runs expires, and keeps what is done. The site closes windows of one hour
/// after some seconds.
///
/// # Panics
///
/// If not.
pub async fn expiry(site: &dyn Site) {
    let client = site.client();
    // More than two cores with matrix units can do in the window's 20 s, and within the deployment's 1,000 lines.
    let ids = ids(1_000);
    let input = client
        .upload(requests(DEFAULT_MODEL, ids.len(), 400))
        .await
        .expect("upload");
    let batch = client
        .create_within(&input, "1h")
        .await
        .expect("create the batch");
    let ended = follow(&client, &batch, site.patience(), has_ended).await;
    assert_eq!(ended["status"], "expired", "{ended}");
    let results = proof::complete(&client, &ended, &ids).await;
    proof::check_unexecuted(&results, "batch_expired");
    assert!(!results.errors.is_empty(), "no line was left to expire");
}

/// A batch completes although its workers are killed, and no line is lost or there twice.
///
/// # Panics
///
/// If not.
pub async fn killed_worker(site: &mut dyn Site) {
    let client = site.client();
    let ids = ids(120);
    let batch = client
        .submit(requests(DEFAULT_MODEL, ids.len(), 24))
        .await
        .expect("submit the batch");
    follow(&client, &batch, site.patience(), |seen| {
        Counts::of(seen).completed > 0
    })
    .await;
    assert!(site.replace_workers() > 0, "no worker was there to kill");
    let ended = follow(&client, &batch, site.patience(), has_ended).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    let results = proof::complete(&client, &ended, &ids).await;
    assert_eq!(results.output.len(), ids.len(), "every line has its answer");
}

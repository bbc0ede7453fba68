//! `/batches`.

use std::collections::BTreeSet;
use std::time::Duration;

use batch_core::id::{BatchId, TenantId};
use batch_core::lifecycle::Event;
use batch_core::message::{QueueName, StageJob};
use batch_core::settings::Settings;
use batch_io::store::Stage;
use serde_json::{Value, json};

use crate::client::{Answer, Call};
use crate::files::walk;
use crate::server::{LINE, Server};

fn body(input: &str) -> Value {
    json!({"input_file_id": input, "endpoint": "/v1/chat/completions", "completion_window": "24h"})
}

async fn create(server: &Server, input: &str) -> Value {
    Call::post("/v1/batches", body(input).to_string())
        .send(server.address)
        .await
        .ok()
}

fn id(batch: &Value) -> &str {
    batch["id"].as_str().unwrap()
}

async fn queued(server: &Server, queue: QueueName) -> Vec<StageJob> {
    let queue =
        server
            .context
            .platform
            .queue
            .receive(&queue, 10, Duration::from_secs(60), Duration::ZERO);
    queue
        .await
        .unwrap()
        .iter()
        .map(|message| serde_json::from_str(&message.body).unwrap())
        .collect()
}

#[tokio::test]
async fn a_created_batch_is_validating_and_its_validation_is_asked_for() {
    let server = Server::start().await;
    let input = server.upload(LINE.as_bytes()).await;
    let mut asked = body(&input);
    asked["metadata"] = json!({"z": "1", "a": "2"});
    asked["unknown"] = json!([1]);
    let batch = Call::post("/v1/batches", asked.to_string())
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        (batch["status"].as_str(), batch["object"].as_str()),
        (Some("validating"), Some("batch"))
    );
    assert_eq!(
        batch["request_counts"],
        json!({"total": 0, "completed": 0, "failed": 0})
    );
    assert_eq!(
        batch["expires_at"].as_i64().unwrap() - batch["created_at"].as_i64().unwrap(),
        86_400
    );
    assert_eq!(batch["metadata"].to_string(), r#"{"z":"1","a":"2"}"#);
    let jobs = queued(&server, QueueName::Validate).await;
    assert_eq!(
        jobs.iter()
            .map(|job| job.batch.to_string())
            .collect::<Vec<_>>(),
        [id(&batch)]
    );
    let again = Call::get(format!("/v1/batches/{}", id(&batch)))
        .send(server.address)
        .await
        .ok();
    assert_eq!(again, batch);
    let view = server
        .context
        .store
        .load_batch(&TenantId::default_tenant(), jobs[0].batch)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(view.params.input_bytes, Some(LINE.len() as u64));
    assert_eq!(
        (view.params.prices.len(), view.params.rates.get("tiny")),
        (2, Some(&100))
    );
}

#[tokio::test]
async fn an_input_that_is_not_there_is_no_error_of_the_request() {
    let server = Server::start().await;
    let deleted = server.upload(LINE.as_bytes()).await;
    Call::new("DELETE", format!("/v1/files/{deleted}"))
        .send(server.address)
        .await
        .ok();
    let foreign = server.upload(LINE.as_bytes()).await;
    let calls = [
        Call::post("/v1/batches", body("file-x").to_string()),
        Call::post("/v1/batches", body(&deleted).to_string()),
        Call::post("/v1/batches", body(&foreign).to_string()).tenant("stranger"),
    ];
    for call in calls {
        let batch = call.send(server.address).await.ok();
        assert_eq!(batch["status"], "validating");
    }
}

#[tokio::test]
async fn pages_hold_every_batch_once_newest_first() {
    let server = Server::start().await;
    let mut made = Vec::new();
    for number in 0..99 {
        made.push(id(&create(&server, &format!("file-{number}")).await).to_owned());
    }
    made.reverse();
    assert_eq!(walk(&server, "/v1/batches", "limit=10").await, made);
    assert_eq!(walk(&server, "/v1/batches", "limit=100").await, made);
    let page = Call::get("/v1/batches").send(server.address).await.ok();
    assert_eq!(
        (
            page["data"].as_array().unwrap().len(),
            page["has_more"].as_bool()
        ),
        (20, Some(true))
    );
    let stranger = Call::get("/v1/batches")
        .tenant("stranger")
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        stranger,
        json!({"object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false})
    );
    let last = made.last().unwrap();
    let end = Call::get(format!("/v1/batches?after={last}"))
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        (
            end["data"].as_array().unwrap().len(),
            end["has_more"].as_bool()
        ),
        (0, Some(false))
    );
}

async fn cancel(server: &Server, batch: &str) -> Answer {
    Call::new("POST", format!("/v1/batches/{batch}/cancel"))
        .send(server.address)
        .await
}

#[tokio::test]
async fn cancelling_is_repeatable_and_asks_for_the_files() {
    let server = Server::start().await;
    let batch = create(&server, "file-x").await;
    for _ in 0..2 {
        let cancelled = cancel(&server, id(&batch)).await.ok();
        assert_eq!(
            (
                cancelled["status"].as_str(),
                cancelled["cancelling_at"].is_i64()
            ),
            (Some("cancelling"), true)
        );
    }
    let jobs = queued(&server, QueueName::Finalize).await;
    assert!(jobs.iter().all(|job| job.batch.to_string() == id(&batch)) && !jobs.is_empty());
    let foreign = Call::post(format!("/v1/batches/{}/cancel", id(&batch)), "{}").tenant("stranger");
    assert_eq!(foreign.send(server.address).await.refusal().0, 404);
}

#[tokio::test]
async fn a_batch_that_has_ended_cannot_be_cancelled() {
    let server = Server::start().await;
    let (failed, expired) = (
        create(&server, "file-x").await,
        create(&server, "file-y").await,
    );
    let tenant = TenantId::default_tenant();
    let (store, now) = (&server.context.store, server.now());
    let batch: BatchId = id(&failed).parse().unwrap();
    let claimed = store
        .claim_stage(&tenant, batch, Stage::Validate, now)
        .await
        .unwrap()
        .unwrap();
    assert!(
        store
            .reject(&tenant, batch, claimed.epoch, Vec::new(), now)
            .await
            .unwrap()
    );
    store
        .apply(
            &tenant,
            id(&expired).parse().unwrap(),
            Event::WindowClosed,
            now,
        )
        .await
        .unwrap();
    for (batch, status) in [(&failed, "failed"), (&expired, "expired")] {
        let answer = cancel(&server, id(batch)).await;
        assert_eq!(answer.refusal(), (409, "-".to_owned(), "-".to_owned()));
        assert_eq!(
            answer.json()["error"]["message"],
            format!("Cannot cancel a batch with status '{status}'.")
        );
        assert_eq!(answer.header("x-should-retry"), "false");
    }
    let failed = Call::get(format!("/v1/batches/{}", id(&failed)))
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        (
            failed["errors"]["object"].as_str(),
            failed["failed_at"].is_i64()
        ),
        (Some("list"), true)
    );
}

#[tokio::test]
async fn too_many_creates_must_wait() {
    let settings = Settings {
        batches_per_hour_max: 2,
        ..Settings::EMBEDDED
    };
    let server = Server::start_with(settings, "/v1").await;
    create(&server, "file-1").await;
    create(&server, "file-2").await;
    let inline = json!({"requests": [{}], "endpoint": "/v1/responses", "completion_window": "24h"});
    for body in [body("file-3"), inline] {
        let answer = Call::post("/v1/batches", body.to_string())
            .send(server.address)
            .await;
        assert_eq!(
            answer.refusal(),
            (429, "-".to_owned(), "rate_limit_exceeded".to_owned())
        );
        let wait: u32 = answer.header("retry-after").parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
    }
    assert!(
        walk(&server, "/v1/files", "").await.is_empty(),
        "no file is left of inline requests"
    );
    let stranger = Call::post("/v1/batches", body("file-1").to_string()).tenant("stranger");
    stranger.send(server.address).await.ok();
}

#[tokio::test]
async fn inline_requests_become_an_input_file() {
    let server = Server::start().await;
    let requests = format!(
        r#"{{"requests":[{LINE},{{"seed":9007199254740993}}],"endpoint":"/v1/chat/completions","completion_window":"1h"}}"#
    );
    let batch = Call::post("/v1/batches", requests)
        .send(server.address)
        .await
        .ok();
    let path = format!(
        "/v1/files/{}/content",
        batch["input_file_id"].as_str().unwrap()
    );
    let content = Call::get(path).send(server.address).await;
    assert_eq!(
        String::from_utf8(content.body).unwrap(),
        format!("{LINE}\n{{\"seed\":9007199254740993}}\n")
    );
}

/// One create, and what comes back: a batch by the order of its first appearance, and whether it is an old one.
async fn attempt(server: &Server, seen: &mut Vec<String>, call: Call) -> (usize, bool) {
    let answer = call.send(server.address).await;
    let batch = id(&answer.ok()).to_owned();
    let place = seen
        .iter()
        .position(|other| *other == batch)
        .unwrap_or(seen.len());
    if place == seen.len() {
        seen.push(batch);
    }
    (place, answer.header("x-nightshift-deduplicated") == "true")
}

fn retry(input: &str, count: u32) -> Call {
    Call::post("/v1/batches", body(input).to_string())
        .header("x-stainless-retry-count", &count.to_string())
}

#[tokio::test]
async fn a_retried_create_finds_the_batch_that_its_lost_answer_made() {
    let server = Server::start().await;
    let mut seen = Vec::new();
    assert_eq!(
        attempt(&server, &mut seen, retry("file-1", 0)).await,
        (0, false)
    );
    assert_eq!(
        attempt(&server, &mut seen, retry("file-1", 1)).await,
        (0, true)
    );
    assert_eq!(
        attempt(&server, &mut seen, retry("file-1", 2)).await,
        (0, true)
    );
    assert_eq!(
        attempt(&server, &mut seen, retry("file-1", 0)).await,
        (1, false),
        "a first attempt is a new wish"
    );
    assert_eq!(
        attempt(&server, &mut seen, retry("file-2", 1)).await,
        (2, false),
        "another body"
    );
    let other_key = retry("file-1", 1).tenant("stranger");
    assert_eq!(
        attempt(&server, &mut seen, other_key).await,
        (3, false),
        "another key"
    );
}

#[tokio::test]
async fn a_retried_create_is_a_new_wish_when_its_batch_was_seen_or_is_old() {
    let server = Server::start().await;
    let mut seen = Vec::new();
    attempt(&server, &mut seen, retry("file-1", 0)).await;
    Call::get(format!("/v1/batches/{}", seen[0]))
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        attempt(&server, &mut seen, retry("file-1", 1)).await,
        (1, false),
        "seen"
    );
    attempt(&server, &mut seen, retry("file-2", 0)).await;
    server.turn_clock(600_001);
    assert_eq!(
        attempt(&server, &mut seen, retry("file-2", 1)).await,
        (3, false),
        "old"
    );
}

#[tokio::test]
async fn a_retry_of_a_refused_create_finds_no_older_batch() {
    let settings = Settings {
        batches_per_hour_max: 1,
        ..Settings::EMBEDDED
    };
    let server = Server::start_with(settings, "/v1").await;
    attempt(&server, &mut Vec::new(), retry("file-1", 0)).await;
    for count in [0, 1, 2] {
        let answer = retry("file-1", count).send(server.address).await;
        assert_eq!(answer.refusal().0, 429, "{count}");
    }
}

#[tokio::test]
async fn an_idempotency_key_makes_one_batch() {
    let server = Server::start().await;
    let keyed = |input: &str| retry(input, 0).header("idempotency-key", "wish-1");
    let mut seen = Vec::new();
    assert_eq!(
        attempt(&server, &mut seen, keyed("file-1")).await,
        (0, false)
    );
    Call::get(format!("/v1/batches/{}", seen[0]))
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        attempt(&server, &mut seen, keyed("file-1")).await,
        (0, true)
    );
    let mismatch = keyed("file-2").send(server.address).await;
    assert_eq!(
        mismatch.refusal(),
        (409, "-".to_owned(), "idempotency_key_reused".to_owned())
    );
    assert_eq!(mismatch.header("x-should-retry"), "false");
    server.turn_clock(24 * 3_600_000 + 60_000);
    assert_eq!(
        attempt(&server, &mut seen, keyed("file-1")).await,
        (1, false),
        "a day later"
    );
}

#[tokio::test]
async fn concurrent_creates_make_a_batch_each() {
    let server = Server::start().await;
    let calls: Vec<_> = (0..8).map(|_| retry("file-1", 0)).collect();
    let answers =
        futures::future::join_all(calls.iter().map(|call| call.send(server.address))).await;
    let ids: BTreeSet<_> = answers
        .iter()
        .map(|answer| id(&answer.ok()).to_owned())
        .collect();
    assert_eq!(ids.len(), 8);
}

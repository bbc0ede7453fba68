//! Batches of a service whose models a server has.

use std::time::Duration;

use serde_json::{Value, json};
use system_tests::catalog::{self, INPUT_PER_MILLION, OUTPUT_PER_MILLION, ids, requests};
use system_tests::client::Client;
use system_tests::command::{nightshift, run};
use system_tests::inside;
use system_tests::peer::{self, Act, Call, MODEL, Peer};
use system_tests::proof::{self, Counts};
use system_tests::service::{Options, Service};

const LONG: Duration = Duration::from_secs(120);

const BRIEF: Duration = Duration::from_millis(50);

fn service(config: String) -> Service {
    Service::start(Options {
        config: Some(config),
        ..Options::default()
    })
}

/// Returns a manner that answers in its time, and no more than a few at once.
fn at_leisure(call: &Call) -> Act {
    match call.in_flight {
        0..=4 => Act::AnswerAfter(BRIEF),
        _ => Act::Say(429, "", "{}".to_owned()),
    }
}

/// Polls until so many lines are done.
async fn done(client: &Client, batch: &str, lines: u64) {
    let until = tokio::time::Instant::now() + LONG;
    loop {
        let seen = client.batch(batch).await.expect("read the batch");
        let counts = Counts::of(&seen);
        if counts.completed + counts.failed >= lines {
            return;
        }
        assert!(tokio::time::Instant::now() < until, "it stands: {seen}");
        tokio::time::sleep(BRIEF).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_is_answered_by_the_server_and_billed_as_any_other() {
    let refusal = r#"{ "error":{"message":"too long","code":7.0} }"#;
    let peer = Peer::start(move |call| match call.prompt().as_str() {
        "Say line-3." => Act::Say(400, "", refusal.to_owned()),
        "Say line-5." if call.nth == 1 => Act::Say(500, "", "oops".to_owned()),
        _ => Act::Answer,
    })
    .await;
    let service = service(peer.entry("big", "aliases = [\"alias\"]\nserver.requests_max = 3"));
    let client = service.client();
    let mut lines: Vec<String> = ids(20)
        .iter()
        .map(|id| catalog::line(id, "big", 4))
        .collect();
    lines[1] = catalog::line("line-1", "alias", 4);
    let batch = client.submit(catalog::file(&lines)).await.expect("submit");
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    assert_eq!(ended["status"], "completed", "{ended}");
    let results = proof::complete(&client, &ended, &ids(20)).await;
    assert_eq!(results.error_ids(), ["line-3"]);

    let calls = peer.calls();
    assert_eq!(calls.len(), 21, "one line was sent twice");
    assert!(
        calls
            .iter()
            .all(|call| call.in_flight <= 3 && call.key.is_none())
    );
    let text = |field: &'static str| {
        let (client, id) = (&client, ended[field].as_str().expect("it has the file"));
        async move { String::from_utf8(client.content(id).await.expect("download")).expect("text") }
    };
    let output = text("output_file_id").await;
    for call in calls.iter().filter(|call| call.prompt() != "Say line-3.") {
        let body: Value = serde_json::from_str(&call.body).expect("JSON");
        assert_eq!(body["model"], MODEL);
        let answer = format!(r#""body":{}}}"#, peer::answer_to(call));
        assert!(output.contains(&answer), "not byte for byte: {answer}");
    }
    let errors = text("error_file_id").await;
    assert!(
        errors.contains(r#""status_code":400,"request_id":"#),
        "{errors}"
    );
    assert!(
        errors.contains(&format!(r#""body":{refusal}}}"#)),
        "{errors}"
    );

    let (input, output) = (19 * peer::INPUT_TOKENS, 19 * peer::OUTPUT_TOKENS);
    assert_eq!(ended["usage"]["input_tokens"], input, "{ended}");
    assert_eq!(ended["usage"]["output_tokens"], output, "{ended}");
    let cached = &ended["usage"]["input_tokens_details"]["cached_tokens"];
    assert_eq!(*cached, 19 * peer::CACHED_TOKENS, "{ended}");
    let cost = (input as f64 * INPUT_PER_MILLION + output as f64 * OUTPUT_PER_MILLION) / 2e6;
    let amount = ended["cost"]["amount"].as_f64().expect("it has a cost");
    assert!((amount - cost).abs() < 1e-9, "{ended}");
    let log = service.log_text();
    assert!(
        !log.contains("Say line") && !log.contains("You said"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn server_makes_embeddings_too() {
    let peer = Peer::start(|_| Act::Answer).await;
    let service = service(peer.entry("big", ""));
    let client = service.client();
    let line = json!({"custom_id": "line-0", "method": "POST", "url": "/v1/embeddings", "body": {"model": "big", "input": "Hi"}});
    let file = client
        .upload(format!("{line}\n").into_bytes())
        .await
        .expect("upload");
    let create =
        json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
    let (_, batch) = client
        .call("POST", "/batches", Some(create))
        .await
        .expect("create");
    let batch = batch["id"].as_str().expect("it has an id");
    let ended = client.wait(batch, LONG).await.expect("it ends");
    let results = proof::complete(&client, &ended, &ids(1)).await;
    let vector = &results.output[0]["response"]["body"]["data"][0]["embedding"];
    assert_eq!(*vector, json!([0.1, -0.002]));
    assert_eq!(peer.calls()[0].path, "/v1/embeddings");
    assert_eq!(
        ended["usage"]["input_tokens"],
        peer::INPUT_TOKENS,
        "{ended}"
    );
}

/// What is committed at a kill is never sent again.
#[tokio::test(flavor = "multi_thread")]
async fn committed_lines_are_not_sent_again_when_everything_is_killed() {
    const LINES: usize = 400;
    let peer = Peer::start(at_leisure).await;
    let mut service = service(peer.entry("big", "server.requests_max = 4"));
    let batch = service
        .client()
        .submit(requests("big", LINES, 4))
        .await
        .expect("submit");
    let mut before: Vec<(usize, Vec<u64>)> = Vec::new();
    for part in 1..=2 {
        done(&service.client(), &batch, part * LINES as u64 / 4).await;
        service.kill_all();
        let committed = inside::committed(&service.data(), &batch).await;
        let lines = committed.expect("read the commits").into_keys().collect();
        before.push((peer.calls().len(), lines));
        service.restart();
    }
    let client = service.client();
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    let results = proof::complete(&client, &ended, &ids(LINES)).await;
    assert!(results.errors.is_empty(), "{:?}", results.errors);
    assert_eq!(
        ended["usage"]["output_tokens"],
        LINES as u64 * peer::OUTPUT_TOKENS
    );
    let calls = peer.calls();
    for (sent, lines) in before {
        assert!(lines.len() >= LINES / 4);
        for line in lines {
            let prompt = format!("Say line-{}.", line - 1);
            let again = calls[sent..].iter().any(|call| call.prompt() == prompt);
            assert!(!again, "line {line} was sent again");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_batch_keeps_what_was_answered_and_sends_no_more() {
    let peer = Peer::start(at_leisure).await;
    let service = service(peer.entry("big", "server.requests_max = 4"));
    let client = service.client();
    let batch = client
        .submit(requests("big", 2_000, 4))
        .await
        .expect("submit");
    done(&client, &batch, 40).await;
    let cancel = client.cancel(&batch).await.expect("cancel");
    assert_eq!(cancel.status, 200, "{}", cancel.body);
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    assert_eq!(ended["status"], "cancelled", "{ended}");
    let results = proof::complete(&client, &ended, &ids(2_000)).await;
    proof::check_unexecuted(&results, "batch_cancelled");
    assert!(results.output.len() >= 40);
    let sent = peer.calls().len();
    tokio::time::sleep(10 * BRIEF).await;
    assert_eq!(
        peer.calls().len(),
        sent,
        "lines of a cancelled batch are sent"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_batch_keeps_what_was_answered() {
    let peer = Peer::start(at_leisure).await;
    let config = peer.entry("big", "server.requests_max = 4") + "[testing]\nwindow_seconds = 8\n";
    let service = service(config);
    let client = service.client();
    let lines = requests("big", 2_000, 4);
    let batch = client.submit_within(lines, "1h").await.expect("submit");
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    assert_eq!(ended["status"], "expired", "{ended}");
    let results = proof::complete(&client, &ended, &ids(2_000)).await;
    proof::check_unexecuted(&results, "batch_expired");
    assert!(!results.output.is_empty(), "{ended}");
}

/// No line is lost or blamed, whether the server is down at first or goes down later.
#[tokio::test(flavor = "multi_thread")]
async fn lines_wait_while_the_server_is_down() {
    const LINES: usize = 300;
    let peer = Peer::start(at_leisure).await;
    let config = peer.entry("big", "server.requests_max = 4");
    let crashed = peer.crash().await;
    let service = service(config);
    let client = service.client();
    let batch = client
        .submit(requests("big", LINES, 4))
        .await
        .expect("submit");
    let words = "the server of a model is not well: its batches wait";
    assert!(
        service.has_logged(words, 1, LONG).await,
        "{}",
        service.log_text()
    );
    // It is looked at every 5 s, and not spoken of each time.
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(service.log_text().matches(words).count(), 1);
    assert!(!service.log_text().contains("shard claimed"));

    let peer = crashed.start().await;
    done(&client, &batch, 60).await;
    let crashed = peer.crash().await;
    assert!(
        service.has_logged(words, 2, LONG).await,
        "{}",
        service.log_text()
    );
    let peer = crashed.start().await;
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    let results = proof::complete(&client, &ended, &ids(LINES)).await;
    assert!(results.errors.is_empty(), "{:?}", results.errors);
    assert!(peer.calls().len() >= LINES);
    let losses = service.log_text().matches("a worker ended").count();
    assert_eq!(losses, 0, "{}", service.log_text());
}

#[tokio::test(flavor = "multi_thread")]
async fn key_comes_from_the_environment_and_is_never_shown() {
    let peer = Peer::start(|_| Act::Answer).await;
    let config = peer.entry("big", "server.api_key_env = \"KEY_OF_THE_TEST\"");
    let service = Service::start(Options {
        config: Some(config.clone()),
        env: vec![("KEY_OF_THE_TEST".to_owned(), "sk-of-the-test".to_owned())],
        log: "trace".to_owned(),
        ..Options::default()
    });
    let client = service.client();
    let batch = client.submit(requests("big", 3, 4)).await.expect("submit");
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    proof::complete(&client, &ended, &ids(3)).await;
    let keys: Vec<_> = peer.calls().into_iter().map(|call| call.key).collect();
    assert_eq!(keys, vec![Some("Bearer sk-of-the-test".to_owned()); 3]);
    assert!(
        !service.log_text().contains("sk-of-the-test"),
        "the log has the key"
    );

    let folder = tempfile::tempdir().expect("make a folder");
    let path = folder.path().join("config.toml");
    std::fs::write(&path, config).expect("write the configuration");
    let mut up = nightshift(["up", "--listen", "127.0.0.1:0", "--data"]);
    up.arg(folder.path().join("data"))
        .arg("--config")
        .arg(&path);
    run(&mut up).check_refusal(2, &["KEY_OF_THE_TEST", "server.api_key_env", "'big'"]);
}

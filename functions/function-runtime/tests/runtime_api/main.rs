//! Every function's real program, under the real Runtime API protocol.
//!
//! The programs are those of `cargo build --workspace --all-features --bins`, in the profile of this test.
//! Tests with events need MiniStack: `NIGHTSHIFT_TEST_MINISTACK` names its program.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails loudly, and says how long starts take"
)]

mod emulator;
mod runtime;

use aws_sdk_sqs::types::MessageSystemAttributeName;
use batch_core::id::{BatchId, FileId, KeyId, TenantId, UploadId};
use batch_core::message::{AssembleJob, DispatchJob, SCHEMA, StageJob};
use batch_core::time::UnixMs;
use batch_core::wire::hash_key;
use batch_io::store::KeyRecord;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::emulator::{Emulator, environment, installed, no_resources};
use crate::runtime::{Outcome, Process};

const FUNCTIONS: [&str; 7] = [
    "api",
    "assemble",
    "authorizer",
    "dispatch",
    "finalize",
    "reconcile",
    "validate",
];

/// Where nothing listens: a start may call nothing.
const NOWHERE: &str = "http://127.0.0.1:9";

const NOW: UnixMs = UnixMs(1_790_000_000_000);

fn message(id: &str, body: &str) -> Value {
    json!({
        "messageId": id,
        "receiptHandle": format!("receipt of {id}"),
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1790000000000",
            "SenderId": "AIDAIENQZJOLO23YVJ4VO", "ApproximateFirstReceiveTimestamp": "1790000000001"},
        "messageAttributes": {},
        "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:test",
        "awsRegion": "us-east-1",
    })
}

fn tick() -> Value {
    json!({"version": "0", "id": "53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa",
        "detail-type": "Scheduled Event", "source": "aws.events", "account": "000000000000",
        "time": "2026-11-08T16:53:00Z", "region": "us-east-1",
        "resources": ["arn:aws:events:us-east-1:000000000000:rule/test-every-minute"], "detail": {}})
}

fn request(method: &str, path: &str, headers: &Value) -> Value {
    json!({
        "resource": "/{proxy+}", "path": path, "httpMethod": method,
        "headers": headers, "multiValueHeaders": null,
        "queryStringParameters": null, "multiValueQueryStringParameters": null,
        "pathParameters": {"proxy": path.trim_start_matches('/')}, "stageVariables": null,
        "requestContext": {"resourcePath": "/{proxy+}", "httpMethod": method, "stage": "v1",
            "requestId": "gateway-request-1", "identity": {"sourceIp": "203.0.113.9"},
            "apiId": "a1b2c3d4e5", "accountId": "000000000000", "path": format!("/v1{path}")},
        "body": null, "isBase64Encoded": false,
    })
}

/// A request for storing a part, as the authorizer gets it.
fn part_request(key: &str, upload: &str) -> Value {
    json!({"type": "REQUEST", "methodArn": "arn:aws:execute-api:us-east-1:0:a/v1/POST/uploads/u/parts",
        "headers": {"Authorization": key}, "pathParameters": {"id": upload}, "requestContext": {}})
}

async fn stop(process: Process) -> Vec<String> {
    process.terminate();
    let (status, log) = process.end().await;
    assert_eq!(status.code(), Some(0), "{log:#?}");
    log
}

/// Returns the lines of metrics in a log.
fn metrics(log: &[String]) -> Vec<Value> {
    log.iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["_aws"].is_object())
        .collect()
}

#[tokio::test]
async fn every_function_starts_without_a_call_and_ends_when_told() {
    let environment = environment(NOWHERE, &no_resources());
    for name in FUNCTIONS {
        let mut process = Process::start(name, &environment).await;
        let ready = process.ready().await;
        eprintln!(
            "{name}: {} ms from the start to the first event",
            ready.as_millis()
        );
        let log = stop(process).await;
        assert_eq!(log.len(), 1, "{name}: {log:#?}");
        assert!(log[0].contains("told to stop"), "{name}: {log:#?}");
    }
}

#[tokio::test]
async fn every_function_names_the_variable_that_it_lacks() {
    for missing in ["NIGHTSHIFT_TABLE", "AWS_LAMBDA_RUNTIME_API"] {
        let complete = environment(NOWHERE, &no_resources());
        for name in FUNCTIONS {
            let process = Process::start_without(missing, name, &complete).await;
            let (status, log) = process.end().await;
            assert_eq!(status.code(), Some(1), "{name}: {log:#?}");
            assert_eq!(log.len(), 1, "{name}: {log:#?}");
            let line: Value = serde_json::from_str(&log[0]).unwrap();
            let error = line["error"].as_str().unwrap();
            assert!(error.contains(missing), "{name}: {error}");
        }
    }
}

#[tokio::test]
async fn functions_of_queues_report_what_failed_and_nothing_else() {
    let Some(program) = installed() else { return };
    let emulator = Emulator::start(program).await;
    let stage = serde_json::to_string(&StageJob {
        schema: SCHEMA,
        tenant: TenantId::default_tenant(),
        batch: BatchId::new(NOW, [1; 16]),
    });
    let assemble = serde_json::to_string(&AssembleJob {
        schema: SCHEMA,
        tenant: TenantId::default_tenant(),
        upload: UploadId::new(NOW, [1; 16]),
        file: FileId::new(NOW, [1; 16]),
    });
    let (stage, assemble) = (stage.unwrap(), assemble.unwrap());
    for (name, gone) in [
        ("validate", &stage),
        ("finalize", &stage),
        ("assemble", &assemble),
    ] {
        let mut process = Process::start(name, &emulator.environment()).await;
        process.ready().await;
        // Nothing knows the batch or the upload: there is nothing to do.
        let records = [
            message("gone", gone),
            message("poison", "my secret"),
            message("newer", r#"{"schema":99,"batch":"my secret"}"#),
        ];
        let outcome = process.invoke(json!({"Records": records})).await;
        let failures = json!([{"itemIdentifier": "poison"}, {"itemIdentifier": "newer"}]);
        assert_eq!(
            outcome,
            Outcome::Answer(json!({"batchItemFailures": failures})),
            "{name}"
        );
        let outcome = process.invoke(json!({"hello": "world"})).await;
        assert!(matches!(outcome, Outcome::Failure(said) if said["errorType"] == "UnknownEvent"));
        let log = stop(process).await;
        assert!(
            log.iter()
                .any(|line| line.contains("\"requestId\":\"request-1\"")),
            "{log:#?}"
        );
        assert!(!log.iter().any(|line| line.contains("secret")), "{log:#?}");
    }
}

#[tokio::test]
async fn a_failed_message_comes_back_long_before_its_visibility_ends() {
    let Some(program) = installed() else { return };
    let emulator = Emulator::start(program).await;
    let (sqs, url) = (emulator.sqs().await, emulator.queue_url("validate"));
    let receive = || {
        sqs.receive_message()
            .queue_url(&url)
            .wait_time_seconds(20)
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount)
            .send()
    };
    let poison = sqs.send_message().queue_url(&url).message_body("poison");
    poison.send().await.unwrap();
    let received = receive().await.unwrap();
    let received = &received.messages()[0];
    let mut record = message("poison", "poison");
    record["receiptHandle"] = json!(received.receipt_handle());
    let mut process = Process::start("validate", &emulator.environment()).await;
    process.ready().await;
    process.invoke(json!({"Records": [record]})).await;
    let again = receive().await.unwrap();
    let count = MessageSystemAttributeName::ApproximateReceiveCount;
    let attributes = again.messages()[0].attributes().unwrap();
    assert_eq!(attributes[&count], "2");
    stop(process).await;
}

#[tokio::test]
async fn dispatch_takes_messages_and_ticks_and_tells_the_backlog() {
    let Some(program) = installed() else { return };
    let emulator = Emulator::start(program).await;
    let mut process = Process::start("dispatch", &emulator.environment()).await;
    process.ready().await;
    let job = serde_json::to_string(&DispatchJob {
        schema: SCHEMA,
        model: Some("m".to_owned()),
    });
    let job = job.unwrap();
    let records = [message("1", &job), message("2", &job), message("3", "[]")];
    let outcome = process.invoke(json!({"Records": records})).await;
    let failures = json!([{"itemIdentifier": "3"}]);
    assert_eq!(
        outcome,
        Outcome::Answer(json!({"batchItemFailures": failures}))
    );
    assert_eq!(process.invoke(tick()).await, Outcome::Answer(json!(null)));
    let told = metrics(&stop(process).await);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert_eq!(
        (&told[0]["Model"], &told[0]["BacklogShards"]),
        (&json!("m"), &json!(0))
    );
    assert_eq!(
        (&told[1]["Profile"], &told[1]["WorkersWanted"]),
        (&json!("cpu"), &json!(1))
    );
}

#[tokio::test]
async fn reconcile_takes_ticks() {
    let Some(program) = installed() else { return };
    let emulator = Emulator::start(program).await;
    let mut process = Process::start("reconcile", &emulator.environment()).await;
    process.ready().await;
    assert_eq!(process.invoke(tick()).await, Outcome::Answer(json!(null)));
    let outcome = process.invoke(json!({"Records": []})).await;
    assert!(matches!(outcome, Outcome::Failure(said) if said["errorType"] == "UnknownEvent"));
    stop(process).await;
}

#[tokio::test]
async fn a_failing_store_is_a_failed_invocation_and_not_the_end() {
    let mut process = Process::start("reconcile", &environment(NOWHERE, &no_resources())).await;
    process.ready().await;
    let outcome = process.invoke(tick()).await;
    assert!(matches!(outcome, Outcome::Failure(said) if said["errorType"] == "IoError"));
    stop(process).await;
}

#[tokio::test]
async fn the_api_answers_in_envelopes() {
    let Some(program) = installed() else { return };
    let emulator = Emulator::start(program).await;
    let mut process = Process::start("api", &emulator.environment()).await;
    process.ready().await;
    for (path, status, code) in [
        ("/nothing", 404, "unknown_url"),
        ("/batches", 401, "invalid_api_key"),
    ] {
        let wrong = json!({"Host": "api.test", "Authorization": "Bearer sk-wrong-0123456789"});
        let outcome = process.invoke(request("GET", path, &wrong)).await;
        let Outcome::Answer(answer) = outcome else {
            panic!("{path}: {outcome:?}")
        };
        assert_eq!(answer["statusCode"], status, "{answer}");
        assert_eq!(answer["isBase64Encoded"], false);
        assert!(answer["multiValueHeaders"]["x-request-id"][0].is_string());
        let body: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
        assert_eq!(body["error"]["code"], code, "{path}");
    }
    let log = stop(process).await;
    assert!(
        log.iter()
            .any(|line| line.contains("gateway-request-1") && line.contains("203.0.113.9")),
        "{log:#?}"
    );
    assert!(
        !log.iter().any(|line| line.contains("sk-wrong")),
        "{log:#?}"
    );
    let told = metrics(&log);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert_eq!(
        (&told[1]["Route"], &told[1]["Status"]),
        (&json!("batches"), &json!("4xx"))
    );
}

#[tokio::test]
async fn an_upload_of_the_api_is_let_through_by_the_authorizer() {
    let Some(program) = installed() else { return };
    let emulator = Emulator::start(program).await;
    let key = KeyRecord {
        id: KeyId::new(NOW, [7; 16]),
        tenant: TenantId::default_tenant(),
        created_at: NOW,
        name: "test".to_owned(),
    };
    let store = emulator.store().await;
    store.put_key(&hash_key("sk-right"), &key).await.unwrap();
    let mut api = Process::start("api", &emulator.environment()).await;
    let mut authorizer = Process::start("authorizer", &emulator.environment()).await;
    api.ready().await;
    authorizer.ready().await;

    let headers = json!({"Host": "api.test", "Authorization": "Bearer sk-right",
        "Content-Type": "application/json"});
    let mut create = request("POST", "/uploads", &headers);
    let body = json!({"filename": "a.jsonl", "purpose": "batch", "bytes": 10,
        "mime_type": "application/jsonl"});
    create["body"] = json!(body.to_string());
    let outcome = api.invoke(create).await;
    let Outcome::Answer(answer) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(answer["statusCode"], 200, "{answer}");
    let upload: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    let upload = upload["id"].as_str().unwrap();

    let outcome = authorizer
        .invoke(part_request("Bearer sk-right", upload))
        .await;
    let Outcome::Answer(policy) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(policy["policyDocument"]["Statement"][0]["Effect"], "Allow");
    assert_eq!(policy["context"]["upload"], upload);
    assert_eq!(policy["context"]["tenant"], "default");
    let outcome = authorizer
        .invoke(part_request("Bearer sk-right", "upload_0"))
        .await;
    let Outcome::Answer(policy) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(policy["policyDocument"]["Statement"][0]["Effect"], "Deny");
    let outcome = authorizer
        .invoke(part_request("Bearer sk-wrong", upload))
        .await;
    // API Gateway answers 401 to this word alone.
    assert!(
        matches!(&outcome, Outcome::Failure(said) if said["errorMessage"] == "Unauthorized"),
        "{outcome:?}"
    );
    stop(api).await;
    stop(authorizer).await;
}

#[tokio::test]
async fn an_event_at_hand_is_answered_before_the_end() {
    for name in ["dispatch", "reconcile"] {
        let store = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = format!("http://{}", store.local_addr().unwrap());
        let mut process = Process::start(name, &environment(&address, &no_resources())).await;
        process.ready().await;
        process.hand(tick());
        // A store that takes the call and does not answer keeps the handler at work.
        let held = store.accept().await.unwrap();
        process.terminate();
        drop((held, store));
        let outcome = process.outcome().await;
        assert!(
            matches!(outcome, Outcome::Failure(_)),
            "{name}: {outcome:?}"
        );
        let (status, log) = process.end().await;
        assert_eq!(status.code(), Some(0), "{name}: {log:#?}");
    }
}

//! `input_s3_uri`: objects outside the service as input.

use batch_core::id::FileId;
use batch_core::message::{AssembleJob, QueueName};
use batch_core::settings::Settings;
use batch_io::port::{Action, ActionKind, Item, RecordKey, WorkKind};
use batch_io::store::DueRef;
use serde_json::json;

use crate::client::{Answer, Call};
use crate::files::walk;
use crate::server::Server;

async fn create(server: &Server, uri: &str) -> Answer {
    let body = json!({"input_s3_uri": uri, "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    Call::post("/v1/batches", body.to_string())
        .send(server.address)
        .await
}

#[tokio::test]
async fn a_batch_of_an_object_gets_a_file_that_is_still_to_come() {
    let server = Server::start().await;
    server.put_object("exports/for-nightshift/nightly/in.jsonl", b"line");
    let batch = create(&server, "s3://exports/for-nightshift/nightly/in.jsonl")
        .await
        .ok();
    assert_eq!(batch["status"], "validating");
    let id = batch["input_file_id"].as_str().unwrap();
    let file = Call::get(format!("/v1/files/{id}"))
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        (
            file["status"].as_str(),
            file["filename"].as_str(),
            file["bytes"].as_u64()
        ),
        (Some("uploaded"), Some("in.jsonl"), Some(4))
    );
    let jobs = server.jobs(&QueueName::Assemble).await;
    let job: AssembleJob = serde_json::from_str(&jobs[0]).unwrap();
    assert_eq!((jobs.len(), job.file.to_string().as_str()), (1, id));
}

#[tokio::test]
async fn objects_that_may_not_be_imported_are_refused() {
    let server = Server::start().await;
    server.put_object("exports/for-nightshift/empty.jsonl", b"");
    server.put_object("exports/other/in.jsonl", b"line");
    let invalid = "invalid_value";
    for (uri, code) in [
        ("s3://exports/other/in.jsonl", "unsupported"),
        ("s3://elsewhere/for-nightshift/in.jsonl", "unsupported"),
        ("s3://exports/for-nightshift/absent.jsonl", invalid),
        ("s3://exports/for-nightshift/../other/in.jsonl", invalid),
        ("s3://exports/for-nightshift/empty.jsonl", invalid),
        ("file:///etc/passwd", invalid),
    ] {
        let refusal = create(&server, uri).await.refusal();
        assert_eq!(
            refusal,
            (400, "input_s3_uri".to_owned(), code.to_owned()),
            "{uri}"
        );
    }
    assert_eq!(server.jobs(&QueueName::Assemble).await, [""; 0]);
}

#[tokio::test]
async fn nothing_is_imported_for_a_batch_that_must_wait() {
    let settings = Settings {
        batches_per_hour_max: 1,
        ..Settings::EMBEDDED
    };
    let server = Server::start_with(settings, "/v1").await;
    server.put_object("exports/for-nightshift/in.jsonl", b"line");
    let uri = "s3://exports/for-nightshift/in.jsonl";
    let made = create(&server, uri).await.ok();
    let refusal = create(&server, uri).await.refusal();
    assert_eq!(
        refusal,
        (429, "-".to_owned(), "rate_limit_exceeded".to_owned())
    );
    let job = only_import(&server).await;
    assert_eq!(made["input_file_id"], job.file.to_string());
    assert_eq!(
        walk(&server, "/v1/files", "").await,
        [job.file.to_string()],
        "the refused batch leaves no file"
    );
}

#[tokio::test]
async fn nothing_is_imported_when_the_batch_cannot_be_made() {
    let server = Server::start().await;
    server.put_object("exports/for-nightshift/in.jsonl", b"line");
    let no_rate = Action {
        key: RecordKey::new("rates", "tiny"),
        kind: ActionKind::Put(Item::default()),
        condition: None,
    };
    let records = &server.context.platform.records;
    records.transact(vec![no_rate]).await.unwrap();
    let uri = "s3://exports/for-nightshift/in.jsonl";
    assert_eq!(create(&server, uri).await.status, 500);
    assert_eq!(server.jobs(&QueueName::Assemble).await, [""; 0]);
    assert!(assemblies(&server).await.is_empty());
    assert!(walk(&server, "/v1/files", "").await.is_empty());
}

/// Returns the job of the only import that is asked for, now or by reconcile.
async fn only_import(server: &Server) -> AssembleJob {
    let jobs = server.jobs(&QueueName::Assemble).await;
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let job: AssembleJob = serde_json::from_str(&jobs[0]).unwrap();
    assert_eq!(assemblies(server).await, [job.file]);
    job
}

/// Finds the files that reconcile would have put together.
async fn assemblies(server: &Server) -> Vec<FileId> {
    let store = &server.context.store;
    let much_later = server.now().plus_ms(1_000 * 3_600_000);
    let due = store.due(WorkKind::Retention, much_later, 100).await;
    let mut files = Vec::new();
    for due in due.unwrap() {
        if let DueRef::Upload { tenant, upload } = due {
            let assembly = store.load_assembly(&tenant, upload).await.unwrap();
            files.extend(assembly.map(|assembly| assembly.file));
        }
    }
    files
}

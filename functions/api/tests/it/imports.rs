//! `input_s3_uri`: objects outside the service as input.

use batch_core::message::{AssembleJob, QueueName};
use serde_json::json;

use crate::client::{Answer, Call};
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

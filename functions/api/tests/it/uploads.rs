//! `/uploads`.

use batch_core::blob_key::BlobKey;
use batch_core::id::{PartId, TenantId};
use batch_core::message::{AssembleJob, QueueName};
use batch_core::settings::Settings;
use serde_json::{Value, json};

use crate::client::{Call, file, form_body, text};
use crate::server::Server;

async fn begin(server: &Server, bytes: usize) -> String {
    let body = json!({"bytes": bytes, "filename": "a.jsonl", "mime_type": "application/jsonl", "purpose": "batch"});
    let upload = Call::post("/v1/uploads", body.to_string())
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        (upload["status"].as_str(), upload["file"].is_null()),
        (Some("pending"), true)
    );
    format!("/v1/uploads/{}", upload["id"].as_str().unwrap())
}

async fn add(server: &Server, upload: &str, bytes: &[u8]) -> String {
    let form = Call::form(&format!("{upload}/parts"), &[file("data", "upload", bytes)]);
    let part = form.send(server.address).await.ok();
    assert_eq!(part["object"], "upload.part");
    part["id"].as_str().unwrap().to_owned()
}

fn complete(upload: &str, part_ids: &[&String], md5: Option<&str>) -> Call {
    Call::post(
        format!("{upload}/complete"),
        json!({"part_ids": part_ids, "md5": md5}).to_string(),
    )
}

async fn content(server: &Server, upload: &Value) -> Vec<u8> {
    assert_eq!(
        (upload["status"].as_str(), upload["file"]["status"].as_str()),
        (Some("completed"), Some("processed"))
    );
    let id = upload["file"]["id"].as_str().unwrap();
    Call::get(format!("/v1/files/{id}/content"))
        .send(server.address)
        .await
        .body
}

#[tokio::test]
async fn parts_become_a_file_in_the_order_of_their_ids() {
    let server = Server::start().await;
    let upload = begin(&server, 9).await;
    let (second, first) = (
        add(&server, &upload, b"6789").await,
        add(&server, &upload, b"12345").await,
    );
    let md5 = "25F9E794323B453885F5181F1B624D0B";
    let done = complete(&upload, &[&first, &second], Some(md5))
        .send(server.address)
        .await
        .ok();
    assert_eq!(content(&server, &done).await, b"123456789");
    assert_eq!(
        (
            done["file"]["bytes"].as_u64(),
            done["file"]["filename"].as_str()
        ),
        (Some(9), Some("a.jsonl"))
    );
}

#[tokio::test]
async fn parts_of_all_sizes_are_put_together() {
    let server = Server::start().await;
    let mib = 1024 * 1024;
    let sizes = [4 * mib, 4 * mib, 0, 6 * mib, 1, 5 * mib, 11 * mib, 3];
    let whole: Vec<u8> = (0..sizes.iter().sum::<usize>())
        .map(|index| (index / 1_000 % 251) as u8)
        .collect();
    let upload = begin(&server, whole.len()).await;
    let (mut rest, mut ids) = (whole.as_slice(), Vec::new());
    for size in sizes {
        let (part, after) = rest.split_at(size);
        ids.push(add(&server, &upload, part).await);
        rest = after;
    }
    let done = complete(&upload, &ids.iter().collect::<Vec<_>>(), None)
        .send(server.address)
        .await
        .ok();
    assert!(
        content(&server, &done).await == whole,
        "the bytes are those of the parts"
    );
    assert_eq!(server.blob_count(), 1, "the parts are gone");
}

#[tokio::test]
async fn a_completion_that_does_not_fit_is_refused_and_may_be_repeated() {
    let server = Server::start().await;
    let upload = begin(&server, 5).await;
    let (part, other) = (
        add(&server, &upload, b"12345").await,
        add(&server, &upload, b"1").await,
    );
    let foreign = add(&server, &begin(&server, 5).await, b"12345").await;
    let wrong_md5 = "0".repeat(32);
    for (call, code) in [
        (complete(&upload, &[&part, &other], None), "bytes_mismatch"),
        (complete(&upload, &[&foreign], None), "invalid_value"),
        (complete(&upload, &[&part, &part], None), "invalid_value"),
        (complete(&upload, &[], None), "invalid_value"),
        (
            complete(&upload, &[&part], Some(&wrong_md5)),
            "md5_mismatch",
        ),
        (complete(&upload, &[&part], Some("?")), "invalid_value"),
    ] {
        let (status, _, found) = call.send(server.address).await.refusal();
        assert_eq!((status, found.as_str()), (400, code));
    }
    complete(&upload, &[&part], None)
        .send(server.address)
        .await
        .ok();
}

#[tokio::test]
async fn an_upload_that_has_ended_takes_nothing_more() {
    let server = Server::start().await;
    let (completed, cancelled, expired) = (
        begin(&server, 1).await,
        begin(&server, 1).await,
        begin(&server, 1).await,
    );
    let part = add(&server, &completed, b"1").await;
    complete(&completed, &[&part], None)
        .send(server.address)
        .await
        .ok();
    add(&server, &cancelled, b"1").await;
    for _ in 0..2 {
        let cancel = Call::new("POST", format!("{cancelled}/cancel"))
            .send(server.address)
            .await
            .ok();
        assert_eq!(
            (cancel["status"].as_str(), cancel["object"].as_str()),
            (Some("cancelled"), Some("upload"))
        );
    }
    let refused =
        |status: &str| format!("This upload cannot be changed any more: its status is '{status}'.");
    for (upload, status) in [
        (&completed, "completed"),
        (&cancelled, "cancelled"),
        (&expired, "expired"),
    ] {
        if status == "expired" {
            server.turn_clock(3_600_000);
        }
        let mut calls = vec![
            complete(upload, &[&part], None),
            Call::form(&format!("{upload}/parts"), &[file("data", "upload", b"1")]),
        ];
        if status != "cancelled" {
            calls.push(Call::post(format!("{upload}/cancel"), "{}"));
        }
        for call in calls {
            let answer = call.send(server.address).await;
            assert_eq!(
                answer.refusal(),
                (400, "upload_id".to_owned(), "upload_not_pending".to_owned())
            );
            assert_eq!(answer.json()["error"]["message"], refused(status));
        }
    }
}

#[tokio::test]
async fn bad_parts_and_uploads_are_refused() {
    let server = Server::start().await;
    let upload = begin(&server, 1).await;
    let parts = format!("{upload}/parts");
    let data = file("data", "upload", b"1");
    for (call, expected) in [
        (
            Call::form(&parts, &[text("other", "x")]),
            (400, "data", "missing_required_parameter"),
        ),
        (
            Call::form(&parts, &[data.clone(), data.clone()]),
            (400, "data", "-"),
        ),
        (
            Call::form("/v1/uploads/upload_x/parts", std::slice::from_ref(&data)),
            (404, "upload_id", "-"),
        ),
        (
            Call::form(&parts, &[data]).tenant("stranger"),
            (404, "upload_id", "-"),
        ),
        (Call::post(&parts, "{}"), (415, "-", "-")),
        (
            Call::post("/v1/uploads/upload_x/cancel", ""),
            (404, "upload_id", "-"),
        ),
        (
            Call::post("/v1/uploads", ""),
            (400, "bytes", "missing_required_parameter"),
        ),
    ] {
        let (status, param, code) = call.send(server.address).await.refusal();
        assert_eq!((status, param.as_str(), code.as_str()), expected);
    }
}

/// Stores a part as API Gateway does: the body of the request, and no record.
async fn put_envelope(server: &Server, upload: &str, body: Vec<u8>) -> String {
    let part = PartId::new(server.now(), (server.context.platform.random)());
    let blob = BlobKey::Part {
        tenant: TenantId::default_tenant(),
        upload: upload.trim_start_matches("/v1/uploads/").parse().unwrap(),
        part,
    };
    let blobs = &server.context.platform.blobs;
    blobs.put(&blob, body.into()).await.unwrap();
    part.to_string()
}

fn envelope(bytes: &[u8]) -> Vec<u8> {
    form_body(&[file("data", "upload", bytes)])
}

#[tokio::test]
async fn parts_without_a_record_are_taken_out_of_their_forms() {
    let server = Server::start().await;
    let mib = 1024 * 1024;
    let whole: Vec<u8> = (0..15 * mib + 7)
        .map(|index| (index / 1_000 % 251) as u8)
        .collect();
    let upload = begin(&server, whole.len()).await;
    let first = put_envelope(&server, &upload, envelope(&whole[..8 * mib])).await;
    let second = add(&server, &upload, &whole[8 * mib..15 * mib]).await;
    let last = put_envelope(&server, &upload, envelope(&whole[15 * mib..])).await;
    put_envelope(&server, &upload, envelope(b"a part that is not used")).await;
    let done = complete(&upload, &[&first, &second, &last], None)
        .send(server.address)
        .await
        .ok();
    assert!(
        content(&server, &done).await == whole,
        "the bytes are those of the parts"
    );
    assert_eq!(server.blob_count(), 1, "the parts are gone");
}

#[tokio::test]
async fn parts_that_are_no_form_are_refused_by_name() {
    let server = Server::start().await;
    let upload = begin(&server, 4).await;
    for (body, fault) in [
        (b"text".to_vec(), "it does not begin with a boundary line"),
        (
            form_body(&[text("file", "text")]),
            "its field is not 'data'",
        ),
        (
            form_body(&[text("data", "text"), text("data", "text")]),
            "it has more than one field",
        ),
        (
            envelope(b"text")[..100].to_vec(),
            "its headers do not end within 4096 bytes",
        ),
    ] {
        let part = put_envelope(&server, &upload, body).await;
        let answer = complete(&upload, &[&part], None).send(server.address).await;
        let expected = (400, "part_ids".to_owned(), "invalid_part".to_owned());
        assert_eq!(answer.refusal(), expected, "{fault}");
        let message = format!("We could not read the form of part '{part}': {fault}.");
        assert_eq!(answer.json()["error"]["message"], message);
    }
    let part = put_envelope(&server, &begin(&server, 4).await, envelope(b"text")).await;
    let (status, param, code) = complete(&upload, &[&part], None)
        .send(server.address)
        .await
        .refusal();
    assert_eq!(
        (status, param.as_str(), code.as_str()),
        (400, "part_ids", "invalid_value")
    );
}

#[tokio::test]
async fn a_large_upload_is_completed_before_its_file_is_there() {
    let settings = Settings {
        inline_assembly_bytes_max: 8,
        ..Settings::EMBEDDED
    };
    let server = Server::start_with(settings, "/v1").await;
    let upload = begin(&server, 9).await;
    let part = put_envelope(&server, &upload, envelope(b"123456789")).await;
    let done = complete(&upload, &[&part], None)
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        (done["status"].as_str(), done["file"]["status"].as_str()),
        (Some("completed"), Some("uploaded"))
    );
    let id = done["file"]["id"].as_str().unwrap();
    let get = |path: String| async move { Call::get(path).send(server.address).await };
    assert_eq!(
        get(format!("/v1/files/{id}")).await.ok()["status"],
        "uploaded"
    );
    let content = get(format!("/v1/files/{id}/content")).await.refusal();
    assert_eq!(
        content,
        (400, "file_id".to_owned(), "file_not_ready".to_owned())
    );
    let again = complete(&upload, &[&part], None)
        .send(server.address)
        .await
        .refusal();
    assert_eq!(again.2, "upload_not_pending");
    let jobs = server.jobs(&QueueName::Assemble).await;
    let job: AssembleJob = serde_json::from_str(&jobs[0]).unwrap();
    assert_eq!((jobs.len(), job.file.to_string().as_str()), (1, id));
    let batch = json!({"input_file_id": id, "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let batch = Call::post("/v1/batches", batch.to_string())
        .send(server.address)
        .await
        .ok();
    assert_eq!(batch["status"], "validating");
}

#[tokio::test]
async fn a_digest_counts_as_much_as_the_copy() {
    let settings = Settings {
        inline_assembly_bytes_max: 8,
        ..Settings::EMBEDDED
    };
    let server = Server::start_with(settings, "/v1").await;
    for (md5, status) in [
        (None, "processed"),
        (Some("827ccb0eea8a706c4c34a16891f84e7b"), "uploaded"),
    ] {
        let upload = begin(&server, 5).await;
        let part = add(&server, &upload, b"12345").await;
        let done = complete(&upload, &[&part], md5)
            .send(server.address)
            .await
            .ok();
        assert_eq!(done["file"]["status"], status);
    }
}

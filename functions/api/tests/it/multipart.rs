//! `POST /files`: every framing that clients use, and every form that is refused.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use batch_core::settings::Settings;
use bytes::Bytes;
use futures::StreamExt;
use proptest::prelude::*;
use tower::ServiceExt;

use crate::client::{Answer, BOUNDARY, Call, file, form_body, text};
use crate::server::{LINE, Server, context};

const JSONL: &str = "{\"a\":1}\r\n{\"b\":\"é\"}\n";

async fn check_stored(server: &Server, call: Call, expected: &str) {
    let object = call.send(server.address).await.ok();
    assert_eq!(
        (object["object"].as_str(), object["status"].as_str()),
        (Some("file"), Some("processed"))
    );
    assert_eq!(object["bytes"], expected.len());
    let id = object["id"].as_str().unwrap();
    let content = Call::get(format!("/v1/files/{id}/content"))
        .send(server.address)
        .await;
    assert_eq!(String::from_utf8(content.body).unwrap(), expected);
}

#[tokio::test]
async fn every_framing_gives_the_same_file() {
    let server = Server::start().await;
    let purpose_first = [
        text("purpose", "batch"),
        file("file", "a.jsonl", JSONL.as_bytes()),
    ];
    let file_first = [
        file("file", "upload", JSONL.as_bytes()),
        text("purpose", "batch"),
        text("expires_after[anchor]", "created_at"),
        text("expires_after[seconds]", "172800"),
        text("custom_llm_provider", "x"),
    ];
    for parts in [&purpose_first[..], &file_first[..]] {
        let call = Call::form("/v1/files", parts);
        check_stored(&server, call.clone(), JSONL).await;
        check_stored(&server, call.clone().chunked(7), JSONL).await;
        check_stored(&server, call.clone().chunked(65_536), JSONL).await;
        let mut extra = form_body(parts);
        extra.extend_from_slice(b"\r\n\r\n");
        check_stored(&server, call.clone().body(extra), JSONL).await;
        let quoted = format!("multipart/form-data; charset=utf-8; boundary=\"{BOUNDARY}\"");
        check_stored(&server, call.header("content-type", &quoted), JSONL).await;
    }
}

#[tokio::test]
async fn a_file_that_looks_like_a_boundary_is_kept() {
    let server = Server::start().await;
    let tricky = format!("{{}}\r\n--{}\r\n--\r\n\r\n-{BOUNDARY}\r\n", &BOUNDARY[1..]);
    let parts = [
        file("file", "a.jsonl", tricky.as_bytes()),
        text("purpose", "batch"),
    ];
    check_stored(&server, Call::form("/v1/files", &parts).chunked(3), &tricky).await;
}

#[tokio::test]
async fn lives_and_purposes_are_kept() {
    let server = Server::start().await;
    let parts = |purpose: &str| {
        vec![
            text("purpose", purpose),
            file("file", "a.pdf", b"%PDF \xff"),
        ]
    };
    for purpose in ["assistants", "fine-tune", "vision", "user_data", "evals"] {
        let object = Call::form("/v1/files", &parts(purpose))
            .send(server.address)
            .await
            .ok();
        assert_eq!(
            (object["purpose"].as_str(), object["expires_at"].is_null()),
            (Some(purpose), true)
        );
    }
    let mut short = parts("vision");
    short.extend([
        text("expires_after[anchor]", "created_at"),
        text("expires_after[seconds]", "3600"),
    ]);
    let object = Call::form("/v1/files", &short)
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        object["expires_at"].as_i64().unwrap() - object["created_at"].as_i64().unwrap(),
        3600
    );
    let id = server.upload(b"{}").await;
    let object = Call::get(format!("/v1/files/{id}"))
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        object["expires_at"].as_i64().unwrap() - object["created_at"].as_i64().unwrap(),
        2_592_000
    );
}

#[tokio::test]
async fn hostile_names_are_stored_and_safe_to_download() {
    let server = Server::start().await;
    let long = format!("{}.jsonl", "n".repeat(5_000));
    for name in [
        "../../etc/passwd.jsonl",
        "/etc/cron.d/x.jsonl",
        "🌙 %0D%0Ax.jsonl",
        "a;b'c.jsonl",
        &long,
        ".jsonl",
    ] {
        let parts = [text("purpose", "batch"), file("file", name, b"{}")];
        let object = Call::form("/v1/files", &parts)
            .send(server.address)
            .await
            .ok();
        assert_eq!(object["filename"].as_str(), Some(name));
        let path = format!("/v1/files/{}/content", object["id"].as_str().unwrap());
        let content = Call::get(path).send(server.address).await;
        let disposition = content.header("content-disposition");
        assert!(
            disposition.is_ascii() && disposition.len() < 1_000,
            "{disposition}"
        );
        assert!(
            disposition.starts_with("attachment; filename=\"") && !disposition.contains(".."),
            "{disposition}"
        );
    }
}

/// Status, param and code.
type Refusal = (u16, &'static str, &'static str);

async fn check_refused(server: &Server, call: Call, expected: Refusal) -> Answer {
    let answer = call.send(server.address).await;
    let (status, param, code) = answer.refusal();
    assert_eq!((status, param.as_str(), code.as_str()), expected);
    answer
}

#[tokio::test]
async fn bad_forms_are_refused_and_leave_nothing() {
    let server = Server::start().await;
    let good = file("file", "a.jsonl", b"{}\n");
    let batch = text("purpose", "batch");
    let missing = "missing_required_parameter";
    let format = "invalid_file_format";
    let forms: Vec<(Vec<Vec<u8>>, Refusal)> = vec![
        (vec![], (400, "file", missing)),
        (vec![batch.clone()], (400, "file", missing)),
        (vec![good.clone()], (400, "purpose", missing)),
        (
            vec![good.clone(), good.clone(), batch.clone()],
            (400, "file", "-"),
        ),
        (
            vec![good.clone(), text("purpose", "batch_output")],
            (400, "purpose", "invalid_value"),
        ),
        (
            vec![text("purpose", &"x".repeat(2_000)), good.clone()],
            (400, "purpose", "string_above_max_length"),
        ),
        (
            vec![
                good.clone(),
                batch.clone(),
                text("expires_after[seconds]", "1"),
            ],
            (400, "expires_after[anchor]", missing),
        ),
        (
            vec![file("file", "a.txt", b"{}"), batch.clone()],
            (400, "file", format),
        ),
        (
            vec![file("file", "a.jsonl", b""), batch.clone()],
            (400, "file", format),
        ),
        (
            vec![batch.clone(), file("file", "a.jsonl", b"\xff\xfe{\0}\0")],
            (400, "file", format),
        ),
        (
            vec![batch.clone(), file("file", "a.jsonl", b"{oops}\n{}")],
            (400, "file", format),
        ),
        (
            vec![
                batch.clone(),
                file("file", "a.jsonl", b"\n{\"a\":\"\xff\"}"),
            ],
            (400, "file", format),
        ),
    ];
    for (parts, expected) in forms {
        check_refused(&server, Call::form("/v1/files", &parts), expected).await;
    }
    let list = Call::get("/v1/files").send(server.address).await.ok();
    assert_eq!(list["data"].as_array().unwrap().len(), 0);
    server.assert_blobs_go().await;
}

#[tokio::test]
async fn what_was_found_instead_of_jsonl_is_named() {
    let server = Server::start().await;
    for (bytes, found) in [
        (&b""[..], "the file is empty"),
        (b"\xff\xfe{\0", "UTF-16 (little-endian)"),
        (b"\n\n{oops}", "line 3 is not JSON"),
    ] {
        let parts = [text("purpose", "batch"), file("file", "a.jsonl", bytes)];
        let message = Call::form("/v1/files", &parts)
            .send(server.address)
            .await
            .json()["error"]["message"]
            .to_string();
        assert!(
            message.contains("Invalid file format") && message.contains(found),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_file_that_is_too_large_is_refused_after_it_was_sent() {
    let settings = Settings {
        file_bytes_max: 1_000_000,
        ..Settings::EMBEDDED
    };
    let server = Server::start_with(settings, "/v1").await;
    let large = format!("{{}}\n{}", " ".repeat(3_000_000));
    for parts in [
        [
            text("purpose", "batch"),
            file("file", "a.jsonl", large.as_bytes()),
        ],
        [
            file("file", "a.jsonl", large.as_bytes()),
            text("purpose", "batch"),
        ],
    ] {
        check_refused(
            &server,
            Call::form("/v1/files", &parts).chunked(60_000),
            (413, "-", "content_too_large"),
        )
        .await;
    }
    server.assert_blobs_go().await;
}

#[tokio::test]
async fn a_broken_upload_leaves_nothing() {
    let server = Server::start().await;
    let parts = [
        text("purpose", "batch"),
        file("file", "a.jsonl", "{}\n".repeat(200_000).as_bytes()),
    ];
    let call = Call::form("/v1/files", &parts);
    for cut in [100, 300, 400, 10_000, 500_000] {
        call.clone().cut_after(cut).try_send(server.address).await;
        call.clone()
            .chunked(1_000)
            .cut_after(cut)
            .try_send(server.address)
            .await;
    }
    let unfinished = form_body(&parts);
    for end in [0, 20, 80, 150, 200, 5_000, unfinished.len() - 10] {
        let answer = call
            .clone()
            .body(&unfinished[..end])
            .send(server.address)
            .await;
        assert_eq!(answer.refusal().0, 400, "{end}");
    }
    assert_eq!(
        Call::get("/v1/files").send(server.address).await.ok()["data"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    server.assert_blobs_go().await;
}

#[tokio::test]
async fn endless_headers_of_a_part_are_refused() {
    let server = Server::start().await;
    let body = format!("--{BOUNDARY}\r\nx: {}", "x".repeat(4_000_000));
    check_refused(
        &server,
        Call::form("/v1/files", &[]).body(body),
        (400, "-", "-"),
    )
    .await;
    let preamble = "x".repeat(4_000_000);
    check_refused(
        &server,
        Call::form("/v1/files", &[]).body(preamble),
        (400, "-", "-"),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stalled_upload_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let (context, _) = context(dir.path(), Settings::EMBEDDED);
    let begun = form_body(&[file("file", "a.jsonl", b"{}\n")]);
    let head = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(begun[..170].to_vec()))]);
    let body = Body::from_stream(head.chain(futures::stream::pending()));
    let request = http::Request::post("/v1/files")
        .header("authorization", "Bearer sk-default")
        .header(
            "content-type",
            format!("multipart/form-data; boundary={BOUNDARY}"),
        )
        .body(body)
        .unwrap();
    let answer = api::router(context).oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 408);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn chunk_borders_do_not_matter(
        content in "\\{\\}\n[a-z\r\n-]{0,200}",
        cuts in prop::collection::vec(1_usize..90, 1..60),
        purpose_first: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stored = runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let (context, _) = context(dir.path(), Settings::EMBEDDED);
            let router = api::router(Arc::clone(&context));
            let mut parts = vec![file("file", "a.jsonl", content.as_bytes()), text("purpose", "batch")];
            if purpose_first {
                parts.reverse();
            }
            let mut rest = Bytes::from(form_body(&parts));
            let mut chunks = Vec::new();
            for cut in cuts.iter().cycle().take(2_000) {
                chunks.push(Ok::<_, std::io::Error>(rest.split_to((*cut).min(rest.len()))));
            }
            chunks.push(Ok(rest));
            let request = |method: &str, path: String| http::Request::builder()
                .method(method)
                .uri(path)
                .header("authorization", "Bearer sk-default")
                .header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"));
            let body = Body::from_stream(futures::stream::iter(chunks));
            let answer = router.clone().oneshot(request("POST", "/v1/files".to_owned()).body(body).unwrap()).await.unwrap();
            let object: serde_json::Value =
                serde_json::from_slice(&to_bytes(answer.into_body(), 10_000).await.unwrap()).unwrap();
            let path = format!("/v1/files/{}/content", object["id"].as_str().unwrap_or("none"));
            let answer = router.oneshot(request("GET", path).body(Body::empty()).unwrap()).await.unwrap();
            to_bytes(answer.into_body(), 10_000).await.unwrap()
        });
        prop_assert_eq!(String::from_utf8_lossy(&stored), content);
    }
}

#[tokio::test]
async fn the_first_line_of_a_batch_is_no_more_than_looked_at() {
    let server = Server::start().await;
    let envelope_faults = format!("{{\"method\":\"GET\"}}\n{{oops}}\n{LINE}\n");
    let parts = [
        text("purpose", "batch"),
        file("file", "a.ndjson", envelope_faults.as_bytes()),
    ];
    check_stored(&server, Call::form("/v1/files", &parts), &envelope_faults).await;
}

//! `/files` after the upload.

use std::collections::BTreeSet;

use crate::client::{Call, file, text};
use crate::server::Server;

/// Walks a list to its end, and returns all ids.
pub(crate) async fn walk(server: &Server, path: &str, query: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let mut after = String::new();
    loop {
        let page = Call::get(format!("{path}?{query}&after={after}"))
            .send(server.address)
            .await
            .ok();
        let data = page["data"].as_array().unwrap();
        assert_eq!(page["object"], "list");
        assert_eq!(
            page["first_id"],
            data.first()
                .map_or(serde_json::Value::Null, |first| first["id"].clone())
        );
        assert_eq!(
            page["last_id"],
            data.last()
                .map_or(serde_json::Value::Null, |last| last["id"].clone())
        );
        ids.extend(
            data.iter()
                .map(|object| object["id"].as_str().unwrap().to_owned()),
        );
        if !page["has_more"].as_bool().unwrap() {
            return ids;
        }
        assert!(!data.is_empty(), "a page that more follow has objects");
        after = page["last_id"].as_str().unwrap().to_owned();
    }
}

#[tokio::test]
async fn pages_hold_every_file_once_in_order() {
    let server = Server::start().await;
    let mut made = Vec::new();
    for number in 0..23 {
        made.push(
            server
                .upload(format!("{{\"n\":{number}}}").as_bytes())
                .await,
        );
    }
    let other = [text("purpose", "vision"), file("file", "a.png", b"png")];
    Call::form("/v1/files", &other)
        .send(server.address)
        .await
        .ok();
    assert_eq!(
        walk(&server, "/v1/files", "purpose=batch&order=asc&limit=5").await,
        made
    );
    made.reverse();
    assert_eq!(
        walk(&server, "/v1/files", "purpose=batch&limit=5").await,
        made
    );
    assert_eq!(walk(&server, "/v1/files", "purpose=batch").await, made);
    assert_eq!(walk(&server, "/v1/files", "").await.len(), 24);
    assert_eq!(
        walk(&server, "/v1/files", "purpose=batch_output").await,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn a_walk_goes_on_after_its_cursor_is_deleted() {
    let server = Server::start().await;
    let mut made = BTreeSet::new();
    for _ in 0..12 {
        made.insert(server.upload(b"{}").await);
    }
    let mut seen = BTreeSet::new();
    let mut after = String::new();
    loop {
        let page = Call::get(format!("/v1/files?limit=5&after={after}"))
            .send(server.address)
            .await
            .ok();
        for object in page["data"].as_array().unwrap() {
            let id = object["id"].as_str().unwrap().to_owned();
            let deleted = Call::new("DELETE", format!("/v1/files/{id}"))
                .send(server.address)
                .await
                .ok();
            assert_eq!(deleted["deleted"], true);
            assert!(seen.insert(id));
        }
        if !page["has_more"].as_bool().unwrap() {
            break;
        }
        after = page["last_id"].as_str().unwrap().to_owned();
    }
    assert_eq!(seen, made);
    assert!(walk(&server, "/v1/files", "").await.is_empty());
}

#[tokio::test]
async fn a_deleted_or_expired_or_foreign_file_is_not_found() {
    let server = Server::start().await;
    let (deleted, expired) = (server.upload(b"{}").await, server.upload(b"{}").await);
    let path = format!("/v1/files/{deleted}");
    for call in [
        Call::get(&path),
        Call::get(format!("{path}/content")),
        Call::new("DELETE", &path),
    ] {
        let answer = call.tenant("stranger").send(server.address).await;
        assert_eq!(answer.refusal(), (404, "id".to_owned(), "-".to_owned()));
    }
    Call::new("DELETE", &path).send(server.address).await.ok();
    server.turn_clock(2_592_000_000);
    for path in [
        path,
        format!("/v1/files/{expired}"),
        "/v1/files/file-nonsense".to_owned(),
        "/v1/files/%FF".to_owned(),
    ] {
        for call in [
            Call::get(&path),
            Call::get(format!("{path}/content")),
            Call::new("DELETE", &path),
        ] {
            let answer = call.send(server.address).await;
            assert_eq!(
                answer.refusal(),
                (404, "id".to_owned(), "-".to_owned()),
                "{path}"
            );
        }
    }
    let gone = Call::get(format!("/v1/files/{deleted}"))
        .send(server.address)
        .await
        .json();
    assert_eq!(
        gone["error"]["message"],
        format!("No such File object: {deleted}")
    );
}

#[tokio::test]
async fn contents_are_served_whole_and_in_ranges() {
    let server = Server::start().await;
    let id = server.upload(b"{\"n\":12345}\n").await;
    let get = Call::get(format!("/v1/files/{id}/content"));
    let whole = get.send(server.address).await;
    assert_eq!(
        (whole.status, whole.body.as_slice()),
        (200, &b"{\"n\":12345}\n"[..])
    );
    assert_eq!(whole.header("content-type"), "application/jsonl");
    assert_eq!(
        (
            whole.header("content-length"),
            whole.header("accept-ranges")
        ),
        ("12", "bytes")
    );
    let etag = whole.header("etag").to_owned();
    let part = get
        .clone()
        .header("range", "bytes=5-9")
        .header("if-range", &etag)
        .send(server.address)
        .await;
    assert_eq!((part.status, part.body.as_slice()), (206, &b"12345"[..]));
    assert_eq!(
        (part.header("content-range"), part.header("content-length")),
        ("bytes 5-9/12", "5")
    );
    let stale = get
        .clone()
        .header("range", "bytes=5-9")
        .header("if-range", "\"x\"")
        .send(server.address)
        .await;
    assert_eq!((stale.status, stale.body.len()), (200, 12));
    let same = get
        .clone()
        .header("if-none-match", &etag)
        .send(server.address)
        .await;
    assert_eq!(
        (same.status, same.body.len(), same.header("etag")),
        (304, 0, etag.as_str())
    );
    let beyond = get
        .clone()
        .header("range", "bytes=12-")
        .send(server.address)
        .await;
    assert_eq!(
        (beyond.refusal().0, beyond.header("content-range")),
        (416, "bytes */12")
    );
    let head = Call::new("HEAD", format!("/v1/files/{id}/content"))
        .send(server.address)
        .await;
    assert_eq!(
        (head.status, head.body.len(), head.header("content-length")),
        (200, 0, "12")
    );
}

//! How much memory the service takes: files pass through it in pieces, whatever their size.

use std::fs::File;
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::Duration;

use reqwest::RequestBuilder;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};
use system_tests::environment::model;
use system_tests::service::{Options, Service};

/// The largest batch file: 200 MiB.
const FILE_BYTES: u64 = 200 * 1024 * 1024;

/// The largest part of an upload: 64 MiB.
const PART_BYTES: u64 = 64 * 1024 * 1024;

/// What the service may take at its peak: less than the file, so that it cannot be in memory.
const PEAK_KIB_MAX: u64 = 150 * 1024;

/// What the service may take at its peak when it validates such a file and cuts it into shards.
const VALIDATION_PEAK_KIB_MAX: u64 = 300 * 1024;

/// Writes a batch file of exactly [`FILE_BYTES`], no two lines of it the same.
fn write_batch(path: &Path) {
    let mut file = BufWriter::new(File::create(path).expect("create the file"));
    let mut left = FILE_BYTES as usize;
    for index in 0_u32.. {
        let head = format!(
            r#"{{"custom_id":"r-{index}","method":"POST","url":"/v1/chat/completions","body":{{"model":"smollm2-135m-instruct","messages":[{{"role":"user","content":""#
        );
        let tail = "\"}]}}\n";
        // The last line takes what is left, so that none is too short for its frame.
        let bytes = if left < 16 * 1024 { left } else { 8 * 1024 };
        write!(
            file,
            "{head}{:x<1$}{tail}",
            "",
            bytes - head.len() - tail.len()
        )
        .expect("write the file");
        left -= bytes;
        if left == 0 {
            break;
        }
    }
    file.flush().expect("write the file");
}

/// Returns the most memory that the service, without its workers, has had at once.
fn peak_kib(service: &Service) -> u64 {
    let field = |process: &str, name: &str| -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))
            .expect("read a process's status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("the status has the field");
        line.split_whitespace()
            .next()
            .and_then(|digits| digits.parse().ok())
            .expect("the field is a number")
    };
    let worker = service
        .workers()
        .first()
        .expect("it has a worker")
        .as_raw_nonzero();
    field(&field(&worker.to_string(), "PPid:").to_string(), "VmHWM:")
}

async fn answer(request: RequestBuilder, service: &Service) -> Value {
    let answer = request
        .bearer_auth(service.api_key())
        .send()
        .await
        .expect("send a request");
    let status = answer.status();
    let text = answer.text().await.expect("read the answer");
    assert!(status.is_success(), "{status}: {text}");
    serde_json::from_str(&text).expect("the answer is JSON")
}

/// Downloads a file piece by piece and compares it with the one on disk.
async fn check_content(http: &reqwest::Client, service: &Service, file: &Value, path: &Path) {
    assert_eq!(file["bytes"], FILE_BYTES);
    let id = file["id"].as_str().expect("a file has an id");
    let request = http
        .get(format!("{}/files/{id}/content", service.base_url()))
        .bearer_auth(service.api_key());
    let mut content = request
        .send()
        .await
        .and_then(reqwest::Response::error_for_status)
        .expect("download");
    let mut disk = File::open(path).expect("open the file");
    let mut wanted = Vec::new();
    let mut at = 0;
    while let Some(piece) = content.chunk().await.expect("download a piece") {
        wanted.resize(piece.len(), 0);
        disk.read_exact(&mut wanted)
            .expect("the content is no longer than the file");
        assert!(
            piece == wanted,
            "the content differs within {} bytes after {at}",
            piece.len()
        );
        at += piece.len() as u64;
    }
    assert_eq!(at, FILE_BYTES);
}

/// Uploads the file in parts, and returns the file that they became.
async fn upload_in_parts(http: &reqwest::Client, service: &Service, path: &Path) -> Value {
    let url = format!("{}/uploads", service.base_url());
    let upload = json!({
        "bytes": FILE_BYTES, "filename": "large.jsonl", "mime_type": "application/jsonl", "purpose": "batch",
    });
    let upload = answer(http.post(&url).json(&upload), service).await;
    let url = format!(
        "{url}/{}",
        upload["id"].as_str().expect("an upload has an id")
    );
    let mut disk = File::open(path).expect("open the file");
    let mut part_ids = Vec::new();
    for start in (0..FILE_BYTES).step_by(PART_BYTES as usize) {
        let mut bytes = vec![0; PART_BYTES.min(FILE_BYTES - start) as usize];
        disk.seek(SeekFrom::Start(start))
            .and_then(|_| disk.read_exact(&mut bytes))
            .expect("read a part");
        let form = Form::new().part("data", Part::bytes(bytes).file_name("part"));
        part_ids.push(
            answer(http.post(format!("{url}/parts")).multipart(form), service).await["id"].clone(),
        );
    }
    let completed = http
        .post(format!("{url}/complete"))
        .json(&json!({"part_ids": part_ids}));
    answer(completed, service).await["file"].clone()
}

#[tokio::test]
async fn memory_stays_small_when_large_files_come_and_go() {
    if model().is_none() {
        return;
    }
    let service = Service::start(Options::default());
    let http = reqwest::Client::new();
    let path = service.folder().join("large.jsonl");
    write_batch(&path);

    let form = Form::new()
        .text("purpose", "batch")
        .file("file", &path)
        .await
        .expect("open the file");
    let file = answer(
        http.post(format!("{}/files", service.base_url()))
            .multipart(form),
        &service,
    )
    .await;
    check_content(&http, &service, &file, &path).await;
    let peak = peak_kib(&service);
    assert!(peak < PEAK_KIB_MAX, "one upload took {peak} KiB");

    let file = upload_in_parts(&http, &service, &path).await;
    check_content(&http, &service, &file, &path).await;
    let peak = peak_kib(&service);
    assert!(peak < PEAK_KIB_MAX, "an upload in parts took {peak} KiB");

    let client = service.client();
    let id = file["id"].as_str().expect("a file has an id");
    let batch = client.create(id).await.expect("create a batch");
    let total = loop {
        let view = client.batch(&batch).await.expect("retrieve");
        match view["status"].as_str() {
            Some("validating") => tokio::time::sleep(Duration::from_millis(100)).await,
            Some("in_progress") => break view["request_counts"]["total"].clone(),
            _ => panic!("{view}"),
        }
    };
    assert_eq!(total, FILE_BYTES / (8 * 1024), "every line was counted");
    let peak = peak_kib(&service);
    assert!(peak < VALIDATION_PEAK_KIB_MAX, "validation took {peak} KiB");
    client.cancel(&batch).await.expect("cancel");
}

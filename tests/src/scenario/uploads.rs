//! Files in parts, and large ones.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::catalog::{self, DEFAULT_MODEL};
use crate::client::Client;
use crate::environment::sdks;
use crate::proof;
use crate::site::Site;

const MIB: usize = 1024 * 1024;

/// A part as the README names it.
const PART_BYTES: usize = 8 * MIB;

/// Makes a batch file of about `bytes`: three short requests, and others whose prompt is longer than any context.
fn mostly_too_long(bytes: usize) -> (Vec<u8>, Vec<String>) {
    // Long lines make few shards.
    const PROMPT: usize = 2 * MIB;
    let mut ids = Vec::new();
    let mut lines = Vec::new();
    let mut size = 0;
    while size < bytes {
        let id = format!("line-{}", ids.len());
        let line = if ids.len() % 30 == 1 {
            catalog::line(&id, DEFAULT_MODEL, 4)
        } else {
            let prompt =
                format!("{} ", ids.len()).repeat(PROMPT / (ids.len().to_string().len() + 1));
            let body = json!({
                "model": DEFAULT_MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": prompt}],
            });
            json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body})
                .to_string()
        };
        size += line.len() + 1;
        lines.push(line);
        ids.push(id);
    }
    (catalog::file(&lines), ids)
}

/// A file in parts of 8 MiB is the file that was sent, and its batch runs.
///
/// # Panics
///
/// If not.
pub async fn upload_in_parts(site: &dyn Site) {
    let client = site.client();
    let (data, ids) = mostly_too_long(2 * PART_BYTES + MIB);
    let mut parts = Vec::new();
    let upload = client
        .start_upload(data.len())
        .await
        .expect("start an upload");
    for part in data.chunks(PART_BYTES) {
        parts.push(
            client
                .add_part(&upload, part.to_vec())
                .await
                .expect("send a part"),
        );
    }
    let file = client
        .complete_upload(&upload, &parts)
        .await
        .expect("complete the upload");
    run_file(site, &client, &file, &data, &ids).await;
}

/// Uploads a file of 200 MB with the SDK's own chunked upload, runs its batch, and reads all back.
///
/// # Panics
///
/// If any byte differs.
pub async fn large_upload(site: &dyn Site) {
    let Some(sdks) = sdks() else { return };
    let (data, ids) = mostly_too_long(197 * MIB);
    let folder = tempfile::tempdir().expect("make a folder");
    let path = folder.path().join("large.jsonl");
    std::fs::write(&path, &data).expect("write the file");
    let file = upload_chunked(site, &sdks, &path);
    run_file(site, &site.client(), &file, &data, &ids).await;
}

fn upload_chunked(site: &dyn Site, sdks: &Path, path: &Path) -> String {
    let script = "import os, sys, openai\n\
        path = sys.argv[1]\n\
        sdk = openai.OpenAI()\n\
        done = sdk.uploads.upload_file_chunked(file=path, bytes=os.path.getsize(path), mime_type='application/jsonl', purpose='batch', part_size=8 * 1024 * 1024)\n\
        print(done.file.id)\n";
    let output = Command::new(sdks.join("python-latest/bin/python"))
        .args(["-c", script])
        .arg(path)
        .env("OPENAI_BASE_URL", site.base_url())
        .env("OPENAI_API_KEY", site.api_key())
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .expect("run the SDK");
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        site.log_text()
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Runs a batch of the file, and compares what was sent with what comes back.
async fn run_file(site: &dyn Site, client: &Client, file: &str, data: &[u8], ids: &[String]) {
    let stored = client.content(file).await.expect("download the file");
    assert!(stored == data, "the file is not what was sent");
    let batch = client.create(file).await.expect("create the batch");
    let ended = client
        .wait(&batch, site.patience())
        .await
        .expect("the batch ends");
    assert_eq!(ended["status"], "completed", "{ended}");
    let results = proof::complete(client, &ended, ids).await;
    assert!(!results.output.is_empty(), "no line has an answer");
    for record in &results.errors {
        assert_eq!(
            record["response"]["body"]["error"]["code"], "context_length_exceeded",
            "{record}"
        );
    }
}

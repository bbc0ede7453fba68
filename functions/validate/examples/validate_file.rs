//! Validates a generated file and prints how long it took and how much memory the process needed.
//!
//! `cargo run --release -p validate --example validate_file -- [LINES] [MEBIBYTES]`; 50,000 lines of
//! 200 MiB (less 1) by default. Prompts come in random order, as the worst case for their sorting.
#![expect(clippy::print_stdout, reason = "it is a measurement for a person")]

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use batch_core::batch::{BatchParams, Endpoint};
use batch_core::blob_key::BlobKey;
use batch_core::catalog::Catalog;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::{BatchId, FileId, TenantId};
use batch_core::message::{SCHEMA, StageJob};
use batch_core::settings::Settings;
use batch_io::Platform;
use batch_io::embedded::Embedded;
use batch_io::port::BlobReader;
use batch_io::store::{Created, NewBatch, Store};
use bytes::Bytes;
use futures::StreamExt;
use validate::{Context, handle};

/// Room of a line for all but its prompt.
const ENVELOPE_BYTES: usize = 180;

#[tokio::main(worker_threads = 2)]
async fn main() {
    let mut args = std::env::args()
        .skip(1)
        .map(|arg| arg.parse::<usize>().expect("a number"));
    let (lines, mebibytes) = (args.next().unwrap_or(50_000), args.next().unwrap_or(199));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let platform = Embedded::open(dir.path())
        .expect("a fresh data folder")
        .platform();
    let store = Store::new(Arc::clone(&platform.records), Settings::EMBEDDED.timing);
    let catalog = Arc::new(Catalog::new(vec![tiny()]).expect("one model"));
    let settings = Settings {
        lines_max: u64::MAX,
        file_bytes_max: u64::MAX,
        ..Settings::EMBEDDED
    };
    let ctx = Context {
        platform,
        store,
        catalog,
        settings,
    };
    let prompt_bytes = (mebibytes * 1024 * 1024 / lines).saturating_sub(ENVELOPE_BYTES);
    let batch = create(&ctx, lines, prompt_bytes).await;
    let job = StageJob {
        schema: SCHEMA,
        tenant: TenantId::default_tenant(),
        batch,
    };
    println!("generated; peak before {} MiB", peak_mebibytes());
    let began = Instant::now();
    handle(&ctx, job, (ctx.platform.clock)())
        .await
        .expect("validate");
    let seconds = began.elapsed().as_secs_f64();
    let view = ctx
        .store
        .load_batch(&TenantId::default_tenant(), batch)
        .await
        .expect("load")
        .expect("the batch");
    println!(
        "{}: {lines} lines, {mebibytes} MiB, {} windows, {} shards in {seconds:.2} s; peak {} MiB",
        view.run.state,
        view.run.windows,
        view.run.shards_total,
        peak_mebibytes()
    );
    assert!(view.errors.is_none(), "{:?}", view.errors);
}

fn tiny() -> batch_core::catalog::Model {
    let price = serde_json::json!({ "input_per_million": 1.0, "output_per_million": 2.0 });
    let source = serde_json::json!({ "path": "unused" });
    let model = serde_json::json!({ "id": "tiny", "source": source, "endpoints": ["/v1/chat/completions"], "price": price });
    serde_json::from_value(model).expect("a model")
}

/// Streams a generated file into the blobs and creates a batch over it.
async fn create(ctx: &Context, lines: usize, prompt_bytes: usize) -> BatchId {
    let Platform {
        blobs,
        clock,
        random,
        ..
    } = &ctx.platform;
    let (now, tenant) = (clock(), TenantId::default_tenant());
    let file = FileId::new(now, random());
    let blob = BlobKey::File {
        tenant: tenant.clone(),
        file,
    };
    let chunks = futures::stream::iter(
        (0..lines).map(move |number| Ok(Bytes::from(line(number, prompt_bytes)))),
    );
    let text: BlobReader = chunks.boxed();
    let bytes = blobs
        .put_stream(&blob, text)
        .await
        .expect("store the file")
        .bytes;
    let (filename, status) = ("input.jsonl".to_owned(), FileStatus::Processed);
    let (purpose, schema) = (Purpose::Batch, SCHEMA);
    let record = File {
        id: file,
        tenant: tenant.clone(),
        bytes,
        created_at: now,
        expires_at: None,
        filename,
        purpose,
        status,
        blob,
        schema,
    };
    ctx.store
        .create_file(&record)
        .await
        .expect("create the file");
    let id = BatchId::new(now, random());
    let params = BatchParams {
        id,
        tenant,
        endpoint: Endpoint::ChatCompletions,
        input_file_id: file.to_string(),
        completion_window: "24h".to_owned(),
        expires_at: now.plus_ms(86_400_000),
        created_at: now,
        metadata: None,
        output_expires_after: None,
        input_bytes: Some(bytes),
        prices: BTreeMap::new(),
        rates: BTreeMap::new(),
        creation: None,
        schema: SCHEMA,
    };
    let new = NewBatch {
        params,
        pin: Some(file),
        creation: None,
        rate_limit_per_hour: 10,
        now,
    };
    assert_eq!(
        ctx.store.create_batch(new).await.expect("create the batch"),
        Created::Made
    );
    id
}

/// Renders a line whose prompt starts with a number in no order.
fn line(number: usize, prompt_bytes: usize) -> Vec<u8> {
    let mut line = Vec::with_capacity(prompt_bytes + ENVELOPE_BYTES + 32);
    let scattered = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let head = r#""method":"POST","url":"/v1/chat/completions","body":{"model":"tiny","messages":[{"role":"user","content":""#;
    write!(
        line,
        r#"{{"custom_id":"request-{number}",{head}{scattered:020} "#
    )
    .expect("a vector takes every write");
    line.extend(
        b"The quick brown fox jumps over the lazy dog. "
            .iter()
            .cycle()
            .take(prompt_bytes),
    );
    line.extend_from_slice(b"\"}],\"max_tokens\":16}}\n");
    line
}

/// Returns the most memory that the process ever had, as the kernel counts it.
fn peak_mebibytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("read the process's status");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .expect("a peak");
    peak.trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .expect("a number")
        / 1024
}

//! The service on AWS, as far as a simulation needs it: contexts of all functions over counted ports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use batch_core::blob_key::BlobKey;
use batch_core::catalog::{Catalog, Model};
use batch_core::external::ImportLocations;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::{BatchId, FileId, KeyId, TenantId, WorkerId};
use batch_core::lifecycle::State;
use batch_core::message::{DispatchJob, QueueName, SCHEMA};
use batch_core::settings::{Settings, SettingsOverrides};
use batch_core::time::UnixMs;
use batch_core::wire::hash_key;
use batch_io::counting::{Counts, Operation};
use batch_io::platform::system_randomness;
use batch_io::store::{KeyRecord, Store};
use batch_io::{Clock, Platform, memory};
use bytes::Bytes;
use http::{Request, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tower::ServiceExt as _;
use worker::model::EngineOptions;
use worker::service::{Place, ServableModel};

use super::engine::{Metronome, PacedLoader, tiny_folder};
use super::{BEAT_S, SHARD_WORK_S, job_of, take_message};

/// When every simulation begins.
const START: UnixMs = UnixMs(1_790_000_000_000);

/// Most tokens of each line.
const MAX_TOKENS: u64 = 200;

/// Tokens that a line is estimated to take: four bytes of its prompt each, and the most that it may answer.
const LINE_TOKENS: u64 = PROMPT_BYTES / 4 + MAX_TOKENS;
const PROMPT_BYTES: u64 = r#""Say 00000001""#.len() as u64;

/// How often held shards are counted.
pub(super) const LOOK: Duration = Duration::from_secs(5);

const KEY: &str = "sk-simulated";

/// The service.
pub(super) struct World {
    pub(super) counts: Counts,
    pub(super) metronome: Arc<Metronome>,
    /// Nothing that goes through it is counted.
    platform: Platform,
    store: Store,
    catalog: Arc<Catalog>,
    settings: Settings,
    lines_per_shard: u64,
    tenant: TenantId,
    file: FileId,
    polls: AtomicU64,
    held_s: AtomicU64,
}

impl World {
    pub(super) fn new(lines_per_shard: u64) -> Self {
        let begun = Instant::now();
        let clock: Clock = Arc::new(move || {
            let passed = begun.elapsed().as_millis();
            START.plus_ms(i64::try_from(passed).unwrap_or(i64::MAX))
        });
        let platform = memory::platform(clock, system_randomness());
        let overrides = SettingsOverrides {
            lines_per_file: Some(1_000_000),
            ..SettingsOverrides::default()
        };
        let settings = Settings::AWS.with(&overrides);
        Self {
            counts: Counts::default(),
            metronome: Arc::default(),
            store: Store::new(Arc::clone(&platform.records), settings.timing),
            catalog: Arc::new(Catalog::new(vec![model(lines_per_shard)]).expect("a catalog")),
            settings,
            lines_per_shard,
            tenant: TenantId::default_tenant(),
            file: FileId::new(START, (platform.random)()),
            platform,
            polls: AtomicU64::new(0),
            held_s: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) -> UnixMs {
        (self.platform.clock)()
    }

    /// Stores the input file, and the caller's key.
    pub(super) async fn store_input(&self, lines: u64) {
        let key = KeyRecord {
            id: KeyId::new(START, [1; 16]),
            tenant: self.tenant.clone(),
            created_at: START,
            name: "simulated".to_owned(),
        };
        let stored = self.store.put_key(&hash_key(KEY), &key).await;
        stored.expect("store the key");
        let text: String = (1..=lines).map(line).collect();
        let blob = BlobKey::File {
            tenant: self.tenant.clone(),
            file: self.file,
        };
        let file = File {
            id: self.file,
            tenant: self.tenant.clone(),
            bytes: text.len() as u64,
            created_at: START,
            expires_at: None,
            filename: "input.jsonl".to_owned(),
            purpose: Purpose::Batch,
            status: FileStatus::Processed,
            blob: blob.clone(),
            schema: SCHEMA,
        };
        let put = self.platform.blobs.put(&blob, Bytes::from(text)).await;
        put.expect("put the file");
        self.store
            .create_file(&file)
            .await
            .expect("create the file");
    }

    pub(super) async fn create_batch(&self) -> BatchId {
        let body = serde_json::json!({
            "input_file_id": self.file.to_string(),
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        });
        let request = Request::post("/v1/batches")
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()));
        let answer = self.call("api", request).await;
        let id = answer["id"].as_str().expect("a batch has an id");
        id.parse().expect("an id of ours")
    }

    /// Asks for the batch, as a client does.
    pub(super) async fn poll(&self, batch: BatchId) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let request = Request::get(format!("/v1/batches/{batch}")).body(Body::empty());
        self.call("poll", request).await;
    }

    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    async fn call(
        &self,
        actor: &'static str,
        request: http::Result<Request<Body>>,
    ) -> serde_json::Value {
        self.counts.add(actor, Operation::CallApi, 1, 1.0);
        let (platform, store) = self.function(actor);
        let context = api::Context {
            imports: ImportLocations::default(),
            auth: Arc::new(store.clone()),
            platform,
            store,
            catalog: Arc::clone(&self.catalog),
            settings: self.settings,
        };
        let mut request = request.expect("a request");
        let key = format!("Bearer {KEY}").parse().expect("a header");
        request.headers_mut().insert("authorization", key);
        let answer = api::router(Arc::new(context)).oneshot(request).await;
        let answer = answer.expect("the router answers");
        let status = answer.status();
        let body = to_bytes(answer.into_body(), usize::MAX).await;
        let body = body.expect("a whole body");
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).expect("JSON")
    }

    /// Waits for a job of a queue.
    pub(super) async fn take<J: DeserializeOwned>(
        &self,
        queue: &QueueName,
        actor: &'static str,
    ) -> J {
        job_of(&take_message(&self.counts.wrap(&self.platform, actor), queue).await)
    }

    pub(super) fn validate(&self) -> validate::Context {
        let (platform, store) = self.function("validate");
        validate::Context {
            platform,
            store,
            catalog: Arc::clone(&self.catalog),
            settings: self.settings,
        }
    }

    pub(super) fn finalize(&self) -> finalize::Context {
        let (platform, store) = self.function("finalize");
        finalize::Context { platform, store }
    }

    pub(super) async fn dispatch(&self, job: DispatchJob) {
        let (platform, store) = self.function("dispatch");
        let context = dispatch::Context {
            platform,
            store,
            catalog: Arc::clone(&self.catalog),
        };
        let dispatched = dispatch::handle(&context, job, self.now()).await;
        dispatched.expect("dispatch");
    }

    pub(super) async fn reconcile(&self) {
        let (platform, store) = self.function("reconcile");
        let context = reconcile::Context { platform, store };
        let report = reconcile::handle(&context, self.now()).await;
        let report = report.expect("reconcile");
        assert_eq!(
            (report.failures, report.shards_resent),
            (0, 0),
            "{report:?}"
        );
    }

    /// Removes what an ended batch leaves behind, as reconcile does when no late worker can write any more.
    pub(super) async fn clear(&self) {
        let (platform, store) = self.function("reconcile");
        let context = reconcile::Context { platform, store };
        let later = self.now().plus_ms(3_600_000);
        let report = reconcile::handle(&context, later).await;
        assert_eq!(report.expect("reconcile").batches_cleared, 1);
    }

    pub(super) fn worker(&self) -> worker::service::Context {
        let (platform, store) = self.counted("worker");
        let lines = self.lines_per_shard as f64;
        worker::service::Context {
            catalog: Arc::clone(&self.catalog),
            models: vec![ServableModel {
                id: "tiny".to_owned(),
                place: Place::Files(tiny_folder()),
            }],
            worker: WorkerId::new(self.now(), (platform.random)()),
            options: EngineOptions {
                threads: Some(1),
                ..EngineOptions::default()
            },
            loader: Arc::new(PacedLoader {
                metronome: Arc::clone(&self.metronome),
                lines_per_beat: lines / SHARD_WORK_S * BEAT_S as f64,
                sequences: (self.lines_per_shard / 4).max(1) as usize,
            }),
            platform,
            store,
        }
    }

    /// Adds up for how long shards are held.
    pub(super) async fn count_held(&self) {
        let held = self.store.list_leased().await.expect("list").len() as u64;
        self.held_s
            .fetch_add(held * LOOK.as_secs(), Ordering::Relaxed);
    }

    pub(super) fn held_s(&self) -> f64 {
        self.held_s.load(Ordering::Relaxed) as f64
    }

    pub(super) async fn assert_published(&self, batch: BatchId, shards: u64) {
        let run = self.store.load_run(&self.tenant, batch).await;
        let run = run.expect("load").expect("a batch");
        assert_eq!((run.state, run.shards_total), (State::InProgress, shards));
    }

    pub(super) async fn assert_completed(&self, batch: BatchId, lines: u64) {
        let run = self.store.load_run(&self.tenant, batch).await;
        let run = run.expect("load").expect("a batch");
        assert!(run.state.is_terminal(), "{:?}", run.state);
        assert_eq!(run.counts.completed, lines);
    }

    pub(super) async fn windows(&self, batch: BatchId) -> u64 {
        let run = self.store.load_run(&self.tenant, batch).await;
        u64::from(run.expect("load").expect("a batch").windows)
    }

    /// Begins a call of a function.
    fn function(&self, actor: &'static str) -> (Platform, Store) {
        self.counts.add(actor, Operation::Invoke, 1, 1.0);
        self.counted(actor)
    }

    fn counted(&self, actor: &'static str) -> (Platform, Store) {
        let platform = self.counts.wrap(&self.platform, actor);
        let store = Store::new(Arc::clone(&platform.records), self.settings.timing);
        (platform, store)
    }
}

/// The model, said to be so fast that shards are cut at the lines wanted.
fn model(lines_per_shard: u64) -> Model {
    let tokens_per_s = (lines_per_shard * LINE_TOKENS).div_ceil(120);
    let model = serde_json::json!({
        "id": "tiny",
        "source": { "path": "unused" },
        "endpoints": ["/v1/completions"],
        "price": { "input_per_million": 1.0, "output_per_million": 2.0 },
        "tokens_per_s": tokens_per_s,
    });
    serde_json::from_value(model).expect("a model")
}

fn line(number: u64) -> String {
    format!(
        "{{\"custom_id\":\"r-{number}\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{{\"model\":\"tiny\",\"prompt\":\"Say {number:08}\",\"max_tokens\":{MAX_TOKENS}}}}}\n"
    )
}

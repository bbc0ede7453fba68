//! A server on a fresh folder, with a clock that tests turn.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use api::{Authorize, Context};
use async_trait::async_trait;
use batch_core::batch::Endpoint;
use batch_core::catalog::{Catalog, Engine, Model, Price, Source};
use batch_core::external::ImportLocations;
use batch_core::id::{KeyId, TenantId};
use batch_core::message::QueueName;
use batch_core::settings::Settings;
use batch_core::time::UnixMs;
use batch_core::wire::{Credentials, Principal, WireError};
use batch_io::embedded::{Embedded, Weather};
use batch_io::store::Store;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::{Call, file, text};

/// When every test begins.
pub(crate) const START: UnixMs = UnixMs(1_790_000_000_000);

pub(crate) const LINE: &str =
    r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}"#;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) context: Arc<Context>,
    clock: Arc<AtomicI64>,
    dir: TempDir,
    serving: JoinHandle<()>,
}

/// Takes `sk-<tenant>` for a key of that tenant; `sk-panic` panics.
struct TenantKeys;

#[async_trait]
impl Authorize for TenantKeys {
    async fn authorize(
        &self,
        credentials: Credentials<'_>,
        _: UnixMs,
    ) -> Result<Principal, WireError> {
        let key = credentials.key()?;
        let tenant = key
            .strip_prefix("sk-")
            .ok_or_else(|| WireError::wrong_key(key))?;
        assert_ne!(tenant, "panic", "this key panics");
        let tenant =
            TenantId::try_from(tenant.to_owned()).map_err(|_| WireError::wrong_key(key))?;
        let first = tenant.as_str().bytes().next().unwrap_or(0);
        Ok(Principal {
            tenant,
            key: KeyId::new(START, [first; 16]),
        })
    }
}

fn model(id: &str, alias: &str) -> Model {
    Model {
        id: id.to_owned(),
        aliases: vec![alias.to_owned()],
        engine: Engine::Native(Source::Path(id.to_owned())),
        context_tokens: None,
        endpoints: vec![Endpoint::ChatCompletions],
        price: Price {
            input_per_million: 1.0,
            output_per_million: 2.0,
        },
        owned_by: None,
        tokens_per_s: Some(100),
    }
}

/// Makes a context on a folder, and the clock that turns it.
pub(crate) fn context(dir: &Path, settings: Settings) -> (Arc<Context>, Arc<AtomicI64>) {
    let clock = Arc::new(AtomicI64::new(START.0));
    let ticking = Arc::clone(&clock);
    let now = Arc::new(move || UnixMs(ticking.fetch_add(1, Ordering::Relaxed)));
    let platform = Embedded::open_under(dir, Weather::default(), now)
        .unwrap()
        .platform();
    let context = Context {
        store: Store::new(Arc::clone(&platform.records), settings.timing),
        platform,
        catalog: Arc::new(Catalog::new(vec![model("org/m", "m"), model("tiny", "t")]).unwrap()),
        settings,
        imports: ImportLocations::parse(&["s3://exports/for-nightshift/"]).unwrap(),
        auth: Arc::new(TenantKeys),
    };
    (Arc::new(context), clock)
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(Settings::EMBEDDED, "/v1").await
    }

    pub(crate) async fn start_with(settings: Settings, base: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (context, clock) = context(dir.path(), settings);
        let router = api::router_under(base, Arc::clone(&context));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            context,
            clock,
            dir,
            serving,
        }
    }

    pub(crate) fn turn_clock(&self, span_ms: i64) {
        self.clock.fetch_add(span_ms, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> UnixMs {
        UnixMs(self.clock.load(Ordering::Relaxed))
    }

    /// Takes the messages of a queue.
    pub(crate) async fn jobs(&self, queue: &QueueName) -> Vec<String> {
        let port = &self.context.platform.queue;
        let received = port.receive(queue, 10, Duration::from_secs(60), Duration::ZERO);
        let messages = received.await.unwrap();
        messages.into_iter().map(|message| message.body).collect()
    }

    /// Writes an object of others, in a bucket that is a folder.
    pub(crate) fn put_object(&self, path: &str, bytes: &[u8]) {
        let path = self.dir.path().join("buckets").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Counts the files below the blobs' folder, half-written ones included.
    pub(crate) fn blob_count(&self) -> usize {
        count_files(&self.dir.path().join("blobs"))
    }

    /// Waits for the blobs that are taken back: they go in the background.
    pub(crate) async fn assert_blobs_go(&self) {
        for _ in 0..BACKGROUND_TURNS_MAX {
            if self.blob_count() == 0 {
                return;
            }
            tokio::task::spawn_blocking(std::thread::yield_now)
                .await
                .unwrap();
        }
        panic!("{} blobs stay", self.blob_count());
    }

    /// Uploads a file for batches, and returns its id.
    pub(crate) async fn upload(&self, bytes: &[u8]) -> String {
        let parts = [text("purpose", "batch"), file("file", "in.jsonl", bytes)];
        let answer = Call::form("/v1/files", &parts).send(self.address).await;
        answer.ok()["id"].as_str().unwrap().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Turns of the runtime within which background work ends.
const BACKGROUND_TURNS_MAX: usize = 10_000;

/// Counts files; the one that a process holds to say that it lives is no blob.
fn count_files(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    let entries = entries.map(|entry| entry.unwrap());
    let count = |entry: std::fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => count_files(&entry.path()),
        false => usize::from(entry.file_name() != "alive"),
    };
    entries.map(count).sum()
}

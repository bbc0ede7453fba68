//! A service in a temporary folder, under a clock that the test moves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use batch_core::batch::{BatchParams, Endpoint};
use batch_core::blob_key::BlobKey;
use batch_core::catalog::{Catalog, Model, Price};
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::{BatchId, FileId, TenantId};
use batch_core::message::{QueueName, SCHEMA, StageJob};
use batch_core::settings::{Settings, Timing};
use batch_core::time::UnixMs;
use batch_io::Platform;
use batch_io::embedded::{Embedded, Weather};
use batch_io::store::{BatchView, Created, NewBatch, Store};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use tempfile::TempDir;

/// When every test begins.
const START: i64 = 1_790_000_000_000;

/// The service.
pub(crate) struct World {
    pub(crate) platform: Platform,
    pub(crate) store: Store,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) settings: Settings,
    pub(crate) tenant: TenantId,
    clock: Arc<AtomicI64>,
    _dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let clock = Arc::new(AtomicI64::new(START));
        let hand = Arc::clone(&clock);
        let clock_port = Arc::new(move || UnixMs(hand.load(Ordering::SeqCst)));
        let embedded = Embedded::open_under(dir.path(), Weather::default(), clock_port)
            .expect("a fresh data folder");
        let platform = embedded.platform();
        let store = Store::new(Arc::clone(&platform.records), Timing::EMBEDDED);
        let catalog =
            Arc::new(Catalog::new(vec![model("tiny"), model("small")]).expect("two models"));
        let tenant = TenantId::default_tenant();
        Self {
            platform,
            store,
            catalog,
            settings: Settings::EMBEDDED,
            tenant,
            clock,
            _dir: dir,
        }
    }

    pub(crate) fn now(&self) -> UnixMs {
        UnixMs(self.clock.load(Ordering::SeqCst))
    }

    pub(crate) fn advance_ms(&self, span_ms: i64) {
        self.clock.fetch_add(span_ms, Ordering::SeqCst);
    }

    /// Stores an input file.
    pub(crate) async fn upload(&self, purpose: Purpose, text: &[u8]) -> FileId {
        let id = FileId::new(self.now(), (self.platform.random)());
        let blob = BlobKey::File {
            tenant: self.tenant.clone(),
            file: id,
        };
        self.platform
            .blobs
            .put(&blob, Bytes::copy_from_slice(text))
            .await
            .expect("put the file");
        let file = File {
            id,
            tenant: self.tenant.clone(),
            bytes: text.len() as u64,
            created_at: self.now(),
            expires_at: None,
            filename: "input.jsonl".to_owned(),
            purpose,
            status: FileStatus::Processed,
            blob,
            schema: SCHEMA,
        };
        self.store
            .create_file(&file)
            .await
            .expect("create the file");
        id
    }

    /// Creates a batch over `input`, which exists if `bytes` is known.
    pub(crate) async fn create(&self, input: &str, bytes: Option<u64>) -> BatchId {
        let id = BatchId::new(self.now(), (self.platform.random)());
        let price = Price {
            input_per_million: 1.0,
            output_per_million: 2.0,
        };
        let params = BatchParams {
            id,
            tenant: self.tenant.clone(),
            endpoint: Endpoint::ChatCompletions,
            input_file_id: input.to_owned(),
            completion_window: "24h".to_owned(),
            expires_at: self.now().plus_ms(86_400_000),
            created_at: self.now(),
            metadata: None,
            output_expires_after: None,
            input_bytes: bytes,
            prices: self
                .catalog
                .models()
                .iter()
                .map(|model| (model.id.clone(), price))
                .collect(),
            rates: BTreeMap::new(),
            creation: None,
            schema: SCHEMA,
        };
        let pin = bytes.and_then(|_| input.parse().ok());
        let new = NewBatch {
            params,
            pin,
            creation: None,
            rate_limit_per_hour: 2_000,
            now: self.now(),
        };
        assert_eq!(
            self.store
                .create_batch(new)
                .await
                .expect("create the batch"),
            Created::Made
        );
        id
    }

    /// Stores `text` and creates a batch over it.
    pub(crate) async fn create_from(&self, text: &[u8]) -> BatchId {
        let file = self.upload(Purpose::Batch, text).await;
        self.create(&file.to_string(), Some(text.len() as u64))
            .await
    }

    pub(crate) fn stage_job(&self, batch: BatchId) -> StageJob {
        StageJob {
            schema: SCHEMA,
            tenant: self.tenant.clone(),
            batch,
        }
    }

    pub(crate) async fn batch(&self, batch: BatchId) -> BatchView {
        self.store
            .load_batch(&self.tenant, batch)
            .await
            .expect("load the batch")
            .expect("the batch is there")
    }

    /// Reads a blob whole; none if it is not there.
    pub(crate) async fn blob(&self, key: &BlobKey) -> Option<Vec<u8>> {
        let mut read = self.platform.blobs.get(key, 0, None).await.ok()?;
        let mut bytes = BytesMut::new();
        while let Some(chunk) = read.body.try_next().await.expect("read the blob") {
            bytes.extend_from_slice(&chunk);
        }
        Some(bytes.to_vec())
    }

    /// Takes all visible messages out of a queue.
    pub(crate) async fn drain(&self, queue: &QueueName) -> Vec<String> {
        let mut bodies = Vec::new();
        loop {
            let messages = self
                .platform
                .queue
                .receive(queue, 10, Duration::from_secs(60), Duration::ZERO)
                .await
                .expect("receive messages");
            if messages.is_empty() {
                return bodies;
            }
            for message in messages {
                self.platform
                    .queue
                    .delete(queue, &message.receipt)
                    .await
                    .expect("delete the message");
                bodies.push(message.body);
            }
        }
    }
}

fn model(id: &str) -> Model {
    let price = serde_json::json!({ "input_per_million": 1.0, "output_per_million": 2.0 });
    let source = serde_json::json!({ "path": "unused" });
    let model = serde_json::json!({ "id": id, "source": source, "endpoints": [Endpoint::ChatCompletions], "price": price });
    serde_json::from_value(model).expect("a model")
}

/// Renders a line that is a sound request.
pub(crate) fn request(id: &str, model: &str) -> String {
    let body = format!(
        r#"{{"model":"{model}","messages":[{{"role":"user","content":"Say {id}"}}],"max_tokens":4}}"#
    );
    format!(r#"{{"custom_id":"{id}","method":"POST","url":"/v1/chat/completions","body":{body}}}"#)
}

/// Renders a file of sound requests with the ids `r-1` and on.
pub(crate) fn requests(count: usize) -> String {
    (1..=count)
        .map(|number| request(&format!("r-{number}"), "tiny") + "\n")
        .collect()
}

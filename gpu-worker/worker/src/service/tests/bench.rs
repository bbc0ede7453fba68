//! A worker over ports in a temporary folder, under a clock that the test moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use batch_core::batch::{BatchParams, BatchRun, Endpoint, FileDigest};
use batch_core::blob_key::BlobKey;
use batch_core::catalog::{Catalog, Model, Price};
use batch_core::format;
use batch_core::id::{BatchId, FileId, LineNo, TenantId, WorkerId};
use batch_core::message::{Lane, QueueName, SCHEMA, ShardJob};
use batch_core::settings::Timing;
use batch_core::shard::{Backlog, Shard, ShardId, ShardState};
use batch_core::time::UnixMs;
use batch_io::embedded::{Embedded, Weather};
use batch_io::platform::system_clock;
use batch_io::store::{
    Created, Lapsed, NewBatch, Publication, Published, ShardClaim, Stage, Store,
};
use batch_io::{Clock, Platform};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use tempfile::TempDir;
use tokio::sync::watch;

use super::engine::{Gate, Load, ScriptedLoader, gated};
use super::faults::Fuse;
use crate::model::EngineOptions;
use crate::pipeline::Pipeline;
use crate::service::{Context, Place, ServableModel, Service, swap};

/// When every test begins.
const START: i64 = 1_790_000_000_000;

/// The service's outside.
pub(crate) struct Bench {
    pub(crate) platform: Platform,
    pub(crate) store: Store,
    pub(crate) tenant: TenantId,
    hand: Arc<AtomicI64>,
    _dir: TempDir,
}

/// A worker with the tiny model loaded, whose loop the test turns.
pub(crate) struct Worker {
    pub(crate) service: Service,
    pub(crate) pipeline: Pipeline,
    pub(crate) gate: Arc<Gate>,
}

impl Bench {
    /// Makes the outside under a clock that stands until the test moves it.
    pub(crate) fn new() -> Self {
        let hand = Arc::new(AtomicI64::new(START));
        let read = Arc::clone(&hand);
        Self::under(Arc::new(move || UnixMs(read.load(Ordering::SeqCst))), hand)
    }

    /// Makes the outside under the system's clock.
    pub(crate) fn in_real_time() -> Self {
        Self::under(system_clock(), Arc::default())
    }

    fn under(clock: Clock, hand: Arc<AtomicI64>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let embedded = Embedded::open_under(dir.path(), Weather::default(), clock)
            .expect("a fresh data folder");
        let platform = embedded.platform();
        Self {
            store: Store::new(Arc::clone(&platform.records), Timing::EMBEDDED),
            platform,
            tenant: TenantId::default_tenant(),
            hand,
            _dir: dir,
        }
    }

    pub(crate) fn now(&self) -> UnixMs {
        (self.platform.clock)()
    }

    pub(crate) fn advance_ms(&self, span_ms: i64) {
        self.hand.fetch_add(span_ms, Ordering::SeqCst);
    }

    /// Returns a worker's context over `platform`.
    pub(crate) fn context(&self, platform: Platform, loader: Arc<ScriptedLoader>) -> Context {
        let models = loader.script.keys();
        let models: Vec<ServableModel> = models
            .map(|id| ServableModel {
                id: id.clone(),
                place: Place::Files("unused".into()),
            })
            .collect();
        Context {
            store: Store::new(Arc::clone(&platform.records), Timing::EMBEDDED),
            catalog: Arc::new(
                Catalog::new(models.iter().map(|it| model(&it.id)).collect()).expect("a catalog"),
            ),
            worker: WorkerId::new(self.now(), (platform.random)()),
            platform,
            models,
            options: EngineOptions::default(),
            loader,
        }
    }

    /// Makes a worker with `tiny` loaded behind a gate.
    pub(crate) fn worker(&self) -> Worker {
        self.worker_over(self.platform.clone())
    }

    /// Makes a worker whose port calls a fuse counts.
    pub(crate) fn worker_behind(&self, fuse: &Fuse) -> Worker {
        self.worker_over(fuse.wrap(&self.platform))
    }

    fn worker_over(&self, platform: Platform) -> Worker {
        let loader = Arc::new(ScriptedLoader {
            script: BTreeMap::from([("tiny".to_owned(), Load::Fine)]),
            ..ScriptedLoader::default()
        });
        let (stop, stopped) = watch::channel(false);
        // The loop is not run: nobody listens.
        drop(stop);
        let gate = Arc::default();
        Worker {
            service: Service::new(self.context(platform, loader), stopped),
            pipeline: Pipeline::start(gated("tiny", &gate)),
            gate,
        }
    }

    /// Puts a batch of one line that must run alone in progress, and releases it.
    pub(crate) async fn lone(&self) -> BatchId {
        self.publish("tiny", 1, 1, true).await
    }

    /// Puts a batch of one model in progress and releases its shards, each of `shard_lines` lines.
    pub(crate) async fn released(&self, model: &str, shards: u32, shard_lines: u32) -> BatchId {
        self.publish(model, shards, shard_lines, false).await
    }

    async fn publish(&self, model: &str, shards: u32, shard_lines: u32, alone: bool) -> BatchId {
        let batch = self.create().await;
        let claimed = self
            .store
            .claim_stage(&self.tenant, batch, Stage::Validate, self.now())
            .await;
        let claimed = claimed.expect("claim").expect("a validating batch");
        let mut stored = Vec::new();
        for number in 0..shards {
            let shard = Shard {
                alone,
                ..pending(model, number, shard_lines)
            };
            let mut blob = Vec::new();
            let first = u64::from(number * shard_lines) + 1;
            for line in first..first + u64::from(shard_lines) {
                let raw = request(line, model);
                format::shard::encode_line(&mut blob, LineNo(line), 10, raw.as_bytes());
            }
            let key = self.shard_key(batch, &shard.id);
            let put = self.platform.blobs.put(&key, Bytes::from(blob)).await;
            put.expect("put the shard");
            stored.push(shard);
        }
        let put = self.store.put_shards(&self.tenant, batch, &stored).await;
        put.expect("put the shards");
        let (total, deadline) = (u64::from(shards * shard_lines), claimed.params.expires_at);
        let publication = publication(model, shards, total, deadline);
        let published = self
            .store
            .publish(&self.tenant, batch, claimed.epoch, publication, self.now())
            .await;
        assert!(matches!(published.expect("publish"), Published::Done(_)));
        let released = self
            .store
            .release(&self.tenant, batch, 0, 0, shards, self.now())
            .await;
        assert!(released.expect("release"));
        batch
    }

    /// Sends the messages of all shards of a batch.
    pub(crate) async fn send(&self, batch: BatchId, lane: Lane) {
        for shard in self.shards(batch).await {
            self.send_shard(batch, &shard, lane).await;
        }
    }

    pub(crate) async fn send_shard(&self, batch: BatchId, shard: &Shard, lane: Lane) {
        let job = ShardJob {
            schema: SCHEMA,
            tenant: self.tenant.clone(),
            batch,
            shard: shard.id.clone(),
        };
        let queue = QueueName::Model {
            model: shard.model.clone(),
            lane,
        };
        let body = serde_json::to_string(&job).expect("a job is plain JSON");
        let sent = self.platform.queue.send(&queue, vec![body], Duration::ZERO);
        sent.await.expect("send a message");
    }

    async fn create(&self) -> BatchId {
        let id = BatchId::new(self.now(), (self.platform.random)());
        let price = Price {
            input_per_million: 1.0,
            output_per_million: 2.0,
        };
        let params = BatchParams {
            id,
            tenant: self.tenant.clone(),
            endpoint: Endpoint::ChatCompletions,
            input_file_id: FileId::new(self.now(), (self.platform.random)()).to_string(),
            completion_window: "24h".to_owned(),
            expires_at: self.now().plus_ms(86_400_000),
            created_at: self.now(),
            metadata: None,
            output_expires_after: None,
            input_bytes: None,
            prices: BTreeMap::from([("tiny".to_owned(), price), ("small".to_owned(), price)]),
            rates: BTreeMap::new(),
            creation: None,
            schema: SCHEMA,
        };
        let new = NewBatch {
            params,
            pin: None,
            creation: None,
            rate_limit_per_hour: 2_000,
            now: self.now(),
        };
        let created = self.store.create_batch(new).await.expect("create");
        assert_eq!(created, Created::Made);
        id
    }

    pub(crate) async fn run(&self, batch: BatchId) -> BatchRun {
        let run = self.store.load_run(&self.tenant, batch).await;
        run.expect("load the batch").expect("the batch is there")
    }

    pub(crate) async fn shards(&self, batch: BatchId) -> Vec<Shard> {
        let shards = self.store.list_shards(&self.tenant, batch).await;
        shards.expect("list the shards")
    }

    pub(crate) async fn shard(&self, batch: BatchId, number: u32) -> Shard {
        let id = ShardId::root(0, number);
        let shard = self.store.load_shard(&self.tenant, batch, &id).await;
        shard.expect("load the shard").expect("the shard is there")
    }

    /// Claims a shard for another worker.
    pub(crate) async fn steal(&self, batch: BatchId, number: u32) -> ShardClaim {
        let thief = WorkerId::new(self.now(), (self.platform.random)());
        let id = ShardId::root(0, number);
        let claim = self
            .store
            .claim_shard(&self.tenant, batch, &id, thief, self.now());
        claim.await.expect("claim")
    }

    /// Does what reconcile does for shards: sends the messages of those that wait or whose lease is over.
    pub(crate) async fn reconcile(&self, batch: BatchId) {
        for shard in self.shards(batch).await {
            let lapse = self
                .store
                .apply_lapse(&self.tenant, batch, &shard.id, self.now());
            match lapse.await.expect("look at the shard") {
                Lapsed::Released(shard) => self.send_shard(batch, &shard, Lane::Bulk).await,
                Lapsed::Nothing | Lapsed::Stopped => {}
                other @ (Lapsed::MustSplit(_) | Lapsed::GiveUp(_)) => panic!("{other:?}"),
            }
        }
    }

    /// Returns how many messages wait in a queue.
    pub(crate) async fn waiting(&self, queue: &QueueName) -> u64 {
        self.platform.queue.depth(queue).await.expect("measure")
    }

    /// Reads which lines the segments of a batch hold, by segment. No line may be there twice.
    pub(crate) async fn committed(&self, batch: BatchId) -> Vec<Vec<u64>> {
        let mut seen = BTreeSet::new();
        let mut segments = Vec::new();
        for shard in self.shards(batch).await {
            for segment in &shard.segments {
                let key = BlobKey::Segment {
                    tenant: self.tenant.clone(),
                    batch,
                    shard: shard.id.clone(),
                    segment: *segment,
                };
                let blob = self.blob(&key).await;
                let lines = format::segment::decode(&blob);
                let lines: Vec<u64> = lines.map(|it| it.expect("a result").line.0).collect();
                assert!(
                    lines.iter().all(|line| seen.insert(*line)),
                    "{lines:?} twice"
                );
                segments.push(lines);
            }
        }
        segments
    }

    async fn blob(&self, key: &BlobKey) -> Vec<u8> {
        let mut read = self.platform.blobs.get(key, 0, None).await.expect("a blob");
        let mut bytes = BytesMut::new();
        while let Some(chunk) = read.body.try_next().await.expect("read the blob") {
            bytes.extend_from_slice(&chunk);
        }
        bytes.to_vec()
    }

    pub(crate) fn shard_key(&self, batch: BatchId, shard: &ShardId) -> BlobKey {
        BlobKey::Shard {
            tenant: self.tenant.clone(),
            batch,
            shard: shard.clone(),
        }
    }
}

impl Worker {
    /// Receives one message of a lane, if one is visible, and claims its shard.
    pub(crate) async fn receive(&mut self, lane: Lane) {
        let queue = bulk_or_fast(lane);
        let port = Arc::clone(&self.service.context.platform.queue);
        let received = port
            .receive(&queue, 1, Duration::from_secs(15), Duration::ZERO)
            .await;
        self.service.claim("tiny", received, lane).await;
    }

    pub(crate) fn feed(&mut self) {
        self.service.feed(&self.pipeline);
    }

    /// Waits for so many answers, takes them in, and commits shards that they end, as the loop does.
    pub(crate) async fn answers(&mut self, count: usize) {
        for _ in 0..count {
            let clock = Arc::clone(&self.service.context.platform.clock);
            let answer = self.pipeline.next(&*clock).await.expect("an answer");
            if let Some(ended) = self.service.take_answer(answer) {
                self.service.commit(&self.pipeline, ended).await;
            }
        }
    }

    /// Looks at the clock, as the loop does every tick.
    pub(crate) async fn tick(&mut self) {
        let mut turn = swap::Turn::new((self.service.context.platform.clock)());
        self.service
            .tick(&self.pipeline, &mut turn)
            .await
            .expect("the engine moves");
    }
}

pub(crate) fn bulk_or_fast(lane: Lane) -> QueueName {
    QueueName::Model {
        model: "tiny".to_owned(),
        lane,
    }
}

fn model(id: &str) -> Model {
    let price = serde_json::json!({ "input_per_million": 1.0, "output_per_million": 2.0 });
    let source = serde_json::json!({ "path": "unused" });
    let model = serde_json::json!({ "id": id, "source": source, "endpoints": [Endpoint::ChatCompletions], "price": price });
    serde_json::from_value(model).expect("a model")
}

fn pending(model: &str, number: u32, lines: u32) -> Shard {
    Shard {
        id: ShardId::root(0, number),
        model: model.to_owned(),
        window: 0,
        lines,
        estimated_tokens: 10 * u64::from(lines),
        subset: None,
        state: ShardState::Pending,
        epoch: 0,
        losses: 0,
        alone: false,
        segments: Vec::new(),
    }
}

fn publication(model: &str, shards: u32, total: u64, deadline: UnixMs) -> Publication {
    let backlog = Backlog {
        slot: 0,
        model: model.to_owned(),
        next: 0,
        shards,
        estimated_tokens: 10 * total,
        deadline,
    };
    Publication {
        models: vec![model.to_owned()],
        windows: 1,
        total,
        shards_total: u64::from(shards),
        estimated_tokens: 10 * total,
        backlogs: vec![backlog],
        input: FileDigest {
            sha256: "00".repeat(32),
            lines: total,
            bytes: 21,
        },
        enqueued_tokens_max: None,
    }
}

fn request(line: u64, model: &str) -> String {
    let body = format!(
        r#"{{"model":"{model}","messages":[{{"role":"user","content":"Say {line}"}}],"max_tokens":4}}"#
    );
    format!(
        r#"{{"custom_id":"r-{line}","method":"POST","url":"/v1/chat/completions","body":{body}}}"#
    )
}

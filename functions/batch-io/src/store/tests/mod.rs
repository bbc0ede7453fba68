//! The store over the embedded records, on a calm day and in rough weather.

mod creation;
mod dispatching;
mod files;
mod life;
mod races;
mod shards;
mod stages;
mod uploads;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use batch_core::batch::{BatchParams, BatchRun, Endpoint, FileDigest, Manifest, TokenCounts};
use batch_core::blob_key::BlobKey;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::{BatchId, Entropy, FileId, KeyId, TenantId, WorkerId};
use batch_core::lifecycle::Event;
use batch_core::message::SCHEMA;
use batch_core::settings::Timing;
use batch_core::shard::{Backlog, SegmentRef, Shard, ShardId, ShardState};
use batch_core::time::UnixMs;

use super::*;
use crate::embedded::{Embedded, Weather};

const TIMING: Timing = Timing::EMBEDDED;
const MODEL: &str = "qwen3-8b";
const HOUR_MS: i64 = 3_600_000;

const CALM: Weather = Weather {
    index_lag_ms: 0,
    short_pages: false,
    late_messages: false,
    double_messages: false,
    seed: 0,
};
const ROUGH: Weather = Weather {
    index_lag_ms: 500,
    short_pages: true,
    late_messages: false,
    double_messages: false,
    seed: 7,
};

/// A store in a folder of its own, under a clock that stands still until it is moved.
struct Bench {
    store: Store,
    records: Arc<dyn Records>,
    tenant: TenantId,
    now: Arc<AtomicI64>,
    ids: AtomicU64,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new(weather: Weather) -> Arc<Self> {
        let dir = tempfile::tempdir().unwrap();
        let now = Arc::new(AtomicI64::new(1_800_000_000_000));
        let hand = Arc::clone(&now);
        let clock: crate::Clock = Arc::new(move || UnixMs(hand.load(Ordering::SeqCst)));
        let records = Embedded::open_under(dir.path(), weather, clock)
            .unwrap()
            .records;
        Arc::new(Self {
            store: Store::new(Arc::clone(&records), TIMING),
            records,
            tenant: TenantId::default_tenant(),
            now,
            ids: AtomicU64::new(1),
            _dir: dir,
        })
    }

    fn now(&self) -> UnixMs {
        UnixMs(self.now.load(Ordering::SeqCst))
    }

    /// Lets time pass, and returns the new moment.
    fn pass_ms(&self, span_ms: i64) -> UnixMs {
        UnixMs(self.now.fetch_add(span_ms, Ordering::SeqCst) + span_ms)
    }

    fn entropy(&self) -> Entropy {
        u128::from(self.ids.fetch_add(1, Ordering::SeqCst)).to_be_bytes()
    }

    fn batch_id(&self) -> BatchId {
        BatchId::new(self.now(), self.entropy())
    }

    fn worker(&self) -> WorkerId {
        WorkerId::new(self.now(), self.entropy())
    }

    fn key(&self) -> KeyId {
        KeyId::new(self.now(), self.entropy())
    }

    fn file(&self, purpose: Purpose) -> File {
        let id = FileId::new(self.now(), self.entropy());
        File {
            id,
            tenant: self.tenant.clone(),
            bytes: 12,
            created_at: self.now(),
            expires_at: Some(self.now().plus_ms(720 * HOUR_MS)),
            filename: "in.jsonl".to_owned(),
            purpose,
            status: FileStatus::Processed,
            blob: BlobKey::File {
                tenant: self.tenant.clone(),
                file: id,
            },
            schema: SCHEMA,
        }
    }

    fn params(&self) -> BatchParams {
        let created_at = self.now();
        BatchParams {
            id: self.batch_id(),
            tenant: self.tenant.clone(),
            endpoint: Endpoint::ChatCompletions,
            input_file_id: "file-that-is-elsewhere".to_owned(),
            completion_window: "24h".to_owned(),
            expires_at: created_at.plus_ms(24 * HOUR_MS),
            created_at,
            metadata: Some(vec![("job".to_owned(), "nightly".to_owned())]),
            output_expires_after: None,
            input_bytes: None,
            prices: BTreeMap::new(),
            rates: BTreeMap::new(),
            creation: None,
            schema: SCHEMA,
        }
    }

    fn new_batch(&self) -> NewBatch {
        NewBatch {
            params: self.params(),
            pin: None,
            creation: None,
            rate_limit_per_hour: 2_000,
            now: self.now(),
        }
    }

    /// Creates a batch.
    async fn created(&self) -> BatchId {
        let new = self.new_batch();
        let batch = new.params.id;
        assert_eq!(self.store.create_batch(new).await.unwrap(), Created::Made);
        batch
    }

    /// Creates and publishes a batch of `shards` shards of 4 lines, of one model.
    async fn published(&self, shards: u32) -> BatchId {
        let batch = self.created().await;
        let claimed = self.claim(batch, Stage::Validate).await;
        let cut: Vec<Shard> = (0..shards).map(|number| shard(number, 4)).collect();
        self.store
            .put_shards(&self.tenant, batch, &cut)
            .await
            .unwrap();
        let publication = self.publication(shards);
        let published = self
            .store
            .publish(&self.tenant, batch, claimed.epoch, publication, self.now())
            .await
            .unwrap();
        assert!(matches!(published, Published::Done(_)), "{published:?}");
        batch
    }

    fn publication(&self, shards: u32) -> Publication {
        let estimated_tokens = 100 * u64::from(shards);
        let deadline = self.now().plus_ms(24 * HOUR_MS);
        let backlog = Backlog {
            slot: 0,
            model: MODEL.to_owned(),
            next: 0,
            shards,
            estimated_tokens,
            deadline,
        };
        Publication {
            models: vec![MODEL.to_owned()],
            windows: 1,
            total: 4 * u64::from(shards),
            shards_total: u64::from(shards),
            estimated_tokens,
            backlogs: vec![backlog],
            input: digest(),
            enqueued_tokens_max: None,
        }
    }

    /// Publishes a batch, and releases all its shards.
    async fn released(&self, shards: u32) -> BatchId {
        let batch = self.published(shards).await;
        assert!(
            self.store
                .release(&self.tenant, batch, 0, 0, shards, self.now())
                .await
                .unwrap()
        );
        batch
    }

    async fn claim(&self, batch: BatchId, stage: Stage) -> Claimed {
        self.store
            .claim_stage(&self.tenant, batch, stage, self.now())
            .await
            .unwrap()
            .expect("nobody holds the stage")
    }

    /// Claims the shard `number` for a new worker.
    async fn held(&self, batch: BatchId, number: u32) -> Shard {
        self.held_as(batch, &ShardId::root(0, number)).await
    }

    async fn held_as(&self, batch: BatchId, shard: &ShardId) -> Shard {
        match self
            .store
            .claim_shard(&self.tenant, batch, shard, self.worker(), self.now())
            .await
            .unwrap()
        {
            ShardClaim::Granted { shard, .. } => shard,
            refused @ (ShardClaim::Finished | ShardClaim::Busy { .. } | ShardClaim::Stopped) => {
                panic!("{refused:?}")
            }
        }
    }

    async fn commit(
        &self,
        batch: BatchId,
        held: &Shard,
        number: u32,
        lines: u64,
        last: bool,
    ) -> Commit {
        let segment = SegmentRef {
            epoch: held.epoch,
            number,
        };
        let delta = completed(lines);
        self.store
            .commit_shard(
                &self.tenant,
                batch,
                held,
                Some(segment),
                delta,
                last,
                self.now(),
            )
            .await
            .unwrap()
    }

    async fn apply(&self, batch: BatchId, event: Event) -> Result<Applied, ApplyError> {
        self.store
            .apply(&self.tenant, batch, event, self.now())
            .await
    }

    async fn run(&self, batch: BatchId) -> BatchRun {
        self.store
            .load_run(&self.tenant, batch)
            .await
            .unwrap()
            .expect("the batch exists")
    }

    async fn shard(&self, batch: BatchId, number: u32) -> Shard {
        let shard = ShardId::root(0, number);
        self.store
            .load_shard(&self.tenant, batch, &shard)
            .await
            .unwrap()
            .expect("the shard exists")
    }

    async fn finish(&self, batch: BatchId, epoch: u64, finish: Finish) -> Finished {
        self.store
            .finish(&self.tenant, batch, epoch, finish, self.now())
            .await
            .unwrap()
    }

    /// What is due by now, of one kind.
    async fn due(&self, kind: crate::port::WorkKind) -> Vec<DueRef> {
        self.store.due(kind, self.now(), 100).await.unwrap()
    }

    /// The entry of an item in the work index.
    async fn due_of(&self, key: &crate::port::RecordKey) -> Option<UnixMs> {
        self.records
            .get(key)
            .await
            .unwrap()
            .expect("the record exists")
            .due
            .map(|due| due.at)
    }
}

fn shard(number: u32, lines: u32) -> Shard {
    Shard {
        id: ShardId::root(0, number),
        model: MODEL.to_owned(),
        window: 0,
        lines,
        estimated_tokens: 100,
        subset: None,
        state: ShardState::Pending,
        epoch: 0,
        losses: 0,
        alone: false,
        segments: Vec::new(),
    }
}

fn completed(lines: u64) -> CommitDelta {
    let tokens = TokenCounts {
        input: 10 * lines,
        cached: lines,
        output: 5 * lines,
    };
    CommitDelta {
        completed: lines,
        failed: 0,
        tokens,
        cost_picodollars: 7 * lines,
    }
}

fn digest() -> FileDigest {
    FileDigest {
        sha256: "ab".repeat(32),
        lines: 4,
        bytes: 12,
    }
}

fn manifest() -> Manifest {
    Manifest {
        input: digest(),
        output: Some(digest()),
        error: Some(digest()),
    }
}

fn committed(commit: Commit) -> Shard {
    match commit {
        Commit::Ok(shard) => shard,
        refused @ (Commit::Fenced | Commit::Closed) => panic!("{refused:?}"),
    }
}

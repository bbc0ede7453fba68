//! Ports of which one call fails, before or after it took effect. The worker lives on, and must cope.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use batch_core::blob_key::BlobKey;
use batch_core::external::{ExternalObject, PinnedObject};
use batch_core::message::QueueName;
use batch_core::time::UnixMs;
use batch_io::port::{
    Action, BlobMeta, BlobRead, BlobReader, Blobs, Due, Item, Message, MultipartId, Page, PartTag,
    QueryOrder, Queue, Receipt, RecordKey, Records, TransactError, WorkKind,
};
use batch_io::{IoError, IoKind, Platform};
use bytes::Bytes;

/// Whether the call that fails took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Before,
    After,
}

/// Counts calls, and fails one of them.
#[derive(Debug, Clone)]
pub(crate) struct Fuse {
    calls: Arc<AtomicU64>,
    fails_at: Arc<AtomicU64>,
    fails_next: Arc<Mutex<Option<&'static str>>>,
    when: When,
}

impl Fuse {
    /// Makes a fuse that fails nothing yet.
    pub(crate) fn new(when: When) -> Self {
        Self {
            calls: Arc::default(),
            fails_at: Arc::new(AtomicU64::new(u64::MAX)),
            fails_next: Arc::default(),
            when,
        }
    }

    /// Fails the `k`-th call from now on; 0 is the next.
    pub(crate) fn fail_at(&self, k: u64) {
        self.fails_at.store(self.calls() + k, Ordering::SeqCst);
    }

    /// Fails the next call of this name.
    pub(crate) fn fail_next(&self, name: &'static str) {
        *self.next() = Some(name);
    }

    fn next(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.fails_next
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many calls were made.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn guard<T, E: From<IoError>>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let failed = || E::from(IoError::new("fail on purpose", "fuse", IoKind::Busy));
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let named = self.next().take_if(|next| *next == name).is_some();
        let fails = named || number == self.fails_at.load(Ordering::SeqCst);
        if fails && self.when == When::Before {
            return Err(failed());
        }
        let done = call.await?;
        if fails { Err(failed()) } else { Ok(done) }
    }

    /// Wraps all ports of a platform.
    pub(crate) fn wrap(&self, platform: &Platform) -> Platform {
        Platform {
            records: Arc::new(self.over(&platform.records)),
            blobs: Arc::new(self.over(&platform.blobs)),
            queue: Arc::new(self.over(&platform.queue)),
            clock: Arc::clone(&platform.clock),
            random: Arc::clone(&platform.random),
        }
    }

    fn over<T: ?Sized>(&self, inner: &Arc<T>) -> Faulty<T> {
        Faulty {
            inner: Arc::clone(inner),
            fuse: self.clone(),
        }
    }
}

struct Faulty<T: ?Sized> {
    inner: Arc<T>,
    fuse: Fuse,
}

impl<T: ?Sized> fmt::Debug for Faulty<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("fuse", &self.fuse)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Records for Faulty<dyn Records> {
    async fn get(&self, key: &RecordKey) -> Result<Option<Item>, IoError> {
        self.fuse.guard("get", self.inner.get(key)).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        order: QueryOrder,
        limit: usize,
    ) -> Result<Page, IoError> {
        let call = self.inner.query(partition, prefix, after, order, limit);
        self.fuse.guard("query", call).await
    }

    async fn due(
        &self,
        kind: WorkKind,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Due)>, IoError> {
        self.fuse
            .guard("due", self.inner.due(kind, until, limit))
            .await
    }

    async fn transact(&self, actions: Vec<Action>) -> Result<(), TransactError> {
        self.fuse
            .guard("transact", self.inner.transact(actions))
            .await
    }
}

/// A worker puts, reads and nothing else: the other calls go through.
#[async_trait]
impl Blobs for Faulty<dyn Blobs> {
    async fn put(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        self.fuse.guard("put blob", self.inner.put(key, body)).await
    }

    async fn put_if_absent(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        self.inner.put_if_absent(key, body).await
    }

    async fn put_stream(&self, key: &BlobKey, body: BlobReader) -> Result<BlobMeta, IoError> {
        self.inner.put_stream(key, body).await
    }

    async fn head(&self, key: &BlobKey) -> Result<BlobMeta, IoError> {
        self.inner.head(key).await
    }

    async fn get(&self, key: &BlobKey, start: u64, end: Option<u64>) -> Result<BlobRead, IoError> {
        self.fuse
            .guard("get blob", self.inner.get(key, start, end))
            .await
    }

    async fn multipart_begin(&self, key: &BlobKey) -> Result<MultipartId, IoError> {
        self.inner.multipart_begin(key).await
    }

    async fn multipart_put(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, IoError> {
        self.inner.multipart_put(key, id, number, body).await
    }

    async fn multipart_copy(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        source: &BlobKey,
        start: u64,
        end: u64,
    ) -> Result<PartTag, IoError> {
        self.inner
            .multipart_copy(key, id, number, source, start, end)
            .await
    }

    async fn head_external(&self, object: &ExternalObject) -> Result<BlobMeta, IoError> {
        self.inner.head_external(object).await
    }

    async fn multipart_copy_external(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        source: &PinnedObject,
        start: u64,
        end: u64,
    ) -> Result<PartTag, IoError> {
        self.inner
            .multipart_copy_external(key, id, number, source, start, end)
            .await
    }

    async fn multipart_finish(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        parts: &[PartTag],
    ) -> Result<BlobMeta, IoError> {
        self.inner.multipart_finish(key, id, parts).await
    }

    async fn multipart_abort(&self, key: &BlobKey, id: &MultipartId) -> Result<(), IoError> {
        self.inner.multipart_abort(key, id).await
    }

    async fn presigned_get(
        &self,
        key: &BlobKey,
        filename: &str,
        life_s: u32,
    ) -> Result<Option<String>, IoError> {
        self.inner.presigned_get(key, filename, life_s).await
    }

    async fn delete(&self, key: &BlobKey) -> Result<(), IoError> {
        self.inner.delete(key).await
    }

    async fn delete_prefix(&self, prefix: &str) -> Result<u64, IoError> {
        self.inner.delete_prefix(prefix).await
    }
}

#[async_trait]
impl Queue for Faulty<dyn Queue> {
    async fn send(
        &self,
        queue: &QueueName,
        bodies: Vec<String>,
        delay: Duration,
    ) -> Result<(), IoError> {
        self.fuse
            .guard("send", self.inner.send(queue, bodies, delay))
            .await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Message>, IoError> {
        let call = self.inner.receive(queue, limit, visibility, wait);
        self.fuse.guard("receive", call).await
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), IoError> {
        let call = self.inner.extend(queue, receipt, visibility);
        self.fuse.guard("extend", call).await
    }

    async fn delete(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), IoError> {
        self.fuse
            .guard("delete", self.inner.delete(queue, receipt))
            .await
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, IoError> {
        self.fuse.guard("depth", self.inner.depth(queue)).await
    }
}

//! Ports that fail on command: at the k-th call, before or after the call took effect.
//!
//! A crash between two effects and a lost reply look the same to a handler: an error. Running a handler
//! once for every k walks through every place where a process can die.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// What goes wrong with the failing call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Nothing happened.
    Before,
    /// It happened, and the caller does not know.
    After,
    /// It never ends. Later calls are fine.
    Stuck,
    /// Nothing happened. Later calls are fine: the process lives on.
    Once,
}

/// Counts calls, and fails those from the chosen one on: a dead process makes no later call either.
#[derive(Debug, Clone)]
pub(crate) struct Fuse {
    calls: Arc<AtomicU64>,
    fails_at: i64,
    when: When,
}

impl Fuse {
    /// Makes a fuse that blows at call `k`, from 0.
    pub(crate) fn at(k: i64, when: When) -> Self {
        Self {
            calls: Arc::default(),
            fails_at: k,
            when,
        }
    }

    /// Returns how many calls were made.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn guard<T, E: From<IoError>>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let crashed = || E::from(IoError::new("crash on purpose", "fuse", IoKind::Busy));
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let number = i64::try_from(number).expect("few calls");
        match self.when {
            When::Before if number >= self.fails_at => return Err(crashed()),
            When::After if number > self.fails_at => return Err(crashed()),
            When::Stuck if number == self.fails_at => std::future::pending().await,
            When::Once if number == self.fails_at => return Err(crashed()),
            When::Before | When::After | When::Stuck | When::Once => {}
        }
        let done = call.await?;
        if number == self.fails_at {
            Err(crashed())
        } else {
            Ok(done)
        }
    }

    /// Wraps all ports of a platform.
    pub(crate) fn wrap(&self, platform: &Platform) -> Platform {
        Platform {
            records: Arc::new(Faulty {
                inner: Arc::clone(&platform.records),
                fuse: self.clone(),
            }),
            blobs: Arc::new(Faulty {
                inner: Arc::clone(&platform.blobs),
                fuse: self.clone(),
            }),
            queue: Arc::new(Faulty {
                inner: Arc::clone(&platform.queue),
                fuse: self.clone(),
            }),
            clock: Arc::clone(&platform.clock),
            random: Arc::clone(&platform.random),
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
        self.fuse.guard(self.inner.get(key)).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        order: QueryOrder,
        limit: usize,
    ) -> Result<Page, IoError> {
        self.fuse
            .guard(self.inner.query(partition, prefix, after, order, limit))
            .await
    }

    async fn due(
        &self,
        kind: WorkKind,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Due)>, IoError> {
        self.fuse.guard(self.inner.due(kind, until, limit)).await
    }

    async fn transact(&self, actions: Vec<Action>) -> Result<(), TransactError> {
        self.fuse.guard(self.inner.transact(actions)).await
    }
}

#[async_trait]
impl Blobs for Faulty<dyn Blobs> {
    async fn put(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        self.fuse.guard(self.inner.put(key, body)).await
    }

    async fn put_if_absent(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        self.fuse.guard(self.inner.put_if_absent(key, body)).await
    }

    async fn put_stream(&self, key: &BlobKey, body: BlobReader) -> Result<BlobMeta, IoError> {
        self.fuse.guard(self.inner.put_stream(key, body)).await
    }

    async fn head(&self, key: &BlobKey) -> Result<BlobMeta, IoError> {
        self.fuse.guard(self.inner.head(key)).await
    }

    async fn get(&self, key: &BlobKey, start: u64, end: Option<u64>) -> Result<BlobRead, IoError> {
        self.fuse.guard(self.inner.get(key, start, end)).await
    }

    async fn multipart_begin(&self, key: &BlobKey) -> Result<MultipartId, IoError> {
        self.fuse.guard(self.inner.multipart_begin(key)).await
    }

    async fn multipart_put(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, IoError> {
        self.fuse
            .guard(self.inner.multipart_put(key, id, number, body))
            .await
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
        self.fuse
            .guard(
                self.inner
                    .multipart_copy(key, id, number, source, start, end),
            )
            .await
    }

    async fn head_external(&self, object: &ExternalObject) -> Result<BlobMeta, IoError> {
        self.fuse.guard(self.inner.head_external(object)).await
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
        let call = self
            .inner
            .multipart_copy_external(key, id, number, source, start, end);
        self.fuse.guard(call).await
    }

    async fn multipart_finish(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        parts: &[PartTag],
    ) -> Result<BlobMeta, IoError> {
        self.fuse
            .guard(self.inner.multipart_finish(key, id, parts))
            .await
    }

    async fn multipart_abort(&self, key: &BlobKey, id: &MultipartId) -> Result<(), IoError> {
        self.fuse.guard(self.inner.multipart_abort(key, id)).await
    }

    async fn presigned_get(
        &self,
        key: &BlobKey,
        filename: &str,
        life_s: u32,
    ) -> Result<Option<String>, IoError> {
        self.fuse
            .guard(self.inner.presigned_get(key, filename, life_s))
            .await
    }

    async fn delete(&self, key: &BlobKey) -> Result<(), IoError> {
        self.fuse.guard(self.inner.delete(key)).await
    }

    async fn delete_prefix(&self, prefix: &str) -> Result<u64, IoError> {
        self.fuse.guard(self.inner.delete_prefix(prefix)).await
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
        self.fuse.guard(self.inner.send(queue, bodies, delay)).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Message>, IoError> {
        self.fuse
            .guard(self.inner.receive(queue, limit, visibility, wait))
            .await
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), IoError> {
        self.fuse
            .guard(self.inner.extend(queue, receipt, visibility))
            .await
    }

    async fn delete(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), IoError> {
        self.fuse.guard(self.inner.delete(queue, receipt)).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, IoError> {
        self.fuse.guard(self.inner.depth(queue)).await
    }
}

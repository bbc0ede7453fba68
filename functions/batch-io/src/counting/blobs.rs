//! Counts requests of blobs.

use std::sync::Arc;

use async_trait::async_trait;
use batch_core::blob_key::BlobKey;
use batch_core::external::{ExternalObject, PinnedObject};
use bytes::Bytes;

use super::{Meter, Operation};
use crate::IoError;
use crate::port::{BlobMeta, BlobRead, BlobReader, Blobs, MultipartId, PartTag};

/// Bytes of the parts in which a stream is stored.
const STREAM_PART_BYTES: u64 = 8 * 1024 * 1024;

/// Objects that one list names, and one delete removes.
const LIST_OBJECTS: u64 = 1_000;

/// Blobs that count.
pub(super) struct Counted {
    inner: Arc<dyn Blobs>,
    meter: Meter,
}

impl Counted {
    pub(super) fn new(inner: Arc<dyn Blobs>, meter: Meter) -> Self {
        Self { inner, meter }
    }
}

#[async_trait]
impl Blobs for Counted {
    async fn put(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        self.meter.one(Operation::PutObject);
        self.inner.put(key, body).await
    }

    async fn put_if_absent(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        self.meter.one(Operation::PutObject);
        self.inner.put_if_absent(key, body).await
    }

    async fn put_stream(&self, key: &BlobKey, body: BlobReader) -> Result<BlobMeta, IoError> {
        let meta = self.inner.put_stream(key, body).await?;
        if meta.bytes <= STREAM_PART_BYTES {
            self.meter.one(Operation::PutObject);
        } else {
            let calls = meta.bytes.div_ceil(STREAM_PART_BYTES) + 2;
            self.meter.add(Operation::UploadPart, calls, calls as f64);
        }
        Ok(meta)
    }

    async fn head(&self, key: &BlobKey) -> Result<BlobMeta, IoError> {
        self.meter.one(Operation::GetObject);
        self.inner.head(key).await
    }

    async fn get(&self, key: &BlobKey, start: u64, end: Option<u64>) -> Result<BlobRead, IoError> {
        self.meter.one(Operation::GetObject);
        self.inner.get(key, start, end).await
    }

    async fn multipart_begin(&self, key: &BlobKey) -> Result<MultipartId, IoError> {
        self.meter.one(Operation::UploadPart);
        self.inner.multipart_begin(key).await
    }

    async fn multipart_put(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, IoError> {
        self.meter.one(Operation::UploadPart);
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
        self.meter.one(Operation::UploadPart);
        self.inner
            .multipart_copy(key, id, number, source, start, end)
            .await
    }

    async fn head_external(&self, object: &ExternalObject) -> Result<BlobMeta, IoError> {
        self.meter.one(Operation::GetObject);
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
        self.meter.one(Operation::UploadPart);
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
        self.meter.one(Operation::UploadPart);
        self.inner.multipart_finish(key, id, parts).await
    }

    async fn multipart_abort(&self, key: &BlobKey, id: &MultipartId) -> Result<(), IoError> {
        self.meter.one(Operation::DeleteObject);
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
        self.meter.one(Operation::DeleteObject);
        self.inner.delete(key).await
    }

    async fn delete_prefix(&self, prefix: &str) -> Result<u64, IoError> {
        let removed = self.inner.delete_prefix(prefix).await?;
        let lists = removed.div_ceil(LIST_OBJECTS).max(1);
        self.meter.add(Operation::ListObjects, lists, lists as f64);
        self.meter.add(Operation::DeleteObject, lists, lists as f64);
        Ok(removed)
    }
}

//! The blobs port: immutable byte objects, streamed.

use async_trait::async_trait;
use batch_core::blob_key::BlobKey;
use batch_core::external::{ExternalObject, PinnedObject};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use futures::stream::BoxStream;

use crate::{IoError, IoKind};

/// What is known of a stored blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobMeta {
    /// Size.
    pub bytes: u64,
    /// Changes when the bytes are replaced by others; quoted, as HTTP wants it.
    pub etag: String,
}

/// The bytes of a read, in order.
pub type BlobReader = BoxStream<'static, Result<Bytes, IoError>>;

/// A blob, or a range of it.
pub struct BlobRead {
    /// Of the whole blob.
    pub meta: BlobMeta,
    /// The bytes asked for.
    pub body: BlobReader,
}

impl std::fmt::Debug for BlobRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobRead")
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

/// Names a multipart blob that is being written.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MultipartId(pub String);

/// Proof that a part was stored.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PartTag {
    /// From 1.
    pub number: u32,
    /// Bytes of the part.
    pub bytes: u64,
    /// The store's tag.
    pub etag: String,
}

/// Immutable byte objects. A reader never sees half a blob.
///
/// Source: S3 `PutObject`, `GetObject`, multipart uploads with `UploadPartCopy` and
/// `x-amz-copy-source-if-match`, `ListObjectsV2`.
#[async_trait]
pub trait Blobs: Send + Sync + 'static {
    /// Stores `body` whole. Replaces what is there.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Denied` on a full disk.
    async fn put(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError>;

    /// Stores `body` unless the key exists.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Conflict` if the key exists.
    async fn put_if_absent(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError>;

    /// Stores a stream in constant memory. If the stream fails, nothing is stored.
    ///
    /// # Errors
    ///
    /// The stream's own error, or [`IoError`].
    async fn put_stream(&self, key: &BlobKey, body: BlobReader) -> Result<BlobMeta, IoError>;

    /// Reads size and tag.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `NotFound`.
    async fn head(&self, key: &BlobKey) -> Result<BlobMeta, IoError>;

    /// Reads a blob from `start`, up to but without `end`, clipped to its size. A range outside is empty. A
    /// reader that has begun is not disturbed by a delete.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `NotFound`. A later error comes in the stream.
    async fn get(&self, key: &BlobKey, start: u64, end: Option<u64>) -> Result<BlobRead, IoError>;

    /// Begins a blob of parts.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    async fn multipart_begin(&self, key: &BlobKey) -> Result<MultipartId, IoError>;

    /// Stores a part (again), number 1 to 10,000. Every part but the last has at least 5 MiB; this is
    /// checked at the end.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `NotFound` if the multipart is over, `TooLarge` for another number.
    async fn multipart_put(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, IoError>;

    /// Stores a range of another blob as a part, without moving it through this process where possible.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `NotFound` if the source or the multipart is gone, `TooLarge` if the range is empty or
    /// ends beyond the source, or for a number that is none.
    async fn multipart_copy(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        source: &BlobKey,
        start: u64,
        end: u64,
    ) -> Result<PartTag, IoError>;

    /// Reads size and tag of an object outside the service. Whether it may be read is the caller's to check.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `NotFound`; `Denied` if the service has no right to read it.
    async fn head_external(&self, object: &ExternalObject) -> Result<BlobMeta, IoError>;

    /// Stores a range of an object outside the service as a part, without moving it through this process
    /// where possible.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Conflict` if the object's tag is another; else as [`Blobs::head_external`] and
    /// [`Blobs::multipart_copy`].
    async fn multipart_copy_external(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        source: &PinnedObject,
        start: u64,
        end: u64,
    ) -> Result<PartTag, IoError>;

    /// Makes the blob of the parts given, whose numbers ascend; others are dropped. Replaces what is there.
    /// Repeating a finished one is an error, or gives the blob that it made.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `TooLarge` if there is no part, a part but the last is under 5 MiB, or the numbers do not
    /// ascend; `NotFound` if the multipart is over, or a part is not stored under its tag.
    async fn multipart_finish(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        parts: &[PartTag],
    ) -> Result<BlobMeta, IoError>;

    /// Drops the parts. No error if they are gone; a finished blob stays.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    async fn multipart_abort(&self, key: &BlobKey, id: &MultipartId) -> Result<(), IoError>;

    /// Makes an address from which anyone may read the blob for a short time; none where reads go through
    /// this process.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    async fn presigned_get(
        &self,
        key: &BlobKey,
        filename: &str,
        life_s: u32,
    ) -> Result<Option<String>, IoError>;

    /// Removes a blob. No error if it is gone.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    async fn delete(&self, key: &BlobKey) -> Result<(), IoError>;

    /// Removes every blob whose path starts with `prefix`, and returns how many. For the collector alone.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `TooLarge` for an empty prefix, which would remove everything.
    async fn delete_prefix(&self, prefix: &str) -> Result<u64, IoError>;
}

/// Puts the bytes of a read into memory: for blobs and ranges that are known to be small.
///
/// # Errors
///
/// The read's own error.
pub async fn collect(mut body: BlobReader) -> Result<Bytes, IoError> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = body.try_next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

/// Reads a blob whole that a record names.
///
/// # Errors
///
/// [`IoError`]: `Corrupt` if it is not there, or shorter than it should be.
pub async fn read_named(blobs: &dyn Blobs, key: &BlobKey) -> Result<Bytes, IoError> {
    let corrupt = || {
        IoError::new(
            "read a blob that a record names",
            key.to_string(),
            IoKind::Corrupt,
        )
    };
    let read = match blobs.get(key, 0, None).await {
        Ok(read) => read,
        Err(error) if error.kind == IoKind::NotFound => return Err(corrupt().because(error)),
        Err(error) => return Err(error),
    };
    let bytes = collect(read.body).await?;
    if bytes.len() as u64 == read.meta.bytes {
        Ok(bytes)
    } else {
        Err(corrupt())
    }
}

//! Makes one blob of the parts of an upload, in constant memory.
//!
//! Stores copy ranges of 5 MiB and more on their side; smaller parts are read and packed together.

use std::sync::Arc;

use batch_core::blob_key::BlobKey;
use batch_core::limits::BLOB_PART_BYTES_MIN;
use batch_core::upload::UploadPart;
use batch_core::wire::create_upload::md5_mismatch;
use batch_io::IoError;
use batch_io::port::{Blobs, MultipartId, PartTag};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use md5::{Digest, Md5};

use crate::reply::ApiError;

const COPY_BYTES_MIN: u64 = BLOB_PART_BYTES_MIN as u64;

/// A blob in the making.
struct Assembly<'a> {
    blobs: &'a Arc<dyn Blobs>,
    key: &'a BlobKey,
    id: &'a MultipartId,
    tags: Vec<PartTag>,
    /// Bytes that are too few for a part of their own.
    packed: BytesMut,
}

/// Makes a blob of parts, in this order.
pub(crate) async fn assemble(
    blobs: &Arc<dyn Blobs>,
    key: &BlobKey,
    parts: &[UploadPart],
) -> Result<(), IoError> {
    let id = blobs.multipart_begin(key).await?;
    let assembly = Assembly {
        blobs,
        key,
        id: &id,
        tags: Vec::new(),
        packed: BytesMut::new(),
    };
    let made = assembly.run(parts).await;
    if made.is_err()
        && let Err(fault) = blobs.multipart_abort(key, &id).await
    {
        tracing::warn!(error = %fault, "a multipart blob stays unfinished");
    }
    made
}

impl Assembly<'_> {
    async fn run(mut self, parts: &[UploadPart]) -> Result<(), IoError> {
        for part in parts {
            self.append(part).await?;
        }
        if !self.packed.is_empty() || self.tags.is_empty() {
            self.flush().await?;
        }
        self.blobs
            .multipart_finish(self.key, self.id, &self.tags)
            .await?;
        Ok(())
    }

    /// Fills what is packed up to a part's least size, then copies the rest if it is large enough.
    async fn append(&mut self, part: &UploadPart) -> Result<(), IoError> {
        let missing = if self.packed.is_empty() {
            0
        } else {
            COPY_BYTES_MIN - self.packed.len() as u64
        };
        let mut start = missing.min(part.bytes);
        self.pack(part, 0, start).await?;
        if part.bytes - start >= COPY_BYTES_MIN {
            let number = self.next_number();
            let tag = self
                .blobs
                .multipart_copy(self.key, self.id, number, &part.blob, start, part.bytes)
                .await?;
            self.tags.push(tag);
            start = part.bytes;
        }
        self.pack(part, start, part.bytes).await
    }

    async fn pack(&mut self, part: &UploadPart, start: u64, end: u64) -> Result<(), IoError> {
        if start == end {
            return Ok(());
        }
        let mut body = self.blobs.get(&part.blob, start, Some(end)).await?.body;
        while let Some(chunk) = body.next().await {
            self.packed.extend_from_slice(&chunk?);
        }
        if self.packed.len() >= BLOB_PART_BYTES_MIN {
            self.flush().await
        } else {
            Ok(())
        }
    }

    async fn flush(&mut self) -> Result<(), IoError> {
        let body: Bytes = self.packed.split().freeze();
        let number = self.next_number();
        self.tags.push(
            self.blobs
                .multipart_put(self.key, self.id, number, body)
                .await?,
        );
        Ok(())
    }

    fn next_number(&self) -> u32 {
        u32::try_from(self.tags.len() + 1).unwrap_or(u32::MAX)
    }
}

/// Checks the MD5 of parts put together.
pub(crate) async fn check_md5(
    blobs: &Arc<dyn Blobs>,
    parts: &[UploadPart],
    expected: &str,
) -> Result<(), ApiError> {
    let mut hash = Md5::new();
    for part in parts {
        let mut body = blobs.get(&part.blob, 0, None).await?.body;
        while let Some(chunk) = body.next().await {
            hash.update(&chunk?);
        }
    }
    let found = hex::encode(hash.finalize());
    if found == expected {
        Ok(())
    } else {
        Err(md5_mismatch(expected, &found).into())
    }
}

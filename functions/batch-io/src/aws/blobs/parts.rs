//! Blobs in parts: S3 multipart uploads.
//!
//! No part carries a checksum of ours. S3 wants all parts of a whole alike, by the algorithm that its begin
//! names; a part that S3 copies carries none, and whether a whole will have copied parts is not known when it
//! begins. The SHA-256 in every request's signature still tells S3 if a part came in wrong.
//!
//! Source: <https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html>

use std::fmt::Write as _;
use std::ops::Range;

use aws_sdk_s3::config::{Config, RequestChecksumCalculation};
use aws_sdk_s3::error::ProvideErrorMetadata as _;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;

use super::{S3Blobs, meta, reading, refused};
use crate::port::blob_rules::{self, PART_BYTES_MIN};
use crate::port::{BlobMeta, MultipartId, PartTag};
use crate::{IoError, IoKind};

/// What a part is copied from.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    /// Its bucket.
    pub(super) blobs: &'a S3Blobs,
    /// Where in it.
    pub(super) path: &'a str,
    /// The tag that it must have; none if it never changes.
    pub(super) etag: Option<&'a str>,
}

impl Source<'_> {
    fn check(&self, found: &BlobMeta) -> Result<(), IoError> {
        if self.etag.is_none_or(|etag| etag == found.etag) {
            return Ok(());
        }
        let why = "its tag is another than when the copy was asked for";
        Err(IoError::new("copy part", self.path, IoKind::Conflict).because(why))
    }

    /// Reads a range, of less than 5 MiB, or of an object that has no more.
    async fn read(&self, range: Range<u64>) -> Result<Bytes, IoError> {
        let (path, end) = (self.path.to_owned(), Some(range.end));
        let read = reading::get(self.blobs, path, range.start, end).await?;
        self.check(&read.meta)?;
        let gather = |mut all: BytesMut, chunk: Bytes| async move {
            all.extend_from_slice(&chunk);
            Ok(all)
        };
        Ok(read.body.try_fold(BytesMut::new(), gather).await?.freeze())
    }

    /// Returns bucket and path as a header has them: encoded, but for slashes.
    fn address(&self) -> String {
        let mut address = format!("{}/", self.blobs.bucket);
        for byte in self.path.bytes() {
            if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
                address.push(char::from(byte));
            } else {
                write!(address, "%{byte:02X}").expect("a text can always be written to");
            }
        }
        address
    }
}

impl S3Blobs {
    pub(super) async fn begin_at(&self, path: &str) -> Result<MultipartId, IoError> {
        const DOING: &str = "begin multipart";
        let begun = self.client.create_multipart_upload().bucket(&*self.bucket);
        let begun = begun.key(path).send().await;
        let begun = begun.map_err(|error| self.failed(DOING, path, &error))?;
        match begun.upload_id {
            Some(id) => Ok(MultipartId(id)),
            None => Err(IoError::new(DOING, path, IoKind::Corrupt).because("S3 gave no id")),
        }
    }

    pub(super) async fn put_part_at(
        &self,
        path: &str,
        id: &MultipartId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, IoError> {
        const DOING: &str = "put part";
        let bytes = body.len() as u64;
        blob_rules::check_part(number, bytes).map_err(|limit| refused(DOING, path, limit))?;
        let put = self.client.upload_part().bucket(&*self.bucket).key(path);
        let put = put
            .upload_id(&id.0)
            .part_number(signed(number))
            .body(body.into());
        // The SDK would add a CRC32 by default, which the begin has not named.
        let plain = Config::builder()
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired);
        let put = put
            .customize()
            .config_override(plain)
            .send()
            .await
            .map_err(|error| self.failed(DOING, path, &error))?;
        tag(DOING, path, number, bytes, put.e_tag)
    }

    /// S3 copies ranges of objects above 5 MiB alone. What is smaller takes the way through this process.
    pub(super) async fn copy_part_at(
        &self,
        path: &str,
        id: &MultipartId,
        number: u32,
        source: Source<'_>,
        range: Range<u64>,
    ) -> Result<PartTag, IoError> {
        const DOING: &str = "copy part";
        let bytes = range.end.saturating_sub(range.start);
        let refuse = |limit| refused(DOING, path, limit);
        blob_rules::check_part(number, bytes).map_err(refuse)?;
        let whole = source.blobs.head_at(source.path).await?;
        source.check(&whole)?;
        blob_rules::check_range(range.start, range.end, whole.bytes).map_err(refuse)?;
        if whole.bytes <= PART_BYTES_MIN || bytes < PART_BYTES_MIN {
            let body = source.read(range).await?;
            return self.put_part_at(path, id, number, body).await;
        }
        let copied = self
            .client
            .upload_part_copy()
            .bucket(&*self.bucket)
            .key(path)
            .upload_id(&id.0)
            .part_number(signed(number))
            .copy_source(source.address())
            .copy_source_range(format!("bytes={}-{}", range.start, range.end - 1))
            .set_copy_source_if_match(source.etag.map(str::to_owned))
            .send()
            .await
            .map_err(|error| self.failed(DOING, path, &error))?;
        let etag = copied.copy_part_result.and_then(|copied| copied.e_tag);
        tag(DOING, path, number, bytes, etag)
    }

    pub(super) async fn finish_at(
        &self,
        path: &str,
        id: &MultipartId,
        parts: &[PartTag],
    ) -> Result<BlobMeta, IoError> {
        const DOING: &str = "finish multipart";
        blob_rules::check_parts(parts).map_err(|limit| refused(DOING, path, limit))?;
        let completed = parts.iter().map(|part| {
            let completed = CompletedPart::builder().part_number(signed(part.number));
            completed.e_tag(&part.etag).build()
        });
        let list = CompletedMultipartUpload::builder().set_parts(Some(completed.collect()));
        let finished = self
            .client
            .complete_multipart_upload()
            .bucket(&*self.bucket)
            .key(path)
            .upload_id(&id.0)
            .multipart_upload(list.build())
            .send()
            .await
            .map_err(|error| self.failed(DOING, path, &error))?;
        let bytes = parts.iter().map(|part| part.bytes).sum();
        meta(DOING, path, bytes, finished.e_tag)
    }

    pub(super) async fn abort_at(&self, path: &str, id: &MultipartId) -> Result<(), IoError> {
        let aborted = self.client.abort_multipart_upload().bucket(&*self.bucket);
        match aborted.key(path).upload_id(&id.0).send().await {
            Err(error) if error.code() != Some("NoSuchUpload") => {
                Err(self.failed("abort multipart", path, &error))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn tag(
    doing: &'static str,
    path: &str,
    number: u32,
    bytes: u64,
    etag: Option<String>,
) -> Result<PartTag, IoError> {
    let BlobMeta { bytes, etag } = meta(doing, path, bytes, etag)?;
    Ok(PartTag {
        number,
        bytes,
        etag,
    })
}

#[cfg(test)]
mod tests;

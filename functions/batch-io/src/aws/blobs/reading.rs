//! Reads of objects and their ranges. A read that breaks goes on where it broke, as long as the object is
//! the same.

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata as _, SdkError};
use aws_sdk_s3::operation::get_object::{GetObjectError, GetObjectOutput};
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use futures::{StreamExt as _, stream};

use super::super::patience;
use super::{S3Blobs, meta};
use crate::port::{BlobMeta, BlobRead, BlobReader};
use crate::{IoError, IoKind};

const DOING: &str = "get blob";

/// Breaks in a row, without a byte between, that a read survives.
const BREAKS_MAX: u32 = 4;

/// No object reaches this far. S3 takes a range with numbers beyond 64 bits for none at all.
const BEYOND_EVERY_OBJECT: u64 = i64::MAX as u64;

/// Opens an object from `start`, up to but without `end`, clipped to its size.
pub(super) async fn get(
    blobs: &S3Blobs,
    path: String,
    start: u64,
    end: Option<u64>,
) -> Result<BlobRead, IoError> {
    if start >= BEYOND_EVERY_OBJECT || end.is_some_and(|end| end <= start) {
        return nothing(blobs, &path).await;
    }
    let end = end.map(|end| end.min(BEYOND_EVERY_OBJECT));
    let opened = match request(blobs, &path, start, end, None).await {
        Ok(opened) => opened,
        Err(error) if error.code() == Some("InvalidRange") => return nothing(blobs, &path).await,
        Err(error) => return Err(blobs.failed(DOING, &path, &error)),
    };
    let ranged = start > 0 || end.is_some();
    let bytes = match (ranged, whole_size(&opened)) {
        (_, Some(bytes)) => bytes,
        (false, None) => length(&opened),
        (true, None) => {
            let why = "the store ignored the range that it was asked for";
            return Err(IoError::new(DOING, path, IoKind::Denied).because(why));
        }
    };
    let meta = meta(DOING, &path, bytes, opened.e_tag)?;
    let reading = Reading {
        blobs: blobs.clone(),
        path,
        etag: meta.etag.clone(),
        at: start,
        end: end.map_or(bytes, |end| end.min(bytes)),
        body: opened.body,
        breaks: 0,
    };
    Ok(BlobRead {
        meta,
        body: reading.into_stream(),
    })
}

/// An empty read of an object that is there.
async fn nothing(blobs: &S3Blobs, path: &str) -> Result<BlobRead, IoError> {
    let meta: BlobMeta = blobs.head_at(path).await?;
    Ok(BlobRead {
        meta,
        body: stream::empty().boxed(),
    })
}

async fn request(
    blobs: &S3Blobs,
    path: &str,
    start: u64,
    end: Option<u64>,
    etag: Option<String>,
) -> Result<GetObjectOutput, SdkError<GetObjectError, HttpResponse>> {
    let range = match (start, end) {
        (0, None) => None,
        (start, None) => Some(format!("bytes={start}-")),
        (start, Some(end)) => Some(format!("bytes={start}-{}", end - 1)),
    };
    let get = blobs.client.get_object().bucket(&*blobs.bucket).key(path);
    get.set_range(range).set_if_match(etag).send().await
}

/// Reads the size of the whole object out of `bytes 0-9/1234`.
fn whole_size(opened: &GetObjectOutput) -> Option<u64> {
    opened.content_range()?.rsplit_once('/')?.1.parse().ok()
}

fn length(opened: &GetObjectOutput) -> u64 {
    let length = opened.content_length().unwrap_or_default();
    u64::try_from(length).unwrap_or_default()
}

/// A read under way.
struct Reading {
    blobs: S3Blobs,
    path: String,
    etag: String,
    at: u64,
    end: u64,
    body: ByteStream,
    breaks: u32,
}

impl Reading {
    fn into_stream(self) -> BlobReader {
        let steps = stream::try_unfold(self, |mut reading| async move {
            Ok(reading.step().await?.map(|chunk| (chunk, reading)))
        });
        steps.boxed()
    }

    async fn step(&mut self) -> Result<Option<Bytes>, IoError> {
        loop {
            let why = match self.body.next().await {
                Some(Ok(chunk)) => {
                    self.at += chunk.len() as u64;
                    self.breaks = 0;
                    return Ok(Some(chunk));
                }
                None if self.at >= self.end => return Ok(None),
                // All bytes came, and their checksum is another.
                Some(Err(error)) if self.at >= self.end => {
                    return Err(self.error(IoKind::Corrupt).because(error));
                }
                Some(Err(error)) => error.to_string(),
                None => "the bytes ended early".to_owned(),
            };
            if self.breaks == BREAKS_MAX {
                return Err(self.error(IoKind::Busy).because(why));
            }
            patience::pause(self.breaks).await;
            self.breaks += 1;
            self.reopen().await?;
        }
    }

    async fn reopen(&mut self) -> Result<(), IoError> {
        let etag = Some(self.etag.clone());
        match request(&self.blobs, &self.path, self.at, Some(self.end), etag).await {
            Ok(opened) => {
                self.body = opened.body;
                Ok(())
            }
            Err(error) => {
                let failure = self.blobs.failed(DOING, &self.path, &error);
                match failure.kind {
                    IoKind::Conflict | IoKind::NotFound => {
                        let why = "it was replaced or deleted while a broken read was to go on";
                        Err(self.error(IoKind::Busy).because(why))
                    }
                    IoKind::Busy | IoKind::Denied | IoKind::TooLarge | IoKind::Corrupt => {
                        Err(failure)
                    }
                }
            }
        }
    }

    fn error(&self, kind: IoKind) -> IoError {
        IoError::new("read blob", self.path.as_str(), kind)
    }
}

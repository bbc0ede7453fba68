//! Blobs in one S3 bucket, each under its key's path.

mod disposition;
mod parts;
mod reading;
mod streaming;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::{Config, ResponseChecksumValidation};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use batch_core::blob_key::BlobKey;
use batch_core::external::{ExternalObject, PinnedObject};
use bytes::Bytes;

use super::failure::{self, Place};
use super::patience;
use crate::port::blob_rules::BlobLimit;
use crate::port::{BlobMeta, BlobRead, BlobReader, Blobs, MultipartId, PartTag};
use crate::{IoError, IoKind};

use parts::Source;

/// Tries of a first put that met another.
const TRIES: u32 = 6;

/// The metadata of a first put that names the call which made it.
const MAKER: &str = "maker";

/// The bucket of one deployment. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct S3Blobs {
    client: Client,
    bucket: Arc<str>,
}

impl S3Blobs {
    pub(super) fn new(client: Client, bucket: &str) -> Self {
        Self {
            client,
            bucket: Arc::from(bucket),
        }
    }

    /// The same client over a bucket of others.
    fn in_bucket(&self, bucket: &str) -> Self {
        Self {
            client: self.client.clone(),
            bucket: Arc::from(bucket),
        }
    }

    fn failed<E>(
        &self,
        doing: &'static str,
        path: &str,
        error: &SdkError<E, HttpResponse>,
    ) -> IoError
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        failure::failed(doing, path, Place::Bucket(&self.bucket), error)
    }

    async fn put_at(&self, path: &str, body: Bytes) -> Result<BlobMeta, IoError> {
        const DOING: &str = "put blob";
        let bytes = body.len() as u64;
        let put = self.client.put_object().bucket(&*self.bucket).key(path);
        let put = put.body(body.into()).send().await;
        let put = put.map_err(|error| self.failed(DOING, path, &error))?;
        meta(DOING, path, bytes, put.e_tag)
    }

    async fn head_at(&self, path: &str) -> Result<BlobMeta, IoError> {
        const DOING: &str = "look at blob";
        let head = self.client.head_object().bucket(&*self.bucket).key(path);
        let head = head.send().await;
        let head = head.map_err(|error| self.failed(DOING, path, &error))?;
        let bytes = head
            .content_length
            .and_then(|bytes| u64::try_from(bytes).ok());
        meta(DOING, path, bytes.unwrap_or_default(), head.e_tag)
    }

    /// Returns what is there, if the call that bears this mark put it: then an earlier try of it took effect,
    /// and only the answer was lost.
    async fn made_by(&self, mark: &str, path: &str) -> Result<Option<BlobMeta>, IoError> {
        const DOING: &str = "look at blob";
        let head = self.client.head_object().bucket(&*self.bucket).key(path);
        let head = head.send().await;
        let head = match head.map_err(|error| self.failed(DOING, path, &error)) {
            Ok(head) => head,
            Err(error) if error.kind == IoKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let maker = head
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.get(MAKER));
        if maker.is_none_or(|maker| maker != mark) {
            return Ok(None);
        }
        let bytes = head
            .content_length
            .and_then(|bytes| u64::try_from(bytes).ok());
        meta(DOING, path, bytes.unwrap_or_default(), head.e_tag).map(Some)
    }

    /// Removes the blobs of one page of a list, and returns how many.
    async fn delete_listed(
        &self,
        prefix: &str,
        listed: Vec<ObjectIdentifier>,
    ) -> Result<u64, IoError> {
        const DOING: &str = "delete blobs";
        let count = listed.len() as u64;
        let list = Delete::builder().set_objects(Some(listed)).quiet(true);
        let list = list.build().expect("a list of deletions has its objects");
        let deleted = self.client.delete_objects().bucket(&*self.bucket);
        let deleted = deleted.delete(list).send().await;
        let deleted = deleted.map_err(|error| self.failed(DOING, prefix, &error))?;
        match deleted.errors().first() {
            None => Ok(count),
            Some(error) => {
                let kind = match error.code() {
                    Some("AccessDenied") => IoKind::Denied,
                    Some(_) | None => IoKind::Busy,
                };
                let why = format!(
                    "{}: {}",
                    error.code().unwrap_or("no code"),
                    error.message().unwrap_or("no message")
                );
                Err(IoError::new(DOING, error.key().unwrap_or(prefix), kind).because(why))
            }
        }
    }
}

#[async_trait]
impl Blobs for S3Blobs {
    async fn put(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        self.put_at(&key.path(), body).await
    }

    /// The SDK repeats a put whose answer was lost, and then meets its own first try: the mark tells.
    async fn put_if_absent(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        const DOING: &str = "put new blob";
        let (path, mark, bytes) = (key.path(), mark(), body.len() as u64);
        let mut tries = 0;
        loop {
            let put = self.client.put_object().bucket(&*self.bucket).key(&path);
            let put = put.if_none_match("*").metadata(MAKER, &mark);
            let error = match put.body(body.clone().into()).send().await {
                Ok(put) => return meta(DOING, &path, bytes, put.e_tag),
                Err(error) => error,
            };
            let failure = self.failed(DOING, &path, &error);
            let met_another = error.code() == Some("ConditionalRequestConflict");
            tries += 1;
            if met_another && tries < TRIES {
                patience::pause(tries).await;
            } else if failure.kind == IoKind::Conflict {
                return self.made_by(&mark, &path).await?.ok_or(failure);
            } else {
                return Err(failure);
            }
        }
    }

    async fn put_stream(&self, key: &BlobKey, body: BlobReader) -> Result<BlobMeta, IoError> {
        streaming::put(self, &key.path(), body).await
    }

    async fn head(&self, key: &BlobKey) -> Result<BlobMeta, IoError> {
        self.head_at(&key.path()).await
    }

    async fn get(&self, key: &BlobKey, start: u64, end: Option<u64>) -> Result<BlobRead, IoError> {
        reading::get(self, key.path(), start, end).await
    }

    async fn multipart_begin(&self, key: &BlobKey) -> Result<MultipartId, IoError> {
        self.begin_at(&key.path()).await
    }

    async fn multipart_put(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, IoError> {
        self.put_part_at(&key.path(), id, number, body).await
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
        let source = Source {
            blobs: self,
            path: &source.path(),
            etag: None,
        };
        self.copy_part_at(&key.path(), id, number, source, start..end)
            .await
    }

    async fn head_external(&self, object: &ExternalObject) -> Result<BlobMeta, IoError> {
        self.in_bucket(&object.bucket).head_at(&object.key).await
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
        let source = Source {
            blobs: &self.in_bucket(&source.object.bucket),
            path: &source.object.key,
            etag: Some(&source.etag),
        };
        self.copy_part_at(&key.path(), id, number, source, start..end)
            .await
    }

    async fn multipart_finish(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        parts: &[PartTag],
    ) -> Result<BlobMeta, IoError> {
        self.finish_at(&key.path(), id, parts).await
    }

    async fn multipart_abort(&self, key: &BlobKey, id: &MultipartId) -> Result<(), IoError> {
        self.abort_at(&key.path(), id).await
    }

    /// The address dies with the credentials that sign it, maybe before `life_s` is over.
    async fn presigned_get(
        &self,
        key: &BlobKey,
        filename: &str,
        life_s: u32,
    ) -> Result<Option<String>, IoError> {
        const DOING: &str = "sign an address of blob";
        let path = key.path();
        let life = PresigningConfig::expires_in(Duration::from_secs(life_s.into()));
        let life = life
            .map_err(|error| IoError::new(DOING, path.as_str(), IoKind::TooLarge).because(error))?;
        // Asking for checksums is a header, which whoever follows the address would have to send.
        let plain = Config::builder()
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
        let request = self
            .client
            .get_object()
            .bucket(&*self.bucket)
            .key(&path)
            .response_content_disposition(disposition::attachment(filename))
            .response_content_type(disposition::content_type(key))
            .customize()
            .config_override(plain)
            .presigned(life)
            .await
            .map_err(|error| self.failed(DOING, &path, &error))?;
        Ok(Some(request.uri().to_owned()))
    }

    async fn delete(&self, key: &BlobKey) -> Result<(), IoError> {
        let path = key.path();
        let deletion = self.client.delete_object().bucket(&*self.bucket);
        match deletion.key(&path).send().await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed("delete blob", &path, &error)),
        }
    }

    async fn delete_prefix(&self, prefix: &str) -> Result<u64, IoError> {
        const DOING: &str = "list blobs";
        if prefix.is_empty() {
            return Err(refused("delete blobs", prefix, BlobLimit::EmptyPrefix));
        }
        let (mut count, mut next) = (0, None);
        loop {
            let page = self.client.list_objects_v2().bucket(&*self.bucket);
            let page = page
                .prefix(prefix)
                .set_continuation_token(next)
                .send()
                .await;
            let page = page.map_err(|error| self.failed(DOING, prefix, &error))?;
            // A page holds at most as many as one deletion takes: 1,000.
            let listed: Vec<_> = page.contents().iter().filter_map(identifier).collect();
            if !listed.is_empty() {
                count += self.delete_listed(prefix, listed).await?;
            }
            next = page.next_continuation_token;
            if next.is_none() {
                return Ok(count);
            }
        }
    }
}

fn identifier(object: &aws_sdk_s3::types::Object) -> Option<ObjectIdentifier> {
    ObjectIdentifier::builder().key(object.key()?).build().ok()
}

/// Names one call among all.
fn mark() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    format!("{:032x}", u128::from_le_bytes(bytes))
}

fn meta(
    doing: &'static str,
    path: &str,
    bytes: u64,
    etag: Option<String>,
) -> Result<BlobMeta, IoError> {
    match etag {
        Some(etag) => Ok(BlobMeta { bytes, etag }),
        None => Err(IoError::new(doing, path, IoKind::Corrupt).because("S3 gave no tag")),
    }
}

fn refused(doing: &'static str, path: &str, limit: BlobLimit) -> IoError {
    IoError::new(doing, path, IoKind::TooLarge).because(limit)
}

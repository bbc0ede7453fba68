//! Models in S3: downloads a file, or the files of one folder, onto this machine.
//!
//! Not a port: a model's bucket is the operator's own, and nothing else reads from it. A download is there
//! whole or not at all. Whoever puts other weights under the same key must name them anew: what is here is
//! not looked at again.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_s3::Client;
use bytes::Bytes;
use futures::{TryStreamExt as _, stream};
use rustix::fs::{FlockOperation, flock};

use super::deployment::Resources;
use super::failure::{self, Place};
use super::{connection, patience};
use crate::{IoError, IoKind};

/// Bytes of one request.
const RANGE_BYTES: u64 = 16 << 20;

/// Requests at once. With 16 MiB each, 128 MiB of memory at most.
const REQUESTS: usize = 8;

/// Tries of a range whose bytes broke off.
const TRIES: u32 = 5;

/// The most files of a folder: models of hundreds of billions of parameters have about 200.
const FILES_MAX: usize = 2000;

/// Why a text is no address in S3.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address in S3: one is s3://bucket/key, or s3://bucket/prefix/ for a folder")]
pub struct InvalidS3Uri(String);

/// An object, or all objects below a prefix that ends with a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Uri {
    bucket: String,
    key: String,
}

impl S3Uri {
    /// Returns the last name in it, which is a safe name for a file.
    #[must_use]
    pub fn name(&self) -> &str {
        let path = self.key.trim_end_matches('/');
        path.rsplit_once('/').map_or(path, |(_, name)| name)
    }

    fn is_folder(&self) -> bool {
        self.key.ends_with('/')
    }
}

impl FromStr for S3Uri {
    type Err = InvalidS3Uri;

    fn from_str(text: &str) -> Result<Self, InvalidS3Uri> {
        let invalid = || InvalidS3Uri(text.chars().take(256).collect());
        let (bucket, key) = text
            .strip_prefix("s3://")
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(invalid)?;
        let uri = Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        };
        if bucket.is_empty() || !is_file_name(uri.name()) {
            return Err(invalid());
        }
        Ok(uri)
    }
}

impl fmt::Display for S3Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key)
    }
}

/// Tells how far a download is: bytes that are here, and bytes in all.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Downloads weights. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Weights {
    client: Client,
}

/// One object of a download.
#[derive(Debug, Clone)]
struct Object {
    key: String,
    bytes: u64,
    etag: String,
    /// Where it goes.
    path: PathBuf,
}

impl Weights {
    /// Makes a client with the credentials and the region of a deployment's environment. Calls nothing.
    pub async fn connect(resources: &Resources) -> Self {
        let config = connection::from_environment(resources).await;
        Self {
            client: connection::s3(&config),
        }
    }

    /// Downloads to `target`, which is a file or a folder as the address says, and returns its bytes. Does
    /// nothing if it is there, and returns 0. Of several processes that want the same, one downloads and
    /// the others wait for it.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `NotFound` if there is no such object, or none below the prefix; `Conflict` if one
    /// changes meanwhile; `Denied` without the rights, or on a full disk.
    pub async fn fetch(
        &self,
        uri: &S3Uri,
        target: &Path,
        progress: Progress<'_>,
    ) -> Result<u64, IoError> {
        let _lock = lock(target).await?;
        if target.exists() {
            return Ok(0);
        }
        let scratch = beside(target, "partial");
        remove(&scratch).map_err(disk(&scratch))?;
        let objects = self.objects(uri, &scratch).await?;
        if uri.is_folder() {
            std::fs::create_dir(&scratch).map_err(disk(&scratch))?;
        }
        let total = objects.iter().map(|object| object.bytes).sum();
        let done = AtomicU64::new(0);
        for object in &objects {
            let came = |bytes| {
                let before = done.fetch_add(bytes, Ordering::Relaxed);
                progress(before + bytes, total);
            };
            self.download(uri, object, &came).await?;
        }
        std::fs::rename(&scratch, target).map_err(disk(target))?;
        Ok(total)
    }

    /// Finds what there is to download.
    async fn objects(&self, uri: &S3Uri, scratch: &Path) -> Result<Vec<Object>, IoError> {
        if !uri.is_folder() {
            return Ok(vec![self.head(uri, &uri.key, scratch.to_owned()).await?]);
        }
        let mut pages = self
            .client
            .list_objects_v2()
            .bucket(&uri.bucket)
            .prefix(&uri.key)
            .delimiter("/")
            .into_paginator()
            .send();
        let mut objects = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| {
                failure::failed(
                    "list weights",
                    uri.to_string(),
                    Place::Bucket(&uri.bucket),
                    &error,
                )
            })?;
            for listed in page.contents() {
                let key = listed.key().unwrap_or_default();
                let name = key.strip_prefix(&uri.key).unwrap_or_default();
                // The prefix itself may be an object, made by a console.
                if is_file_name(name) {
                    objects.push(self.head(uri, key, scratch.join(name)).await?);
                }
            }
            if objects.len() > FILES_MAX {
                let why =
                    format!("it has more than {FILES_MAX} objects: this is no model's folder");
                return Err(error(uri, IoKind::TooLarge).because(why));
            }
        }
        if objects.is_empty() {
            return Err(error(uri, IoKind::NotFound).because("no object lies below this prefix"));
        }
        Ok(objects)
    }

    async fn head(&self, uri: &S3Uri, key: &str, path: PathBuf) -> Result<Object, IoError> {
        let head = self
            .client
            .head_object()
            .bucket(&uri.bucket)
            .key(key)
            .send()
            .await
            .map_err(|error| {
                failure::failed("look at weights", key, Place::Bucket(&uri.bucket), &error)
            })?;
        let bytes = head
            .content_length()
            .and_then(|bytes| u64::try_from(bytes).ok());
        let (Some(bytes), Some(etag)) = (bytes, head.e_tag()) else {
            return Err(error(uri, IoKind::Corrupt).because("S3 tells neither size nor tag"));
        };
        Ok(Object {
            key: key.to_owned(),
            bytes,
            etag: etag.to_owned(),
            path,
        })
    }

    /// Downloads one object by ranges, several at once, each to its own place in the file.
    async fn download(
        &self,
        uri: &S3Uri,
        object: &Object,
        came: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), IoError> {
        let file = File::create(&object.path).map_err(disk(&object.path))?;
        file.set_len(object.bytes).map_err(disk(&object.path))?;
        let file = Arc::new(file);
        let ranges = (0..object.bytes.div_ceil(RANGE_BYTES)).map(|number| {
            let start = number * RANGE_BYTES;
            start..(start + RANGE_BYTES).min(object.bytes)
        });
        stream::iter(ranges.map(Ok::<_, IoError>))
            .try_for_each_concurrent(REQUESTS, |range| {
                let file = Arc::clone(&file);
                async move {
                    let (start, bytes) = (range.start, range.end - range.start);
                    let body = self.range(uri, object, range).await?;
                    on_a_thread(&object.path, move || file.write_all_at(&body, start)).await?;
                    came(bytes);
                    Ok(())
                }
            })
            .await?;
        on_a_thread(&object.path, move || file.sync_all()).await
    }

    /// Reads one range whole, again if its bytes break off.
    async fn range(
        &self,
        uri: &S3Uri,
        object: &Object,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, IoError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let answer = self
                .client
                .get_object()
                .bucket(&uri.bucket)
                .key(&object.key)
                .if_match(&object.etag)
                .range(format!("bytes={}-{}", range.start, range.end - 1))
                .send()
                .await
                .map_err(|error| {
                    let place = Place::Bucket(&uri.bucket);
                    failure::failed("download weights", &object.key, place, &error)
                })?;
            let wanted = range.end - range.start;
            let why = match collect(answer.body, wanted).await {
                Ok(bytes) => return Ok(bytes),
                Err(why) => why,
            };
            if tries == TRIES {
                return Err(error(uri, IoKind::Busy).because(why));
            }
            patience::pause(tries).await;
        }
    }
}

/// Collects a body that must have exactly so many bytes; a longer one is not read to its end.
async fn collect(
    mut body: aws_sdk_s3::primitives::ByteStream,
    wanted: u64,
) -> Result<Bytes, String> {
    let mut bytes = bytes::BytesMut::new();
    while let Some(chunk) = body.next().await {
        bytes.extend_from_slice(&chunk.map_err(|error| error.to_string())?);
        if bytes.len() as u64 > wanted {
            break;
        }
    }
    if bytes.len() as u64 == wanted {
        Ok(bytes.freeze())
    } else {
        Err(format!("{} bytes came instead of {wanted}", bytes.len()))
    }
}

/// Returns whether a text names a file in one folder, and nothing outside of it.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

/// Takes the lock of a target, which lasts as long as the file is open. Its holder may download for long.
async fn lock(target: &Path) -> Result<File, IoError> {
    let path = beside(target, "lock");
    if let Some(folder) = target.parent() {
        std::fs::create_dir_all(folder).map_err(disk(folder))?;
    }
    let shown = path.clone();
    on_a_thread(&shown, move || {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    })
    .await
}

fn beside(target: &Path, ending: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    target.with_file_name(name)
}

/// Removes what an interrupted download has left.
fn remove(scratch: &Path) -> io::Result<()> {
    let removed = if scratch.is_dir() {
        std::fs::remove_dir_all(scratch)
    } else {
        std::fs::remove_file(scratch)
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

async fn on_a_thread<T: Send + 'static>(
    path: &Path,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, IoError> {
    let called = tokio::task::spawn_blocking(call).await;
    called
        .map_err(io::Error::other)
        .flatten()
        .map_err(disk(path))
}

fn disk(path: &Path) -> impl FnOnce(io::Error) -> IoError {
    let path = path.display().to_string();
    move |error| IoError::new("write weights to", path, IoKind::Denied).because(error)
}

fn error(uri: &S3Uri, kind: IoKind) -> IoError {
    IoError::new("download weights", uri.to_string(), kind)
}

#[cfg(test)]
mod tests;

//! Blobs as files. A blob is written beside, flushed, and only then gets its name, so that a reader never
//! sees half of one and a crash leaves none.

mod buckets;
mod disk;
mod multipart;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use batch_core::blob_key::BlobKey;
use batch_core::external::{ExternalObject, PinnedObject};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::OpenError;
use super::folder::io_error;
use crate::platform::{Clock, Randomness};
use crate::port::blob_rules::BlobLimit;
use crate::port::{BlobMeta, BlobRead, BlobReader, Blobs, MultipartId, PartTag};
use crate::{IoError, IoKind};

use disk::{Disk, Named, Scratch};

/// Bytes of a read, and about the bytes that a stream gathers before a write.
const CHUNK_BYTES: usize = 256 * 1024;

/// Blobs below one folder.
pub(super) struct FileBlobs {
    disk: Arc<Disk>,
    /// Where a bucket is a folder.
    buckets: PathBuf,
}

impl FileBlobs {
    /// Opens the folder, and takes the folders in `buckets` for buckets of others. The data directory's lock
    /// must be held.
    pub(super) fn open(
        root: &Path,
        buckets: PathBuf,
        clock: Clock,
        random: Randomness,
    ) -> Result<Self, OpenError> {
        let disk = Disk::open(root, clock, random).map_err(io_error("open the blobs in", root))?;
        Ok(Self {
            disk: Arc::new(disk),
            buckets,
        })
    }

    /// Runs what blocks. It runs to its end even if the caller goes away.
    async fn run<T: Send + 'static>(
        &self,
        doing: &'static str,
        key: impl Into<String>,
        work: impl FnOnce(&Disk) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, IoError> {
        let disk = Arc::clone(&self.disk);
        blocking(move || work(&disk))
            .await
            .map_err(|failure| failure.of(doing, key))
    }
}

#[async_trait]
impl Blobs for FileBlobs {
    async fn put(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        let path = key.path();
        self.run("put blob", path.clone(), move |disk| {
            put(disk, &path, &body, Named::Replacing)
        })
        .await
    }

    async fn put_if_absent(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        let path = key.path();
        self.run("put new blob", path.clone(), move |disk| {
            put(disk, &path, &body, Named::IfAbsent)
        })
        .await
    }

    async fn put_stream(&self, key: &BlobKey, mut body: BlobReader) -> Result<BlobMeta, IoError> {
        const DOING: &str = "stream into blob";
        let path = key.path();
        let mut scratch = self
            .run(DOING, path.as_str(), |disk| Ok(disk.scratch()?))
            .await?;
        let (mut gathered, mut bytes) = (Vec::new(), 0);
        loop {
            let chunk = body.try_next().await?;
            let over = chunk.is_none();
            if let Some(chunk) = chunk {
                bytes += chunk.len();
                gathered.push(chunk);
            }
            if bytes >= CHUNK_BYTES || (over && bytes > 0) {
                let chunks = std::mem::take(&mut gathered);
                bytes = 0;
                // The scratch file travels, so that it is removed on whichever side a caller's end finds it.
                let append = move |_: &Disk| {
                    chunks
                        .iter()
                        .try_for_each(|chunk| scratch.file.write_all(chunk))?;
                    Ok(scratch)
                };
                scratch = self.run(DOING, path.as_str(), append).await?;
            }
            if over {
                break;
            }
        }
        self.run(DOING, path.clone(), move |disk| {
            Ok(disk.publish(scratch, &path, Named::Replacing)?)
        })
        .await
    }

    async fn head(&self, key: &BlobKey) -> Result<BlobMeta, IoError> {
        let path = key.path();
        self.run("look at blob", path.clone(), move |disk| {
            Ok(disk.open_blob(&path)?.1)
        })
        .await
    }

    async fn get(&self, key: &BlobKey, start: u64, end: Option<u64>) -> Result<BlobRead, IoError> {
        let path = key.path();
        let opened = path.clone();
        let (file, meta) = self
            .run("get blob", path.as_str(), move |disk| {
                Ok(disk.open_blob(&opened)?)
            })
            .await?;
        let end = end.map_or(meta.bytes, |end| end.min(meta.bytes));
        Ok(BlobRead {
            meta,
            body: read_chunks(Arc::new(file), path, start, end),
        })
    }

    async fn multipart_begin(&self, key: &BlobKey) -> Result<MultipartId, IoError> {
        let path = key.path();
        self.run("begin multipart", path.clone(), move |disk| {
            Ok(multipart::begin(disk, &path)?)
        })
        .await
    }

    async fn multipart_put(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, IoError> {
        let (path, id) = (key.path(), id.clone());
        self.run("put part", path.clone(), move |disk| {
            multipart::put(disk, &path, &id, number, &body)
        })
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
        let (path, id, source) = (key.path(), id.clone(), source.path());
        let copy = move |disk: &Disk| {
            let source = disk.open_blob(&source)?;
            multipart::copy(disk, &path, &id, number, source, start..end)
        };
        self.run("copy part", key.path(), copy).await
    }

    async fn head_external(&self, object: &ExternalObject) -> Result<BlobMeta, IoError> {
        let (buckets, object) = (self.buckets.clone(), object.clone());
        self.run("look at object", object.to_string(), move |_| {
            Ok(buckets::open(&buckets, &object)?.1)
        })
        .await
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
        let (path, id, buckets) = (key.path(), id.clone(), self.buckets.clone());
        let (object, etag) = (source.object.clone(), source.etag.clone());
        let copy = move |disk: &Disk| {
            let unchanged = |meta: &BlobMeta| {
                if meta.etag == etag {
                    Ok(())
                } else {
                    Err(Failure::Changed)
                }
            };
            let source = buckets::open(&buckets, &object)?;
            unchanged(&source.1)?;
            let part = multipart::copy(disk, &path, &id, number, source, start..end)?;
            // Whoever owns the file may have written into it meanwhile.
            unchanged(&buckets::open(&buckets, &object)?.1)?;
            Ok(part)
        };
        self.run("copy object", source.object.to_string(), copy)
            .await
    }

    async fn multipart_finish(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        parts: &[PartTag],
    ) -> Result<BlobMeta, IoError> {
        let (path, id, parts) = (key.path(), id.clone(), parts.to_vec());
        self.run("finish multipart", key.path(), move |disk| {
            multipart::finish(disk, &path, &id, &parts)
        })
        .await
    }

    async fn multipart_abort(&self, key: &BlobKey, id: &MultipartId) -> Result<(), IoError> {
        let (path, id) = (key.path(), id.clone());
        self.run("abort multipart", key.path(), move |disk| {
            multipart::abort(disk, &path, &id)
        })
        .await
    }

    async fn presigned_get(
        &self,
        _key: &BlobKey,
        _filename: &str,
        _life_s: u32,
    ) -> Result<Option<String>, IoError> {
        Ok(None)
    }

    async fn delete(&self, key: &BlobKey) -> Result<(), IoError> {
        let path = key.path();
        self.run("delete blob", path.clone(), move |disk| {
            Ok(disk.delete(&path)?)
        })
        .await
    }

    async fn delete_prefix(&self, prefix: &str) -> Result<u64, IoError> {
        let path = prefix.to_owned();
        let delete = move |disk: &Disk| {
            if path.is_empty() {
                return Err(Failure::Limit(BlobLimit::EmptyPrefix));
            }
            Ok(disk.delete_prefix(&path)?)
        };
        self.run("delete blobs", prefix, delete).await
    }
}

/// Why a blob operation did not happen.
#[derive(Debug)]
enum Failure {
    Io(io::Error),
    Limit(BlobLimit),
    /// An object of others is not what it was.
    Changed,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Io(error)
    }
}

impl From<BlobLimit> for Failure {
    fn from(limit: BlobLimit) -> Self {
        Failure::Limit(limit)
    }
}

impl Failure {
    fn of(self, doing: &'static str, key: impl Into<String>) -> IoError {
        match self {
            Failure::Io(error) if is_full(&error) => IoError::new(doing, key, IoKind::Denied)
                .because("the disk that holds the data directory is full"),
            Failure::Io(error) => IoError::new(doing, key, kind_of(&error)).because(error),
            Failure::Limit(limit) => IoError::new(doing, key, IoKind::TooLarge).because(limit),
            Failure::Changed => {
                IoError::new(doing, key, IoKind::Conflict).because("its tag is another")
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Says what the caller should do when the operating system refuses.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the kinds of the operating system are not ours to list"
)]
fn kind_of(error: &io::Error) -> IoKind {
    use io::ErrorKind;
    const TOO_MANY_OPEN_FILES: [rustix::io::Errno; 2] =
        [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    if error.raw_os_error().is_some_and(|code| {
        TOO_MANY_OPEN_FILES
            .iter()
            .any(|it| it.raw_os_error() == code)
    }) {
        return IoKind::Busy;
    }
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => IoKind::NotFound,
        ErrorKind::AlreadyExists => IoKind::Conflict,
        ErrorKind::InvalidFilename => IoKind::TooLarge,
        ErrorKind::UnexpectedEof | ErrorKind::InvalidData => IoKind::Corrupt,
        ErrorKind::Interrupted
        | ErrorKind::WouldBlock
        | ErrorKind::ResourceBusy
        | ErrorKind::OutOfMemory => IoKind::Busy,
        // A full or failing disk, missing rights: a person must act. So must one for what we do not expect.
        _ => IoKind::Denied,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::Io(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "the process is shutting down",
        ))),
    }
}

fn put(disk: &Disk, path: &str, body: &[u8], named: Named) -> Result<BlobMeta, Failure> {
    let mut scratch: Scratch = disk.scratch()?;
    scratch.file.write_all(body)?;
    Ok(disk.publish(scratch, path, named)?)
}

/// Streams `start..end` of a file whose bytes never change.
fn read_chunks(file: Arc<File>, path: String, start: u64, end: u64) -> BlobReader {
    stream::try_unfold(start, move |at| {
        let (file, path) = (Arc::clone(&file), path.clone());
        async move {
            if at >= end {
                return Ok(None);
            }
            let len = usize::try_from(end - at)
                .unwrap_or(CHUNK_BYTES)
                .min(CHUNK_BYTES);
            let read = move || {
                let mut chunk = vec![0; len];
                file.read_exact_at(&mut chunk, at)?;
                Ok(Bytes::from(chunk))
            };
            let chunk = blocking(read)
                .await
                .map_err(|failure| failure.of("read blob", path))?;
            Ok(Some((chunk, at + len as u64)))
        }
    })
    .boxed()
}

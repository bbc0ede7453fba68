//! One result file on its way to the blobs: parts of 8 MiB, digest and line count, in constant memory.

use std::sync::Arc;

use batch_core::batch::FileDigest;
use batch_core::blob_key::BlobKey;
use batch_core::limits::OUTPUT_PART_BYTES;
use batch_io::port::{Blobs, MultipartId, PartTag};
use batch_io::{IoError, IoKind};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use sha2::{Digest, Sha256};

/// A result file that another finalizer goes on with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedFile {
    /// The blob of parts, once there is a part.
    pub(crate) multipart: Option<MultipartId>,
    /// Its parts.
    pub(crate) parts: Vec<PartTag>,
    /// State of the digest, hexadecimal.
    pub(crate) sha256_state: String,
    /// Lines so far.
    pub(crate) lines: u64,
    /// Bytes so far.
    pub(crate) bytes: u64,
    /// Those of them that fill no part yet; stored beside this.
    #[serde(skip)]
    pub(crate) tail: Vec<u8>,
}

/// A blob of parts that is being written.
struct Multipart {
    id: MultipartId,
    parts: Vec<PartTag>,
}

/// A result file that grows at its end.
pub(crate) struct ResultFile {
    blobs: Arc<dyn Blobs>,
    key: BlobKey,
    buffer: Vec<u8>,
    multipart: Option<Multipart>,
    sha256: Sha256,
    lines: u64,
    bytes: u64,
}

impl ResultFile {
    /// Makes an empty file; nothing is stored for one that stays empty.
    pub(crate) fn new(blobs: Arc<dyn Blobs>, key: BlobKey) -> Self {
        Self {
            blobs,
            key,
            buffer: Vec::new(),
            multipart: None,
            sha256: Sha256::new(),
            lines: 0,
            bytes: 0,
        }
    }

    /// Makes a file of what was saved.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Corrupt`.
    pub(crate) fn resumed(
        blobs: Arc<dyn Blobs>,
        key: BlobKey,
        saved: SavedFile,
    ) -> Result<Self, IoError> {
        let corrupt = || IoError::new("resume the file", key.to_string(), IoKind::Corrupt);
        let mut state = SerializedState::<Sha256>::default();
        hex::decode_to_slice(&saved.sha256_state, &mut state)
            .map_err(|cause| corrupt().because(cause))?;
        let sha256 = Sha256::deserialize(&state).map_err(|_| corrupt())?;
        let SavedFile {
            multipart,
            parts,
            lines,
            bytes,
            tail,
            ..
        } = saved;
        Ok(Self {
            multipart: multipart.map(|id| Multipart { id, parts }),
            buffer: tail,
            sha256,
            lines,
            bytes,
            blobs,
            key,
        })
    }

    /// Gives the file up to a finalizer that goes on with it: nothing stored is dropped.
    pub(crate) fn save(&mut self) -> SavedFile {
        let multipart = self.multipart.take();
        SavedFile {
            sha256_state: hex::encode(self.sha256.serialize()),
            lines: self.lines,
            bytes: self.bytes,
            tail: std::mem::take(&mut self.buffer),
            parts: multipart
                .as_ref()
                .map(|multipart| multipart.parts.clone())
                .unwrap_or_default(),
            multipart: multipart.map(|multipart| multipart.id),
        }
    }

    /// Returns where the file's bytes go.
    pub(crate) fn key(&self) -> &BlobKey {
        &self.key
    }

    /// Adds a line, which has no newline yet, and stores the parts that are full.
    ///
    /// # Errors
    ///
    /// [`IoError`]; the file is then of no use any more.
    pub(crate) async fn append(&mut self, line: &[u8]) -> Result<(), IoError> {
        self.lines += 1;
        for mut text in [line, b"\n"] {
            self.sha256.update(text);
            self.bytes += text.len() as u64;
            while !text.is_empty() {
                let room = OUTPUT_PART_BYTES - self.buffer.len();
                let (now, later) = text.split_at(text.len().min(room));
                self.buffer.extend_from_slice(now);
                text = later;
                if self.buffer.len() == OUTPUT_PART_BYTES {
                    self.store_part().await?;
                }
            }
        }
        Ok(())
    }

    /// Stores the buffer as the next part.
    async fn store_part(&mut self) -> Result<(), IoError> {
        let mut multipart = match self.multipart.take() {
            Some(multipart) => multipart,
            None => Multipart {
                id: self.blobs.multipart_begin(&self.key).await?,
                parts: Vec::new(),
            },
        };
        let number = u32::try_from(multipart.parts.len() + 1).unwrap_or(u32::MAX);
        let body = Bytes::from(std::mem::take(&mut self.buffer));
        let stored = self
            .blobs
            .multipart_put(&self.key, &multipart.id, number, body)
            .await;
        let stored = stored.map(|tag| multipart.parts.push(tag));
        self.multipart = Some(multipart);
        stored
    }

    /// Completes the blob and returns its digest; none for a file without a line.
    ///
    /// # Errors
    ///
    /// [`IoError`]; the caller then calls [`ResultFile::abort`].
    pub(crate) async fn finish(&mut self) -> Result<Option<FileDigest>, IoError> {
        if self.lines == 0 {
            return Ok(None);
        }
        if self.multipart.is_some() && !self.buffer.is_empty() {
            self.store_part().await?;
        }
        match &self.multipart {
            Some(multipart) => {
                let finished = self
                    .blobs
                    .multipart_finish(&self.key, &multipart.id, &multipart.parts)
                    .await;
                match finished {
                    Ok(_) => {}
                    Err(error) if error.kind == IoKind::NotFound => {
                        self.check_finished(error).await?;
                    }
                    Err(error) => return Err(error),
                }
                self.multipart = None;
            }
            None => {
                self.blobs
                    .put(&self.key, Bytes::from(std::mem::take(&mut self.buffer)))
                    .await?;
            }
        }
        let sha256 = hex::encode(std::mem::take(&mut self.sha256).finalize());
        Ok(Some(FileDigest {
            sha256,
            lines: self.lines,
            bytes: self.bytes,
        }))
    }

    /// Accepts a blob that is whole already: one that went on from the same place has made it of the same
    /// parts, or an answer got lost.
    async fn check_finished(&self, error: IoError) -> Result<(), IoError> {
        match self.blobs.head(&self.key).await {
            Ok(meta) if meta.bytes == self.bytes => Ok(()),
            Err(unknown) if unknown.kind != IoKind::NotFound => Err(unknown),
            Ok(_) | Err(_) => Err(error),
        }
    }

    /// Drops what is stored of a file that will not be finished.
    pub(crate) async fn abort(&mut self) {
        let Some(multipart) = self.multipart.take() else {
            return;
        };
        if let Err(error) = self.blobs.multipart_abort(&self.key, &multipart.id).await {
            tracing::warn!(blob.key = %self.key, %error, "could not abort a multipart blob");
        }
    }
}

impl std::fmt::Debug for ResultFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResultFile")
            .field("key", &self.key)
            .field("lines", &self.lines)
            .finish_non_exhaustive()
    }
}

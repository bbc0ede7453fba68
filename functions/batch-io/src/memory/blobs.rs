//! Blobs in an ordered map.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use async_trait::async_trait;
use batch_core::blob_key::BlobKey;
use batch_core::external::{ExternalObject, PinnedObject};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream};

use super::lock;
use crate::port::blob_rules::{self, BlobLimit};
use crate::port::{BlobMeta, BlobRead, BlobReader, Blobs, MultipartId, PartTag, collect};
use crate::{IoError, IoKind};

/// Bytes of the chunks that a read gives.
const CHUNK_BYTES: usize = 64 * 1024;

/// Blobs in memory.
#[derive(Debug, Default)]
pub struct MemoryBlobs {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    blobs: BTreeMap<String, Blob>,
    multiparts: HashMap<String, BTreeMap<u32, Blob>>,
    last: u64,
}

#[derive(Debug, Clone)]
struct Blob {
    bytes: Bytes,
    etag: String,
}

impl Blob {
    fn meta(&self) -> BlobMeta {
        BlobMeta {
            bytes: self.bytes.len() as u64,
            etag: self.etag.clone(),
        }
    }
}

impl State {
    fn tag(&mut self, bytes: Bytes) -> Blob {
        self.last += 1;
        Blob {
            bytes,
            etag: format!("\"{}\"", self.last),
        }
    }

    fn store(&mut self, key: &BlobKey, bytes: Bytes) -> BlobMeta {
        let blob = self.tag(bytes);
        let meta = blob.meta();
        self.blobs.insert(key.path(), blob);
        meta
    }

    fn parts(
        &mut self,
        key: &BlobKey,
        id: &MultipartId,
    ) -> Result<&mut BTreeMap<u32, Blob>, IoError> {
        self.multiparts
            .get_mut(&name_of(key, id))
            .ok_or_else(|| missing("find multipart", key))
    }

    fn put_part(
        &mut self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        bytes: Bytes,
    ) -> Result<PartTag, IoError> {
        blob_rules::check_part(number, bytes.len() as u64).map_err(|limit| refused(key, limit))?;
        let part = self.tag(bytes);
        let tag = PartTag {
            number,
            bytes: part.bytes.len() as u64,
            etag: part.etag.clone(),
        };
        self.parts(key, id)?.insert(number, part);
        Ok(tag)
    }
}

#[async_trait]
impl Blobs for MemoryBlobs {
    async fn put(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        Ok(lock(&self.state).store(key, body))
    }

    async fn put_if_absent(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        let mut state = lock(&self.state);
        if state.blobs.contains_key(&key.path()) {
            return Err(IoError::new("put blob", key.path(), IoKind::Conflict));
        }
        Ok(state.store(key, body))
    }

    async fn put_stream(&self, key: &BlobKey, body: BlobReader) -> Result<BlobMeta, IoError> {
        let bytes = collect(body).await?;
        Ok(lock(&self.state).store(key, bytes))
    }

    async fn head(&self, key: &BlobKey) -> Result<BlobMeta, IoError> {
        let state = lock(&self.state);
        let found = state.blobs.get(&key.path()).map(Blob::meta);
        found.ok_or_else(|| missing("head blob", key))
    }

    async fn get(&self, key: &BlobKey, start: u64, end: Option<u64>) -> Result<BlobRead, IoError> {
        let found = lock(&self.state).blobs.get(&key.path()).cloned();
        let blob = found.ok_or_else(|| missing("get blob", key))?;
        let clip = |at: u64| {
            usize::try_from(at)
                .unwrap_or(usize::MAX)
                .min(blob.bytes.len())
        };
        let start = clip(start);
        let end = end.map_or(blob.bytes.len(), clip).max(start);
        let chunks = (start..end).step_by(CHUNK_BYTES).map(|from| {
            let to = end.min(from + CHUNK_BYTES);
            Ok(blob.bytes.slice(from..to))
        });
        Ok(BlobRead {
            body: stream::iter(chunks.collect::<Vec<_>>()).boxed(),
            meta: blob.meta(),
        })
    }

    async fn multipart_begin(&self, key: &BlobKey) -> Result<MultipartId, IoError> {
        let mut state = lock(&self.state);
        state.last += 1;
        let id = MultipartId(state.last.to_string());
        state
            .multiparts
            .insert(name_of(key, &id), BTreeMap::default());
        Ok(id)
    }

    async fn multipart_put(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, IoError> {
        lock(&self.state).put_part(key, id, number, body)
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
        let mut state = lock(&self.state);
        let found = state.blobs.get(&source.path()).cloned();
        let blob = found.ok_or_else(|| missing("copy blob", source))?;
        blob_rules::check_range(start, end, blob.bytes.len() as u64)
            .map_err(|limit| refused(source, limit))?;
        let at = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        state.put_part(key, id, number, blob.bytes.slice(at(start)..at(end)))
    }

    async fn head_external(&self, object: &ExternalObject) -> Result<BlobMeta, IoError> {
        Err(no_outside(object))
    }

    async fn multipart_copy_external(
        &self,
        _: &BlobKey,
        _: &MultipartId,
        _: u32,
        source: &PinnedObject,
        _: u64,
        _: u64,
    ) -> Result<PartTag, IoError> {
        Err(no_outside(&source.object))
    }

    async fn multipart_finish(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        parts: &[PartTag],
    ) -> Result<BlobMeta, IoError> {
        blob_rules::check_parts(parts).map_err(|limit| refused(key, limit))?;
        let mut state = lock(&self.state);
        let stored = state.parts(key, id)?;
        let mut bytes = BytesMut::new();
        for part in parts {
            let found = stored.get(&part.number).filter(|it| it.etag == part.etag);
            let found = found.ok_or_else(|| missing("finish multipart", key))?;
            bytes.extend_from_slice(&found.bytes);
        }
        state.multiparts.remove(&name_of(key, id));
        Ok(state.store(key, bytes.freeze()))
    }

    async fn multipart_abort(&self, key: &BlobKey, id: &MultipartId) -> Result<(), IoError> {
        lock(&self.state).multiparts.remove(&name_of(key, id));
        Ok(())
    }

    async fn presigned_get(&self, _: &BlobKey, _: &str, _: u32) -> Result<Option<String>, IoError> {
        Ok(None)
    }

    async fn delete(&self, key: &BlobKey) -> Result<(), IoError> {
        lock(&self.state).blobs.remove(&key.path());
        Ok(())
    }

    async fn delete_prefix(&self, prefix: &str) -> Result<u64, IoError> {
        if prefix.is_empty() {
            return Err(IoError::new("delete blobs", prefix, IoKind::TooLarge)
                .because(BlobLimit::EmptyPrefix));
        }
        let mut state = lock(&self.state);
        let before = state.blobs.len();
        state.blobs.retain(|path, _| !path.starts_with(prefix));
        Ok((before - state.blobs.len()) as u64)
    }
}

fn name_of(key: &BlobKey, id: &MultipartId) -> String {
    format!("{}/{}", key.path(), id.0)
}

fn missing(doing: &'static str, key: &BlobKey) -> IoError {
    IoError::new(doing, key.path(), IoKind::NotFound)
}

/// There is nothing outside this process.
fn no_outside(object: &ExternalObject) -> IoError {
    IoError::new("read object", object.to_string(), IoKind::NotFound)
}

fn refused(key: &BlobKey, limit: BlobLimit) -> IoError {
    IoError::new("write blob", key.path(), IoKind::TooLarge).because(limit)
}

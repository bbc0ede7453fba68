//! A stream of any length into one object, in constant memory: parts of 8 MiB, a few on their way at once.

use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::S3Blobs;
use crate::IoError;
use crate::port::{BlobMeta, BlobReader, MultipartId};

/// Bytes of a part. 10,000 of them are 78 GiB, far above any file that the service takes.
pub(super) const PART_BYTES: usize = 8 * 1024 * 1024;

/// Parts on their way at once; as many again wait at most.
const PARTS_AT_ONCE: usize = 3;

/// Stores a stream. One that ends within a part is put as it is.
pub(super) async fn put(
    blobs: &S3Blobs,
    path: &str,
    body: BlobReader,
) -> Result<BlobMeta, IoError> {
    let mut cutter = Cutter {
        body,
        gathered: BytesMut::new(),
        over: false,
    };
    let first = cutter.next().await?.unwrap_or_default();
    let Some(second) = cutter.next().await? else {
        return blobs.put_at(path, first).await;
    };
    let id = blobs.begin_at(path).await?;
    let mut unfinished = Unfinished {
        blobs,
        path,
        id: Some(id.clone()),
    };
    let rest = stream::try_unfold(cutter, |mut cutter| async move {
        Ok(cutter.next().await?.map(|part| (part, cutter)))
    });
    let parts = stream::iter([Ok(first), Ok(second)]).chain(rest);
    let parts = parts
        .zip(stream::iter(1_u32..))
        .map(|(part, number)| part.map(|part| (part, number)));
    let sent = parts
        .map_ok(|(part, number)| blobs.put_part_at(path, &id, number, part))
        .try_buffered(PARTS_AT_ONCE)
        .try_collect::<Vec<_>>();
    let finished = match sent.await {
        Ok(parts) => blobs.finish_at(path, &id, &parts).await,
        Err(error) => Err(error),
    };
    match finished {
        Ok(meta) => {
            unfinished.id = None;
            Ok(meta)
        }
        Err(error) => {
            unfinished.abort().await;
            Err(error)
        }
    }
}

/// Cuts a stream into parts of equal size; only the last may be shorter.
struct Cutter {
    body: BlobReader,
    gathered: BytesMut,
    over: bool,
}

impl Cutter {
    async fn next(&mut self) -> Result<Option<Bytes>, IoError> {
        while !self.over && self.gathered.len() < PART_BYTES {
            match self.body.try_next().await? {
                Some(chunk) => self.gathered.extend_from_slice(&chunk),
                None => self.over = true,
            }
        }
        if self.gathered.is_empty() {
            return Ok(None);
        }
        let len = self.gathered.len().min(PART_BYTES);
        Ok(Some(self.gathered.split_to(len).freeze()))
    }
}

/// Parts that cost money until they are dropped. The bucket's lifecycle rule drops what a dead process left.
struct Unfinished<'a> {
    blobs: &'a S3Blobs,
    path: &'a str,
    id: Option<MultipartId>,
}

impl Unfinished<'_> {
    async fn abort(mut self) {
        if let Some(id) = self.id.take()
            && let Err(error) = self.blobs.abort_at(self.path, &id).await
        {
            tracing::warn!(blob.path = self.path, %error, "parts of a failed stream stay until their lifecycle rule ends them");
        }
    }
}

impl Drop for Unfinished<'_> {
    /// The caller went away in the middle.
    fn drop(&mut self) {
        let Some(id) = self.id.take() else {
            return;
        };
        let (blobs, path) = (self.blobs.clone(), self.path.to_owned());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = blobs.abort_at(&path, &id).await {
                    tracing::warn!(blob.path = path, %error, "parts of a dropped stream stay until their lifecycle rule ends them");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_is_cut_into_equal_parts() {
        for (chunk, chunks, lens) in [
            (1, 0, vec![]),
            (PART_BYTES, 1, vec![PART_BYTES]),
            (PART_BYTES - 1, 2, vec![PART_BYTES, PART_BYTES - 2]),
            (3 * PART_BYTES, 1, vec![PART_BYTES; 3]),
            (PART_BYTES / 2 + 1, 2, vec![PART_BYTES, 2]),
        ] {
            let body = stream::repeat_with(move || Ok(Bytes::from(vec![7; chunk])));
            let mut cutter = Cutter {
                body: body.take(chunks).boxed(),
                gathered: BytesMut::new(),
                over: false,
            };
            let mut found = Vec::new();
            while let Some(part) = cutter.next().await.unwrap() {
                found.push(part.len());
            }
            assert_eq!(found, lens, "{chunks} chunks of {chunk}");
        }
    }
}

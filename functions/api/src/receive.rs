//! Streams a field of a form into a blob, and takes the blob back unless a record comes to name it.

use std::sync::{Arc, Mutex, PoisonError};

use batch_core::blob_key::BlobKey;
use batch_core::wire::{Sniff, WireError};
use batch_io::port::Blobs;
use batch_io::{IoError, IoKind};
use bytes::Bytes;
use futures::stream::{self, StreamExt};

use crate::background::Background;
use crate::form::Field;
use crate::reply::ApiError;

/// A blob that no record names yet. Dropping it removes the blob.
pub(crate) struct Unclaimed {
    blobs: Arc<dyn Blobs>,
    background: Background,
    key: BlobKey,
    claimed: bool,
}

impl Unclaimed {
    pub(crate) fn new(blobs: &Arc<dyn Blobs>, background: &Background, key: &BlobKey) -> Self {
        Self {
            blobs: Arc::clone(blobs),
            background: background.clone(),
            key: key.clone(),
            claimed: false,
        }
    }

    /// A record names the blob now.
    pub(crate) fn keep(mut self) {
        self.claimed = true;
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if self.claimed {
            return;
        }
        let (blobs, key) = (Arc::clone(&self.blobs), self.key.clone());
        self.background.spawn(async move {
            if let Err(fault) = blobs.delete(&key).await {
                tracing::warn!(error = %fault, "a blob that nothing names stays behind");
            }
        });
    }
}

/// A blob that was received.
pub(crate) struct Received {
    /// Its size.
    pub(crate) bytes: u64,
    /// What its start looks like.
    pub(crate) sniff: Sniff,
    /// The blob.
    pub(crate) blob: Unclaimed,
}

#[derive(Default)]
struct Seen {
    bytes: u64,
    sniff: Sniff,
    fault: Option<ApiError>,
}

/// Stores a field of at most `bytes_max` bytes under the name of `blob`; errors call it `what`.
pub(crate) async fn receive(
    blob: Unclaimed,
    field: Field,
    bytes_max: u64,
    what: &'static str,
) -> Result<Received, ApiError> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let start = (field, Arc::clone(&seen), blob.key.path());
    let body = stream::try_unfold(start, move |(mut field, seen, path)| async move {
        match look(&mut field, &seen, bytes_max, what).await {
            Ok(None) => Ok(None),
            Ok(Some(chunk)) => Ok(Some((chunk, (field, seen, path)))),
            Err(fault) => {
                lock(&seen).fault = Some(fault);
                Err(IoError::new("receive a body", path, IoKind::Conflict))
            }
        }
    });
    let stored = blob.blobs.put_stream(&blob.key, body.boxed()).await;
    let seen = std::mem::take(&mut *lock(&seen));
    match (seen.fault, stored) {
        (Some(fault), _) => Err(fault),
        (None, Err(fault)) => Err(fault.into()),
        (None, Ok(_)) => Ok(Received {
            bytes: seen.bytes,
            sniff: seen.sniff,
            blob,
        }),
    }
}

async fn look(
    field: &mut Field,
    seen: &Mutex<Seen>,
    bytes_max: u64,
    what: &'static str,
) -> Result<Option<Bytes>, ApiError> {
    let Some(chunk) = field.chunk().await? else {
        return Ok(None);
    };
    let mut seen = lock(seen);
    seen.bytes += chunk.len() as u64;
    if seen.bytes > bytes_max {
        return Err(WireError::too_large(what, bytes_max).into());
    }
    seen.sniff.push(&chunk);
    Ok(Some(chunk))
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Makes one blob of ranges of others, in constant memory, several ranges at once.
//!
//! Stores copy ranges of 5 MiB and more on their own side. Shorter ones are read and packed together, each
//! pack up to exactly 5 MiB, so that at most [`PARTS_AT_ONCE`] packs of 5 MiB are in memory: 40 MiB.

use std::sync::Arc;

use batch_core::blob_key::BlobKey;
use batch_core::external::PinnedObject;
use batch_core::limits::{BLOB_PART_BYTES_MIN, IMPORT_PART_BYTES};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use md5::{Digest as _, Md5};

use crate::IoError;
use crate::port::{Blobs, MultipartId, PartTag};

/// Parts that are copied or packed at the same time.
const PARTS_AT_ONCE: usize = 8;

const COPY_BYTES_MIN: u64 = BLOB_PART_BYTES_MIN as u64;

/// A range of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobRange {
    /// Blob.
    pub blob: BlobKey,
    /// First byte.
    pub start: u64,
    /// Beyond the last byte.
    pub end: u64,
}

/// What makes one part of the blob to be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// The store copies it.
    Copy(BlobRange),
    /// It passes through this process.
    Pack(Vec<BlobRange>),
    /// The store copies it from outside.
    Import {
        source: PinnedObject,
        start: u64,
        end: u64,
    },
}

/// Makes a blob of ranges, in this order. Replaces what is there.
///
/// # Errors
///
/// [`IoError`]: `NotFound` if a blob is gone.
pub async fn assemble(
    blobs: &Arc<dyn Blobs>,
    key: &BlobKey,
    ranges: &[BlobRange],
) -> Result<(), IoError> {
    run(blobs, key, plan(ranges)).await
}

/// Makes a blob of an object outside the service, which is not empty. Replaces what is there.
///
/// # Errors
///
/// [`IoError`]: `Conflict` if the object is not what it was, `NotFound` or `Denied` if it cannot be read.
pub async fn import(
    blobs: &Arc<dyn Blobs>,
    key: &BlobKey,
    source: &PinnedObject,
) -> Result<(), IoError> {
    let starts =
        (0..source.bytes).step_by(usize::try_from(IMPORT_PART_BYTES).unwrap_or(usize::MAX));
    let steps = starts.map(|start| Step::Import {
        source: source.clone(),
        start,
        end: (start + IMPORT_PART_BYTES).min(source.bytes),
    });
    run(blobs, key, steps.collect()).await
}

/// Returns the MD5 of ranges put together, lower-case hexadecimal.
///
/// # Errors
///
/// [`IoError`]: `NotFound` if a blob is gone.
pub async fn md5_of(blobs: &Arc<dyn Blobs>, ranges: &[BlobRange]) -> Result<String, IoError> {
    let mut hash = Md5::new();
    for range in ranges {
        let mut body = blobs
            .get(&range.blob, range.start, Some(range.end))
            .await?
            .body;
        while let Some(chunk) = body.try_next().await? {
            hash.update(&chunk);
        }
    }
    Ok(hex::encode(hash.finalize()))
}

/// Cuts ranges into parts: every part but the last has at least 5 MiB.
fn plan(ranges: &[BlobRange]) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut packed, mut packed_bytes) = (Vec::new(), 0);
    for range in ranges.iter().filter(|range| range.start < range.end) {
        // A pack is filled up first; then the rest may be long enough to be copied.
        let missing = if packed_bytes == 0 {
            0
        } else {
            COPY_BYTES_MIN - packed_bytes
        };
        let split = range.end.min(range.start + missing);
        for (start, end) in [(range.start, split), (split, range.end)] {
            let piece = BlobRange {
                blob: range.blob.clone(),
                start,
                end,
            };
            let bytes = end - start;
            if packed_bytes == 0 && bytes >= COPY_BYTES_MIN {
                steps.push(Step::Copy(piece));
            } else if bytes > 0 {
                packed.push(piece);
                packed_bytes += bytes;
            }
            if packed_bytes >= COPY_BYTES_MIN {
                steps.push(Step::Pack(std::mem::take(&mut packed)));
                packed_bytes = 0;
            }
        }
    }
    if !packed.is_empty() || steps.is_empty() {
        steps.push(Step::Pack(packed));
    }
    steps
}

/// Makes a blob of parts. What it began is dropped if it fails.
async fn run(blobs: &Arc<dyn Blobs>, key: &BlobKey, steps: Vec<Step>) -> Result<(), IoError> {
    let id = blobs.multipart_begin(key).await?;
    let made = async {
        let parts = (1..).zip(steps).map(|(number, step)| {
            let id = &id;
            async move { make_part(&**blobs, key, id, number, step).await }
        });
        let mut tags: Vec<PartTag> = stream::iter(parts)
            .buffer_unordered(PARTS_AT_ONCE)
            .try_collect()
            .await?;
        tags.sort_unstable_by_key(|tag| tag.number);
        blobs.multipart_finish(key, &id, &tags).await
    }
    .await;
    if made.is_err()
        && let Err(fault) = blobs.multipart_abort(key, &id).await
    {
        tracing::warn!(error = %fault, "a multipart blob stays unfinished");
    }
    made.map(|_| ())
}

async fn make_part(
    blobs: &dyn Blobs,
    key: &BlobKey,
    id: &MultipartId,
    number: u32,
    step: Step,
) -> Result<PartTag, IoError> {
    match step {
        Step::Copy(BlobRange { blob, start, end }) => {
            blobs
                .multipart_copy(key, id, number, &blob, start, end)
                .await
        }
        Step::Import { source, start, end } => {
            blobs
                .multipart_copy_external(key, id, number, &source, start, end)
                .await
        }
        Step::Pack(ranges) => {
            let body = read_all(blobs, &ranges).await?;
            blobs.multipart_put(key, id, number, body).await
        }
    }
}

/// Reads ranges of at most 5 MiB in sum.
async fn read_all(blobs: &dyn Blobs, ranges: &[BlobRange]) -> Result<Bytes, IoError> {
    let mut bytes = BytesMut::with_capacity(BLOB_PART_BYTES_MIN);
    for range in ranges {
        let mut body = blobs
            .get(&range.blob, range.start, Some(range.end))
            .await?
            .body;
        while let Some(chunk) = body.try_next().await? {
            bytes.extend_from_slice(&chunk);
        }
    }
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use batch_core::id::{FileId, TenantId};
    use batch_core::time::UnixMs;
    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, bytes: u64) -> BlobRange {
        let blob = BlobKey::File {
            tenant: TenantId::default_tenant(),
            file: FileId::new(UnixMs(1), [7; 16]),
        };
        BlobRange {
            blob,
            start,
            end: start + bytes,
        }
    }

    fn pieces(step: &Step) -> &[BlobRange] {
        match step {
            Step::Copy(range) => std::slice::from_ref(range),
            Step::Pack(ranges) => ranges,
            Step::Import { .. } => panic!("nothing is imported"),
        }
    }

    fn bytes(step: &Step) -> u64 {
        pieces(step)
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    #[test]
    fn long_ranges_are_copied_and_short_ones_packed() {
        const MIN: u64 = COPY_BYTES_MIN;
        let steps = plan(&[range(9, MIN), range(5, 3), range(0, 2 * MIN), range(1, 1)]);
        let expected = [
            Step::Copy(range(9, MIN)),
            Step::Pack(vec![range(5, 3), range(0, MIN - 3)]),
            Step::Copy(range(MIN - 3, MIN + 3)),
            Step::Pack(vec![range(1, 1)]),
        ];
        assert_eq!(steps, expected);
        assert_eq!(plan(&[]), [Step::Pack(Vec::new())]);
    }

    proptest! {
        #[test]
        fn parts_hold_all_bytes_in_order_and_keep_the_stores_limits(
            sizes in proptest::collection::vec((0_u64..1000, prop_oneof![0_u64..100, 0..2 * COPY_BYTES_MIN]), 0..40),
        ) {
            let ranges: Vec<_> = sizes.iter().map(|(start, bytes)| range(*start, *bytes)).collect();
            let steps = plan(&ranges);
            let mut left: Vec<BlobRange> = ranges.into_iter().filter(|range| range.start < range.end).rev().collect();
            for piece in steps.iter().flat_map(pieces) {
                let whole = left.last_mut().expect("no more bytes than there are");
                prop_assert_eq!(piece.start, whole.start);
                prop_assert!(piece.end <= whole.end);
                whole.start = piece.end;
                if whole.start == whole.end {
                    left.pop();
                }
            }
            prop_assert!(left.is_empty());
            for (index, step) in steps.iter().enumerate() {
                let is_last = index + 1 == steps.len();
                prop_assert!(is_last || bytes(step) >= COPY_BYTES_MIN);
                if matches!(step, Step::Pack(_)) {
                    prop_assert!(bytes(step) <= COPY_BYTES_MIN);
                }
            }
        }
    }
}

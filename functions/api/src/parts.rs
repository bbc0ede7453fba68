//! Finds the bytes of the parts that complete an upload.
//!
//! A part that came through this program has a record, and its blob is the part. On AWS, API Gateway stores
//! the body of the request as it came and nothing keeps a record: such a part is looked for under its name,
//! and the edges of the form around it are read.

use std::collections::HashMap;

use batch_core::blob_key::BlobKey;
use batch_core::form_envelope::{HEAD_BYTES, TAIL_BYTES, payload};
use batch_core::id::PartId;
use batch_core::upload::{Piece, Upload, UploadPart};
use batch_core::wire::create_upload::part_unreadable;
use batch_io::port::collect;
use batch_io::{IoKind, Platform};
use futures::{StreamExt, TryStreamExt, stream};

use crate::reply::ApiError;

/// Parts that are looked into at the same time: each holds at most 5 KiB.
const LOOKS_AT_ONCE: usize = 32;

/// Finds the parts of these names, as far as they exist.
pub(crate) async fn find(
    platform: &Platform,
    upload: &Upload,
    recorded: &[UploadPart],
    wanted: &[PartId],
) -> Result<HashMap<PartId, Piece>, ApiError> {
    let mut found: HashMap<PartId, Piece> = recorded
        .iter()
        .map(|part| (part.id, Piece::from(part)))
        .collect();
    let unrecorded: Vec<PartId> = wanted
        .iter()
        .copied()
        .filter(|part| !found.contains_key(part))
        .collect();
    let looks = unrecorded
        .into_iter()
        .map(|part| look_into(platform, upload, part));
    let mut looks = stream::iter(looks).buffer_unordered(LOOKS_AT_ONCE);
    while let Some(piece) = looks.try_next().await? {
        found.extend(piece.map(|piece| (piece.part, piece)));
    }
    Ok(found)
}

/// Finds the edges of a part in the form that carried it; none if there is no such part.
async fn look_into(
    platform: &Platform,
    upload: &Upload,
    part: PartId,
) -> Result<Option<Piece>, ApiError> {
    let blob = BlobKey::Part {
        tenant: upload.tenant.clone(),
        upload: upload.id,
        part,
    };
    let first = platform.blobs.get(&blob, 0, Some(HEAD_BYTES as u64)).await;
    let first = match first {
        Ok(first) => first,
        Err(fault) if fault.kind == IoKind::NotFound => return Ok(None),
        Err(fault) => return Err(fault.into()),
    };
    let bytes = first.meta.bytes;
    let head = collect(first.body).await?;
    let tail = if bytes <= HEAD_BYTES as u64 {
        head.slice(head.len().saturating_sub(TAIL_BYTES)..)
    } else {
        let start = bytes - TAIL_BYTES as u64;
        collect(platform.blobs.get(&blob, start, Some(bytes)).await?.body).await?
    };
    let range = payload(&head, &tail, bytes).map_err(|fault| part_unreadable(part, &fault))?;
    Ok(Some(Piece {
        part,
        start: range.start,
        end: range.end,
    }))
}

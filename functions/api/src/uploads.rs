//! `/uploads`: files in parts.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use batch_core::blob_key::BlobKey;
use batch_core::file::{File, FileStatus};
use batch_core::id::{PartId, UploadId};
use batch_core::limits::UPLOAD_PART_BYTES_MAX;
use batch_core::message::{AssembleJob, QueueName, SCHEMA};
use batch_core::upload::{Assembly, AssemblySource, Piece, Upload, UploadPart, UploadStatus};
use batch_core::wire::create_upload::{md5_mismatch, not_pending};
use batch_core::wire::upload::status_name;
use batch_core::wire::{CompleteUpload, CreateUpload, PartObject, UploadObject, WireError, expiry};
use batch_io::assembly::{BlobRange, assemble, md5_of};
use http::HeaderMap;

use crate::background::Background;
use crate::body::JsonBody;
use crate::caller::Caller;
use crate::context::Context;
use crate::files::{FilePath, path_text};
use crate::form::Form;
use crate::intake::Intake;
use crate::parts;
use crate::receive::{Received, Unclaimed, receive};
use crate::reply::{ApiError, Reply, json};

pub(crate) async fn create(
    State(context): State<Arc<Context>>,
    caller: Caller,
    JsonBody(body): JsonBody,
) -> Reply {
    let asked = CreateUpload::parse(&body, context.settings.file_bytes_max)?;
    let upload = asked.into_upload(caller.tenant, caller.now, context.entropy());
    context.store.create_upload(&upload).await?;
    Ok(json(&UploadObject::new(&upload, None, caller.now)))
}

pub(crate) async fn add_part(
    State(context): State<Arc<Context>>,
    caller: Caller,
    id: FilePath,
    background: Background,
    headers: HeaderMap,
    intake: Intake,
) -> Reply {
    let upload = find_pending(&context, &caller, id).await?;
    let part = PartId::new(caller.now, context.entropy());
    let blob = part_blob(&upload, part);
    let mut form = Form::new(&headers, intake, UPLOAD_PART_BYTES_MAX)?;
    let mut data: Option<Received> = None;
    while let Some(field) = form.next().await? {
        if field.name() != "data" {
            field.skip().await?;
        } else if data.is_some() {
            return Err(WireError::invalid("The form has two parts.")
                .with_param("data")
                .into());
        } else {
            let blob = Unclaimed::new(&context.platform.blobs, &background, &blob);
            data = Some(receive(blob, field, UPLOAD_PART_BYTES_MAX, "The part").await?);
        }
    }
    let data = data.ok_or_else(|| WireError::missing("data"))?;
    let part = UploadPart {
        id: part,
        upload: upload.id,
        bytes: data.bytes,
        created_at: caller.now,
        blob,
    };
    record_part(&context, &caller, &part, data.blob).await?;
    Ok(json(&PartObject::from(&part)))
}

/// Writes a part's record, and finishes even if the caller goes away.
async fn record_part(
    context: &Arc<Context>,
    caller: &Caller,
    part: &UploadPart,
    blob: Unclaimed,
) -> Result<(), ApiError> {
    let (store, tenant, part, upload) = (
        context.store.clone(),
        caller.tenant.clone(),
        part.clone(),
        part.upload,
    );
    let writing = tokio::spawn(async move {
        let added = store.add_part(&tenant, &part).await;
        // After an unknown outcome the blob stays: the upload's retention removes it.
        if !matches!(added, Ok(false)) {
            blob.keep();
        }
        added
    });
    let added = writing
        .await
        .unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))?;
    if added {
        Ok(())
    } else {
        Err(ended_meanwhile(context, caller, upload).await?.into())
    }
}

/// Puts the parts together, or lets a job do it. It finishes even if the caller goes away: half a copy helps nobody.
pub(crate) async fn complete(
    State(context): State<Arc<Context>>,
    caller: Caller,
    id: FilePath,
    background: Background,
    JsonBody(body): JsonBody,
) -> Reply {
    let upload = find_pending(&context, &caller, id).await?;
    let asked = CompleteUpload::parse(&body)?;
    let completing = tokio::spawn(async move {
        complete_pending(&context, &background, &caller, upload, asked).await
    });
    completing
        .await
        .unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

async fn complete_pending(
    context: &Arc<Context>,
    background: &Background,
    caller: &Caller,
    mut upload: Upload,
    asked: CompleteUpload,
) -> Reply {
    let recorded = context.store.list_parts(&caller.tenant, upload.id).await?;
    let found = parts::find(&context.platform, &upload, &recorded, &asked.part_ids).await?;
    let pieces = asked.select(&upload, &found)?;
    let bytes_moved = if asked.md5.is_some() {
        upload.bytes.saturating_mul(2)
    } else {
        upload.bytes
    };
    let file = if bytes_moved > context.settings.inline_assembly_bytes_max {
        complete_later(context, caller, &upload, pieces, asked.md5).await?
    } else {
        let md5 = asked.md5.as_deref();
        complete_now(context, background, caller, &upload, &pieces, md5).await?
    };
    upload.status = UploadStatus::Completed(file.id);
    Ok(json(&UploadObject::new(&upload, Some(&file), caller.now)))
}

/// Puts the parts together before the answer.
async fn complete_now(
    context: &Arc<Context>,
    background: &Background,
    caller: &Caller,
    upload: &Upload,
    pieces: &[Piece],
    md5: Option<&str>,
) -> Result<File, ApiError> {
    let blobs = &context.platform.blobs;
    let ranges: Vec<BlobRange> = pieces
        .iter()
        .map(|piece| BlobRange {
            blob: part_blob(upload, piece.part),
            start: piece.start,
            end: piece.end,
        })
        .collect();
    if let Some(expected) = md5 {
        let found = md5_of(blobs, &ranges).await?;
        if found != expected {
            return Err(md5_mismatch(expected, &found).into());
        }
    }
    let file = file_of(context, upload, FileStatus::Processed);
    let blob = Unclaimed::new(blobs, background, &file.blob);
    assemble(blobs, &file.blob, &ranges).await?;
    match context.store.complete_upload(upload, &file).await {
        Ok(true) => blob.keep(),
        Ok(false) => return Err(ended_meanwhile(context, caller, upload.id).await?.into()),
        Err(fault) => {
            let named = context
                .store
                .load_file(&caller.tenant, file.id, file.created_at)
                .await;
            if !matches!(named, Ok(None)) {
                blob.keep();
            }
            return Err(fault.into());
        }
    }
    drop_parts(context, upload).await;
    Ok(file)
}

/// Leaves the parts to a job: a caller does not wait as long as copying them takes.
async fn complete_later(
    context: &Arc<Context>,
    caller: &Caller,
    upload: &Upload,
    pieces: Vec<Piece>,
    md5: Option<String>,
) -> Result<File, ApiError> {
    let file = file_of(context, upload, FileStatus::Uploaded);
    let assembly = Assembly {
        upload: upload.clone(),
        file: file.id,
        source: AssemblySource::Parts(pieces),
        md5,
    };
    let begun = context
        .store
        .begin_assembly(&assembly, &file, file.created_at);
    if !begun.await? {
        return Err(ended_meanwhile(context, caller, upload.id).await?.into());
    }
    ask_assemble(context, &assembly).await;
    Ok(file)
}

/// Asks for a file to be put together. A message that is not sent is only a delay: reconcile asks again.
pub(crate) async fn ask_assemble(context: &Context, assembly: &Assembly) {
    let job = AssembleJob {
        schema: SCHEMA,
        tenant: assembly.upload.tenant.clone(),
        upload: assembly.upload.id,
        file: assembly.file,
    };
    let sent = context
        .platform
        .send(&QueueName::Assemble, &[job], Duration::ZERO)
        .await;
    if let Err(fault) = sent {
        tracing::warn!(error = %fault, file.id = %assembly.file, "a message is left to reconcile");
    }
}

/// Makes the record of the file that an upload becomes.
fn file_of(context: &Context, upload: &Upload, status: FileStatus) -> File {
    let created_at = context.now();
    let (id, blob) = context.new_file(&upload.tenant, created_at);
    File {
        id,
        tenant: upload.tenant.clone(),
        bytes: upload.bytes,
        created_at,
        expires_at: expiry::expires_at(upload.purpose, upload.expires_after, created_at),
        filename: upload.filename.clone(),
        purpose: upload.purpose,
        status,
        blob,
        schema: SCHEMA,
    }
}

fn part_blob(upload: &Upload, part: PartId) -> BlobKey {
    BlobKey::Part {
        tenant: upload.tenant.clone(),
        upload: upload.id,
        part,
    }
}

/// Cancels a pending upload. Repeating it is fine.
pub(crate) async fn cancel(
    State(context): State<Arc<Context>>,
    caller: Caller,
    id: FilePath,
) -> Reply {
    let mut upload = find(&context, &caller, id).await?;
    let cancelled = match upload.status {
        UploadStatus::Cancelled => true,
        UploadStatus::Completed(_) => false,
        UploadStatus::Pending if caller.now >= upload.expires_at => false,
        UploadStatus::Pending => {
            context
                .store
                .cancel_upload(&caller.tenant, upload.id, caller.now)
                .await?
        }
    };
    if !cancelled {
        return Err(ended_meanwhile(&context, &caller, upload.id).await?.into());
    }
    drop_parts(&context, &upload).await;
    upload.status = UploadStatus::Cancelled;
    Ok(json(&UploadObject::new(&upload, None, caller.now)))
}

/// Removes the bytes of parts that nothing reads any more, those without a record included. What fails, and
/// what comes late, is left to the upload's retention.
async fn drop_parts(context: &Context, upload: &Upload) {
    let prefix = BlobKey::parts_prefix(&upload.tenant, upload.id);
    if let Err(fault) = context.platform.blobs.delete_prefix(&prefix).await {
        tracing::warn!(error = %fault, "parts stay until their upload is collected");
    }
}

async fn find(context: &Context, caller: &Caller, id: FilePath) -> Result<Upload, ApiError> {
    let text = path_text(id);
    let id: UploadId = text.parse().map_err(|_| WireError::no_upload(&text))?;
    let upload = context.store.load_upload(&caller.tenant, id).await?;
    upload.ok_or_else(|| WireError::no_upload(&text).into())
}

async fn find_pending(
    context: &Context,
    caller: &Caller,
    id: FilePath,
) -> Result<Upload, ApiError> {
    let upload = find(context, caller, id).await?;
    match status_name(&upload, caller.now) {
        "pending" => Ok(upload),
        status => Err(not_pending(status).into()),
    }
}

/// Says why an upload that was pending is not any more.
async fn ended_meanwhile(
    context: &Context,
    caller: &Caller,
    id: UploadId,
) -> Result<WireError, ApiError> {
    let upload = context.store.load_upload(&caller.tenant, id).await?;
    let upload = upload.ok_or_else(|| WireError::no_upload(&id.to_string()))?;
    Ok(not_pending(match status_name(&upload, context.now()) {
        "pending" => "expired",
        status => status,
    }))
}

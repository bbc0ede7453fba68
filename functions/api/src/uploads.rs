//! `/uploads`: files in parts.

use std::sync::Arc;

use axum::extract::State;
use batch_core::blob_key::BlobKey;
use batch_core::file::{File, FileStatus};
use batch_core::id::{PartId, UploadId};
use batch_core::limits::UPLOAD_PART_BYTES_MAX;
use batch_core::message::SCHEMA;
use batch_core::upload::{Upload, UploadPart, UploadStatus};
use batch_core::wire::create_upload::not_pending;
use batch_core::wire::upload::status_name;
use batch_core::wire::{CompleteUpload, CreateUpload, PartObject, UploadObject, WireError, expiry};
use http::HeaderMap;

use crate::assemble::{assemble, check_md5};
use crate::body::JsonBody;
use crate::caller::Caller;
use crate::context::Context;
use crate::files::{FilePath, path_text};
use crate::form::Form;
use crate::intake::Intake;
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
    headers: HeaderMap,
    intake: Intake,
) -> Reply {
    let upload = find_pending(&context, &caller, id).await?;
    let part = PartId::new(caller.now, context.entropy());
    let blob = BlobKey::Part {
        tenant: caller.tenant.clone(),
        upload: upload.id,
        part,
    };
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
            let blobs = &context.platform.blobs;
            data = Some(receive(blobs, &blob, field, UPLOAD_PART_BYTES_MAX, "The part").await?);
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

/// Puts the parts together. It finishes even if the caller goes away: half a copy helps nobody.
pub(crate) async fn complete(
    State(context): State<Arc<Context>>,
    caller: Caller,
    id: FilePath,
    JsonBody(body): JsonBody,
) -> Reply {
    let upload = find_pending(&context, &caller, id).await?;
    let asked = CompleteUpload::parse(&body)?;
    let completing =
        tokio::spawn(async move { complete_pending(&context, &caller, upload, asked).await });
    completing
        .await
        .unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))
}

async fn complete_pending(
    context: &Arc<Context>,
    caller: &Caller,
    mut upload: Upload,
    asked: CompleteUpload,
) -> Reply {
    let stored = context.store.list_parts(&caller.tenant, upload.id).await?;
    let parts = asked.select(&upload, &stored)?;
    let blobs = &context.platform.blobs;
    if let Some(md5) = &asked.md5 {
        check_md5(blobs, &parts, md5).await?;
    }
    let (id, key) = context.new_file(&caller.tenant, caller.now);
    let blob = Unclaimed::new(blobs, &key);
    assemble(blobs, &key, &parts).await?;
    let created_at = context.now();
    let file = File {
        id,
        tenant: caller.tenant.clone(),
        bytes: upload.bytes,
        created_at,
        expires_at: expiry::expires_at(upload.purpose, upload.expires_after, created_at),
        filename: upload.filename.clone(),
        purpose: upload.purpose,
        status: FileStatus::Processed,
        blob: key,
        schema: SCHEMA,
    };
    match context.store.complete_upload(&upload, &file).await {
        Ok(true) => blob.keep(),
        Ok(false) => return Err(ended_meanwhile(context, caller, upload.id).await?.into()),
        Err(fault) => {
            let named = context
                .store
                .load_file(&caller.tenant, file.id, created_at)
                .await;
            if !matches!(named, Ok(None)) {
                blob.keep();
            }
            return Err(fault.into());
        }
    }
    drop_parts(context, &stored).await;
    upload.status = UploadStatus::Completed(file.id);
    Ok(json(&UploadObject::new(&upload, Some(&file), caller.now)))
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
    let parts = context.store.list_parts(&caller.tenant, upload.id).await?;
    drop_parts(&context, &parts).await;
    upload.status = UploadStatus::Cancelled;
    Ok(json(&UploadObject::new(&upload, None, caller.now)))
}

/// Removes the bytes of parts that nothing reads any more. What fails is left to the upload's retention.
async fn drop_parts(context: &Context, parts: &[UploadPart]) {
    for part in parts {
        if let Err(fault) = context.platform.blobs.delete(&part.blob).await {
            tracing::warn!(error = %fault, "a part stays until its upload is collected");
        }
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

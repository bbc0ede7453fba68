//! Makes a file of an object outside the service: its record now, its bytes by a job.

use std::sync::Arc;

use batch_core::external::{ExternalObject, PinnedObject};
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::UploadId;
use batch_core::limits::UPLOAD_LIFE_S;
use batch_core::message::SCHEMA;
use batch_core::upload::{Assembly, AssemblySource, Upload, UploadStatus};
use batch_core::wire::expiry;
use batch_core::wire::import::{check_bytes, check_location, unreadable};
use batch_io::IoKind;

use crate::caller::Caller;
use crate::context::Context;
use crate::reply::ApiError;
use crate::uploads::ask_assemble;

/// Begins the import of an object for a batch. The object is taken as it is now, or not at all.
pub(crate) async fn import(
    context: &Arc<Context>,
    caller: &Caller,
    object: &ExternalObject,
) -> Result<File, ApiError> {
    check_location(object, &context.imports)?;
    let meta = match context.platform.blobs.head_external(object).await {
        Ok(meta) => meta,
        Err(fault) if matches!(fault.kind, IoKind::NotFound | IoKind::Denied) => {
            tracing::info!(error = %fault, "an object to import cannot be read");
            return Err(unreadable(object).into());
        }
        Err(fault) => return Err(fault.into()),
    };
    check_bytes(meta.bytes, context.settings.file_bytes_max)?;
    let (id, blob) = context.new_file(&caller.tenant, caller.now);
    let file = File {
        id,
        tenant: caller.tenant.clone(),
        bytes: meta.bytes,
        created_at: caller.now,
        expires_at: expiry::expires_at(Purpose::Batch, None, caller.now),
        filename: object.filename().to_owned(),
        purpose: Purpose::Batch,
        status: FileStatus::Uploaded,
        blob,
        schema: SCHEMA,
    };
    let assembly = Assembly {
        upload: upload_of(&file, UploadId::new(caller.now, context.entropy())),
        file: id,
        source: AssemblySource::Object(PinnedObject {
            object: object.clone(),
            etag: meta.etag,
            bytes: meta.bytes,
        }),
        md5: None,
    };
    context
        .store
        .begin_import(&assembly, &file, caller.now)
        .await?;
    ask_assemble(context, &assembly).await;
    Ok(file)
}

/// Makes the upload that stands for an import: it is completed, and no part was ever added to it.
fn upload_of(file: &File, id: UploadId) -> Upload {
    Upload {
        id,
        tenant: file.tenant.clone(),
        bytes: file.bytes,
        created_at: file.created_at,
        expires_at: file.created_at.plus_ms(UPLOAD_LIFE_S * 1000),
        filename: file.filename.clone(),
        mime_type: "application/jsonl".to_owned(),
        purpose: file.purpose,
        expires_after: None,
        status: UploadStatus::Completed(file.id),
        schema: SCHEMA,
    }
}

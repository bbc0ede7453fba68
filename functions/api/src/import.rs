//! Makes a file of an object outside the service: its record now, its bytes by a job.
//!
//! Keys of such objects are a user's content: no log has them.

use std::sync::Arc;

use batch_core::external::{ExternalObject, PinnedObject};
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::UploadId;
use batch_core::limits::UPLOAD_LIFE_S;
use batch_core::message::SCHEMA;
use batch_core::time::UnixMs;
use batch_core::upload::{Assembly, AssemblySource, Upload, UploadStatus};
use batch_core::wire::expiry;
use batch_core::wire::import::{check_bytes, check_location, unreadable};
use batch_io::{IoError, IoKind};

use crate::caller::Caller;
use crate::context::Context;
use crate::reply::ApiError;

/// Makes the records of a file that is to be an object as it is now. Nothing is copied before its job is
/// asked for: that is for after its batch exists.
pub(crate) async fn import(
    context: &Arc<Context>,
    caller: &Caller,
    object: &ExternalObject,
) -> Result<(File, Assembly), ApiError> {
    check_location(object, &context.imports)?;
    let meta = match context.platform.blobs.head_external(object).await {
        Ok(meta) => meta,
        Err(fault) if matches!(fault.kind, IoKind::NotFound | IoKind::Denied) => {
            tracing::info!(kind = ?fault.kind, "an object to import cannot be read");
            return Err(unreadable(object).into());
        }
        Err(fault) => return Err(without_key(fault).into()),
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
    let begun = context.store.begin_import(&assembly, &file, caller.now);
    match begun.await {
        Ok(()) => Ok((file, assembly)),
        Err(fault) => {
            // The outcome may be unknown.
            take_back(context, &assembly, caller.now).await;
            Err(fault.into())
        }
    }
}

/// Removes the file of an import that no batch came to need, and ends the import: else reconcile would have
/// the object copied.
pub(crate) async fn take_back(context: &Context, assembly: &Assembly, now: UnixMs) {
    let (tenant, file) = (&assembly.upload.tenant, assembly.file);
    let refused = FileStatus::Error("Its batch was not created.".to_owned());
    let taken = async {
        context.store.delete_file(tenant, file, now).await?;
        let upload = assembly.upload.id;
        context
            .store
            .end_assembly(tenant, upload, file, &refused, now)
            .await
    };
    if let Err(fault) = taken.await {
        tracing::warn!(error = %fault, file.id = %file, "an import that no batch needs is not taken back");
    }
}

/// Leaves the object's name out of an error, which is logged.
fn without_key(fault: IoError) -> IoError {
    IoError {
        key: "to import".to_owned(),
        ..fault
    }
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

//! Files, uploads and memories of creates whose time is over: the bytes go first, then the record.

use batch_core::blob_key::BlobKey;
use batch_core::id::{FileId, PartId, TenantId, UploadId};
use batch_core::time::UnixMs;
use batch_io::IoError;
use batch_io::store::FileCollection;

use crate::Context;
use crate::ended::parent;
use crate::report::Report;

/// Removes a deleted or expired file that no batch reads any more.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn collect_file(
    ctx: &Context,
    tenant: &TenantId,
    file: FileId,
    now: UnixMs,
    report: &mut Report,
) -> Result<(), IoError> {
    match ctx.store.collect_file(tenant, file, now).await? {
        FileCollection::Nothing | FileCollection::Pinned => Ok(()),
        FileCollection::Remove(blob) => {
            ctx.platform.blobs.delete(&blob).await?;
            ctx.store.forget_file(tenant, file).await?;
            report.files_removed += 1;
            Ok(())
        }
    }
}

/// Removes the parts of an upload that can no longer be completed, or is completed.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn collect_upload(
    ctx: &Context,
    tenant: &TenantId,
    upload: UploadId,
    now: UnixMs,
    report: &mut Report,
) -> Result<(), IoError> {
    if !ctx.store.collect_upload(tenant, upload, now).await? {
        return Ok(());
    }
    let some_part = BlobKey::Part { tenant: tenant.clone(), upload, part: PartId::new(now, [0; 16]) };
    ctx.platform.blobs.delete_prefix(&parent(&some_part.path())).await?;
    ctx.store.forget_upload(tenant, upload).await?;
    report.uploads_removed += 1;
    Ok(())
}

/// Removes the memory of a create that no retry needs any more.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn forget_creation(
    ctx: &Context,
    tenant: &TenantId,
    name: &str,
    now: UnixMs,
    report: &mut Report,
) -> Result<(), IoError> {
    ctx.store.forget_creation(tenant, name, now).await?;
    report.creations_forgotten += 1;
    Ok(())
}

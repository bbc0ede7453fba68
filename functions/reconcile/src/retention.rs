//! Files, uploads and memories of creates whose time is over: the bytes go first, then the record. And files
//! that are late to be put together.

use batch_core::blob_key::BlobKey;
use batch_core::id::{FileId, TenantId, UploadId};
use batch_io::IoError;
use batch_io::store::{FileCollection, UploadCollection};

use crate::messages::ask_assemble;
use crate::pass::Pass;

/// Removes a deleted or expired file that no batch reads any more.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn collect_file(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    file: FileId,
) -> Result<(), IoError> {
    match pass.ctx.store.collect_file(tenant, file, pass.now).await? {
        FileCollection::Nothing | FileCollection::Pinned => Ok(()),
        FileCollection::Remove(blob) => {
            pass.ctx.platform.blobs.delete(&blob).await?;
            pass.ctx.store.forget_file(tenant, file).await?;
            pass.report.files_removed += 1;
            Ok(())
        }
    }
}

/// Removes the parts of an upload that can no longer be completed, or is completed. Asks again for the job
/// that puts them together, if it is late.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn collect_upload(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    upload: UploadId,
) -> Result<(), IoError> {
    let store = &pass.ctx.store;
    match store.collect_upload(tenant, upload, pass.now).await? {
        UploadCollection::Nothing => {}
        UploadCollection::Assembling(file) => {
            ask_assemble(pass.ctx, tenant, upload, file).await?;
            pass.report.assemblies_resent += 1;
        }
        UploadCollection::Remove => {
            let prefix = BlobKey::parts_prefix(tenant, upload);
            pass.ctx.platform.blobs.delete_prefix(&prefix).await?;
            store.forget_upload(tenant, upload).await?;
            pass.report.uploads_removed += 1;
        }
    }
    Ok(())
}

/// Removes the memory of a create that no retry needs any more.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn forget_creation(
    pass: &mut Pass<'_>,
    tenant: &TenantId,
    name: &str,
) -> Result<(), IoError> {
    pass.ctx
        .store
        .forget_creation(tenant, name, pass.now)
        .await?;
    pass.report.creations_forgotten += 1;
    Ok(())
}

//! Opens a batch's input file, or says why it cannot be one.

use batch_core::batch::{BatchParams, ValidationError};
use batch_core::blob_key::BlobKey;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::FileId;
use batch_core::line::problem;
use batch_core::time::UnixMs;
use batch_io::port::BlobReader;
use batch_io::{IoError, IoKind};

use crate::Context;

/// An input file, about to be read.
pub(crate) struct Input {
    /// Size of the whole file.
    pub(crate) bytes: u64,
    /// The bytes, in order.
    pub(crate) body: BlobReader,
}

/// Returns whether the file that `params` names is still being put together.
///
/// # Errors
///
/// [`IoError`].
pub(crate) async fn is_awaited(
    ctx: &Context,
    params: &BatchParams,
    now: UnixMs,
) -> Result<bool, IoError> {
    let Ok(file) = params.input_file_id.parse::<FileId>() else {
        return Ok(false);
    };
    let file = ctx.store.load_file(&params.tenant, file, now).await?;
    Ok(file.is_some_and(|file| file.status == FileStatus::Uploaded))
}

/// Says why a file has no bytes that could be read.
fn unusable(file: &File) -> Option<ValidationError> {
    match &file.status {
        FileStatus::Uploaded | FileStatus::Processed => None,
        FileStatus::Error(why) => Some(ValidationError {
            code: "invalid_request".to_owned(),
            message: format!("The file {} cannot be read. {why}", file.id),
            line: None,
            param: Some("file_id".to_owned()),
        }),
    }
}

/// Opens the file that `params` names.
///
/// A file that its owner deleted after the batch was created is still read: the batch pins its bytes.
///
/// # Errors
///
/// [`IoError`] if the store fails; a file that cannot be the input is the inner `Err`.
pub(crate) async fn open_input(
    ctx: &Context,
    params: &BatchParams,
    now: UnixMs,
) -> Result<Result<Input, ValidationError>, IoError> {
    let missing = || Ok(Err(problem::file_not_found(&params.input_file_id)));
    let (Ok(file), Some(_)) = (params.input_file_id.parse::<FileId>(), params.input_bytes) else {
        return missing();
    };
    let key = match ctx.store.load_file(&params.tenant, file, now).await? {
        Some(file) if file.purpose != Purpose::Batch => return missing(),
        Some(file) => match unusable(&file) {
            Some(why) => return Ok(Err(why)),
            None => file.blob,
        },
        None => BlobKey::File {
            tenant: params.tenant.clone(),
            file,
        },
    };
    let read = match ctx.platform.blobs.get(&key, 0, None).await {
        Ok(read) => read,
        Err(error) if error.kind == IoKind::NotFound => return missing(),
        Err(error) => return Err(error),
    };
    let bytes = read.meta.bytes;
    if bytes > ctx.settings.file_bytes_max {
        return Ok(Err(problem::file_too_large(ctx.settings.file_bytes_max)));
    }
    Ok(Ok(Input {
        bytes,
        body: read.body,
    }))
}

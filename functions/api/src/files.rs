//! `/files`, but for their contents.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use batch_core::blob_key::BlobKey;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::FileId;
use batch_core::message::SCHEMA;
use batch_core::wire::create_file::check_filename;
use batch_core::wire::query::LimitBounds;
use batch_core::wire::{Deleted, FileForm, FileObject, ListQuery, Page, WireError, expiry};
use batch_io::port::QueryOrder;
use batch_io::store::FileQuery;
use http::HeaderMap;

use crate::background::Background;
use crate::caller::Caller;
use crate::context::Context;
use crate::form::Form;
use crate::intake::Intake;
use crate::receive::{Received, Unclaimed, receive};
use crate::reply::{ApiError, Reply, json};

/// Bytes of a file for no batch: OpenAI's 512 MB.
const OTHER_FILE_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// What SDKs call bytes without a name.
const NAMELESS: &str = "upload";

/// Decoded pairs of a query; anything goes.
pub(crate) type Pairs = Query<Vec<(String, String)>>;

/// Receives a file while the rest of the form is still unknown: some clients send it first.
pub(crate) async fn create(
    State(context): State<Arc<Context>>,
    caller: Caller,
    background: Background,
    headers: HeaderMap,
    intake: Intake,
) -> Reply {
    let batch_bytes_max = context.settings.file_bytes_max;
    let bytes_max = batch_bytes_max.max(OTHER_FILE_BYTES_MAX);
    let (id, key) = context.new_file(&caller.tenant, caller.now);
    let mut form = Form::new(&headers, intake, bytes_max)?;
    let mut fields = FileForm::default();
    let mut file: Option<(String, Received)> = None;
    while let Some(field) = form.next().await? {
        if field.name() == "file" {
            if file.is_some() {
                return Err(WireError::invalid("The form has two files.")
                    .with_param("file")
                    .into());
            }
            let filename = field
                .filename()
                .filter(|name| !name.is_empty())
                .unwrap_or(NAMELESS)
                .to_owned();
            let blob = Unclaimed::new(&context.platform.blobs, &background, &key);
            file = Some((filename, receive(blob, field, bytes_max, "The file").await?));
        } else if let Some(slot) = fields.field(field.name()) {
            *slot = Some(field.text().await?);
        } else {
            field.skip().await?;
        }
    }
    let (filename, received) = file.ok_or_else(|| WireError::missing("file"))?;
    let params = fields.finish()?;
    check_filename("file", &filename, params.purpose)?;
    let Received { bytes, sniff, blob } = received;
    if params.purpose == Purpose::Batch {
        if bytes > batch_bytes_max {
            return Err(WireError::too_large("The file", batch_bytes_max).into());
        }
        sniff.finish().map_err(WireError::from)?;
    }
    let created_at = context.now();
    let file = File {
        id,
        tenant: caller.tenant,
        bytes,
        created_at,
        expires_at: expiry::expires_at(params.purpose, params.expires_after, created_at),
        filename,
        purpose: params.purpose,
        status: FileStatus::Processed,
        blob: key,
        schema: SCHEMA,
    };
    let file = record(&context, file, blob).await?;
    Ok(json(&FileObject::from(&file)))
}

/// Writes a file's record. A caller that goes away meanwhile does not stop it half-way: then the record
/// would name a blob that is taken back.
pub(crate) async fn record(
    context: &Arc<Context>,
    file: File,
    blob: Unclaimed,
) -> Result<File, ApiError> {
    let store = context.store.clone();
    let writing = tokio::spawn(async move {
        let written = store.create_file(&file).await;
        let named = match &written {
            Ok(()) => true,
            // The outcome may be unknown: only a record that is surely absent lets the blob go.
            Err(_) => !matches!(
                store
                    .load_file(&file.tenant, file.id, file.created_at)
                    .await,
                Ok(None)
            ),
        };
        if named {
            blob.keep();
        }
        written.map(|()| file)
    });
    match writing.await {
        Ok(written) => Ok(written?),
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
}

pub(crate) async fn list(
    State(context): State<Arc<Context>>,
    caller: Caller,
    Query(pairs): Pairs,
) -> Reply {
    let query = ListQuery::<FileId>::parse(&pairs, LimitBounds::FILES)?;
    let order = if query.ascending {
        QueryOrder::Ascending
    } else {
        QueryOrder::Descending
    };
    let query = FileQuery {
        purpose: query.purpose,
        after: query.after,
        order,
        limit: query.limit,
        now: caller.now,
    };
    let files = context.store.list_files(&caller.tenant, query).await?;
    let objects = files
        .items
        .iter()
        .map(|file| (file.id.to_string(), FileObject::from(file)));
    Ok(json(&Page::new(objects, files.has_more)))
}

pub(crate) async fn retrieve(
    State(context): State<Arc<Context>>,
    caller: Caller,
    id: FilePath,
) -> Reply {
    let file = find(&context, &caller, id).await?;
    Ok(json(&FileObject::from(&file)))
}

pub(crate) async fn delete(
    State(context): State<Arc<Context>>,
    caller: Caller,
    id: FilePath,
) -> Reply {
    let text = path_text(id);
    let id: FileId = text.parse().map_err(|_| WireError::no_file(&text))?;
    if context
        .store
        .delete_file(&caller.tenant, id, caller.now)
        .await?
    {
        return Ok(json(&Deleted::file(id)));
    }
    Err(WireError::no_file(&text).into())
}

/// The id in a path, as it came.
pub(crate) type FilePath = Result<Path<String>, PathRejection>;

/// Returns the decoded text of a path's id; what cannot be decoded names nothing.
pub(crate) fn path_text(id: Result<Path<String>, PathRejection>) -> String {
    id.map(|Path(id)| id).unwrap_or_default()
}

/// Finds a file of the caller's.
pub(crate) async fn find(
    context: &Context,
    caller: &Caller,
    id: FilePath,
) -> Result<File, ApiError> {
    let text = path_text(id);
    let id: FileId = text.parse().map_err(|_| WireError::no_file(&text))?;
    let file = context
        .store
        .load_file(&caller.tenant, id, caller.now)
        .await?;
    file.ok_or_else(|| WireError::no_file(&text).into())
}

/// Stores bytes of ours as a file for a batch.
pub(crate) async fn store_lines(
    context: &Arc<Context>,
    background: &Background,
    caller: &Caller,
    filename: &str,
    lines: Vec<u8>,
) -> Result<File, ApiError> {
    let (id, key) = context.new_file(&caller.tenant, caller.now);
    let blob = Unclaimed::new(&context.platform.blobs, background, &key);
    let bytes = lines.len() as u64;
    context.platform.blobs.put(&key, lines.into()).await?;
    let file = batch_file(caller, id, key, filename, bytes);
    record(context, file, blob).await
}

fn batch_file(caller: &Caller, id: FileId, blob: BlobKey, filename: &str, bytes: u64) -> File {
    File {
        id,
        tenant: caller.tenant.clone(),
        bytes,
        created_at: caller.now,
        expires_at: expiry::expires_at(Purpose::Batch, None, caller.now),
        filename: filename.to_owned(),
        purpose: Purpose::Batch,
        status: FileStatus::Processed,
        blob,
        schema: SCHEMA,
    }
}

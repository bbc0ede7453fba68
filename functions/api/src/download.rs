//! `GET /files/{id}/content`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::wire::WireError;
use batch_io::port::BlobMeta;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, HeaderValue, IF_NONE_MATCH, IF_RANGE, LOCATION, RANGE,
};
use http::{HeaderMap, HeaderName, Method, StatusCode};

use crate::caller::Caller;
use crate::content::{Conditions, Selection, disposition};
use crate::context::Context;
use crate::files::{FilePath, find};
use crate::reply::{ApiError, Reply};

/// How long an address handed out instead of the bytes works.
const ADDRESS_LIFE_S: u32 = 300;

/// Answers with a file's bytes as they were uploaded, or with an address where they are.
pub(crate) async fn content(
    State(context): State<Arc<Context>>,
    caller: Caller,
    method: Method,
    headers: HeaderMap,
    id: FilePath,
) -> Reply {
    let file = find(&context, &caller, id).await?;
    let blobs = &context.platform.blobs;
    check_readable(&file)?;
    // An address is signed for GET alone: a HEAD is answered here. Whoever follows sends range and conditions
    // to the store, which knows the same tag.
    if method == Method::GET
        && let Some(address) = blobs
            .presigned_get(&file.blob, &file.filename, ADDRESS_LIFE_S)
            .await?
    {
        return Ok(redirect(address));
    }
    let meta = blobs.head(&file.blob).await?;
    let header = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let conditions = Conditions {
        range: header(RANGE).filter(|_| method == Method::GET),
        if_range: header(IF_RANGE),
        if_none_match: header(IF_NONE_MATCH),
    };
    let (status, start, end) = match conditions.select(&meta.etag, meta.bytes) {
        Selection::NotModified => return Ok(not_modified(&meta)),
        Selection::OutOfRange => return Ok(out_of_range(meta.bytes)),
        Selection::Whole => (StatusCode::OK, 0, meta.bytes),
        Selection::Part { start, end } => (StatusCode::PARTIAL_CONTENT, start, end),
    };
    let body = if method == Method::HEAD {
        Body::empty()
    } else {
        Body::from_stream(blobs.get(&file.blob, start, Some(end)).await?.body)
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    describe(response.headers_mut(), &file, &meta);
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, (end - start).into());
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {start}-{}/{}", end - 1, meta.bytes);
        insert(response.headers_mut(), CONTENT_RANGE, &range);
    }
    Ok(response)
}

/// Refuses a file that has no bytes. A 409 would make clients send the request again at once.
fn check_readable(file: &File) -> Result<(), WireError> {
    let (message, code) = match &file.status {
        FileStatus::Processed => return Ok(()),
        FileStatus::Uploaded => (
            format!(
                "The file '{}' is still being put together: its status is 'uploaded'. Try again when it is \
                 'processed'.",
                file.id
            ),
            "file_not_ready",
        ),
        FileStatus::Error(why) => (
            format!("The file '{}' has no content. {why}", file.id),
            "file_unusable",
        ),
    };
    Err(WireError::invalid(message)
        .with_param("file_id")
        .with_code(code))
}

/// Sends the client to the bytes. The address is a secret, and it soon stops to work.
fn redirect(address: String) -> Response {
    let headers = [(LOCATION, address), (CACHE_CONTROL, "no-store".to_owned())];
    (StatusCode::FOUND, headers).into_response()
}

fn describe(headers: &mut HeaderMap, file: &File, meta: &BlobMeta) {
    let media_type = match file.purpose {
        Purpose::Batch | Purpose::BatchOutput => "application/jsonl",
        Purpose::Assistants
        | Purpose::FineTune
        | Purpose::Vision
        | Purpose::UserData
        | Purpose::Evals => "application/octet-stream",
    };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    insert(headers, CONTENT_DISPOSITION, &disposition(&file.filename));
    insert(headers, ETAG, &meta.etag);
}

fn not_modified(meta: &BlobMeta) -> Response {
    let mut response = StatusCode::NOT_MODIFIED.into_response();
    insert(response.headers_mut(), ETAG, &meta.etag);
    response
}

fn out_of_range(bytes: u64) -> Response {
    let mut error = WireError::invalid(format!(
        "The file has {bytes} bytes: none of them is in the range."
    ));
    error.status = StatusCode::RANGE_NOT_SATISFIABLE.as_u16();
    let mut response = ApiError::from(error.with_param("range")).into_response();
    insert(
        response.headers_mut(),
        CONTENT_RANGE,
        &format!("bytes */{bytes}"),
    );
    response
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

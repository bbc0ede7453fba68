//! Answers: JSON objects, and errors in their envelope.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use batch_core::wire::WireError;
use batch_io::{IoError, IoKind};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, StatusCode};
use serde::Serialize;

/// Overrides what SDKs make of a status.
const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Seconds that a client of a busy store should wait.
const BUSY_RETRY_AFTER_S: u32 = 2;

/// An error answer, and what of ours caused it: logged once, never shown.
#[derive(Debug)]
pub(crate) struct ApiError {
    wire: WireError,
    cause: Option<Cause>,
}

/// What of ours caused an error answer; travels in the extensions of the response.
#[derive(Debug, Clone)]
pub(crate) struct Cause(pub(crate) Arc<IoError>);

impl ApiError {
    /// Returns whether the client is to blame or must wait: nothing was done, and nothing of ours broke.
    pub(crate) fn is_refusal(&self) -> bool {
        self.wire.status < 500
    }
}

pub(crate) type Reply = Result<Response, ApiError>;

impl From<WireError> for ApiError {
    fn from(wire: WireError) -> Self {
        Self { wire, cause: None }
    }
}

impl From<IoError> for ApiError {
    fn from(fault: IoError) -> Self {
        let wire = match fault.kind {
            IoKind::Busy | IoKind::Conflict => WireError::overloaded(BUSY_RETRY_AFTER_S),
            IoKind::NotFound | IoKind::Denied | IoKind::TooLarge | IoKind::Corrupt => {
                WireError::server_error()
            }
        };
        Self {
            wire,
            cause: Some(Cause(Arc::new(fault))),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.wire.to_json());
        *response.status_mut() =
            StatusCode::from_u16(self.wire.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        if let Some(retry) = self.wire.retry {
            headers.insert(
                X_SHOULD_RETRY,
                HeaderValue::from_static(if retry { "true" } else { "false" }),
            );
        }
        if let Some(seconds) = self.wire.retry_after_s {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.wire.status == 401 {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(cause) = self.cause {
            response.extensions_mut().insert(cause);
        }
        response
    }
}

/// Answers 200 with an object.
pub(crate) fn json(object: &impl Serialize) -> Response {
    match serde_json::to_vec(object) {
        Ok(body) => json_response(body),
        Err(fault) => {
            let fault = IoError::new("serialise an answer", "json", IoKind::Corrupt).because(fault);
            ApiError::from(fault).into_response()
        }
    }
}

fn json_response(body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

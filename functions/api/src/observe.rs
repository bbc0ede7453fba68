//! Around every request: its id, its headers, its line in the log, a caught panic, a drained body.

use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use batch_core::id::RequestId;
use batch_core::wire::WireError;
use futures::FutureExt;
use http::header::{EXPECT, HeaderValue};
use http::{HeaderMap, HeaderName};

use crate::caller::TenantSlot;
use crate::context::Context;
use crate::intake::Intake;
use crate::reply::{ApiError, Cause};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const OPENAI_PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");
const OPENAI_VERSION: HeaderName = HeaderName::from_static("openai-version");
const X_CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-client-request-id");

/// Bytes of a client's own request id that go to the log.
const CLIENT_REQUEST_ID_BYTES_MAX: usize = 512;

/// How long a request without a large body may take.
const QUICK_TIME_MAX: Duration = Duration::from_secs(120);

/// Seconds that a client should wait after that.
const SLOW_RETRY_AFTER_S: u32 = 5;

/// Serves a request, and does what all answers have in common.
pub(crate) async fn observe(
    State(context): State<Arc<Context>>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let id = RequestId::new(context.now(), context.entropy());
    let (mut parts, body) = request.into_parts();
    let (method, headers) = (parts.method.clone(), parts.headers.clone());
    let route = parts
        .extensions
        .get::<MatchedPath>()
        .map_or("unknown", MatchedPath::as_str)
        .to_owned();
    let (intake, tenant) = (Intake::new(body), TenantSlot::default());
    parts.extensions.insert(intake.clone());
    parts.extensions.insert(tenant.clone());
    let served = next.run(Request::from_parts(parts, Body::empty()));
    let mut response = match AssertUnwindSafe(served).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            // What it says may quote a user; the place is the panic hook's to log.
            tracing::error!(request.id = %id, "a handler panicked");
            ApiError::from(WireError::server_error()).into_response()
        }
    };
    let status = response.status();
    // Asking for a body that the client holds back would make it send all of it.
    let held_back = headers.contains_key(EXPECT) && !intake.has_begun();
    if (status.is_client_error() || status.is_server_error()) && !held_back {
        intake.drain().await;
    }
    let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    add_headers(response.headers_mut(), id, duration_ms);
    if let Some(Cause(cause)) = response.extensions().get::<Cause>() {
        tracing::error!(request.id = %id, error = %cause, source = source_text(cause), "a request failed");
    }
    tracing::info!(
        request.id = %id,
        request.client_id = client_request_id(&headers),
        method = %method,
        route,
        status = status.as_u16(),
        duration_ms,
        tenant = tenant.0.get().map(|tenant| tenant.as_str()),
        "served a request"
    );
    response
}

/// Gives up on a request that takes too long. Not for routes that stream a body in.
pub(crate) async fn in_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(QUICK_TIME_MAX, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::from(WireError::overloaded(SLOW_RETRY_AFTER_S)).into_response(),
    }
}

fn add_headers(headers: &mut HeaderMap, id: RequestId, duration_ms: u64) {
    if let Ok(id) = HeaderValue::try_from(id.to_string()) {
        headers.insert(X_REQUEST_ID, id);
    }
    headers.insert(OPENAI_PROCESSING_MS, duration_ms.into());
    headers.insert(OPENAI_VERSION, HeaderValue::from_static("2020-10-01"));
}

fn client_request_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get(X_CLIENT_REQUEST_ID)?.to_str().ok()?;
    (id.len() <= CLIENT_REQUEST_ID_BYTES_MAX).then_some(id)
}

fn source_text(error: &dyn Error) -> String {
    let mut text = String::new();
    let mut source = error.source();
    while let Some(error) = source {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

//! The API function on AWS Lambda, behind a REST API of API Gateway.
//!
//! The stage is named `v1`, and `lambda_http` puts the stage in front of the path: so the router sees
//! `/v1/batches` whether a client came through the stage's own URL or a custom domain.

use std::convert::Infallible;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use api::{Background, Context, router};
use axum::body::Body;
use axum::response::Response;
use batch_core::wire::WireError;
use function_runtime::metrics::Unit;
use function_runtime::{Function, Invocation, drive, run};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use lambda_http::lambda_runtime::Runtime;
use lambda_http::request::RequestContext;
use lambda_http::tower::ServiceExt as _;
use lambda_http::{Adapter, Request, RequestExt as _, Service, service_fn};
use tracing::Instrument as _;

/// Seconds that a client should wait after a request that took too long.
const RETRY_AFTER_S: u32 = 5;

fn main() -> ExitCode {
    run(|function| async move { drive(Runtime::new(Adapter::from(service(function)))).await })
}

/// Makes what answers the requests of API Gateway.
fn service(
    function: Function,
) -> impl Service<
    Request,
    Response = Response,
    Error = Infallible,
    Future = impl Future<Output = Result<Response, Infallible>> + Send + 'static,
> + Send
+ 'static {
    let routes = router(Arc::new(Context {
        platform: function.platform.clone(),
        store: function.store.clone(),
        catalog: Arc::clone(&function.catalog),
        settings: function.settings,
        imports: function.imports.clone(),
        auth: Arc::new(function.store.clone()),
    }));
    service_fn(move |request: Request| {
        let (routes, function) = (routes.clone(), function.clone());
        let span = gateway_span(&request);
        serve(routes, function, request).instrument(span)
    })
}

/// Serves one request, and counts it. One that takes too long is answered all the same: a function that
/// Lambda ends answers nothing, and API Gateway then has words of its own. Work that would go on after the
/// answer ends before it: Lambda freezes the process then, maybe for ever.
async fn serve(
    routes: axum::Router,
    function: Function,
    mut request: Request,
) -> Result<Response, Infallible> {
    let route = route_class(request.uri().path());
    let deadline = request.lambda_context_ref().map(Invocation::from);
    let left = || {
        deadline.map_or(Duration::ZERO, |invocation| {
            invocation.time_left((function.platform.clock)())
        })
    };
    let background = Background::default();
    request.extensions_mut().insert(background.clone());
    // A time-out of nothing would still let a quick answer through, now and then.
    let served = match left() {
        Duration::ZERO => None,
        left => tokio::time::timeout(left, routes.oneshot(request.map(Body::new)))
            .await
            .ok(),
    };
    let response = match served {
        Some(served) => served?,
        None => {
            tracing::error!("no answer before the deadline");
            out_of_time()
        }
    };
    if tokio::time::timeout(left(), background.finished())
        .await
        .is_err()
    {
        tracing::warn!("work of a request may stay undone, as its time is over");
    }
    function.emit(
        &[
            ("Route", route),
            ("Status", status_class(response.status().as_u16())),
        ],
        &[("Requests", Unit::Count, 1)],
    );
    Ok(response)
}

fn out_of_time() -> Response {
    let error = WireError::overloaded(RETRY_AFTER_S);
    let mut response = Response::new(Body::from(error.to_json()));
    *response.status_mut() =
        StatusCode::from_u16(error.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(RETRY_AFTER, RETRY_AFTER_S.into());
    response
}

/// Names the request as API Gateway's own log does, and who sent it: the socket's other end is the gateway.
fn gateway_span(request: &Request) -> tracing::Span {
    let span = tracing::info_span!(
        "request",
        gateway.request_id = tracing::field::Empty,
        client.address = tracing::field::Empty
    );
    if let Some(RequestContext::ApiGatewayV1(context)) = request.extensions().get() {
        span.record("gateway.request_id", context.request_id.as_deref());
        span.record("client.address", context.identity.source_ip.as_deref());
    }
    span
}

/// Returns what a path is about, in few words: each is a metric that costs money.
fn route_class(path: &str) -> &'static str {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    match (segments.next(), segments.next()) {
        (Some("v1"), Some("files")) => "files",
        (Some("v1"), Some("uploads")) => "uploads",
        (Some("v1"), Some("batches")) => "batches",
        (Some("v1"), Some("models")) => "models",
        _ => "other",
    }
}

fn status_class(status: u16) -> &'static str {
    match status {
        0..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        500.. => "5xx",
    }
}

#[cfg(test)]
#[path = "main/tests.rs"]
mod tests;

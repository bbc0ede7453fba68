//! Which path and method mean what.

use std::sync::Arc;

use axum::Router;
use axum::extract::OriginalUri;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use batch_core::wire::WireError;
use http::Method;

use crate::context::Context;
use crate::observe::{in_time, observe};
use crate::reply::ApiError;
use crate::slots::in_slot;
use crate::{batches, create_batch, download, files, models, uploads};

/// Makes the router of the whole API below `/v1`.
pub fn router(context: Arc<Context>) -> Router {
    router_under("/v1", context)
}

/// Makes the router of the whole API below any path; `/` puts it at the root.
///
/// # Panics
///
/// If `base` does not begin with a slash, or holds braces.
pub fn router_under(base: &str, context: Arc<Context>) -> Router {
    let quick = Router::new()
        .route("/files", get(files::list))
        .route("/files/{id}", get(files::retrieve).delete(files::delete))
        .route("/files/{id}/content", get(download::content))
        .route("/uploads", post(uploads::create))
        .route("/uploads/{id}/cancel", post(uploads::cancel))
        .route("/batches", get(batches::list).post(create_batch::create))
        .route("/batches/{id}", get(batches::retrieve))
        .route("/batches/{id}/cancel", post(batches::cancel))
        .route("/models", get(models::list))
        .route("/models/{*id}", get(models::retrieve))
        .route_layer(from_fn(in_time));
    let slow = Router::new()
        .route("/files", post(files::create))
        .route("/uploads/{id}/parts", post(uploads::add_part))
        .route("/uploads/{id}/complete", post(uploads::complete))
        .route_layer(from_fn(in_slot));
    let routes = quick.merge(slow).method_not_allowed_fallback(wrong_method);
    let base = base.trim_end_matches('/');
    let routes = if base.is_empty() {
        routes
    } else {
        Router::new().nest(base, routes)
    };
    routes
        .fallback(unknown)
        .layer(from_fn_with_state(Arc::clone(&context), observe))
        .with_state(context)
}

async fn unknown(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    WireError::unknown_url(method.as_str(), uri.path()).into()
}

async fn wrong_method(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    WireError::method_not_allowed(method.as_str(), uri.path()).into()
}

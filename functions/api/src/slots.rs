//! How many uploads one process takes at once.

use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use batch_core::wire::WireError;
use tokio::sync::Semaphore;

use crate::reply::ApiError;

/// Seconds that a client should wait for a slot.
const RETRY_AFTER_S: u32 = 5;

/// Slots for requests that stream a body in or put parts together: each takes memory until it is served. As
/// an extension of requests it limits them; without it there is no limit. Clones share their slots.
#[derive(Debug, Clone)]
pub struct UploadSlots(Arc<Semaphore>);

impl UploadSlots {
    /// Makes so many slots.
    #[must_use]
    pub fn new(slots: u16) -> Self {
        Self(Arc::new(Semaphore::new(slots.into())))
    }
}

/// Serves a request in a slot, or refuses it at once if none is free: waiting ones would hold connections
/// open, and a client that is told to come again may meet another process.
pub(crate) async fn in_slot(request: Request, next: Next) -> Response {
    let Some(UploadSlots(slots)) = request.extensions().get().cloned() else {
        return next.run(request).await;
    };
    match slots.try_acquire() {
        Ok(_slot) => next.run(request).await,
        Err(_) => ApiError::from(WireError::overloaded(RETRY_AFTER_S)).into_response(),
    }
}

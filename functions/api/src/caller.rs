//! Who asks, and when.

use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use batch_core::id::{KeyId, TenantId};
use batch_core::time::UnixMs;
use batch_core::wire::Credentials;
use http::HeaderName;
use http::header::AUTHORIZATION;
use http::request::Parts;

use crate::context::Context;
use crate::reply::ApiError;

/// Where Azure's clients put their key.
const API_KEY: HeaderName = HeaderName::from_static("api-key");

/// Tells the log whose request it was.
#[derive(Debug, Clone, Default)]
pub(crate) struct TenantSlot(pub(crate) Arc<OnceLock<TenantId>>);

/// The caller of a request. A handler that takes one serves callers with a key alone.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Whose data it may touch.
    pub(crate) tenant: TenantId,
    /// Which key it presented.
    pub(crate) key: KeyId,
    /// When the request came.
    pub(crate) now: UnixMs,
}

impl FromRequestParts<Arc<Context>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        context: &Arc<Context>,
    ) -> Result<Self, ApiError> {
        let now = context.now();
        let header = |name: HeaderName| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let credentials = Credentials {
            authorization: header(AUTHORIZATION),
            api_key: header(API_KEY),
        };
        let principal = context.auth.authorize(credentials, now).await?;
        if let Some(slot) = parts.extensions.get::<TenantSlot>() {
            slot.0.get_or_init(|| principal.tenant.clone());
        }
        Ok(Self {
            tenant: principal.tenant,
            key: principal.key,
            now,
        })
    }
}

//! Reads JSON bodies.

use axum::extract::FromRequestParts;
use batch_core::limits::JSON_BODY_BYTES_MAX;
use batch_core::wire::WireError;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::request::Parts;

use crate::intake::Intake;
use crate::reply::ApiError;

/// The whole body of a request that carries JSON, whatever its content type says; not parsed yet.
#[derive(Debug)]
pub(crate) struct JsonBody(pub(crate) Bytes);

impl<S: Sync> FromRequestParts<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Ok(mut intake) = Intake::from_request_parts(parts, state).await;
        let mut body = BytesMut::new();
        while let Some(chunk) = intake.next().await {
            let chunk = chunk.map_err(WireError::from)?;
            if body.len() + chunk.len() > JSON_BODY_BYTES_MAX {
                let bytes_max = u64::try_from(JSON_BODY_BYTES_MAX).unwrap_or(u64::MAX);
                return Err(WireError::too_large("The request body", bytes_max).into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self(body.freeze()))
    }
}

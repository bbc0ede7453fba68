//! Lets API Gateway store a part of an upload: judges the key and the upload, and names the part.
//!
//! `POST /uploads/{id}/parts` goes from API Gateway straight to S3, so that no function is in the way of
//! the bytes, and nobody but this authorizer sees the request first. Every other route is judged by the
//! API itself. [`handle`] reads, [`decide`] decides.
#![warn(missing_docs)]

mod decision;
mod event;

use batch_core::id::{Entropy, UploadId};
use batch_core::time::UnixMs;
use batch_core::wire::WireError;
use batch_io::IoError;
use batch_io::keys::authorize;
use batch_io::store::Store;

pub use decision::{Decision, Grant, Policy, decide};
pub use event::Request;

/// What keeps the authorizer from a decision.
#[derive(Debug)]
pub enum Refusal {
    /// No key, or none of ours: API Gateway answers 401 to this word alone.
    Unauthorized,
    /// The store could not tell: API Gateway answers 500, and SDKs try again.
    Unknown,
}

/// Judges a request to store a part.
///
/// # Errors
///
/// [`Refusal`] where there is no policy to return.
pub async fn handle(
    store: &Store,
    request: &Request,
    now: UnixMs,
    entropy: Entropy,
) -> Result<Policy, Refusal> {
    let principal = match authorize(store, request.credentials(), now).await {
        Ok(principal) => principal,
        Err(error) if error.status == 401 => return Err(Refusal::Unauthorized),
        // The lookup has logged its cause.
        Err(WireError { .. }) => return Err(Refusal::Unknown),
    };
    let upload = match request.upload().parse::<UploadId>() {
        Ok(id) => store
            .load_upload(&principal.tenant, id)
            .await
            .map_err(|fault| unknown(&fault))?,
        Err(_) => None,
    };
    let decision = decide(&principal, request.upload(), upload.as_ref(), now, entropy);
    Ok(decision.into_policy(&principal, &request.method_arn))
}

fn unknown(fault: &IoError) -> Refusal {
    tracing::error!(error = %fault, source = ?fault.source, "cannot look up an upload");
    Refusal::Unknown
}

#[cfg(test)]
mod tests;

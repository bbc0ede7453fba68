//! The request that a line becomes.

use batch_core::batch::Endpoint;
use batch_core::line::{Unsendable, readdress};
use bytes::Bytes;

use super::retry::Tries;
use crate::openai::LineError;
use crate::pipeline::{LineJob, LineKey};

/// A line on its way to the server.
#[derive(Debug, Clone)]
pub(super) struct Letter {
    pub(super) key: LineKey,
    pub(super) urgent: bool,
    /// What follows the server's base address.
    pub(super) path: &'static str,
    /// JSON.
    pub(super) body: Bytes,
    pub(super) tries: Tries,
}

/// Makes the request of a line for the model that the server calls `model`.
///
/// # Errors
///
/// [`LineError`] if the line must not be sent.
pub(super) fn write(job: LineJob, urgent: bool, model: &str) -> Result<Letter, LineError> {
    let body = readdress(&job.body, model).map_err(refusal)?;
    Ok(Letter {
        key: job.key,
        urgent,
        path: path(job.endpoint),
        body: Bytes::from(body.into_owned()),
        tries: Tries::default(),
    })
}

/// A base address ends in the API's version, as SDKs want it.
fn path(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::ChatCompletions => "/chat/completions",
        Endpoint::Completions => "/completions",
        Endpoint::Embeddings => "/embeddings",
        Endpoint::Responses => "/responses",
    }
}

/// Says what the engine says.
fn refusal(fault: Unsendable) -> LineError {
    match fault {
        Unsendable::NotAnObject => {
            LineError::invalid("body", "invalid_type", "The body must be an object.")
        }
        Unsendable::Streams => LineError::unsupported("stream", "a batch does not stream"),
        Unsendable::StreamKind(kind) => LineError::invalid(
            "stream",
            "invalid_type",
            format!("Invalid type for 'stream': expected a boolean, but got {kind} instead."),
        ),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use batch_core::id::LineNo;
    use batch_core::time::UnixMs;

    use super::*;

    pub(in crate::http) fn job(key: u64, body: &str) -> LineJob {
        LineJob {
            key: LineKey(key),
            endpoint: Endpoint::ChatCompletions,
            run: "batch".into(),
            custom_id_json: r#""id""#.to_owned(),
            line: LineNo(key),
            created_at: UnixMs(0),
            request_id: "batch_req_1".to_owned(),
            body: body.to_owned(),
            salt: 0,
        }
    }

    #[test]
    fn letter_has_the_users_bytes_and_the_servers_name() {
        let letter = write(job(7, r#"{"model": "alias", "x":1.0}"#), true, "org/m");
        let letter = letter.expect("it is sendable");
        assert_eq!((letter.key, letter.urgent), (LineKey(7), true));
        assert_eq!(letter.path, "/chat/completions");
        assert_eq!(letter.body, r#"{"model": "org/m", "x":1.0}"#);
    }

    #[test]
    fn path_is_that_of_the_endpoint_without_the_version() {
        for endpoint in Endpoint::ALL {
            assert_eq!(format!("/v1{}", path(endpoint)), endpoint.path());
        }
    }

    #[test]
    fn stream_is_refused_in_the_engines_words() {
        let refused = |body| write(job(1, body), false, "m").expect_err("it is not sendable");
        let error = refused(r#"{"model":"m","stream":true}"#);
        assert_eq!(
            error.message,
            "Unsupported parameter 'stream': a batch does not stream."
        );
        let error = refused(r#"{"model":"m","stream":1}"#);
        assert_eq!(
            error.message,
            "Invalid type for 'stream': expected a boolean, but got a number instead."
        );
    }
}

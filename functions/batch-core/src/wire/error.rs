//! The one error that clients get, and its envelope.

use serde::Serialize;

use crate::lifecycle::Status;
use crate::limits;

/// The shortest and longest wait that every SDK honours, in seconds.
const RETRY_AFTER_S: (u32, u32) = (1, 60);

/// The `type` of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    /// The request cannot be served as it is.
    InvalidRequestError,
    /// Too many requests for now.
    RateLimitExceeded,
    /// Not the client's fault.
    ServerError,
}

/// An error answer: a status, the four keys of the envelope, and hints for retries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {message}")]
pub struct WireError {
    /// HTTP status.
    pub status: u16,
    /// Sentence for a person; echoes at most 128 characters of a value.
    pub message: String,
    /// The envelope's `type`.
    pub kind: ErrorType,
    /// The parameter at fault.
    pub param: Option<String>,
    /// Machine-readable reason.
    pub code: Option<&'static str>,
    /// Overrides what SDKs make of the status; none leaves it to them.
    pub retry: Option<bool>,
    /// Seconds to wait, 1 to 60.
    pub retry_after_s: Option<u32>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: ErrorType,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl WireError {
    fn new(status: u16, kind: ErrorType, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            kind,
            param: None,
            code: None,
            retry: None,
            retry_after_s: None,
        }
    }

    /// Makes a 400 without parameter and code.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, ErrorType::InvalidRequestError, message)
    }

    /// Names the parameter at fault.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Names the reason.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// A required parameter is absent.
    #[must_use]
    pub fn missing(param: &str) -> Self {
        Self::invalid(format!("Missing required parameter: '{param}'."))
            .with_param(param)
            .with_code("missing_required_parameter")
    }

    /// A parameter has another JSON type: `expected` and `got` carry their article (`a string`).
    #[must_use]
    pub fn invalid_type(param: &str, expected: &str, got: &str) -> Self {
        Self::invalid(format!(
            "Invalid type for '{param}': expected {expected}, but got {got} instead."
        ))
        .with_param(param)
        .with_code("invalid_type")
    }

    /// A parameter is none of the known values.
    #[must_use]
    pub fn unsupported_value(param: &str, got: &str, supported: &[&str]) -> Self {
        let listed = match supported {
            [] => String::new(),
            [one] => format!(" The supported value is '{one}'."),
            [first @ .., last] => {
                let first: Vec<String> = first.iter().map(|value| format!("'{value}'")).collect();
                let comma = if first.len() > 1 { "," } else { "" };
                format!(
                    " Supported values are: {}{comma} and '{last}'.",
                    first.join(", ")
                )
            }
        };
        Self::invalid(format!("Invalid value: '{}'.{listed}", clip(got)))
            .with_param(param)
            .with_code("invalid_value")
    }

    /// A number is below or above its bounds.
    #[must_use]
    pub fn out_of_range(param: &str, got: i128, min: u64, max: u64) -> Self {
        let (side, sign, bound, code) = if got < i128::from(min) {
            ("below minimum", ">=", min, "integer_below_min_value")
        } else {
            ("above maximum", "<=", max, "integer_above_max_value")
        };
        Self::invalid(format!(
            "Invalid '{param}': integer {side} value. Expected a value {sign} {bound}, but got {got} instead."
        ))
        .with_param(param)
        .with_code(code)
    }

    /// A text has too many characters.
    #[must_use]
    pub fn text_too_long(param: &str, chars: usize, max: usize) -> Self {
        Self::invalid(format!(
            "Invalid '{param}': string too long. Expected a string with maximum length {max}, but got a string with length {chars} instead."
        ))
        .with_param(param)
        .with_code("string_above_max_length")
    }

    /// Something that this service, or this way of running it, does not have.
    #[must_use]
    pub fn unsupported(param: &str, message: &str) -> Self {
        Self::invalid(message)
            .with_param(param)
            .with_code("unsupported")
    }

    /// The body is no JSON object.
    #[must_use]
    pub fn not_json(why: &str) -> Self {
        Self::invalid(format!(
            "We could not parse the JSON body of your request: {}.",
            clip(why)
        ))
    }

    /// No key came with the request.
    #[must_use]
    pub fn no_key() -> Self {
        let message = "You didn't provide an API key. You need to provide your API key in an Authorization header \
                       using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).";
        Self::new(401, ErrorType::InvalidRequestError, message).with_code("invalid_api_key")
    }

    /// The key is not one of ours. Shows the ends of a long key, and nothing of a short one.
    #[must_use]
    pub fn wrong_key(key: &str) -> Self {
        let chars: Vec<char> = key.chars().filter(|c| c.is_ascii_graphic()).collect();
        let hint = match chars.as_slice() {
            [a, b, c, hidden @ .., y, z] if hidden.len() >= 16 => format!("{a}{b}{c}****{y}{z}"),
            _ => "****".to_owned(),
        };
        Self::new(
            401,
            ErrorType::InvalidRequestError,
            format!("Incorrect API key provided: {hint}."),
        )
        .with_code("invalid_api_key")
    }

    /// No route has this path.
    #[must_use]
    pub fn unknown_url(method: &str, path: &str) -> Self {
        Self::new(
            404,
            ErrorType::InvalidRequestError,
            format!("Invalid URL ({} {})", clip(method), clip(path)),
        )
        .with_code("unknown_url")
    }

    /// The path exists, but not with this method.
    #[must_use]
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("Not allowed to {} on {}.", clip(method), clip(path));
        Self::new(405, ErrorType::InvalidRequestError, message).with_code("method_not_supported")
    }

    /// There is no such file for this tenant.
    #[must_use]
    pub fn no_file(id: &str) -> Self {
        Self::new(
            404,
            ErrorType::InvalidRequestError,
            format!("No such File object: {}", clip(id)),
        )
        .with_param("id")
    }

    /// There is no such upload for this tenant.
    #[must_use]
    pub fn no_upload(id: &str) -> Self {
        Self::new(
            404,
            ErrorType::InvalidRequestError,
            format!("No such Upload object: {}", clip(id)),
        )
        .with_param("upload_id")
    }

    /// There is no such batch for this tenant.
    #[must_use]
    pub fn no_batch(id: &str) -> Self {
        Self::new(
            404,
            ErrorType::InvalidRequestError,
            format!("No batch found with id '{}'.", clip(id)),
        )
        .with_param("batch_id")
    }

    /// The catalog has no such model.
    #[must_use]
    pub fn no_model(id: &str) -> Self {
        Self::new(
            404,
            ErrorType::InvalidRequestError,
            format!("The model '{}' does not exist.", clip(id)),
        )
        .with_param("model")
        .with_code("model_not_found")
    }

    /// A batch in this status cannot be cancelled.
    #[must_use]
    pub fn cannot_cancel(status: Status) -> Self {
        let message = format!("Cannot cancel a batch with status '{}'.", status.name());
        Self {
            retry: Some(false),
            ..Self::new(409, ErrorType::InvalidRequestError, message)
        }
    }

    /// An `Idempotency-Key` came again with another body.
    #[must_use]
    pub fn idempotency_mismatch() -> Self {
        let message =
            "This Idempotency-Key was used with another request body within the last 24 hours.";
        Self {
            retry: Some(false),
            ..Self::new(409, ErrorType::InvalidRequestError, message)
        }
        .with_code("idempotency_key_reused")
    }

    /// A body, a file or a part has too many bytes.
    #[must_use]
    pub fn too_large(what: &str, bytes_max: u64) -> Self {
        let message = format!("{what} is larger than the maximum of {bytes_max} bytes.");
        Self::new(413, ErrorType::InvalidRequestError, message).with_code("content_too_large")
    }

    /// The body has a type that the route does not take.
    #[must_use]
    pub fn unsupported_media_type(wanted: &str, got: &str) -> Self {
        let message = format!(
            "Unsupported content type: expected '{wanted}', but got '{}' instead.",
            clip(got)
        );
        Self::new(415, ErrorType::InvalidRequestError, message)
    }

    /// The client stopped sending its body.
    #[must_use]
    pub fn body_timeout(idle_s: u64) -> Self {
        let message =
            format!("The request body did not arrive: nothing came for {idle_s} seconds.");
        Self::new(408, ErrorType::InvalidRequestError, message).with_code("request_timeout")
    }

    /// The tenant has created too many batches lately.
    #[must_use]
    pub fn rate_limited(per_hour_max: u64, retry_after_s: u32) -> Self {
        let message = format!(
            "Rate limit reached for batch creation: at most {per_hour_max} batches an hour."
        );
        Self {
            retry_after_s: Some(retry_after_s.clamp(RETRY_AFTER_S.0, RETRY_AFTER_S.1)),
            ..Self::new(429, ErrorType::RateLimitExceeded, message)
        }
        .with_code("rate_limit_exceeded")
    }

    /// Something of ours broke; a retry may help.
    #[must_use]
    pub fn server_error() -> Self {
        Self::new(
            500,
            ErrorType::ServerError,
            "The server had an error while processing your request.",
        )
    }

    /// The service is busy, or an answer took too long; a retry after `retry_after_s` helps.
    #[must_use]
    pub fn overloaded(retry_after_s: u32) -> Self {
        Self {
            retry_after_s: Some(retry_after_s.clamp(RETRY_AFTER_S.0, RETRY_AFTER_S.1)),
            ..Self::new(
                503,
                ErrorType::ServerError,
                "The server is overloaded. Please try again in a moment.",
            )
        }
    }

    /// Returns the envelope as JSON: always with all four keys.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let inner = Inner {
            message: &self.message,
            r#type: self.kind,
            param: self.param.as_deref(),
            code: self.code,
        };
        serde_json::to_vec(&Envelope { error: inner }).expect("texts and an enum always serialise")
    }
}

/// Returns what a message may show of a user's value: its first 128 characters.
#[must_use]
pub fn clip(text: &str) -> &str {
    match text.char_indices().nth(limits::ECHO_CHARS_MAX) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

//! What can be wrong with an input file: every code and message in one place, and their list.

use crate::batch::{Endpoint, ValidationError};
use crate::echo::clip;
use crate::id::LineNo;
use crate::limits::{CUSTOM_ID_CHARS_MAX, ERRORS_LISTED_MAX, LINE_BYTES_MAX};

/// The errors of a file: the first 100 as they come, and how many there are beyond.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    listed: Vec<ValidationError>,
    total: u64,
}

impl Problems {
    /// Adds an error.
    pub fn push(&mut self, error: ValidationError) {
        self.total += 1;
        if self.listed.len() < ERRORS_LISTED_MAX {
            self.listed.push(error);
        }
    }

    /// Returns how many errors were added.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns whether the file is sound so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the first 100, and one last entry that counts the others.
    #[must_use]
    pub fn into_errors(self) -> Vec<ValidationError> {
        let mut errors = self.listed;
        let beyond = self.total - errors.len() as u64;
        if beyond > 0 {
            let more = if beyond == 1 {
                "is 1 more error".to_owned()
            } else {
                format!("are {beyond} more errors")
            };
            let message = format!("There {more}: only the first {ERRORS_LISTED_MAX} are listed.");
            errors.push(of_file("too_many_errors", message, None));
        }
        errors
    }
}

/// The file has no request.
#[must_use]
pub fn empty_file() -> ValidationError {
    let message =
        "The input file is empty. Please ensure that the batch contains at least one request.";
    of_file("empty_file", message.to_owned(), None)
}

/// The file has more requests than a batch may.
#[must_use]
pub fn too_many_requests(requests: u64, requests_max: u64) -> ValidationError {
    let message =
        format!("The batch input file has {requests} requests; the maximum is {requests_max}.");
    of_file("too_many_tasks", message, None)
}

/// The file is larger than a batch's may be.
#[must_use]
pub fn file_too_large(bytes_max: u64) -> ValidationError {
    let message = format!(
        "The batch input file is larger than the {bytes_max} maximum. Please try again with a smaller batch."
    );
    of_file("file_too_large", message, None)
}

/// The file does not exist, is gone, belongs to another tenant or is not for batches.
#[must_use]
pub fn file_not_found(file_id: &str) -> ValidationError {
    let message = format!(
        "Cannot find file {}, or this project does not have access to it.",
        clip(file_id)
    );
    of_file("invalid_request", message, Some("file_id"))
}

/// The tenant has too many tokens waiting for this model.
#[must_use]
pub fn token_limit_exceeded(model: &str, tokens_max: u64) -> ValidationError {
    let message = format!(
        "Enqueued token limit reached for {}. Limit: {tokens_max} enqueued tokens. Please try again once some \
         in_progress batches have been completed.",
        clip(model)
    );
    of_file("token_limit_exceeded", message, None)
}

/// The line is no JSON object; `detail` is empty or a sentence after a space.
pub(super) fn invalid_json(no: LineNo, detail: &str) -> ValidationError {
    of_line(
        "invalid_json_line",
        format!("This line is not parseable as valid JSON.{detail}"),
        no,
        None,
    )
}

/// The line is longer than the limit.
pub(super) fn line_too_long(no: LineNo, bytes: u64) -> ValidationError {
    of_line(
        "line_too_long",
        format!("This line has {bytes} bytes; the maximum is {LINE_BYTES_MAX}."),
        no,
        None,
    )
}

pub(super) fn missing(no: LineNo, key: &str) -> ValidationError {
    of_line(
        "missing_required_parameter",
        format!("Missing required parameter: '{key}'."),
        no,
        Some(key),
    )
}

pub(super) fn wrong_type(no: LineNo, key: &str, wanted: &str, got: &str) -> ValidationError {
    let message = format!("Invalid type for '{key}': expected {wanted}, but got {got} instead.");
    of_line("invalid_type", message, no, Some(key))
}

pub(super) fn custom_id_empty(no: LineNo) -> ValidationError {
    let message = "Invalid 'custom_id': empty string. It must have at least one character.";
    of_line(
        "string_below_min_length",
        message.to_owned(),
        no,
        Some("custom_id"),
    )
}

pub(super) fn custom_id_too_long(no: LineNo, chars: usize) -> ValidationError {
    let message = format!(
        "Invalid 'custom_id': string of {chars} characters; the maximum is {CUSTOM_ID_CHARS_MAX}."
    );
    of_line("string_above_max_length", message, no, Some("custom_id"))
}

pub(super) fn duplicate(no: LineNo, custom_id: &[u8]) -> ValidationError {
    let message = format!(
        "The custom_id '{}' for this request is a duplicate of another request. The custom_id parameter must be \
         unique for each request in a batch.",
        clip(&String::from_utf8_lossy(custom_id))
    );
    of_line("duplicate_custom_id", message, no, Some("custom_id"))
}

pub(super) fn invalid_method(no: LineNo, method: &str) -> ValidationError {
    let message = format!(
        "Invalid value: '{}'. The method of every request must be 'POST'.",
        clip(method)
    );
    of_line("invalid_method", message, no, Some("method"))
}

pub(super) fn invalid_url(no: LineNo) -> ValidationError {
    let message = "The URL provided for this request does not match the batch endpoint.";
    of_line("invalid_url", message.to_owned(), no, Some("url"))
}

pub(super) fn model_missing(no: LineNo) -> ValidationError {
    of_line(
        "invalid_request",
        "Model parameter is required.".to_owned(),
        no,
        Some("body.model"),
    )
}

pub(super) fn model_unknown(no: LineNo, model: &str) -> ValidationError {
    let message = format!(
        "The provided model '{}' is not supported by the Batch API.",
        clip(model)
    );
    of_line("model_not_found", message, no, Some("body.model"))
}

pub(super) fn model_of_other_endpoint(
    no: LineNo,
    model: &str,
    endpoint: Endpoint,
) -> ValidationError {
    let message = format!(
        "The provided model '{}' is not supported by the Batch API for the endpoint {}.",
        clip(model),
        endpoint.path()
    );
    of_line("model_not_found", message, no, Some("body.model"))
}

pub(super) fn prompt_missing(no: LineNo, endpoint: Endpoint) -> ValidationError {
    let (message, param) = match endpoint {
        Endpoint::ChatCompletions => ("Messages parameter is required.", "body.messages"),
        Endpoint::Completions => ("Prompt parameter is required.", "body.prompt"),
        Endpoint::Embeddings | Endpoint::Responses => {
            ("Input parameter is required.", "body.input")
        }
    };
    of_line("invalid_request", message.to_owned(), no, Some(param))
}

pub(super) fn streaming(no: LineNo, endpoint: Endpoint) -> ValidationError {
    let name = match endpoint {
        Endpoint::ChatCompletions => "Chat Completions",
        Endpoint::Completions => "Completions",
        Endpoint::Embeddings => "Embeddings",
        Endpoint::Responses => "Responses",
    };
    let message = format!("{name}: Streaming is not supported in the Batch API.");
    of_line("streaming_unsupported", message, no, Some("body.stream"))
}

fn of_file(code: &str, message: String, param: Option<&str>) -> ValidationError {
    ValidationError {
        code: code.to_owned(),
        message,
        line: None,
        param: param.map(str::to_owned),
    }
}

fn of_line(code: &str, message: String, no: LineNo, param: Option<&str>) -> ValidationError {
    ValidationError {
        code: code.to_owned(),
        message,
        line: Some(no),
        param: param.map(str::to_owned),
    }
}

//! The records of the output and error files: one line each, four keys in one order.
//!
//! Readers that split at more than a line feed still see one record a line: U+0085, U+2028, U+2029 and
//! encoded lone surrogates are written as escapes, and white space between tokens never ends a line.

use std::io::Write;

use crate::id::{BatchId, LineNo, batch_request_id};
use crate::lifecycle::Stop;

/// The error of an HTTP answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorBody {
    /// Sentence for a person.
    pub message: String,
    /// `invalid_request_error`, `server_error`.
    pub kind: String,
    /// The parameter at fault.
    pub param: Option<String>,
    /// Machine-readable reason.
    pub code: Option<String>,
}

/// Renders a record of a request that was answered: of the output file with a `status` of 2xx, else of the error
/// file. `body_json` is the endpoint's whole answer, as JSON.
#[must_use]
pub fn answered(
    batch: BatchId,
    line: LineNo,
    custom_id_json: &str,
    request_id: &str,
    status: u16,
    body_json: &str,
) -> Vec<u8> {
    response(
        batch,
        line,
        custom_id_json,
        request_id,
        status,
        body_json.as_bytes(),
    )
}

/// Renders a record of the error file for a request that was answered with an error in our words.
#[must_use]
pub fn http_error(
    batch: BatchId,
    line: LineNo,
    custom_id_json: &str,
    request_id: &str,
    status: u16,
    error: &ErrorBody,
) -> Vec<u8> {
    let ErrorBody {
        message,
        kind,
        param,
        code,
    } = error;
    let body = serde_json::json!({ "error": { "message": message, "type": kind, "param": param, "code": code } });
    response(
        batch,
        line,
        custom_id_json,
        request_id,
        status,
        body.to_string().as_bytes(),
    )
}

/// Renders a record of the error file for a request that was never answered.
#[must_use]
pub fn unexecuted(
    batch: BatchId,
    line: LineNo,
    custom_id_json: &str,
    code: &str,
    message: &str,
) -> Vec<u8> {
    let error = serde_json::json!({ "code": code, "message": message });
    let mut record = head(batch, line, custom_id_json);
    record.extend_from_slice(br#""response":null,"error":"#);
    escape_into(&mut record, error.to_string().as_bytes());
    record.push(b'}');
    record
}

/// Returns the code and the message of a line that a stop kept from running.
#[must_use]
pub fn stop_error(stop: Stop) -> (&'static str, &'static str) {
    match stop {
        Stop::Cancelled => (
            "batch_cancelled",
            "This request could not be executed because the batch was cancelled.",
        ),
        Stop::Expired => (
            "batch_expired",
            "This request could not be executed before the completion window expired.",
        ),
    }
}

/// Renders what every record of a line starts with: its id and custom_id.
pub(crate) fn head(batch: BatchId, line: LineNo, custom_id_json: &str) -> Vec<u8> {
    let mut record = Vec::with_capacity(256);
    write!(
        record,
        r#"{{"id":"{}","custom_id":"#,
        batch_request_id(batch, line)
    )
    .expect("a vector takes every write");
    escape_into(&mut record, custom_id_json.as_bytes());
    record.push(b',');
    record
}

fn response(
    batch: BatchId,
    line: LineNo,
    custom_id_json: &str,
    request_id: &str,
    status: u16,
    body: &[u8],
) -> Vec<u8> {
    let mut record = head(batch, line, custom_id_json);
    record.reserve(body.len() + 128);
    write!(
        record,
        r#""response":{{"status_code":{status},"request_id":"#
    )
    .expect("a vector takes every write");
    escape_into(
        &mut record,
        serde_json::Value::from(request_id).to_string().as_bytes(),
    );
    record.extend_from_slice(br#","body":"#);
    escape_into(&mut record, body);
    record.extend_from_slice(br#"},"error":null}"#);
    record
}

/// Appends JSON so that no reader takes it for several lines; everything else stays byte for byte.
///
/// `json` may hold lone surrogates in the form of three bytes, as some encoders write them.
pub fn escape_into(out: &mut Vec<u8>, json: &[u8]) {
    let mut rest = json;
    while let Some(at) = rest
        .iter()
        .position(|byte| matches!(byte, b'\n' | b'\r' | 0xc2 | 0xe2 | 0xed))
    {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let taken = match rest {
            // JSON has line ends between tokens only.
            [b'\n' | b'\r', ..] => {
                out.push(b' ');
                1
            }
            [0xc2, 0x85, ..] => {
                out.extend_from_slice(br"\u0085");
                2
            }
            [0xe2, 0x80, end @ (0xa8 | 0xa9), ..] => {
                out.extend_from_slice(if *end == 0xa8 { br"\u2028" } else { br"\u2029" });
                3
            }
            [0xed, high @ 0xa0..=0xbf, low @ 0x80..=0xbf, ..] => {
                let unit = 0xd000 | (u16::from(high & 0x3f) << 6) | u16::from(low & 0x3f);
                write!(out, r"\u{unit:04x}").expect("a vector takes every write");
                3
            }
            [byte, ..] => {
                out.push(*byte);
                1
            }
            [] => 0,
        };
        rest = &rest[taken..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests;

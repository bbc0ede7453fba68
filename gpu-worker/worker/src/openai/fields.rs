//! Reads typed fields from a body, with errors that name the field, the value and the limit.

use std::collections::BTreeMap;

use batch_core::limits::ECHO_CHARS_MAX;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Why one line gets an error response. Other lines go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LineError {
    /// HTTP status of the line's response.
    pub status: u16,
    /// Sentence for a person.
    pub message: String,
    /// OpenAI's error type.
    pub kind: &'static str,
    /// The parameter at fault.
    pub param: Option<String>,
    /// Machine-readable reason.
    pub code: Option<String>,
}

impl LineError {
    /// A fault of the request.
    #[must_use]
    pub fn invalid(param: &str, code: &str, message: impl Into<String>) -> Self {
        Self {
            status: 400,
            message: message.into(),
            kind: "invalid_request_error",
            param: Some(param.to_owned()),
            code: Some(code.to_owned()),
        }
    }

    /// Something that a request may ask for elsewhere, and not here.
    #[must_use]
    pub fn unsupported(param: &str, what: &str) -> Self {
        Self::invalid(
            param,
            "unsupported_parameter",
            format!("Unsupported parameter '{param}': {what}."),
        )
    }

    /// A fault of ours.
    #[must_use]
    pub fn server(message: &str, code: &str) -> Self {
        Self {
            status: 500,
            message: message.to_owned(),
            kind: "server_error",
            param: None,
            code: Some(code.to_owned()),
        }
    }
}

/// The body of a line.
#[derive(Debug)]
pub(super) struct Fields {
    object: Map<String, Value>,
    /// The seed as written, if it is a number that 64 bits do not hold exactly.
    wide_seed: Option<String>,
}

/// Parses the body, with lone surrogates read as U+FFFD.
pub(super) fn parse(body: &str) -> Result<Fields, LineError> {
    let body = replace_lone_surrogates(body);
    match serde_json::from_str(&body) {
        Ok(Value::Object(object)) => {
            let wide = object.get("seed").is_some_and(Value::is_f64);
            let wide_seed = wide
                .then(|| raw_fields(&body).remove("seed"))
                .flatten()
                .map(|seed| seed.get().to_owned());
            Ok(Fields { object, wide_seed })
        }
        Ok(_) => Err(LineError::invalid(
            "body",
            "invalid_type",
            "The body must be an object.",
        )),
        Err(error) => Err(unreadable(&body, &error)),
    }
}

/// Names the field that holds what is JSON and yet no value here: 1e999, or nesting without end.
fn unreadable(body: &str, error: &serde_json::Error) -> LineError {
    for (name, raw) in raw_fields(body) {
        if let Err(error) = serde_json::from_str::<Value>(raw.get()) {
            let name: String = name.chars().take(ECHO_CHARS_MAX).collect();
            let why = error.to_string();
            // Where it is in the value, as serde_json adds, tells nothing of the body.
            let why = why.split(" at line ").next().unwrap_or_default();
            let message = format!("Invalid '{name}': {why}.");
            return LineError::invalid(&name, "invalid_value", message);
        }
    }
    let message = format!("The body cannot be read: {error}.");
    LineError::invalid("body", "invalid_body", message)
}

/// Returns the values of a body as written; none of them if it is no object.
fn raw_fields(body: &str) -> BTreeMap<String, &RawValue> {
    serde_json::from_str(body).unwrap_or_default()
}

impl Fields {
    /// Returns a field that is there and not null.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn require(&self, name: &str) -> Result<&Value, LineError> {
        self.get(name).ok_or_else(|| missing(name))
    }

    pub(super) fn integer(&self, name: &str, min: i64, max: i64) -> Result<Option<i64>, LineError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        // 2.0 is written by clients whose language has one number type.
        let whole = value.as_i64().or_else(|| {
            value
                .as_f64()
                .filter(|f| f.fract() == 0.0 && f.abs() < 9e15)
                .map(|f| f as i64)
        });
        let number = match (whole, value.as_f64()) {
            (Some(number), _) => number,
            // An integer beyond 64 bits, or nearly: too large, and not of a wrong type.
            (None, Some(wide)) if wide.fract() == 0.0 && wide < 0.0 => i64::MIN,
            (None, Some(wide)) if wide.fract() == 0.0 => i64::MAX,
            (None, Some(_) | None) => return Err(wrong_type(name, "an integer", value)),
        };
        if number < min {
            return Err(out_of_range(
                name,
                "integer_below_min_value",
                ">=",
                min,
                value,
            ));
        }
        if number > max {
            return Err(out_of_range(
                name,
                "integer_above_max_value",
                "<=",
                max,
                value,
            ));
        }
        Ok(Some(number))
    }

    pub(super) fn number(&self, name: &str, min: f64, max: f64) -> Result<Option<f32>, LineError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let Some(number) = value.as_f64() else {
            return Err(wrong_type(name, "a number", value));
        };
        if number < min {
            return Err(out_of_range(
                name,
                "decimal_below_min_value",
                ">=",
                min,
                value,
            ));
        }
        if number > max {
            return Err(out_of_range(
                name,
                "decimal_above_max_value",
                "<=",
                max,
                value,
            ));
        }
        Ok(Some(number as f32))
    }

    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, LineError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| wrong_type(name, "a boolean", value))
    }

    pub(super) fn string(&self, name: &str) -> Result<Option<&str>, LineError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| wrong_type(name, "a string", value))
    }

    /// Returns the seed as written, if it is a number that 64 bits do not hold exactly.
    pub(super) fn wide_seed(&self) -> Option<&str> {
        self.wide_seed.as_deref()
    }

    /// Refuses a field unless it is absent, null, or `harmless`.
    pub(super) fn refuse_unless(
        &self,
        name: &str,
        harmless: impl Fn(&Value) -> bool,
        why: &str,
    ) -> Result<(), LineError> {
        match self.get(name) {
            Some(value) if !harmless(value) => Err(LineError::unsupported(name, why)),
            Some(_) | None => Ok(()),
        }
    }
}

pub(super) fn missing(name: &str) -> LineError {
    LineError::invalid(
        name,
        "missing_required_parameter",
        format!("Missing required parameter: '{name}'."),
    )
}

pub(super) fn wrong_type(name: &str, wanted: &str, got: &Value) -> LineError {
    let got = match got {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a decimal number",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    LineError::invalid(
        name,
        "invalid_type",
        format!("Invalid type for '{name}': expected {wanted}, but got {got} instead."),
    )
}

fn out_of_range(
    name: &str,
    code: &str,
    relation: &str,
    bound: impl std::fmt::Display,
    value: &Value,
) -> LineError {
    let shown: String = value.to_string().chars().take(ECHO_CHARS_MAX).collect();
    LineError::invalid(
        name,
        code,
        format!("Invalid '{name}': expected a value {relation} {bound}, but got {shown} instead."),
    )
}

/// Reads `\ud83d` without its partner as U+FFFD: a text that was cut in mid-emoji still has an answer.
fn replace_lone_surrogates(json: &str) -> std::borrow::Cow<'_, str> {
    let bytes = json.as_bytes();
    let unit = |at: usize| -> Option<u16> {
        let hex = bytes.get(at..at + 6)?;
        if hex[0] != b'\\' || hex[1] != b'u' {
            return None;
        }
        u16::from_str_radix(std::str::from_utf8(&hex[2..]).ok()?, 16).ok()
    };
    let mut out: Option<Vec<u8>> = None;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            if let Some(out) = &mut out {
                out.push(bytes[at]);
            }
            at += 1;
            continue;
        }
        let (length, lone) = match unit(at) {
            Some(0xd800..=0xdbff) => match unit(at + 6) {
                Some(0xdc00..=0xdfff) => (12, false),
                Some(_) | None => (6, true),
            },
            Some(0xdc00..=0xdfff) => (6, true),
            Some(_) => (6, false),
            None => (2.min(bytes.len() - at), false),
        };
        if lone {
            out.get_or_insert_with(|| bytes[..at].to_vec())
                .extend_from_slice(b"\\ufffd");
        } else if let Some(out) = &mut out {
            out.extend_from_slice(&bytes[at..at + length]);
        }
        at += length;
    }
    match out {
        // The bytes are those of a str with ASCII escapes replaced by ASCII escapes.
        Some(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
        None => json.into(),
    }
}

//! Reads a JSON object body member by member, so that each fault names its parameter.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::wire::WireError;

/// The members of a JSON object, each as the user wrote it. Of a repeated name the last counts; unknown
/// names are ignored.
#[derive(Debug)]
pub struct Members<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Members<'a> {
    /// Splits a body. An empty one is `{}`: SDKs send it so.
    ///
    /// # Errors
    ///
    /// A 400 if the body is no JSON object.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(BTreeMap::new()));
        }
        serde_json::from_slice(body)
            .map(Self)
            .map_err(|fault| WireError::not_json(&fault.to_string()))
    }

    /// Returns a member's text, unless it is absent or null.
    #[must_use]
    pub fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied().filter(|raw| raw.get() != "null")
    }

    /// Reads a member, unless it is absent or null.
    ///
    /// # Errors
    ///
    /// A 400 if it holds what no text or number can (half a surrogate pair, 1e999), or nests too deep.
    pub fn value(&self, name: &str) -> Result<Option<Value>, WireError> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        serde_json::from_str(raw.get())
            .map(Some)
            .map_err(|fault| WireError::not_json(&format!("'{name}': {fault}")))
    }

    /// Reads a text.
    ///
    /// # Errors
    ///
    /// A 400 if it is there and no text.
    pub fn text(&self, name: &str) -> Result<Option<String>, WireError> {
        let Some(value) = self.value(name)? else {
            return Ok(None);
        };
        match value.as_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(WireError::invalid_type(name, "a string", type_name(&value))),
        }
    }

    /// Reads a text that must be there and have 1 to `chars_max` characters.
    ///
    /// # Errors
    ///
    /// A 400 if it is not.
    pub fn required_text(&self, name: &str, chars_max: usize) -> Result<String, WireError> {
        let text = self.text(name)?.ok_or_else(|| WireError::missing(name))?;
        if text.is_empty() {
            let message =
                format!("Invalid '{name}': empty string. Expected a string with minimum length 1.");
            return Err(WireError::invalid(message)
                .with_param(name)
                .with_code("empty_string"));
        }
        let chars = text.chars().count();
        if chars > chars_max {
            Err(WireError::text_too_long(name, chars, chars_max))
        } else {
            Ok(text)
        }
    }
}

/// Reads a whole number within bounds.
///
/// # Errors
///
/// A 400 if it is no whole number, or out of bounds.
pub fn integer_within(param: &str, value: &Value, min: u64, max: u64) -> Result<u64, WireError> {
    let Value::Number(number) = value else {
        return Err(WireError::invalid_type(
            param,
            "an integer",
            type_name(value),
        ));
    };
    let whole = number
        .as_i64()
        .map(i128::from)
        .or_else(|| number.as_u64().map(i128::from));
    let whole =
        whole.ok_or_else(|| WireError::invalid_type(param, "an integer", type_name(value)))?;
    u64::try_from(whole)
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| WireError::out_of_range(param, whole, min, max))
}

/// Returns what error messages call a value's type, with its article.
#[must_use]
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a decimal number",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Returns what error messages call the type of a value that is not read yet.
#[must_use]
pub fn raw_type_name(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'n') => "null",
        Some(b't' | b'f') => "a boolean",
        Some(b'"') => "a string",
        Some(b'[') => "an array",
        Some(b'{') => "an object",
        Some(_) | None => "a number",
    }
}

//! `expires_after` and `output_expires_after`: the same two members, in JSON and in forms.

use serde_json::Value;

use crate::file::{ExpiresAfter, Purpose};
use crate::limits::{EXPIRES_AFTER_S_MAX, EXPIRES_AFTER_S_MIN};
use crate::time::UnixMs;
use crate::wire::WireError;
use crate::wire::members::{integer_within, type_name};

const ANCHOR: &str = "created_at";

/// Reads `{"anchor": "created_at", "seconds": n}`.
///
/// # Errors
///
/// A 400 that names the member at fault below `param`.
pub fn from_json(param: &str, value: &Value) -> Result<ExpiresAfter, WireError> {
    let Value::Object(members) = value else {
        return Err(WireError::invalid_type(
            param,
            "an object",
            type_name(value),
        ));
    };
    let member = |name: &str| {
        let path = format!("{param}.{name}");
        match members.get(name) {
            None | Some(Value::Null) => Err(WireError::missing(&path)),
            Some(value) => Ok((path, value)),
        }
    };
    let (path, anchor) = member("anchor")?;
    let Value::String(anchor) = anchor else {
        return Err(WireError::invalid_type(
            &path,
            "a string",
            type_name(anchor),
        ));
    };
    if anchor != ANCHOR {
        return Err(WireError::unsupported_value(&path, anchor, &[ANCHOR]));
    }
    let (path, seconds) = member("seconds")?;
    seconds_within(&path, seconds)
}

/// Reads the form fields `expires_after[anchor]` and `expires_after[seconds]`: both, or none.
///
/// # Errors
///
/// A 400 that names the field at fault.
pub fn from_form(
    anchor: Option<&str>,
    seconds: Option<&str>,
) -> Result<Option<ExpiresAfter>, WireError> {
    let (anchor_field, seconds_field) = ("expires_after[anchor]", "expires_after[seconds]");
    let (anchor, seconds) = match (anchor, seconds) {
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(WireError::missing(anchor_field)),
        (Some(_), None) => return Err(WireError::missing(seconds_field)),
        (Some(anchor), Some(seconds)) => (anchor, seconds),
    };
    if anchor != ANCHOR {
        return Err(WireError::unsupported_value(
            anchor_field,
            anchor,
            &[ANCHOR],
        ));
    }
    let number: i64 = seconds
        .trim()
        .parse()
        .map_err(|_| WireError::invalid_type(seconds_field, "an integer", "a string"))?;
    seconds_within(seconds_field, &Value::from(number)).map(Some)
}

fn seconds_within(param: &str, value: &Value) -> Result<ExpiresAfter, WireError> {
    let seconds = integer_within(
        param,
        value,
        EXPIRES_AFTER_S_MIN.into(),
        EXPIRES_AFTER_S_MAX.into(),
    )?;
    Ok(ExpiresAfter {
        seconds: u32::try_from(seconds).unwrap_or(EXPIRES_AFTER_S_MAX),
    })
}

/// Returns when a new file is gone. Without a wish, files of batches live 30 days and others for ever.
#[must_use]
pub fn expires_at(
    purpose: Purpose,
    wish: Option<ExpiresAfter>,
    created_at: UnixMs,
) -> Option<UnixMs> {
    let default = match purpose {
        Purpose::Batch | Purpose::BatchOutput => Some(ExpiresAfter {
            seconds: EXPIRES_AFTER_S_MAX,
        }),
        Purpose::Assistants
        | Purpose::FineTune
        | Purpose::Vision
        | Purpose::UserData
        | Purpose::Evals => None,
    };
    wish.or(default)
        .map(|after| created_at.plus_ms(i64::from(after.seconds) * 1000))
}

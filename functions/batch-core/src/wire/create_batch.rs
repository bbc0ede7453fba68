//! The body of `POST /batches`: every check that is an HTTP error. What is wrong with a *file* never is.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::batch::Endpoint;
use crate::external::ExternalObject;
use crate::file::ExpiresAfter;
use crate::limits::{
    JSON_BODY_BYTES_MAX, METADATA_KEY_CHARS_MAX, METADATA_PAIRS_MAX, METADATA_VALUE_CHARS_MAX,
    WINDOW_HOURS_MAX,
};
use crate::wire::error::clip;
use crate::wire::members::{Members, raw_type_name, type_name};
use crate::wire::{WireError, expiry};

const INPUT_FILE_ID: &str = "input_file_id";
const REQUESTS: &str = "requests";
const INPUT_S3_URI: &str = "input_s3_uri";

/// Characters of the address of an object: a scheme, 63 of a bucket, 1,024 of a key.
const INPUT_S3_URI_CHARS_MAX: usize = 1_100;

/// Characters of an input file's id, which may name nothing.
const INPUT_FILE_ID_CHARS_MAX: usize = 512;

/// Bytes of inline requests: 4 MiB.
pub const INLINE_BYTES_MAX: usize = JSON_BODY_BYTES_MAX - 64 * 1024;

/// Where the lines come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchInput {
    /// A file, as the user named it.
    File(String),
    /// The lines themselves, one JSON text a line, as the user wrote them.
    Inline(Vec<u8>),
    /// An object outside the service.
    Import(ExternalObject),
}

/// What `POST /batches` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateBatch {
    /// Where the lines come from.
    pub input: BatchInput,
    /// Endpoint of every line.
    pub endpoint: Endpoint,
    /// As the user gave it: `24h`.
    pub completion_window: String,
    /// Its length.
    pub window_ms: i64,
    /// The user's pairs, in their order.
    pub metadata: Option<Vec<(String, String)>>,
    /// How long the result files live.
    pub output_expires_after: Option<ExpiresAfter>,
}

impl CreateBatch {
    /// Reads a body. Unknown members are ignored.
    ///
    /// # Errors
    ///
    /// A 400 that names the member at fault, or a 413 for too many bytes of inline requests.
    pub fn parse(body: &[u8]) -> Result<Self, WireError> {
        let members = Members::parse(body)?;
        let input = input(&members)?;
        let endpoint = members
            .text("endpoint")?
            .ok_or_else(|| WireError::missing("endpoint"))?;
        let endpoint = Endpoint::ALL
            .into_iter()
            .find(|known| known.path() == endpoint)
            .ok_or_else(|| {
                WireError::unsupported_value(
                    "endpoint",
                    &endpoint,
                    &Endpoint::ALL.map(Endpoint::path),
                )
            })?;
        let completion_window = members
            .text("completion_window")?
            .ok_or_else(|| WireError::missing("completion_window"))?;
        let window_ms = window_ms(&completion_window)?;
        let metadata = members
            .value("metadata")?
            .as_ref()
            .map(metadata)
            .transpose()?;
        let output_expires_after = members
            .value("output_expires_after")?
            .map(|value| expiry::from_json("output_expires_after", &value))
            .transpose()?;
        if members.raw("webhook_url").is_some() {
            let message =
                "Webhooks are not available yet: poll the batch, and leave 'webhook_url' out.";
            return Err(WireError::unsupported("webhook_url", message));
        }
        Ok(Self {
            input,
            endpoint,
            completion_window,
            window_ms,
            metadata,
            output_expires_after,
        })
    }
}

fn input(members: &Members<'_>) -> Result<BatchInput, WireError> {
    let mut given = [INPUT_FILE_ID, REQUESTS, INPUT_S3_URI]
        .into_iter()
        .filter(|name| members.raw(name).is_some());
    match (given.next(), given.next()) {
        (Some(_), Some(second)) => {
            let message = format!(
                "Give one of '{INPUT_FILE_ID}', '{REQUESTS}' and '{INPUT_S3_URI}', not two."
            );
            Err(WireError::invalid(message)
                .with_param(second)
                .with_code("invalid_value"))
        }
        (Some(INPUT_S3_URI), None) => import(members),
        (Some(REQUESTS), None) => inline(members),
        (Some(_) | None, None | Some(_)) => members
            .required_text(INPUT_FILE_ID, INPUT_FILE_ID_CHARS_MAX)
            .map(BatchInput::File),
    }
}

fn import(members: &Members<'_>) -> Result<BatchInput, WireError> {
    let text = members.required_text(INPUT_S3_URI, INPUT_S3_URI_CHARS_MAX)?;
    let object = text.parse().map_err(|why| {
        WireError::invalid(format!("Invalid '{INPUT_S3_URI}': {why}."))
            .with_param(INPUT_S3_URI)
            .with_code("invalid_value")
    })?;
    Ok(BatchInput::Import(object))
}

fn inline(members: &Members<'_>) -> Result<BatchInput, WireError> {
    let Some(requests) = members.raw(REQUESTS) else {
        return Err(WireError::missing(REQUESTS));
    };
    let Ok(requests) = serde_json::from_str::<Vec<&RawValue>>(requests.get()) else {
        return Err(WireError::invalid_type(
            "requests",
            "an array",
            raw_type_name(requests),
        ));
    };
    if requests.is_empty() {
        let message = "Invalid 'requests': empty array. Expected an array with minimum length 1.";
        return Err(WireError::invalid(message)
            .with_param("requests")
            .with_code("empty_array"));
    }
    let mut lines = Vec::new();
    for request in requests {
        // JSON allows line ends between tokens only, so that a space means the same.
        lines.extend(request.get().bytes().map(|byte| {
            if matches!(byte, b'\n' | b'\r') {
                b' '
            } else {
                byte
            }
        }));
        lines.push(b'\n');
    }
    if lines.len() > INLINE_BYTES_MAX {
        let bytes_max = u64::try_from(INLINE_BYTES_MAX).unwrap_or(u64::MAX);
        return Err(WireError::too_large("'requests'", bytes_max).with_param("requests"));
    }
    Ok(BatchInput::Inline(lines))
}

fn window_ms(text: &str) -> Result<i64, WireError> {
    let hours = text
        .strip_suffix('h')
        .filter(|digits| {
            !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
        .and_then(|digits| digits.parse::<u32>().ok())
        .filter(|hours| (1..=WINDOW_HOURS_MAX).contains(hours));
    let Some(hours) = hours else {
        let message = format!(
            "Invalid value: '{}'. The completion_window must be '24h', or whole hours from '1h' to '{WINDOW_HOURS_MAX}h'.",
            clip(text)
        );
        return Err(WireError::invalid(message)
            .with_param("completion_window")
            .with_code("invalid_value"));
    };
    Ok(i64::from(hours) * 3_600_000)
}

fn metadata(value: &Value) -> Result<Vec<(String, String)>, WireError> {
    let Value::Object(pairs) = value else {
        return Err(WireError::invalid_type(
            "metadata",
            "an object",
            type_name(value),
        ));
    };
    if pairs.len() > METADATA_PAIRS_MAX {
        let message = format!(
            "Invalid 'metadata': too many properties. Expected an object with at most {METADATA_PAIRS_MAX} properties, but got an object with {} properties instead.",
            pairs.len()
        );
        return Err(WireError::invalid(message)
            .with_param("metadata")
            .with_code("object_above_max_properties"));
    }
    let mut texts = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let param = format!("metadata.{}", clip(key));
        let key_chars = key.chars().count();
        if key_chars > METADATA_KEY_CHARS_MAX {
            return Err(WireError::text_too_long(
                &param,
                key_chars,
                METADATA_KEY_CHARS_MAX,
            ));
        }
        let Value::String(text) = value else {
            return Err(WireError::invalid_type(
                &param,
                "a string",
                type_name(value),
            ));
        };
        let chars = text.chars().count();
        if chars > METADATA_VALUE_CHARS_MAX {
            return Err(WireError::text_too_long(
                &param,
                chars,
                METADATA_VALUE_CHARS_MAX,
            ));
        }
        texts.push((key.clone(), text.clone()));
    }
    Ok(texts)
}

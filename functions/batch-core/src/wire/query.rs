//! The query of a list: `after`, `limit`, `order`, `purpose`.

use std::str::FromStr;

use serde_json::Value;

use crate::file::Purpose;
use crate::wire::members::integer_within;
use crate::wire::{WireError, purpose};

/// How a list is to be paged. Unknown parameters are ignored; an empty one counts as absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery<Id> {
    /// The id to go on after.
    pub after: Option<Id>,
    /// Objects on a page.
    pub limit: usize,
    /// Oldest first.
    pub ascending: bool,
    /// Only files with this purpose.
    pub purpose: Option<Purpose>,
}

/// Bounds of `limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitBounds {
    /// When none is given.
    pub default: u64,
    /// The most.
    pub max: u64,
}

impl LimitBounds {
    /// Of lists of files.
    pub const FILES: LimitBounds = LimitBounds {
        default: 10_000,
        max: 10_000,
    };
    /// Of lists of batches.
    pub const BATCHES: LimitBounds = LimitBounds {
        default: 20,
        max: 100,
    };
}

impl<Id: FromStr> ListQuery<Id> {
    /// Reads decoded pairs; of a repeated name the last counts.
    ///
    /// # Errors
    ///
    /// A 400 that names the parameter at fault.
    pub fn parse(pairs: &[(String, String)], bounds: LimitBounds) -> Result<Self, WireError> {
        let find = |name: &str| {
            let pair = pairs.iter().rev().find(|(key, _)| key == name);
            pair.map(|(_, value)| value.as_str())
                .filter(|value| !value.is_empty())
        };
        let after = find("after")
            .map(|text| text.parse().map_err(|_| invalid_cursor(text)))
            .transpose()?;
        let limit = match find("limit") {
            None => bounds.default,
            Some(text) => {
                let number: i64 = text
                    .parse()
                    .map_err(|_| WireError::invalid_type("limit", "an integer", "a string"))?;
                integer_within("limit", &Value::from(number), 1, bounds.max)?
            }
        };
        let ascending = match find("order") {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(other) => {
                return Err(WireError::unsupported_value(
                    "order",
                    other,
                    &["asc", "desc"],
                ));
            }
        };
        let purpose = find("purpose").map(purpose::parse_listed).transpose()?;
        Ok(Self {
            after,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            ascending,
            purpose,
        })
    }
}

fn invalid_cursor(text: &str) -> WireError {
    WireError::invalid(format!(
        "Invalid 'after': '{}' is not the id of an object of this list.",
        super::error::clip(text)
    ))
    .with_param("after")
    .with_code("invalid_value")
}

//! What a request that imports an object may be refused for.

use crate::external::{ExternalObject, ImportLocations};
use crate::wire::WireError;
use crate::wire::error::clip;

const PARAM: &str = "input_s3_uri";

/// Checks that an object lies where the operator allows imports from.
///
/// # Errors
///
/// A 400 that names the setting.
pub fn check_location(
    object: &ExternalObject,
    locations: &ImportLocations,
) -> Result<(), WireError> {
    if locations.allow(object) {
        return Ok(());
    }
    let message = if locations.is_empty() {
        "This service imports nothing: its operator has allowed no location in 'import_locations'. \
         Upload the file, and give its id as 'input_file_id'."
            .to_owned()
    } else {
        format!(
            "'{}' is in no location that the operator of this service allows in 'import_locations'.",
            clip(&object.to_string())
        )
    };
    Err(WireError::unsupported(PARAM, &message))
}

/// Checks the size of an object.
///
/// # Errors
///
/// A 400 for an empty or too large one.
pub fn check_bytes(bytes: u64, bytes_max: u64) -> Result<(), WireError> {
    if bytes == 0 {
        return Err(refused("The object is empty.".to_owned()));
    }
    if bytes > bytes_max {
        let message = format!("The object has {bytes} bytes, but at most {bytes_max} are allowed.");
        return Err(refused(message));
    }
    Ok(())
}

/// Says that an object cannot be read. Whether it exists is not told to those who may not know.
#[must_use]
pub fn unreadable(object: &ExternalObject) -> WireError {
    refused(format!(
        "There is no object '{}', or this service may not read it.",
        clip(&object.to_string())
    ))
}

fn refused(message: String) -> WireError {
    WireError::invalid(message)
        .with_param(PARAM)
        .with_code("invalid_value")
}

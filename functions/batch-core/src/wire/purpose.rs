//! The words for purposes.

use crate::file::Purpose;
use crate::wire::WireError;

/// What a user may give as a purpose, in the order of error messages.
const GIVEN: [Purpose; 6] = [
    Purpose::Assistants,
    Purpose::Batch,
    Purpose::FineTune,
    Purpose::Vision,
    Purpose::UserData,
    Purpose::Evals,
];

/// Returns the word on the wire.
#[must_use]
pub fn name(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Batch => "batch",
        Purpose::BatchOutput => "batch_output",
        Purpose::Assistants => "assistants",
        Purpose::FineTune => "fine-tune",
        Purpose::Vision => "vision",
        Purpose::UserData => "user_data",
        Purpose::Evals => "evals",
    }
}

/// Reads the purpose of a new file: `batch_output` is not for users to give.
///
/// # Errors
///
/// A 400 that lists the purposes.
pub fn parse_given(text: &str) -> Result<Purpose, WireError> {
    GIVEN
        .into_iter()
        .find(|purpose| name(*purpose) == text)
        .ok_or_else(|| WireError::unsupported_value("purpose", text, &GIVEN.map(name)))
}

/// Reads the purpose that a list is narrowed to.
///
/// # Errors
///
/// A 400 that lists the purposes.
pub fn parse_listed(text: &str) -> Result<Purpose, WireError> {
    if text == name(Purpose::BatchOutput) {
        Ok(Purpose::BatchOutput)
    } else {
        parse_given(text)
    }
}

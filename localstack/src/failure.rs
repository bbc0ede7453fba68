//! How the command fails: one sentence on stderr, exit code 2 for usage and 1 for all else.

use std::fmt;
use std::process::ExitCode;

use crate::say::aside;

/// A fault of how the command was called or configured: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The user stopped it: exit code 130, as a shell expects after Ctrl-C.
#[derive(Debug)]
pub(crate) struct Interrupted(pub(crate) String);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Makes a usage error.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(message.into()))
}

/// Prints the error with its causes on one line, and picks the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    aside(format_args!("nightshift: {error:#}"));
    if error.is::<Usage>() {
        ExitCode::from(2)
    } else if error.is::<Interrupted>() {
        ExitCode::from(130)
    } else {
        ExitCode::FAILURE
    }
}

//! Words to the person at the terminal: answers on stdout, all else on stderr.
//!
//! Whoever reads them may be gone, as in `nightshift models | head -1`: that is no fault of the command.

use std::fmt::Display;
use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;

/// Writes one part of the command's answer to stdout.
///
/// A closed pipe is fine: nobody wants the rest. Another fault, such as a full disk, is an error.
pub(crate) fn answer(text: impl Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("write the answer to stdout")
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a line to stderr, if it can be written.
pub(crate) fn aside(text: impl Display) {
    // There is nowhere left to report to.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

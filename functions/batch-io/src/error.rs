//! One error for all ports: what was being done, to what, and what the caller should do.

use std::fmt;

/// What the caller should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoKind {
    /// A condition did not hold: read again and decide again.
    Conflict,
    /// It is not there.
    NotFound,
    /// Back off and try again.
    Busy,
    /// Fix the configuration (rights, a full disk, a data folder of another version).
    Denied,
    /// The caller broke a limit of the port: a bug of ours.
    TooLarge,
    /// Stored bytes are not what was written: stop, and call a person.
    Corrupt,
}

/// An operation on a port that did not happen.
#[derive(Debug, thiserror::Error)]
pub struct IoError {
    /// What was being done, present tense: `put blob`.
    pub doing: &'static str,
    /// To what.
    pub key: String,
    /// What the caller should do.
    pub kind: IoKind,
    /// Why.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl IoError {
    /// Makes an error without a cause.
    pub fn new(doing: &'static str, key: impl Into<String>, kind: IoKind) -> Self {
        Self {
            doing,
            key: key.into(),
            kind,
            source: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            IoKind::Conflict => "a condition did not hold",
            IoKind::NotFound => "not found",
            IoKind::Busy => "busy",
            IoKind::Denied => "denied",
            IoKind::TooLarge => "over a limit of the store",
            IoKind::Corrupt => "stored data is corrupt",
        };
        write!(f, "{} {}: {kind}", self.doing, self.key)
    }
}

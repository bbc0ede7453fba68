//! Moments and spans, as numbers: this crate reads no clock.

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01 UTC.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixMs(pub i64);

impl UnixMs {
    /// Returns the moment `span_ms` later.
    #[must_use]
    pub fn plus_ms(self, span_ms: i64) -> Self {
        Self(self.0.saturating_add(span_ms))
    }

    /// Returns whole seconds since 1970, as the wire shows moments.
    #[must_use]
    pub fn secs(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Returns milliseconds from `earlier` to `self`, negative if it is later.
    #[must_use]
    pub fn since_ms(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

//! Random choices that a failed test can repeat: the seed is printed, and `CHAOS_SEED` sets it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A small generator (SplitMix64): its numbers only pick moments.
#[derive(Debug, Clone)]
pub struct Chances(u64);

impl Chances {
    /// Begins with `CHAOS_SEED`, or with the clock, and prints which.
    ///
    /// # Panics
    ///
    /// If `CHAOS_SEED` is no number.
    #[must_use]
    #[expect(
        clippy::print_stderr,
        reason = "a failure can be repeated only with its seed"
    )]
    pub fn from_environment() -> Self {
        let seed = match std::env::var("CHAOS_SEED") {
            Ok(text) => text.parse().expect("CHAOS_SEED is a number"),
            Err(_) => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        };
        eprintln!("CHAOS_SEED={seed}");
        Self(seed)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    /// Returns a span of at most `longest_ms`.
    pub fn span_ms(&mut self, longest_ms: u64) -> Duration {
        Duration::from_millis(self.below(longest_ms + 1))
    }
}

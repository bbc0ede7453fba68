//! When a finalizer must save its place: by its deadline, and by how long its windows take.

use batch_core::time::UnixMs;

/// How long before its end a finalizer saves its place, at least: longer than a window takes to merge (64 MiB
/// of lines, some hundred MiB of results, at 20 MB/s or more).
const SAVE_BEFORE_MS: i64 = 60_000;

/// The pace of one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// When the process is killed.
    until: Option<UnixMs>,
    longest_ms: i64,
}

impl Pace {
    /// Begins a run that has no deadline, or this one.
    pub(crate) fn new(until: Option<UnixMs>) -> Self {
        Self {
            until,
            longest_ms: 0,
        }
    }

    /// Notes how long a window took.
    pub(crate) fn took(&mut self, window_ms: i64) {
        self.longest_ms = self.longest_ms.max(window_ms);
    }

    /// Returns whether no further window may be begun: it would not end for sure.
    pub(crate) fn is_over(&self, now: UnixMs) -> bool {
        let needed = SAVE_BEFORE_MS.max(self.longest_ms.saturating_mul(2));
        self.until.is_some_and(|until| now.plus_ms(needed) >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_saved_earlier_when_windows_take_long() {
        let mut pace = Pace::new(Some(UnixMs(900_000)));
        assert!(!pace.is_over(UnixMs(839_999)));
        assert!(pace.is_over(UnixMs(840_000)));
        pace.took(100_000);
        pace.took(20_000);
        assert!(!pace.is_over(UnixMs(699_999)));
        assert!(pace.is_over(UnixMs(700_000)));
    }

    #[test]
    fn no_place_is_saved_when_there_is_no_deadline() {
        let mut pace = Pace::new(None);
        pace.took(i64::MAX);
        assert!(!pace.is_over(UnixMs(i64::MAX)));
    }
}

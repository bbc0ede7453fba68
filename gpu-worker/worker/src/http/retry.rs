//! When a line is sent again: its class of trouble, how often, and after which pause.

use std::time::{Duration, UNIX_EPOCH};

use batch_core::limits::{
    SERVER_BACKOFF_MS, SERVER_BACKOFF_MS_MAX, SERVER_BUSY_RETRIES_MAX, SERVER_RETRIES_MAX,
    SERVER_RETRY_AFTER_S_MAX,
};
use batch_core::time::UnixMs;

/// Why a request has no result, and may have one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// 429: too many requests.
    RateLimited,
    /// 503: not now.
    Unavailable,
    /// No connection.
    Unreachable,
    /// 408, 502, 504, or no answer in time.
    Strained,
    /// 409, 425, 500 and other 5xx, an answer that broke off or is no JSON.
    Failed,
}

impl Trouble {
    /// Returns whether fewer requests at once would help.
    pub(super) fn slows(self) -> bool {
        match self {
            Trouble::RateLimited
            | Trouble::Unavailable
            | Trouble::Unreachable
            | Trouble::Strained => true,
            Trouble::Failed => false,
        }
    }

    /// Returns whether the line may be at fault, and not the server alone.
    fn is_of_the_line(self) -> bool {
        match self {
            Trouble::RateLimited | Trouble::Unavailable | Trouble::Unreachable => false,
            Trouble::Strained | Trouble::Failed => true,
        }
    }

    /// Returns whether the server may be out of order.
    pub(super) fn casts_doubt(self) -> bool {
        match self {
            Trouble::RateLimited => false,
            Trouble::Unavailable | Trouble::Unreachable | Trouble::Strained | Trouble::Failed => {
                true
            }
        }
    }
}

/// How often a line had no result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tries {
    /// Perhaps by its own fault.
    failed: u32,
    /// Because the server took no request.
    refused: u32,
}

impl Tries {
    /// Counts a trouble. Returns the number of the retry that follows; none if there is none.
    pub(super) fn after(&mut self, trouble: Trouble) -> Option<u32> {
        if trouble.is_of_the_line() {
            self.failed += 1;
        } else {
            self.refused += 1;
        }
        let may_retry =
            self.failed <= SERVER_RETRIES_MAX && self.refused <= SERVER_BUSY_RETRIES_MAX;
        may_retry.then_some(self.failed + self.refused)
    }
}

/// Returns the pause before the retry `number`, counted from 1: a share `draw`, from 0 to 1, of a span that doubles.
///
/// Source: Brooker 2015, "Exponential Backoff And Jitter" (full jitter).
pub(super) fn backoff(number: u32, draw: f64) -> Duration {
    let doublings = number.saturating_sub(1).min(32);
    let longest_ms = (SERVER_BACKOFF_MS << doublings).min(SERVER_BACKOFF_MS_MAX);
    Duration::from_millis(longest_ms).mul_f64(draw.clamp(0.0, 1.0))
}

/// Reads a `retry-after`: seconds, or a date. None if it is neither; a long one is cut.
///
/// Source: RFC 9110, 10.2.3.
pub(super) fn retry_after(value: &str, now: UnixMs) -> Option<Duration> {
    let longest = Duration::from_secs(SERVER_RETRY_AFTER_S_MAX);
    let value = value.trim();
    let wait = if value.starts_with(|first: char| first.is_ascii_digit()) {
        // Some servers send parts of seconds.
        let seconds: f64 = value.parse().ok()?;
        Duration::try_from_secs_f64(seconds).unwrap_or(longest)
    } else {
        let until = httpdate::parse_http_date(value).ok()?;
        let until = until.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Duration::from_millis(u64::try_from(now.0).unwrap_or(0));
        until.saturating_sub(now)
    };
    Some(wait.min(longest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const NOW: UnixMs = UnixMs(784_111_777_000);

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let cases = [
            ("0", Some(0)),
            (" 7 ", Some(7_000)),
            ("1.5", Some(1_500)),
            ("599", Some(599_000)),
            ("601", Some(600_000)),
            ("99999999999999999999999", Some(600_000)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10_000)),
            ("Sunday, 06-Nov-94 08:49:38 GMT", Some(1_000)),
            ("Sun Nov  6 08:49:39 1994", Some(2_000)),
            ("Sun, 06 Nov 1994 07:00:00 GMT", Some(0)),
            ("Fri, 01 Jan 2100 00:00:00 GMT", Some(600_000)),
            ("-1", None),
            ("1e9999", Some(600_000)),
            ("soon", None),
            ("", None),
            ("7 s", None),
        ];
        for (value, wait_ms) in cases {
            let wait = wait_ms.map(Duration::from_millis);
            assert_eq!(retry_after(value, NOW), wait, "{value}");
        }
    }

    #[test]
    fn pause_doubles_up_to_a_minute() {
        let longest = [1, 2, 3, 7, 8, 9, 106, u32::MAX].map(|number| backoff(number, 1.0));
        let ms = [500, 1_000, 2_000, 32_000, 60_000, 60_000, 60_000, 60_000];
        assert_eq!(longest, ms.map(Duration::from_millis));
        assert_eq!(backoff(3, 0.25), Duration::from_millis(500));
        assert_eq!(backoff(3, 0.0), Duration::ZERO);
    }

    #[test]
    fn line_is_given_up_after_five_retries_of_its_own_and_a_hundred_of_the_servers() {
        for (trouble, retries) in [
            (Trouble::Failed, 5),
            (Trouble::Strained, 5),
            (Trouble::RateLimited, 100),
            (Trouble::Unavailable, 100),
            (Trouble::Unreachable, 100),
        ] {
            let mut tries = Tries::default();
            let made = std::iter::from_fn(|| tries.after(trouble));
            assert_eq!(made.count(), retries, "{trouble:?}");
        }
        let mut tries = Tries::default();
        let mixed = [Trouble::RateLimited, Trouble::Failed, Trouble::Unavailable];
        let numbers = mixed.map(|trouble| tries.after(trouble));
        assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
    }

    proptest! {
        #[test]
        fn any_header_gives_a_bounded_wait(value in any::<String>(), now in any::<i64>()) {
            if let Some(wait) = retry_after(&value, UnixMs(now)) {
                prop_assert!(wait <= Duration::from_secs(SERVER_RETRY_AFTER_S_MAX));
            }
        }

        #[test]
        fn any_draw_gives_a_bounded_pause(number in any::<u32>(), draw in any::<f64>()) {
            let draw = if draw.is_nan() { 0.5 } else { draw };
            prop_assert!(backoff(number, draw) <= Duration::from_millis(SERVER_BACKOFF_MS_MAX));
        }
    }
}

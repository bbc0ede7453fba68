//! How fast the engine is, and whether it still moves. Goes by the monotonic clock: the other one jumps.

use std::time::{Duration, Instant};

/// Busy time after which what was measured counts half: the last minute or two stay in view.
const HALVED_AFTER: Duration = Duration::from_secs(60);

/// Busy time below which a rate says nothing.
const MEASURED_AFTER: Duration = Duration::from_secs(1);

/// Measures tokens a second of one model while its engine is busy.
#[derive(Debug, Default)]
pub(super) struct RateMeter {
    last: Option<(Instant, u64)>,
    busy: Duration,
    tokens: u64,
}

impl RateMeter {
    /// Takes in how many tokens there are by now, and whether the engine was busy since the last time.
    pub(super) fn observe(&mut self, now: Instant, tokens: u64, is_busy: bool) {
        if let Some((then, before)) = self.last
            && is_busy
        {
            self.busy += now.saturating_duration_since(then);
            self.tokens += tokens.saturating_sub(before);
            if self.busy > HALVED_AFTER {
                self.busy /= 2;
                self.tokens /= 2;
            }
        }
        self.last = Some((now, tokens));
    }

    /// Returns the rate; 0 while it is not known.
    pub(super) fn tokens_per_s(&self) -> u32 {
        if self.busy < MEASURED_AFTER {
            return 0;
        }
        let busy_ms = u64::try_from(self.busy.as_millis()).unwrap_or(u64::MAX);
        u32::try_from(self.tokens.saturating_mul(1_000) / busy_ms).unwrap_or(u32::MAX)
    }
}

/// Notices when lines run and nothing happens.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    moved: Option<(Instant, u64)>,
}

impl StallWatch {
    /// Returns for how long `progress`, a number that grows with every step and answer, has stood still
    /// although lines run.
    pub(super) fn observe(&mut self, now: Instant, progress: u64, lines_run: bool) -> Duration {
        match self.moved {
            Some((since, before)) if before == progress && lines_run => {
                now.saturating_duration_since(since)
            }
            Some(_) | None => {
                self.moved = Some((now, progress));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_counts_busy_time_only() {
        let start = Instant::now();
        let mut meter = RateMeter::default();
        let seen = [
            (0, 0, false),
            (1_000, 100, true),
            (9_000, 100, false),
            (10_000, 300, true),
        ];
        for (ms, tokens, is_busy) in seen {
            meter.observe(start + Duration::from_millis(ms), tokens, is_busy);
        }
        assert_eq!(meter.tokens_per_s(), 150);
    }

    #[test]
    fn rate_is_unknown_until_a_second_was_busy() {
        let start = Instant::now();
        let mut meter = RateMeter::default();
        meter.observe(start, 0, true);
        meter.observe(start + Duration::from_millis(999), 1_000, true);
        assert_eq!(meter.tokens_per_s(), 0);
    }

    #[test]
    fn stall_is_time_without_progress_while_lines_run() {
        let start = Instant::now();
        let mut watch = StallWatch::default();
        let cases = [
            // (second, progress, lines run, stalled seconds)
            (0, 5, true, 0),
            (10, 5, true, 10),
            (11, 6, true, 0),
            (20, 6, false, 0),
            (90, 6, false, 0),
            (95, 6, true, 5),
        ];
        for (at, progress, lines_run, stalled) in cases {
            let now = start + Duration::from_secs(at);
            let seen = watch.observe(now, progress, lines_run);
            assert_eq!(seen, Duration::from_secs(stalled), "at {at} s");
        }
    }
}

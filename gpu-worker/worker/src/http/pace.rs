//! How many requests may be in flight: one more with each round of good answers, half when the server strains.

use std::time::Instant;

use batch_core::limits::SERVER_REQUESTS_FIRST;

/// Additive increase, multiplicative decrease.
///
/// Until the first strain every good answer adds one, which doubles the limit each round.
///
/// Source: Chiu and Jain 1989, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance".
#[derive(Debug, Clone)]
pub(super) struct Pace {
    /// From 1 to `max`; parts of a request add up.
    limit: f64,
    max: f64,
    has_strained: bool,
    cut_at: Option<Instant>,
}

impl Pace {
    /// Starts low: nothing is known of the server.
    pub(super) fn new(requests_max: u32) -> Self {
        let max = requests_max.max(1);
        Self {
            limit: f64::from(SERVER_REQUESTS_FIRST.min(max)),
            max: f64::from(max),
            has_strained: false,
            cut_at: None,
        }
    }

    /// Returns how many requests may be in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Takes in a good answer, which came while `in_flight` requests, its own included, were under way. Fewer than
    /// the limit say nothing about it.
    pub(super) fn good(&mut self, in_flight: usize) {
        if in_flight < self.limit() {
            return;
        }
        let step = if self.has_strained {
            1.0 / self.limit
        } else {
            1.0
        };
        self.limit = (self.limit + step).min(self.max);
    }

    /// Takes in that the server strained under a request. Requests that were sent before the last cut tell nothing
    /// new. Returns whether the limit was cut.
    pub(super) fn strained(&mut self, sent_at: Instant, now: Instant) -> bool {
        self.has_strained = true;
        if self.cut_at.is_some_and(|cut_at| sent_at <= cut_at) {
            return false;
        }
        self.cut_at = Some(now);
        self.limit = (self.limit / 2.0).max(1.0);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limit_doubles_each_round_until_the_first_strain_and_then_grows_by_one() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::new(100);
        let mut seen = vec![pace.limit()];
        let round = |pace: &mut Pace| {
            let limit = pace.limit();
            (0..limit).for_each(|_| pace.good(pace.limit()));
            pace.limit()
        };
        for _ in 0..4 {
            seen.push(round(&mut pace));
        }
        assert!(pace.strained(at(10), at(20)));
        seen.push(pace.limit());
        for _ in 0..3 {
            seen.push(round(&mut pace));
        }
        // A round of 50 adds a little less than one, as the limit grows on the way.
        assert_eq!(seen, [8, 16, 32, 64, 100, 50, 50, 51, 52]);
    }

    #[test]
    fn requests_that_were_under_way_at_a_cut_do_not_cut_again() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::new(8);
        let cuts = [(0, 5), (1, 6), (5, 7), (6, 8), (7, 9)].map(|(sent, ended)| {
            let cut = pace.strained(at(sent), at(ended));
            (cut, pace.limit())
        });
        let none = (false, 4);
        assert_eq!(cuts, [(true, 4), none, none, (true, 2), (false, 2)]);
    }

    #[test]
    fn answers_below_the_limit_do_not_raise_it() {
        let mut pace = Pace::new(64);
        (0..100).for_each(|_| pace.good(7));
        assert_eq!(pace.limit(), 8);
    }

    /// Sends as many requests as may be in flight, each a millisecond after the other, to a server that takes
    /// `capacity` at once and refuses more. Returns how many were in flight at each answer.
    fn simulate(capacity: usize, max: u32, answers: usize) -> Vec<usize> {
        let start = Instant::now();
        let mut pace = Pace::new(max);
        let mut in_flight: VecDeque<(Instant, bool)> = VecDeque::new();
        let mut seen = Vec::new();
        for step in 1.. {
            let now = start + Duration::from_millis(step);
            while in_flight.len() < pace.limit() {
                let refused = in_flight.len() >= capacity;
                in_flight.push_back((now, refused));
            }
            seen.push(in_flight.len());
            let (sent_at, refused) = in_flight.pop_front().expect("at least one");
            if refused {
                pace.strained(sent_at, now);
            } else {
                pace.good(in_flight.len() + 1);
            }
            if seen.len() == answers {
                break;
            }
        }
        seen
    }

    #[test]
    fn pace_finds_what_the_server_takes() {
        for capacity in [5, 20, 100] {
            let seen = simulate(capacity, 256, 20_000);
            let settled = &seen[10_000..];
            let mean = settled.iter().sum::<usize>() as f64 / settled.len() as f64;
            let share = mean / capacity as f64;
            assert!((0.6..=1.2).contains(&share), "{capacity}: {mean}");
        }
    }

    #[test]
    fn pace_reaches_its_maximum_when_the_server_takes_all() {
        assert_eq!(simulate(1_000, 256, 5_000).last(), Some(&256));
    }

    proptest! {
        #[test]
        fn limit_stays_between_one_and_the_maximum(
            max in 1_u32..5_000,
            events in prop::collection::vec((any::<bool>(), 0_u64..50, 0_usize..6_000), 0..300),
        ) {
            let start = Instant::now();
            let mut pace = Pace::new(max);
            for (step, (good, age, in_flight)) in events.into_iter().enumerate() {
                let now = start + Duration::from_millis(100 + step as u64);
                if good {
                    pace.good(in_flight);
                } else {
                    pace.strained(now - Duration::from_millis(age), now);
                }
                prop_assert!((1..=max as usize).contains(&pace.limit()));
            }
        }
    }
}

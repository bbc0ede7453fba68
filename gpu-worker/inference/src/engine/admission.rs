//! Whether the pool will hold all that runs, if outputs become as long as expected.
//!
//! A sequence holds most at its end, and not all end at once: by the time that the longest get there, the
//! shorter ones have given their pages back. Charging each its own end would leave a part of the pool empty.

/// What a running sequence has of the pool for itself, and how long it is expected to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tenure {
    /// Tokens in pages of its own. Those of a shared prefix are not among them.
    pub(crate) held: usize,
    /// Tokens still to come.
    pub(crate) remaining: usize,
}

/// The pool's future under the sequences that run.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    /// The longest to go first.
    tenures: Vec<Tenure>,
}

impl Forecast {
    /// Makes the forecast for these sequences.
    pub(crate) fn new(mut tenures: Vec<Tenure>) -> Forecast {
        tenures.sort_unstable_by_key(|tenure| std::cmp::Reverse(tenure.remaining));
        Forecast { tenures }
    }

    /// Returns the most tokens that all of them and `candidate` will hold at once.
    ///
    /// All get one token a step, so what is held grows until the next one ends: just before an end, those who
    /// have at least as long to go each hold as much more as the ending one had to go.
    pub(crate) fn peak_with(&self, candidate: Tenure) -> usize {
        let (longer, shorter) = self.tenures.split_at(self.place(candidate));
        let (mut held, mut alive, mut peak) = (0, 0, 0);
        for tenure in longer.iter().chain([&candidate]).chain(shorter) {
            held += tenure.held;
            alive += 1;
            peak = peak.max(held + alive * tenure.remaining);
        }
        peak
    }

    /// Adds a sequence that starts.
    pub(crate) fn add(&mut self, tenure: Tenure) {
        self.tenures.insert(self.place(tenure), tenure);
    }

    fn place(&self, tenure: Tenure) -> usize {
        self.tenures
            .partition_point(|other| other.remaining > tenure.remaining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tenure(held: usize, remaining: usize) -> Tenure {
        Tenure { held, remaining }
    }

    #[test]
    fn sequences_that_end_together_are_charged_their_ends() {
        let forecast = Forecast::new(vec![tenure(10, 64); 9]);
        assert_eq!(forecast.peak_with(tenure(10, 64)), 10 * (10 + 64));
    }

    #[test]
    fn pages_that_come_back_in_time_are_used_again() {
        // At 4 tokens from now the first ends with 100 + 4; the others go on alone to 10 + 50 each.
        let forecast = Forecast::new(vec![tenure(100, 4), tenure(10, 50)]);
        assert_eq!(forecast.peak_with(tenure(10, 50)), 120 + 3 * 4);
    }

    /// Lets the tokens come one by one.
    fn peak_by_steps(tenures: &[Tenure]) -> usize {
        let longest = tenures.iter().map(|tenure| tenure.remaining).max();
        let held_at = |step: usize| {
            let alive = tenures.iter().filter(|tenure| tenure.remaining >= step);
            alive.map(|tenure| tenure.held + step).sum()
        };
        (1..=longest.unwrap_or(0)).map(held_at).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn peak_is_the_one_that_comes(
            pairs in prop::collection::vec((0usize..50, 1usize..40), 1..20)
        ) {
            let tenures: Vec<Tenure> = pairs.iter().map(|(h, r)| tenure(*h, *r)).collect();
            let (candidate, running) = tenures.split_last().expect("at least one");
            let mut forecast = Forecast::default();
            for tenure in running {
                forecast.add(*tenure);
            }
            let peak = forecast.peak_with(*candidate);
            prop_assert_eq!(peak, peak_by_steps(&tenures));
            prop_assert_eq!(peak, Forecast::new(running.to_vec()).peak_with(*candidate));
        }
    }
}

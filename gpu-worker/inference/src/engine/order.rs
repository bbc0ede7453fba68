//! The order in which waiting sequences start, and how long their output is expected to be.
//!
//! Neither ever changes a result: both only decide how well the cache and the batch are used.

use std::sync::Arc;

/// Requests whose places in the order may be exchanged. A later round never overtakes an earlier one, so a
/// request waits for fewer than two rounds of later ones.
const ROUND_REQUESTS: u64 = 1024;

/// The place of a waiting sequence: smaller starts earlier.
///
/// Preempted sequences come first, the oldest of them first. New ones come in rounds of arrival; within a
/// round they are sorted by tenant and prompt tokens, which is the depth-first order of the radix tree:
/// requests with a common prefix are adjacent, those with the longest one nearest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// It lost its pages.
    Preempted {
        /// When it first started.
        age: u64,
    },
    /// It has never run.
    New {
        /// `arrival` in units of a round.
        round: u64,
        /// The tenant.
        salt: u64,
        /// The prompt.
        prompt: Arc<[u32]>,
        /// How many requests came before.
        arrival: u64,
    },
}

impl Rank {
    /// Returns the place of a request that has just come.
    pub(crate) fn new(arrival: u64, salt: u64, prompt: Arc<[u32]>) -> Rank {
        Rank::New {
            round: arrival / ROUND_REQUESTS,
            salt,
            prompt,
            arrival,
        }
    }
}

/// The mean output length of the sequences that have ended, with a prior.
#[derive(Debug)]
pub(crate) struct OutputEstimate {
    sequences: u64,
    tokens: u64,
}

impl OutputEstimate {
    /// Before anything has ended, as if this many sequences of [`Self::PRIOR_TOKENS`] had.
    const PRIOR_SEQUENCES: u64 = 8;
    /// A usual answer of a chat model.
    const PRIOR_TOKENS: u64 = 256;

    /// Makes the estimate that knows only the prior.
    pub(crate) fn new() -> OutputEstimate {
        OutputEstimate {
            sequences: Self::PRIOR_SEQUENCES,
            tokens: Self::PRIOR_SEQUENCES * Self::PRIOR_TOKENS,
        }
    }

    /// Learns from a sequence that ended after `tokens`.
    pub(crate) fn learn(&mut self, tokens: usize) {
        self.sequences += 1;
        self.tokens += tokens as u64;
    }

    /// Returns the output expected of a sequence that has `output` tokens and may have `limit`: the mean, at
    /// least `step` more than there are.
    pub(crate) fn expect(&self, output: usize, limit: usize, step: usize) -> usize {
        let mean = usize::try_from(self.tokens.div_ceil(self.sequences)).unwrap_or(usize::MAX);
        mean.max(output + step).min(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(prompts: &[(u64, &[u32])]) -> Vec<usize> {
        let mut ranks: Vec<(Rank, usize)> = prompts
            .iter()
            .enumerate()
            .map(|(index, (salt, prompt))| {
                (Rank::new(index as u64, *salt, Arc::from(*prompt)), index)
            })
            .collect();
        ranks.sort();
        ranks.into_iter().map(|(_, index)| index).collect()
    }

    #[test]
    fn common_prefixes_are_adjacent_within_a_round() {
        assert_eq!(
            order(&[(0, &[1, 2, 3]), (0, &[9]), (0, &[1, 2, 4]), (1, &[1, 2, 3])]),
            [0, 2, 1, 3]
        );
    }

    #[test]
    fn later_round_never_overtakes() {
        let early = Rank::new(ROUND_REQUESTS - 1, 9, Arc::from([9]));
        let late = Rank::new(ROUND_REQUESTS, 0, Arc::from([0]));
        assert!(early < late);
        assert!(Rank::Preempted { age: 99 } < early);
    }

    #[test]
    fn estimate_moves_from_the_prior_to_the_mean() {
        let mut estimate = OutputEstimate::new();
        assert_eq!(estimate.expect(0, 4096, 16), 256);
        assert_eq!(estimate.expect(0, 100, 16), 100);
        assert_eq!(estimate.expect(300, 4096, 16), 316);
        for _ in 0..8 {
            estimate.learn(16);
        }
        assert_eq!(estimate.expect(0, 4096, 16), 136);
    }
}

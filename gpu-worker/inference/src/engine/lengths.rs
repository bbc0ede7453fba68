//! How long outputs are expected to be, learned while the requests run.
//!
//! Used for the order of starts and for admission, never for a result. Means, not medians: admission adds up
//! what all running sequences are expected to hold, and of a skewed distribution only the means add up.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Tokens of a prompt that tell its kind: enough to get past a chat template and into the system prompt.
const BEGINNING_TOKENS: usize = 32;

/// Classes remembered: 4,096 of about 40 B are 160 kB. Prompts without a common beginning are a class each;
/// a file of these fills the map, which then starts over, and loses nothing that it could use.
const CLASSES_MAX: usize = 4096;

/// What is known before anything has ended: a usual answer of a chat model.
const PRIOR_TOKENS: f64 = 256.0;

/// What a mean is worth before its own samples: it counts like this many of them.
const PRIOR_SEQUENCES: f64 = 8.0;

/// Sequences whose outputs are likely to be of similar length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LengthClass {
    /// The power of two at or below the most tokens of output.
    limit_log2: u32,
    /// A hash of tenant and first tokens. Where two are equal by chance, they share an estimate.
    beginning: u64,
}

impl LengthClass {
    /// Returns the class of a request that may have up to `limit` tokens of output.
    pub(crate) fn new(salt: u64, prompt: &[u32], limit: usize) -> LengthClass {
        let mut hasher = DefaultHasher::new();
        let beginning = &prompt[..prompt.len().min(BEGINNING_TOKENS)];
        (salt, beginning).hash(&mut hasher);
        LengthClass {
            limit_log2: limit.max(1).ilog2(),
            beginning: hasher.finish(),
        }
    }
}

/// What is known of a sequence's length before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputLength {
    /// Nothing can end it before its limit.
    Limit,
    /// It ends by itself, as others of its class did.
    Learned(LengthClass),
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sequences: u64,
    tokens: u64,
}

impl Mean {
    fn add(&mut self, tokens: usize) {
        self.sequences += 1;
        self.tokens += tokens as u64;
    }

    /// Returns the mean, drawn towards `prior` while there are few samples.
    fn blended_with(self, prior: f64) -> f64 {
        (self.tokens as f64 + PRIOR_SEQUENCES * prior) / (self.sequences as f64 + PRIOR_SEQUENCES)
    }
}

/// Means of the outputs that have ended: by class, by limit, and of all. Each is the prior of the one before.
#[derive(Debug, Default)]
pub(crate) struct LearnedLengths {
    all: Mean,
    by_limit: HashMap<u32, Mean>,
    by_class: HashMap<LengthClass, Mean>,
}

impl LearnedLengths {
    /// Learns from a sequence that ended after `tokens`.
    pub(crate) fn learn(&mut self, length: OutputLength, tokens: usize) {
        // One that could not end earlier says nothing about those that can.
        let OutputLength::Learned(class) = length else {
            return;
        };
        self.all.add(tokens);
        self.by_limit
            .entry(class.limit_log2)
            .or_default()
            .add(tokens);
        if self.by_class.len() >= CLASSES_MAX && !self.by_class.contains_key(&class) {
            self.by_class.clear();
        }
        self.by_class.entry(class).or_default().add(tokens);
    }

    /// Returns the number of outputs learned from.
    pub(crate) fn samples(&self) -> u64 {
        self.all.sequences
    }

    /// Returns the tokens of output expected of a sequence that may have `limit`.
    pub(crate) fn expect(&self, length: OutputLength, limit: usize) -> usize {
        let OutputLength::Learned(class) = length else {
            return limit;
        };
        let of = |mean: Option<&Mean>| mean.copied().unwrap_or_default();
        let all = self.all.blended_with(PRIOR_TOKENS);
        let same_limit = of(self.by_limit.get(&class.limit_log2)).blended_with(all);
        let same_class = of(self.by_class.get(&class)).blended_with(same_limit);
        // A float's conversion saturates, and the limit is no more than a context.
        (same_class.ceil() as usize).clamp(1, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(salt: u64, first: u32, limit: usize) -> OutputLength {
        OutputLength::Learned(LengthClass::new(salt, &[first; 40], limit))
    }

    #[test]
    fn expectation_moves_from_the_prior_to_the_mean() {
        let mut lengths = LearnedLengths::default();
        assert_eq!(lengths.expect(class(0, 1, 4096), 4096), 256);
        assert_eq!(lengths.expect(class(0, 1, 100), 100), 100);
        for _ in 0..100 {
            lengths.learn(class(0, 1, 4096), 16);
        }
        let expected = lengths.expect(class(0, 1, 4096), 4096);
        assert!((16..20).contains(&expected), "{expected}");
    }

    #[test]
    fn classes_are_told_apart_and_a_new_one_starts_from_its_kin() {
        let mut lengths = LearnedLengths::default();
        for _ in 0..100 {
            lengths.learn(class(0, 1, 512), 4);
            lengths.learn(class(0, 2, 512), 300);
            lengths.learn(class(0, 3, 64), 40);
        }
        let expect = |length, limit| lengths.expect(length, limit);
        let known = [
            expect(class(0, 1, 512), 512),
            expect(class(0, 2, 512), 512),
            expect(class(0, 3, 64), 64),
        ];
        assert!(known[0] < 20 && known[1] > 280, "{known:?}");
        assert!((35..50).contains(&known[2]), "{known:?}");
        let new = [expect(class(1, 1, 600), 600), expect(class(1, 3, 90), 90)];
        assert!((130..180).contains(&new[0]), "{new:?}");
        assert!((35..60).contains(&new[1]), "{new:?}");
    }

    #[test]
    fn sequence_that_nothing_ends_early_takes_its_limit_and_teaches_nothing() {
        let mut lengths = LearnedLengths::default();
        lengths.learn(OutputLength::Limit, 4000);
        assert_eq!(lengths.samples(), 0);
        assert_eq!(lengths.expect(OutputLength::Limit, 1000), 1000);
    }

    #[test]
    fn number_of_classes_is_bounded() {
        let mut lengths = LearnedLengths::default();
        for first in 0..3 * CLASSES_MAX as u32 {
            lengths.learn(class(0, first, 64), 8);
        }
        assert!(lengths.by_class.len() <= CLASSES_MAX);
        assert_eq!(lengths.samples(), 3 * CLASSES_MAX as u64);
    }
}

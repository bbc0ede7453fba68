//! The greatest logit of a row, found while the output layer is computed.
//!
//! A row that is sampled greedily needs no logits, only which is the greatest: a vocabulary of logits for each row
//! would be written to memory and read back, which takes longer than the product itself.

use std::sync::Mutex;

use super::lock;
use super::pack::PANEL;
use super::simd::Simd;
use crate::backend::sampling::Sampled;

/// Lanes of a winner: a multiple of every vector's.
const LANES: usize = 16;

/// What one thread has seen of a row, lane by lane.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Winner {
    best: [f32; LANES],
    /// The lowest id that has the best logit, less the lane. Whole numbers below 2^24 are exact in f32.
    id: [f32; LANES],
    /// 0, or NaN once a logit was not finite.
    check: [f32; LANES],
}

impl Winner {
    const NONE: Self = Self {
        best: [f32::NEG_INFINITY; LANES],
        id: [f32::MAX; LANES],
        check: [0.0; LANES],
    };
}

/// What one thread has seen of a step's logit rows. In which order it sees the columns does not matter.
#[derive(Debug, Default)]
pub(super) struct Winners(Vec<Winner>);

/// The most ids that a [`Winner`] can tell apart.
pub(super) const IDS_MAX: usize = 1 << f32::MANTISSA_DIGITS;

impl Winners {
    /// Reserves room for `rows` rows.
    pub(super) fn with_rows(rows: usize) -> Self {
        Self(Vec::with_capacity(rows))
    }

    /// Forgets all, for `rows` rows.
    pub(super) fn begin(&mut self, rows: usize) {
        self.0.clear();
        self.0.resize(rows, Winner::NONE);
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Winner>()
    }

    /// Looks at the logits of row `row` with the ids `first..`, of which those from `vocabulary` on do not count.
    #[inline(always)]
    pub(super) fn see<S: Simd>(
        &mut self,
        s: S,
        row: usize,
        first: usize,
        vocabulary: usize,
        logits: &mut [f32; PANEL],
    ) {
        if first + PANEL > vocabulary {
            logits[vocabulary.saturating_sub(first)..].fill(f32::MIN);
        }
        let winner = &mut self.0[row];
        let mut at = 0;
        while at < PANEL {
            let lane = at % LANES;
            let x = s.load(&logits[at..]);
            let (best, id) = (s.load(&winner.best[lane..]), s.load(&winner.id[lane..]));
            let this = s.splat((first + at - lane) as f32);
            let not_greater = s.select_less(x, best, id, s.min(id, this));
            s.store(
                s.select_less(best, x, this, not_greater),
                &mut winner.id[lane..],
            );
            s.store(s.select_less(best, x, x, best), &mut winner.best[lane..]);
            let check = s.fma(x, s.splat(0.0), s.load(&winner.check[lane..]));
            s.store(check, &mut winner.check[lane..]);
            at += S::LANES;
        }
    }

    /// Returns the token of row `row`, of what all threads have seen.
    pub(super) fn token(threads: &[Mutex<Self>], row: usize) -> Sampled {
        let (mut best, mut best_id) = (f32::NEG_INFINITY, u32::MAX);
        for winners in threads {
            let winner = lock(winners).0[row];
            for lane in 0..LANES {
                if winner.check[lane] != 0.0 {
                    return Sampled::Bad;
                }
                let (x, id) = (
                    winner.best[lane],
                    (winner.id[lane] as u32).saturating_add(lane as u32),
                );
                if x > best || x == best && id < best_id {
                    (best, best_id) = (x, id);
                }
            }
        }
        Sampled::Token {
            id: best_id,
            logprob: 0.0,
            top: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::isa::{Isa, Kernel};

    struct See<'a> {
        winners: &'a mut Winners,
        first: usize,
        vocabulary: usize,
        logits: &'a mut [f32; PANEL],
    }

    impl Kernel for See<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            self.winners
                .see(s, 0, self.first, self.vocabulary, self.logits);
        }
    }

    /// Shows two threads the panels of `logits` in turns, the last first.
    fn token(isa: Isa, logits: &[f32], vocabulary: usize) -> Sampled {
        let threads = [const { Mutex::new(Winners(Vec::new())) }; 2];
        threads.iter().for_each(|winners| lock(winners).begin(1));
        for (panel, part) in logits.chunks_exact(PANEL).enumerate().rev() {
            isa.run(See {
                winners: &mut lock(&threads[panel % 2]),
                first: panel * PANEL,
                vocabulary,
                logits: &mut part.try_into().expect("it is a panel"),
            });
        }
        Winners::token(&threads, 0)
    }

    fn won(id: u32) -> Sampled {
        Sampled::Token {
            id,
            logprob: 0.0,
            top: Vec::new(),
        }
    }

    #[test]
    fn lowest_id_of_the_greatest_logits_wins_on_every_instruction_set() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for places in [
                vec![0],
                vec![95],
                vec![70, 6],
                vec![38, 37, 69],
                vec![16, 80, 48],
            ] {
                let mut logits = [-3.0; 3 * PANEL];
                for &place in &places {
                    logits[place] = -1.5;
                }
                let lowest = places.iter().min().expect("there is one");
                assert_eq!(
                    token(isa, &logits, 96),
                    won(*lowest as u32),
                    "{isa:?} {places:?}"
                );
            }
            assert_eq!(token(isa, &[0.0; 96], 96), won(0), "{isa:?}: all alike");
        }
    }

    #[test]
    fn logits_behind_the_vocabulary_do_not_count() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for vocabulary in [33, 50, 64, 70] {
                let mut logits = [-3.0; 3 * PANEL];
                logits[vocabulary..].fill(f32::NAN);
                logits[32] = -2.0;
                assert_eq!(
                    token(isa, &logits, vocabulary),
                    won(32),
                    "{isa:?} {vocabulary}"
                );
            }
        }
    }

    #[test]
    fn logit_that_is_not_finite_makes_a_bad_row() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for place in [0, 21, 95] {
                    let mut logits = [1.0; 3 * PANEL];
                    logits[place] = poison;
                    assert_eq!(
                        token(isa, &logits, 96),
                        Sampled::Bad,
                        "{isa:?} {poison} at {place}"
                    );
                }
            }
        }
    }
}

//! Which input features of a model's products are mostly far greater than the others.
//!
//! They are nearly the same ones in every row, whatever the text: the gains of the norms make most of them. So a
//! few hundred tokens tell them, and the tokens need make no sense. On the default model, lists made of tokens at
//! random take the error of int8 down as far as lists made of text do, to within a tenth.

use std::collections::HashMap;

use super::quality::Reader;
use crate::backend::{BackendError, Recipe};
use crate::model::{ModelConfig, WeightName, Weights};

/// Tokens that are read to find out.
const PROBE_TOKENS: usize = 512;

/// The share of features that are worth more bits, one in so many.
const SHARE: usize = 8;

/// Features come in so many: what a matrix unit takes at once.
const STEP: usize = 64;

/// The most features of one product.
const FEATURES_MAX: usize = 128;

/// The salient input features of each product, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salience(HashMap<WeightName, Vec<u32>>);

impl Salience {
    /// Finds them, by running the model in int8. Nothing is kept of the run.
    ///
    /// # Errors
    ///
    /// [`BackendError`] as for [`super::BatchEngine::load`].
    pub fn measure(
        model: &ModelConfig,
        weights: &dyn Weights,
        threads: usize,
    ) -> Result<Self, BackendError> {
        let nothing = Self::default();
        let mut reader = Reader::with_salience(model, weights, Recipe::Int8, &nothing, threads)?;
        let energies = reader.input_energies(&probe(model))?;
        let features = |(name, energies): (_, Vec<f32>)| (name, greatest(&energies));
        Ok(Self(energies.into_iter().map(features).collect()))
    }

    /// Returns those of one product.
    pub(super) fn of(&self, name: WeightName) -> Vec<u32> {
        self.0.get(&name).cloned().unwrap_or_default()
    }
}

/// Returns tokens from all over the vocabulary.
fn probe(model: &ModelConfig) -> Vec<u32> {
    /// The golden ratio's fraction, of 2^64: multiples of it are spread evenly.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let vocabulary = model.tokenizer_vocab_size.min(model.vocab_size) as u128;
    let token = |i: u64| ((u128::from(i.wrapping_mul(GOLDEN)) * vocabulary) >> 64) as u32;
    let tokens = PROBE_TOKENS.min(model.context_tokens);
    (1..=tokens as u64).map(token).collect()
}

/// Returns the features of most energy, ascending; of equals the first.
fn greatest(energies: &[f32]) -> Vec<u32> {
    let count = (energies.len() / SHARE / STEP * STEP).min(FEATURES_MAX);
    let mut features: Vec<u32> = (0..energies.len() as u32).collect();
    features.sort_by(|&a, &b| energies[b as usize].total_cmp(&energies[a as usize]));
    features.truncate(count);
    features.sort_unstable();
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salient_features_are_those_of_most_energy() {
        let mut energies = vec![1.0; 576];
        energies[100..160].fill(2.0);
        let want: Vec<u32> = (0..4).chain(100..160).collect();
        assert_eq!(greatest(&energies), want);
    }

    #[test]
    fn narrow_products_have_none_and_wide_ones_not_too_many() {
        for (width, count) in [
            (0, 0),
            (64, 0),
            (511, 0),
            (512, 64),
            (1024, 128),
            (8192, 128),
        ] {
            assert_eq!(greatest(&vec![1.0; width]).len(), count, "{width} features");
        }
    }
}

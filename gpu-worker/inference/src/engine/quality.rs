//! How much a recipe costs in quality: perplexity, divergence and agreement against f32 on the same weights.

use std::ops::Range;

use super::decoder::{Decoder, MemoryPlan};
use super::salience::Salience;
use crate::backend::cpu::{CpuBackend, CpuConfig};
use crate::backend::{
    Backend, BackendError, PageTable, Recipe, SampleInputs, SampleRow, SlotReset, StepInputs,
    StepSequence,
};
use crate::model::{ModelConfig, WeightName, Weights};

/// Tokens of a window: each is read by the model without what came before it.
pub const WINDOW_TOKENS: usize = 1024;

/// Rows of a step, each with its logits.
const STEP_ROWS: usize = 128;

/// How a recipe compares with f32, over every token of the text but the first of each window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Tokens that were predicted.
    pub tokens: u64,
    /// Perplexity in f32.
    pub reference_perplexity: f64,
    /// Perplexity with the recipe.
    pub perplexity: f64,
    /// Mean Kullback-Leibler divergence from f32 to the recipe, nats.
    pub divergence: f64,
    /// Share of positions where both find the same token most likely.
    pub agreement: f64,
}

impl Quality {
    /// Returns how much greater the recipe's perplexity is: 0.01 is one per cent.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.perplexity / self.reference_perplexity - 1.0
    }
}

/// A model that reads windows of text and gives the logits of every position.
#[derive(Debug)]
pub struct Reader {
    backend: CpuBackend,
    decoder: Decoder,
    page_tokens: usize,
    vocabulary: usize,
}

impl Reader {
    /// Loads a model with `recipe` onto the CPU.
    ///
    /// # Errors
    ///
    /// [`BackendError`] as for [`super::BatchEngine::load`].
    pub fn load(
        model: &ModelConfig,
        weights: &dyn Weights,
        recipe: Recipe,
        threads: usize,
    ) -> Result<Self, BackendError> {
        let salience = match recipe {
            Recipe::Int8 => Salience::measure(model, weights, threads)?,
            Recipe::F32 | Recipe::Bf16 => Salience::default(),
        };
        Self::with_salience(model, weights, recipe, &salience, threads)
    }

    /// As [`Reader::load`], with what is known of the model's salient features.
    pub(super) fn with_salience(
        model: &ModelConfig,
        weights: &dyn Weights,
        recipe: Recipe,
        salience: &Salience,
        threads: usize,
    ) -> Result<Self, BackendError> {
        let mut backend = CpuBackend::new(CpuConfig {
            threads,
            max_rows: STEP_ROWS,
            recipe,
            isa: None,
            packed: None,
        })?;
        let page_tokens = backend.caps().page_tokens;
        let plan = MemoryPlan {
            rows: STEP_ROWS,
            logit_rows: STEP_ROWS,
            sequences: 1,
            pages: WINDOW_TOKENS.div_ceil(page_tokens),
            history_tokens: WINDOW_TOKENS,
        };
        let kv_type = recipe.kv_type();
        let decoder = Decoder::load(
            &mut backend,
            model,
            weights,
            plan,
            recipe,
            kv_type,
            salience,
        )?;
        Ok(Self {
            backend,
            decoder,
            page_tokens,
            vocabulary: model.tokenizer_vocab_size.min(model.vocab_size),
        })
    }

    /// Computes positions `rows` of a window, all before them having been computed.
    fn read(&mut self, window: &[u32], rows: Range<usize>) -> Result<(), BackendError> {
        let index = |count: usize| u32::try_from(count).expect("a window is short");
        let mut inputs = StepInputs {
            tokens: window[rows.clone()].to_vec(),
            positions: rows.clone().map(index).collect(),
            sequences: vec![StepSequence {
                slot: 0,
                q_start: 0,
                q_len: index(rows.len()),
                kv_len: index(rows.end),
            }],
            page_tables: vec![PageTable {
                pages: (0..rows.end.div_ceil(self.page_tokens))
                    .map(index)
                    .collect(),
                starts: vec![0, index(rows.end.div_ceil(self.page_tokens))],
                write_slots: rows.clone().map(index).collect(),
            }],
            logit_rows: (0..rows.len()).map(index).collect(),
            resets: vec![SlotReset {
                slot: 0,
                prompt: Vec::new(),
                output: Vec::new(),
            }],
            ..StepInputs::default()
        };
        inputs.bucket = inputs.exact_bucket();
        self.backend.begin(&inputs);
        self.decoder.forward(&mut self.backend, inputs.bucket);
        // Nothing is drawn: the rows are dead.
        let row = |position| SampleRow {
            live: false,
            ..SampleRow::greedy(0, position)
        };
        let samples = SampleInputs {
            rows: (0..inputs.logit_rows.len())
                .map(|at| row(index(at)))
                .collect(),
            vocabulary: self.vocabulary,
        };
        self.backend.sample(self.decoder.logits(), &samples);
        let ticket = self.backend.end();
        self.backend.wait(ticket)?;
        Ok(())
    }

    /// Reads `text`, no longer than a window, and returns how much each input feature of each int8 product takes
    /// part in its rows, on average over the rows.
    pub(super) fn input_energies(
        &mut self,
        text: &[u32],
    ) -> Result<Vec<(WeightName, Vec<f32>)>, BackendError> {
        self.backend.watch_inputs();
        for start in (0..text.len()).step_by(STEP_ROWS) {
            self.read(text, start..text.len().min(start + STEP_ROWS))?;
        }
        let weights = self.decoder.products();
        Ok(weights
            .filter_map(|(name, weight)| Some((name, self.backend.input_energies(weight)?)))
            .collect())
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.backend.f32_row(self.decoder.logits(), row)[..self.vocabulary]
    }
}

/// Lets all read `text` in windows, and compares what the candidates expect of each next token with what the
/// reference does. `done` hears the number of tokens read, after each window.
///
/// # Errors
///
/// [`BackendError`].
///
/// # Panics
///
/// If the readers are of different models, or the text has fewer than two tokens.
pub fn compare(
    reference: &mut Reader,
    candidates: &mut [Reader],
    text: &[u32],
    mut done: impl FnMut(usize),
) -> Result<Vec<Quality>, BackendError> {
    assert!(text.len() > 1, "a text of one token predicts nothing");
    let mut sums: Vec<Sums> = candidates.iter().map(|_| Sums::default()).collect();
    for (index, window) in text.chunks(WINDOW_TOKENS).enumerate() {
        for start in (0..window.len()).step_by(STEP_ROWS) {
            let rows = start..window.len().min(start + STEP_ROWS);
            reference.read(window, rows.clone())?;
            for candidate in &mut *candidates {
                candidate.read(window, rows.clone())?;
            }
            for (row, position) in rows.enumerate() {
                let Some(&next) = window.get(position + 1) else {
                    continue;
                };
                let known = Distribution::of(reference.logits(row));
                for (candidate, sums) in candidates.iter().zip(&mut sums) {
                    let guessed = Distribution::of(candidate.logits(row));
                    sums.add(&known, &guessed, next as usize);
                }
            }
        }
        done(index * WINDOW_TOKENS + window.len());
    }
    Ok(sums.iter().map(Sums::quality).collect())
}

/// Sums over positions, in nats.
#[derive(Debug, Default)]
struct Sums {
    tokens: u64,
    reference_loss: f64,
    loss: f64,
    divergence: f64,
    agreements: u64,
}

impl Sums {
    fn add(&mut self, p: &Distribution<'_>, q: &Distribution<'_>, next: usize) {
        assert_eq!(
            p.logits.len(),
            q.logits.len(),
            "both readers have one vocabulary"
        );
        self.tokens += 1;
        self.reference_loss -= p.log_probability(next);
        self.loss -= q.log_probability(next);
        self.agreements += u64::from(p.most_likely == q.most_likely);
        let mut divergence = 0.0;
        for id in 0..p.logits.len() {
            let log_p = p.log_probability(id);
            divergence += log_p.exp() * (log_p - q.log_probability(id));
        }
        self.divergence += divergence;
    }

    fn quality(&self) -> Quality {
        let tokens = self.tokens as f64;
        Quality {
            tokens: self.tokens,
            reference_perplexity: (self.reference_loss / tokens).exp(),
            perplexity: (self.loss / tokens).exp(),
            divergence: self.divergence / tokens,
            agreement: self.agreements as f64 / tokens,
        }
    }
}

/// What one row of logits says.
struct Distribution<'a> {
    logits: &'a [f32],
    most_likely: usize,
    /// `ln(sum(e^x))`.
    log_sum: f64,
}

impl<'a> Distribution<'a> {
    fn of(logits: &'a [f32]) -> Self {
        let (mut most_likely, mut max) = (0, f32::NEG_INFINITY);
        for (id, &x) in logits.iter().enumerate() {
            if x > max {
                (most_likely, max) = (id, x);
            }
        }
        let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
        Self {
            logits,
            most_likely,
            log_sum: f64::from(max) + sum.ln(),
        }
    }

    fn log_probability(&self, id: usize) -> f64 {
        f64::from(self.logits[id]) - self.log_sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quality(rows: &[(&[f32], &[f32], usize)]) -> Quality {
        let mut sums = Sums::default();
        for (reference, candidate, next) in rows {
            sums.add(
                &Distribution::of(reference),
                &Distribution::of(candidate),
                *next,
            );
        }
        sums.quality()
    }

    #[test]
    fn equal_logits_cost_nothing() {
        let row: &[f32] = &[0.0, 0.0, 0.0, 0.0];
        let quality = quality(&[(row, row, 2), (row, row, 0)]);
        assert_eq!(quality.tokens, 2);
        assert!((quality.reference_perplexity - 4.0).abs() < 1e-9);
        assert!(quality.loss().abs() < 1e-9);
        assert!(quality.divergence.abs() < 1e-9);
        assert_eq!(quality.agreement, 1.0);
    }

    #[test]
    fn shifted_distribution_costs_its_divergence() {
        // p = (1/2, 1/2), q = (3/4, 1/4).
        let (p, q) = ([0.0, 0.0], [3f32.ln(), 0.0]);
        let quality = quality(&[(&p, &q, 0), (&q, &p, 1)]);
        let p_to_q = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        let q_to_p = 0.75 * (0.75f64 / 0.5).ln() + 0.25 * (0.25f64 / 0.5).ln();
        assert!((quality.divergence - (p_to_q + q_to_p) / 2.0).abs() < 1e-6);
        let reference = (0.5f64 * 0.25).sqrt().recip();
        assert!((quality.reference_perplexity - reference).abs() < 1e-6);
    }
}

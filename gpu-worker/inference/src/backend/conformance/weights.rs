//! Random weights, the same on every backend.

use super::Options;
use crate::backend::{Backend, BackendError, Shard, Weight, WeightDesc, WeightSource, WeightUse};
use crate::model::ModelError;

/// Weights by hash: any row can be read at any time.
pub(in crate::backend) struct Noise {
    pub(in crate::backend) seed: u64,
    pub(in crate::backend) rows: usize,
    pub(in crate::backend) cols: usize,
    /// Values lie in `centre - spread .. centre + spread`.
    pub(in crate::backend) spread: f32,
    pub(in crate::backend) centre: f32,
    /// This row is NaN.
    pub(in crate::backend) poisoned_row: Option<usize>,
}

impl Noise {
    fn value(&self, index: usize) -> f32 {
        let mut z = (self.seed << 32 | index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let unit = ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        // In bf16, so that a recipe's own rounding of weights does not count.
        half::bf16::from_f32(self.centre + unit * self.spread).to_f32()
    }
}

impl WeightSource for Noise {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        for (i, out) in out.iter_mut().enumerate() {
            let poisoned = self.poisoned_row == Some(first_row + i / self.cols);
            *out = if poisoned {
                f32::NAN
            } else {
                self.value(first_row * self.cols + i)
            };
        }
        Ok(())
    }
}

/// Loads weights of a small model.
pub(super) struct Loader<'a, B> {
    pub(super) backend: &'a mut B,
    pub(super) options: Options,
    pub(super) seed: u64,
}

impl<B: Backend> Loader<'_, B> {
    /// Loads a matrix stack `[stacks, n, k]` of random values.
    pub(super) fn stack(
        &mut self,
        experts: usize,
        heads: usize,
        n: usize,
        k: usize,
    ) -> Result<Weight, BackendError> {
        // Uniform values of variance 1 / k.
        let spread = (3.0 / k as f32).sqrt();
        let desc = self.desc(n, k, WeightUse::Linear);
        let desc = WeightDesc {
            experts,
            heads,
            ..desc
        };
        self.load(&desc, spread, 0.0, None)
    }

    /// Loads one matrix `[n, k]`.
    pub(super) fn matrix(&mut self, n: usize, k: usize) -> Result<Weight, BackendError> {
        self.stack(1, 1, n, k)
    }

    /// Loads a vector of values around `centre`.
    pub(super) fn vector(&mut self, k: usize, centre: f32) -> Result<Weight, BackendError> {
        let desc = self.desc(1, k, WeightUse::Vector);
        self.load(&desc, 0.3, centre, None)
    }

    /// Loads an embedding table whose last row is NaN unless it is tied.
    pub(super) fn table(&mut self, n: usize, k: usize, tied: bool) -> Result<Weight, BackendError> {
        let used_as = if tied {
            WeightUse::TiedEmbedding
        } else {
            WeightUse::Embedding
        };
        let desc = self.desc(n, k, used_as);
        let spread = if tied { (3.0 / k as f32).sqrt() } else { 1.0 };
        self.load(&desc, spread, 0.0, (!tied).then_some(n - 1))
    }

    fn desc(&self, n: usize, k: usize, used_as: WeightUse) -> WeightDesc {
        WeightDesc {
            name: format!("weight {}", self.seed),
            n,
            k,
            experts: 1,
            heads: 1,
            used_as,
            recipe: self.options.recipe,
            shard: Shard::Whole,
            // Scattered, at both ends too, and not in whole steps of anything.
            salient: (0..k as u32)
                .filter(|i| i % 9 == 0 || *i + 2 == k as u32)
                .collect(),
        }
    }

    fn load(
        &mut self,
        desc: &WeightDesc,
        spread: f32,
        centre: f32,
        poisoned_row: Option<usize>,
    ) -> Result<Weight, BackendError> {
        self.seed += 1;
        let rows = desc.experts * desc.heads * desc.n;
        let noise = Noise {
            seed: self.seed,
            rows,
            cols: desc.k,
            spread,
            centre,
            poisoned_row,
        };
        self.backend.weight(desc, &noise)
    }
}

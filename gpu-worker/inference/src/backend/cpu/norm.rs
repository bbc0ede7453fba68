//! Norms: one row at a time, sums in fixed lanes.

use super::isa::Kernel;
use super::simd::Simd;
use super::storage::write_values;
use half::bf16;

use crate::backend::NormKind;

/// One row to normalise.
pub(super) struct NormRow<'a> {
    /// The row; `add` is added to it first.
    pub(super) x: &'a mut [f32],
    /// As long as `x`.
    pub(super) add: Option<&'a [f32]>,
    /// As long as `x`.
    pub(super) gain: &'a [f32],
    /// As long as `x`.
    pub(super) bias: Option<&'a [f32]>,
    /// Which norm.
    pub(super) kind: NormKind,
    /// Added to the variance.
    pub(super) eps: f32,
    /// Gain is `1 + gain`.
    pub(super) plus_one: bool,
    /// Where it goes.
    pub(super) out: RowOut<'a>,
}

/// A row of the output.
pub(super) enum RowOut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Rounded to bf16.
    Bf16(&'a mut [bf16]),
}

/// Values that are normalised before they are rounded together.
const CHUNK: usize = 64;

impl Kernel for NormRow<'_> {
    const HAS_BF16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        if let Some(add) = self.add {
            for (x, add) in self.x.iter_mut().zip(add) {
                *x += add;
            }
        }
        let len = self.x.len() as f32;
        let mean = match self.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => sum_lanes(s, self.x) / len,
        };
        let scale = 1.0 / (sum_squares(s, self.x, mean) / len + self.eps).sqrt();
        let offset = if self.plus_one { 1.0 } else { 0.0 };
        let mut at = 0;
        while at < self.x.len() {
            let end = self.x.len().min(at + CHUNK);
            let mut values = [0.0; CHUNK];
            let values = &mut values[..end - at];
            for ((value, x), gain) in values
                .iter_mut()
                .zip(&self.x[at..end])
                .zip(&self.gain[at..end])
            {
                *value = (x - mean) * scale * (offset + gain);
            }
            if let Some(bias) = self.bias {
                for (value, bias) in values.iter_mut().zip(&bias[at..end]) {
                    *value += bias;
                }
            }
            match &mut self.out {
                RowOut::F32(out) => write_values(s, values, &mut out[at..end]),
                RowOut::Bf16(out) => write_values(s, values, &mut out[at..end]),
            }
            at = end;
        }
    }
}

/// Returns the sum of all values.
#[inline(always)]
fn sum_lanes<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = s.splat(0.0);
    let mut chunks = x.chunks_exact(S::LANES);
    for chunk in chunks.by_ref() {
        sums = s.add(sums, s.load(chunk));
    }
    let mut sum = s.sum(sums);
    for x in chunks.remainder() {
        sum += x;
    }
    sum
}

/// Returns the sum of `(x - mean)^2`.
#[inline(always)]
fn sum_squares<S: Simd>(s: S, x: &[f32], mean: f32) -> f32 {
    let mut sums = [s.splat(0.0); 2];
    let mut chunks = x.chunks_exact(2 * S::LANES);
    for chunk in chunks.by_ref() {
        let first = s.sub(s.load(chunk), s.splat(mean));
        let second = s.sub(s.load(&chunk[S::LANES..]), s.splat(mean));
        sums[0] = s.fma(first, first, sums[0]);
        sums[1] = s.fma(second, second, sums[1]);
    }
    let mut sum = s.sum(s.add(sums[0], sums[1]));
    for x in chunks.remainder() {
        sum += (x - mean) * (x - mean);
    }
    sum
}

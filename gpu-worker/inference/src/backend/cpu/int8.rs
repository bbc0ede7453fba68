//! The int8 recipe: weights in signed codes with a scale for each output column, activations in codes with a
//! scale for each row.
//!
//! Few activations are far greater than the rest of their row, and would leave it few codes. So every row is
//! first multiplied by a block-diagonal Hadamard matrix, which spreads what is great over its block; the
//! weights are multiplied by the same matrix when they are packed, and the product stays as it was.
//! Source: Ashkboos et al. 2024, arXiv:2404.00456 (QuaRot), of which this is the online part alone.
//!
//! Some input features are far greater than the rest in every row, and would leave all others few codes even
//! then. Those that are known ([`WeightDesc::salient`]) are left out, and multiplied in bf16: a ninth of the default
//! model's features, which takes most of the error away, for a ninth more work.
//! Source: Dettmers et al. 2022, arXiv:2208.07339 (LLM.int8()).
//!
//! A code of an activation is `round(x / scale) + 128`: products want one unsigned operand. What the 128 adds
//! to a sum depends on the column alone, and is the sum's first value, negated. Sums are exact.
//! A row that is not finite has a scale that is not: its products are not finite either.
#![expect(unsafe_code, reason = "unchecked loads in the inner loop")]

mod weights;

use half::bf16;

pub(super) use self::weights::{PackedInt8, Split};
use super::isa::Kernel;
use super::linear::{Factors, FloatFactors, Tile};
use super::pack::{PANEL, ROWS, lanes_of};
use super::simd::Simd;
use super::storage::{Aligned, Plane};
use crate::backend::{BackendError, Weight};

/// Codes side by side in a lane: neighbours along the summed dimension.
pub(super) const QUAD: usize = 4;

/// The greatest code: symmetric, so that -128 is not used.
const CODE_MAX: f32 = 127.0;

/// What is added to an activation's code.
const CODE_ZERO: i32 = 128;

/// The most values that a Hadamard block mixes.
const BLOCK_MAX: usize = 64;

/// Returns the size of the blocks of rows of `k` values: a power of two that divides `k`.
fn block_of(k: usize) -> usize {
    1 << k.trailing_zeros().min(BLOCK_MAX.trailing_zeros())
}

/// Multiplies each block of `row` by the Hadamard matrix, whose entries are 1 and -1.
fn mix(row: &mut [f32], block: usize) {
    for values in row.chunks_exact_mut(block) {
        let mut distance = 1;
        while distance < block {
            for pair in values.chunks_exact_mut(2 * distance) {
                let (first, second) = pair.split_at_mut(distance);
                for (a, b) in first.iter_mut().zip(second) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            distance *= 2;
        }
    }
}

/// Activations of the int8 recipe.
#[derive(Debug)]
pub(super) struct CodedPlane {
    /// The values as they were written; codes are made of them.
    pub(super) values: Plane<bf16>,
    /// `[rows, stride]`, in whole [`ROWS`].
    pub(super) codes: Aligned<u8>,
    /// Codes from row to row: columns, rounded up as [`lanes_of`] does. The padding meets weights that are zero.
    pub(super) stride: usize,
    /// What one code of a row is worth: `[rows]`.
    pub(super) scales: Aligned<f32>,
    /// The kept features of each row.
    pub(super) kept: Plane<bf16>,
    /// For whose features codes were made of the values, which are gone since then.
    pub(super) coded_for: Option<Weight>,
}

impl CodedPlane {
    /// Makes a plane of zeros for products with weights that keep `kept` of `cols` features.
    pub(super) fn zeros(rows: usize, cols: usize, kept: usize) -> Result<Self, BackendError> {
        let stride = lanes_of(cols, QUAD) * QUAD;
        let rows = rows.next_multiple_of(ROWS);
        Ok(Self {
            values: Plane::zeros(rows, cols)?,
            codes: Aligned::zeros(rows.saturating_mul(stride), "activations")?,
            stride,
            scales: Aligned::zeros(rows, "activations")?,
            kept: Plane::zeros(rows, kept)?,
            coded_for: None,
        })
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.values.values.bytes()
            + self.codes.bytes()
            + self.scales.bytes()
            + self.kept.values.bytes()
    }
}

/// Makes the codes of one row.
pub(super) struct EncodeRow<'a> {
    /// Which of its features become codes.
    pub(super) split: &'a Split,
    /// The values; they are left moved and mixed.
    pub(super) values: &'a mut [bf16],
    /// Gets the kept ones.
    pub(super) kept: &'a mut [bf16],
    /// As long as `values`, or longer: the rest is not touched.
    pub(super) codes: &'a mut [u8],
    /// What one code is worth.
    pub(super) scale: &'a mut f32,
}

impl Kernel for EncodeRow<'_> {
    const HAS_BF16: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let values = self.split.apply(self.values, self.kept);
        let block = block_of(values.len());
        let greatest = match block {
            BLOCK_MAX => mix_blocks(s, values),
            _ => mix_plain(values, block),
        };
        *self.scale = greatest / CODE_MAX;
        let inverse = if greatest > 0.0 {
            CODE_MAX / greatest
        } else {
            0.0
        };
        let whole = values.len() / S::LANES * S::LANES;
        let factor = s.splat(inverse);
        let mut at = 0;
        while at < whole {
            let x = s.mul(s.load_bf16(&values[at..]), factor);
            s.store_codes(x, &mut self.codes[at..]);
            at += S::LANES;
        }
        for (code, x) in self.codes[whole..].iter_mut().zip(&values[whole..]) {
            *code = ((x.to_f32() * inverse).round_ties_even() as i32 + CODE_ZERO) as u8;
        }
    }
}

/// Mixes blocks of [`BLOCK_MAX`], and returns the greatest magnitude; NaN if one is NaN.
#[inline(always)]
fn mix_blocks<S: Simd>(s: S, values: &mut [bf16]) -> f32 {
    // As many registers as the narrowest vectors need.
    const PARTS_MAX: usize = BLOCK_MAX / 8;
    let parts = BLOCK_MAX / S::LANES;
    let mut greatest = s.splat(0.0);
    for block in values.chunks_exact_mut(BLOCK_MAX) {
        let mut registers = [s.splat(0.0); PARTS_MAX];
        let mut part = 0;
        while part < parts {
            registers[part] = s.mix_lanes(s.load_bf16(&block[part * S::LANES..]));
            part += 1;
        }
        let mut distance = 1;
        while distance < parts {
            let mut first = 0;
            while first < parts {
                if first & distance == 0 {
                    let (a, b) = (registers[first], registers[first + distance]);
                    registers[first] = s.add(a, b);
                    registers[first + distance] = s.sub(a, b);
                }
                first += 1;
            }
            distance *= 2;
        }
        part = 0;
        while part < parts {
            greatest = s.max_magnitude(greatest, registers[part]);
            s.store_bf16(registers[part], &mut block[part * S::LANES..]);
            part += 1;
        }
    }
    let mut lanes = [0.0; 16];
    s.store(greatest, &mut lanes);
    greatest_of(&lanes)
}

/// As [`mix_blocks`], for smaller blocks.
fn mix_plain(values: &mut [bf16], block: usize) -> f32 {
    let mut greatest = 0.0;
    for values in values.chunks_exact_mut(block) {
        let mut wide = [0.0; BLOCK_MAX];
        let wide = &mut wide[..block];
        for (wide, x) in wide.iter_mut().zip(&*values) {
            *wide = x.to_f32();
        }
        mix(wide, block);
        for (x, wide) in values.iter_mut().zip(&*wide) {
            *x = bf16::from_f32(*wide);
        }
        greatest = greatest_of(&[greatest, greatest_of(wide)]);
    }
    greatest
}

/// Returns the greatest magnitude; NaN if one is NaN.
#[inline(always)]
fn greatest_of(values: &[f32]) -> f32 {
    // Without signs, floats are ordered as their bits are, and a NaN is greater than all numbers.
    let bits = values.iter().map(|x| x.abs().to_bits());
    f32::from_bits(bits.fold(0, u32::max))
}

/// Coded rows and a packed matrix.
#[derive(Clone, Copy)]
pub(super) struct Int8Factors<'a> {
    /// `[rows, stride]`.
    pub(super) codes: &'a [u8],
    /// Codes from row to row.
    pub(super) stride: usize,
    /// `[rows]`.
    pub(super) scales: &'a [f32],
    /// `[rows, kept_stride]`, the kept features.
    pub(super) kept: &'a [bf16],
    /// Values from row to row of `kept`.
    pub(super) kept_stride: usize,
    /// The matrix.
    pub(super) weight: &'a PackedInt8,
}

impl Int8Factors<'_> {
    /// Returns the operands of the kept features' product, if there are any.
    #[inline(always)]
    fn kept(&self) -> Option<FloatFactors<'_, bf16>> {
        let weight = self.weight.kept.as_ref()?;
        Some(FloatFactors {
            x: self.kept,
            stride: self.kept_stride,
            weight,
        })
    }
}

impl Factors for Int8Factors<'_> {
    const HAS_INT8: bool = true;
    const HAS_BF16: bool = true;
    const HAS_TILES: bool = true;

    fn n(&self) -> usize {
        self.weight.n
    }

    #[inline(always)]
    fn multiply<S: Simd, const M: usize>(
        &self,
        s: S,
        row: usize,
        panel: usize,
        tile: &mut Tile<M>,
        spare: &mut Tile<M>,
        part: (usize, usize),
    ) {
        let units = self.weight.units;
        let len = units * PANEL * QUAD;
        let codes = &self.weight.codes[panel * len..][..len];
        let scales = &self.weight.scales[panel * PANEL..][..PANEL];
        let offsets = &self.weight.offsets[panel * PANEL..][..PANEL];
        let x = &self.codes[row * self.stride..];
        assert!(
            x.len() >= (M - 1) * self.stride + units * QUAD,
            "all rows of the tile lie in x"
        );
        match self.kept() {
            Some(kept) => kept.multiply(s, row, panel, tile, spare, part),
            None => *tile = [[0.0; PANEL]; M],
        }
        if S::HAS_TILES {
            let first = offsets.try_into().expect("a panel has an offset a column");
            s.multiply_codes(x, self.stride, codes, first, spare, part);
            return;
        }
        let mut column = 0;
        while column < PANEL {
            let first_offset = s.load_int(&offsets[column..]);
            let second_offset = s.load_int(&offsets[column + S::LANES..]);
            let mut sums = [[first_offset, second_offset]; M];
            for (unit, quads) in codes.chunks_exact(PANEL * QUAD).enumerate() {
                let first = s.load_quads(&quads[column * QUAD..]);
                let second = s.load_quads(&quads[(column + S::LANES) * QUAD..]);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let at = r * self.stride + unit * QUAD;
                    // SAFETY: `r < M` and `unit < units`: inside x, as asserted above.
                    let quad = unsafe { x.get_unchecked(at..at + QUAD) };
                    let quad = u32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]]);
                    let quad = s.splat_quad(quad);
                    sums[0] = s.dot_quads(sums[0], quad, first);
                    sums[1] = s.dot_quads(sums[1], quad, second);
                }
            }
            let first_scale = s.load(&scales[column..]);
            let second_scale = s.load(&scales[column + S::LANES..]);
            for (r, (values, sums)) in tile.iter_mut().zip(&sums).enumerate() {
                let row_scale = s.splat(self.scales[row + r]);
                for (sum, scale, column) in [
                    (sums[0], first_scale, column),
                    (sums[1], second_scale, column + S::LANES),
                ] {
                    let scale = s.mul(row_scale, scale);
                    let kept = s.load(&values[column..]);
                    s.store(s.fma(s.int_to_f32(sum), scale, kept), &mut values[column..]);
                }
            }
            column += 2 * S::LANES;
        }
    }

    /// A tile of codes has the sums of codes in `spare`; what is in no tile is settled already.
    #[inline(always)]
    fn settle<S: Simd>(
        &self,
        s: S,
        row: usize,
        panel: usize,
        values: &mut [f32; PANEL],
        spare: &[f32; PANEL],
    ) {
        if !S::HAS_TILES {
            return;
        }
        let scales = &self.weight.scales[panel * PANEL..][..PANEL];
        let row_scale = s.splat(self.scales[row]);
        let mut column = 0;
        while column < PANEL {
            let sum = s.int_to_f32(s.bits(s.load(&spare[column..])));
            let scale = s.mul(row_scale, s.load(&scales[column..]));
            let value = s.fma(sum, scale, s.load(&values[column..]));
            s.store(value, &mut values[column..]);
            column += S::LANES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::isa::Isa;

    fn encoded(isa: Isa, row: &[f32]) -> (Vec<u8>, f32) {
        let mut values: Vec<bf16> = row.iter().map(|&x| bf16::from_f32(x)).collect();
        let mut codes = vec![0; row.len()];
        let mut scale = 0.0;
        isa.run(EncodeRow {
            split: &Split::new(&vec![0; row.len()]),
            values: &mut values,
            kept: &mut [],
            codes: &mut codes,
            scale: &mut scale,
        });
        (codes, scale)
    }

    fn row(len: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 16.0;
        (0..len).map(value).collect()
    }

    #[test]
    fn kept_features_leave_and_the_rest_moves_together() {
        for kept in [
            vec![],
            vec![0],
            vec![9],
            vec![1, 8, 9],
            vec![0, 1, 2],
            (0..10).collect(),
        ] {
            let mask: Vec<u8> = (0..10).map(|i| u8::from(kept.contains(&i))).collect();
            let split = Split::new(&mask);
            let mut row: Vec<usize> = (0..10).collect();
            let mut apart = vec![0; kept.len()];
            let mut rest = split.apply(&mut row, &mut apart).to_vec();
            rest.sort_unstable();
            assert_eq!(apart, kept);
            let others: Vec<usize> = (0..10).filter(|i| !kept.contains(i)).collect();
            assert_eq!(rest, others, "{kept:?}");
            assert_eq!(split.coded(), others.len());
        }
    }

    #[test]
    fn mixing_twice_scales_by_the_block() {
        for len in [1, 6, 48, 64, 192] {
            let block = block_of(len);
            let mut twice = row(len);
            mix(&mut twice, block);
            mix(&mut twice, block);
            let want: Vec<f32> = row(len).iter().map(|x| x * block as f32).collect();
            assert_eq!(twice, want, "{len} values");
        }
    }

    #[test]
    fn codes_are_the_mixed_values_on_every_instruction_set() {
        for len in [1, 3, 20, 64, 128, 576] {
            let mut mixed = row(len);
            mix(&mut mixed, block_of(len));
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let (codes, scale) = encoded(isa, &row(len));
                for (code, want) in codes.iter().zip(&mixed) {
                    let got = (f32::from(*code) - CODE_ZERO as f32) * scale;
                    // Half a code, and what bf16 rounds.
                    let bound = scale * 0.5 + want.abs() / 256.0;
                    assert!((got - want).abs() <= bound, "{isa:?}: {got} for {want}");
                }
                assert_eq!((codes, scale), encoded(Isa::Portable, &row(len)), "{isa:?}");
            }
        }
    }

    #[test]
    fn row_that_is_not_finite_has_a_scale_that_is_not() {
        for len in [5, 64, 576] {
            for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                    let mut row = row(len);
                    row[len / 2] = poison;
                    assert!(!encoded(isa, &row).1.is_finite(), "{isa:?}");
                }
            }
        }
        assert_eq!(encoded(Isa::Portable, &[0.0; 64]), (vec![128; 64], 0.0));
    }
}

//! Products of floats, f32 or bf16.
#![expect(unsafe_code, reason = "unchecked loads in the inner loop")]

use super::{Factors, Tile};
use crate::backend::cpu::element::Element;
use crate::backend::cpu::pack::{PANEL, Packed};
use crate::backend::cpu::simd::Simd;

/// The operands of a product in one float type.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct FloatFactors<'a, E> {
    /// `[rows, stride]`.
    pub(in crate::backend::cpu) x: &'a [E],
    /// Values from row to row of `x`.
    pub(in crate::backend::cpu) stride: usize,
    /// The matrix.
    pub(in crate::backend::cpu) weight: &'a Packed<E>,
}

impl<E: Element> Factors for FloatFactors<'_, E> {
    const HAS_INT8: bool = false;
    const HAS_BF16: bool = E::IS_BF16;
    const HAS_TILES: bool = E::IS_BF16;

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
        _spare: &mut Tile<M>,
        part: (usize, usize),
    ) {
        let x = &self.x[row * self.stride..];
        if S::HAS_TILES {
            let panel = E::bf16s(self.weight.panel(panel));
            s.multiply_pairs(E::bf16s(x), self.stride, panel, tile, part);
        } else {
            multiply(s, x, self.stride, self.weight.panel(panel), tile);
        }
    }
}

/// `tile[r][c] = sum over k of x[r][k] * panel[k][c]`, for `M` rows of `x` that lie `stride` apart.
#[inline(always)]
fn multiply<S: Simd, E: Element, const M: usize>(
    s: S,
    x: &[E],
    stride: usize,
    panel: &[E],
    tile: &mut Tile<M>,
) {
    let units = panel.len() / (PANEL * E::PACK);
    assert!(
        x.len() >= (M - 1) * stride + units * E::PACK,
        "all rows of the tile lie in x"
    );
    let width = 2 * S::LANES;
    let mut column = 0;
    while column < PANEL {
        let mut sums = [[s.splat(0.0); 2]; M];
        for (unit, lanes) in panel.chunks_exact(PANEL * E::PACK).enumerate() {
            let first = E::load(s, &lanes[column * E::PACK..]);
            let second = E::load(s, &lanes[(column + S::LANES) * E::PACK..]);
            for (r, sums) in sums.iter_mut().enumerate() {
                let at = r * stride + unit * E::PACK;
                // SAFETY: `r < M` and `unit < units`: inside x, as asserted above.
                let x = E::splat(s, unsafe { x.get_unchecked(at..at + E::PACK) });
                sums[0] = E::dot(s, sums[0], first, x);
                sums[1] = E::dot(s, sums[1], second, x);
            }
        }
        for (values, sums) in tile.iter_mut().zip(&sums) {
            s.store(sums[0], &mut values[column..]);
            s.store(sums[1], &mut values[column + S::LANES..]);
        }
        column += width;
    }
}

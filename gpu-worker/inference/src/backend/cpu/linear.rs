//! Products of activations with packed weights.
//!
//! A task owns some output columns of some rows. It multiplies tiles of up to [`Simd::ROWS`] rows with one
//! panel, and finishes each tile while it is hot. The sum of a value runs over `k` in ascending order in one
//! register, whatever the tile's height: a row's bits do not depend on its neighbours.
#![expect(
    unsafe_code,
    reason = "unchecked loads in the inner loop, and disjoint writes of tasks"
)]

use super::element::Element;
use super::isa::{Isa, Kernel};
use super::math;
use super::pack::{PANEL, Packed};
use super::pool::Pool;
use super::simd::Simd;
use super::storage::{Output, OutputValues};
use crate::backend::activation::{activate, gate};
use crate::backend::{Activation, Epilogue};

/// Rows that stay in the second-level cache beside a panel; more are cut into blocks.
const ROW_BLOCK: usize = 192;

/// Output columns of up to [`Simd::ROWS`] rows.
pub(super) type Tile<const M: usize> = [[f32; PANEL]; M];

/// Rows of activations and a packed matrix, in the number types of a recipe.
pub(super) trait Factors: Copy + Sync {
    /// As [`Kernel::HAS_INT8`].
    const HAS_INT8: bool;
    /// As [`Kernel::HAS_BF16`].
    const HAS_BF16: bool;

    /// Returns the columns of the product.
    fn n(&self) -> usize;

    /// `tile[r][c] = sum over k of x[row + r][k] * weight[panel * 32 + c][k]`, for `M` rows.
    ///
    /// The value of a row does not depend on `M`.
    fn multiply<S: Simd, const M: usize>(&self, s: S, row: usize, panel: usize, tile: &mut Tile<M>);
}

/// The operands of a product in one float type.
#[derive(Clone, Copy)]
pub(super) struct FloatFactors<'a, E> {
    /// `[rows, stride]`.
    pub(super) x: &'a [E],
    /// Values from row to row of `x`.
    pub(super) stride: usize,
    /// The matrix.
    pub(super) weight: &'a Packed<E>,
}

impl<E: Element> Factors for FloatFactors<'_, E> {
    const HAS_INT8: bool = false;
    const HAS_BF16: bool = E::IS_BF16;

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
    ) {
        let x = &self.x[row * self.stride..];
        multiply(s, x, self.stride, self.weight.panel(panel), tile);
    }
}

/// One product, and what becomes of it.
#[derive(Clone, Copy)]
pub(super) struct Product<'a, F> {
    /// What is multiplied.
    pub(super) factors: F,
    /// Rows to multiply.
    pub(super) rows: usize,
    /// `[n]`.
    pub(super) bias: Option<&'a [f32]>,
    /// What happens to the product.
    pub(super) epilogue: Epilogue,
    /// Where it goes.
    pub(super) out: Output<'a>,
}

/// Computes a product on all threads.
pub(super) fn run<F: Factors>(isa: Isa, pool: &Pool, product: Product<'_, F>) {
    let columns = product.columns();
    assert_eq!(
        columns, product.out.cols,
        "the output is as wide as the product"
    );
    let blocks = product.rows.div_ceil(ROW_BLOCK);
    let panels = columns.div_ceil(PANEL);
    pool.run(panels * blocks, &|_, task| {
        let first_row = task % blocks * ROW_BLOCK;
        let rows = first_row..product.rows.min(first_row + ROW_BLOCK);
        isa.run(Tiles {
            product,
            column: task / blocks * PANEL,
            rows,
        });
    });
}

impl<F: Factors> Product<'_, F> {
    /// Returns the columns of the output.
    fn columns(&self) -> usize {
        match self.epilogue {
            Epilogue::Gated(_) => self.factors.n() / 2,
            Epilogue::None | Epilogue::Residual | Epilogue::Act(_) | Epilogue::Softcap(_) => {
                self.factors.n()
            }
        }
    }
}

/// One task: output columns `column..column + 32` of `rows`.
struct Tiles<'a, F> {
    product: Product<'a, F>,
    column: usize,
    rows: std::ops::Range<usize>,
}

impl<F: Factors> Kernel for Tiles<'_, F> {
    const HAS_INT8: bool = F::HAS_INT8;
    const HAS_BF16: bool = F::HAS_BF16;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            let left = self.rows.end - row;
            row += if S::ROWS >= 12 && left >= 12 {
                self.tile::<S, 12>(s, row)
            } else if S::ROWS >= 8 && left >= 8 {
                self.tile::<S, 8>(s, row)
            } else if S::ROWS >= 4 && left >= 4 {
                self.tile::<S, 4>(s, row)
            } else if left >= 2 {
                self.tile::<S, 2>(s, row)
            } else {
                self.tile::<S, 1>(s, row)
            };
        }
    }
}

impl<F: Factors> Tiles<'_, F> {
    /// Computes and finishes `M` rows from `row` on; returns `M`.
    #[inline(always)]
    fn tile<S: Simd, const M: usize>(&self, s: S, row: usize) -> usize {
        let mut tile = [[0.0; PANEL]; M];
        self.multiply(s, row, self.column, &mut tile);
        if let Epilogue::Gated(act) = self.product.epilogue {
            let up: Tile<M> = self.up_half(s, row);
            for (gate, up) in tile.iter_mut().zip(&up) {
                gate_row(s, act, gate, up);
            }
        }
        for (r, values) in tile.iter_mut().enumerate() {
            self.finish(s, row + r, values);
        }
        M
    }

    /// Returns the columns `n / 2 + column..` of the product, whose first may lie inside a panel.
    #[inline(always)]
    fn up_half<S: Simd, const M: usize>(&self, s: S, row: usize) -> Tile<M> {
        let first = self.product.factors.n() / 2 + self.column;
        let offset = first % PANEL;
        let mut up = [[0.0; PANEL]; M];
        self.multiply(s, row, first - offset, &mut up);
        if offset == 0 {
            return up;
        }
        let mut next = [[0.0; PANEL]; M];
        if first - offset + PANEL < self.product.factors.n() {
            self.multiply(s, row, first - offset + PANEL, &mut next);
        }
        for (up, next) in up.iter_mut().zip(&next) {
            up.copy_within(offset.., 0);
            up[PANEL - offset..].copy_from_slice(&next[..offset]);
        }
        up
    }

    /// Multiplies `M` rows with the panel that begins at `column`, and adds the bias.
    #[inline(always)]
    fn multiply<S: Simd, const M: usize>(
        &self,
        s: S,
        row: usize,
        column: usize,
        tile: &mut Tile<M>,
    ) {
        let product = &self.product;
        product.factors.multiply(s, row, column / PANEL, tile);
        if let Some(bias) = product.bias {
            let bias = &bias[column..bias.len().min(column + PANEL)];
            for values in tile {
                for (value, bias) in values.iter_mut().zip(bias) {
                    *value += bias;
                }
            }
        }
    }

    /// Applies the rest of the epilogue to one row of a tile, and stores it.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, row: usize, values: &mut [f32; PANEL]) {
        let out = &self.product.out;
        let width = PANEL.min(out.cols - self.column);
        match self.product.epilogue {
            Epilogue::None | Epilogue::Gated(_) => {}
            Epilogue::Act(act) => activate_row(s, act, values),
            Epilogue::Softcap(cap) => softcap_row(s, cap, values),
            Epilogue::Residual => {
                let OutputValues::F32(residual) = &out.values else {
                    panic!("a residual buffer is in f32")
                };
                let at = row * out.stride + self.column;
                // SAFETY: the task alone has these columns of these rows.
                let residual = unsafe { residual.part(at..at + width) };
                for (value, residual) in values.iter_mut().zip(residual) {
                    *value += *residual;
                }
            }
        }
        // SAFETY: the task alone has these columns of these rows.
        unsafe { out.write(s, row, self.column, &values[..width]) };
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

#[inline(always)]
fn activate_row<S: Simd>(s: S, act: Activation, values: &mut [f32; PANEL]) {
    let mut at = 0;
    match act {
        Activation::Silu => {
            while at < PANEL {
                s.store(math::silu(s, s.load(&values[at..])), &mut values[at..]);
                at += S::LANES;
            }
        }
        Activation::GeluTanh => {
            while at < PANEL {
                s.store(math::gelu_tanh(s, s.load(&values[at..])), &mut values[at..]);
                at += S::LANES;
            }
        }
        Activation::GeluErf | Activation::ClampedSwiglu { .. } => {
            for value in values {
                *value = activate(act, *value);
            }
        }
    }
}

/// Writes `act(values) * up` to `values`.
#[inline(always)]
fn gate_row<S: Simd>(s: S, act: Activation, values: &mut [f32; PANEL], up: &[f32; PANEL]) {
    match act {
        Activation::Silu | Activation::GeluTanh | Activation::GeluErf => {
            activate_row(s, act, values);
            for (value, up) in values.iter_mut().zip(up) {
                *value *= up;
            }
        }
        Activation::ClampedSwiglu { .. } => {
            for (value, up) in values.iter_mut().zip(up) {
                *value = gate(act, *value, *up);
            }
        }
    }
}

#[inline(always)]
fn softcap_row<S: Simd>(s: S, cap: f32, values: &mut [f32; PANEL]) {
    let mut at = 0;
    while at < PANEL {
        let capped = math::tanh(s, s.div(s.load(&values[at..]), s.splat(cap)));
        s.store(s.mul(capped, s.splat(cap)), &mut values[at..]);
        at += S::LANES;
    }
}

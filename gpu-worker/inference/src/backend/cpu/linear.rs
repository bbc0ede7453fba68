//! Products of activations with packed weights.
//!
//! A task owns some output columns of some rows. It multiplies tiles of up to [`Simd::ROWS`] rows with one
//! panel, and finishes each tile while it is hot. The sum of a value runs over `k` in ascending order in one
//! register, whatever the tile's height: a row's bits do not depend on its neighbours.
#![expect(unsafe_code, reason = "tasks write disjoint parts")]

mod epilogue;
mod floats;

use std::ops::Range;
use std::sync::Mutex;

use self::epilogue::{activate_row, gate_row, softcap_row};
pub(super) use self::floats::FloatFactors;
use super::isa::{Isa, Kernel};
use super::lock;
use super::pack::{PANEL, ROWS};
use super::pool::{Pool, first_row};
use super::simd::Simd;
use super::storage::{Output, OutputValues};
use super::winners::Winners;
use crate::backend::Epilogue;

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
    /// As [`Kernel::HAS_TILES`].
    const HAS_TILES: bool;

    /// Returns the columns of the product.
    fn n(&self) -> usize;

    /// Makes `tile[r][c] = sum over k of x[row + r][k] * weight[panel * 32 + c][k]`, for `M` rows, once
    /// [`Factors::settle`] has been called for each.
    ///
    /// The value of a row does not depend on `M`. `spare` is room; `part` is as for [`Simd::multiply_codes`].
    fn multiply<S: Simd, const M: usize>(
        &self,
        s: S,
        row: usize,
        panel: usize,
        tile: &mut Tile<M>,
        spare: &mut Tile<M>,
        part: (usize, usize),
    );

    /// Ends what [`Factors::multiply`] has begun, for one row of its tile: nothing, where that leaves nothing to do.
    #[inline(always)]
    fn settle<S: Simd>(
        &self,
        _s: S,
        _row: usize,
        _panel: usize,
        _values: &mut [f32; PANEL],
        _spare: &[f32; PANEL],
    ) {
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
    /// Of which rows only the greatest value matters; none: all values of all rows do.
    pub(super) picks: Option<Picks<'a>>,
}

/// Rows of which only the greatest value of some columns matters: they are not written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Picks<'a> {
    /// Whether it is one of them, for each row.
    pub(super) rows: &'a [bool],
    /// Columns that count.
    pub(super) vocabulary: usize,
    /// What each thread sees.
    pub(super) winners: &'a [Mutex<Winners>],
}

/// Fewest rows of a share: each share reads all weights.
const SHARE_ROWS: usize = 48;

/// How a product is cut: shares of rows, which are cut into blocks, and panels. A task is one panel of one block.
#[derive(Debug, Clone, Copy)]
struct Cut {
    rows: usize,
    shares: usize,
    /// Blocks of a share.
    blocks: usize,
    panels: usize,
    workers: usize,
}

impl Cut {
    /// Each thread gets a share of its own, if there may be so many, or some of the panels of one that it has with
    /// its neighbours.
    fn new(rows: usize, panels: usize, workers: usize, shares_max: usize) -> Self {
        let shares = (rows / SHARE_ROWS).clamp(1, shares_max);
        Self {
            rows,
            shares,
            blocks: rows.div_ceil(shares).div_ceil(ROW_BLOCK),
            panels,
            workers,
        }
    }

    /// Returns the first of a thread's own tasks.
    fn first_task(&self, worker: usize) -> usize {
        let tasks = self.blocks * self.panels;
        let share = worker * self.shares / self.workers;
        // The threads of the share: the first, and the one after the last.
        let first = (share * self.workers).div_ceil(self.shares);
        let end = ((share + 1) * self.workers).div_ceil(self.shares);
        if worker == self.workers {
            return self.shares * tasks;
        }
        share * tasks + tasks * (worker - first) / (end - first)
    }

    /// Returns the rows and the panel of a task. The blocks of a panel follow each other, while it is hot.
    fn task(&self, task: usize) -> (Range<usize>, usize) {
        let tasks = self.blocks * self.panels;
        let (share, task) = (task / tasks, task % tasks);
        let start = first_row(self.rows, self.shares, share);
        let end = first_row(self.rows, self.shares, share + 1);
        let block_rows = (end - start).div_ceil(self.blocks).next_multiple_of(ROWS);
        let first = end.min(start + task % self.blocks * block_rows);
        (first..end.min(first + block_rows), task / self.blocks)
    }
}

/// Computes a product on all threads. Each has its own of `rooms`.
pub(super) fn run<F: Factors>(
    isa: Isa,
    pool: &Pool,
    rooms: &[Mutex<Room>],
    product: Product<'_, F>,
) {
    let columns = product.columns();
    assert_eq!(
        columns, product.out.cols,
        "the output is as wide as the product"
    );
    // What is not written stays in no cache: then each weight is read once, not once a thread.
    let is_written = |picks: Picks<'_>| !picks.rows.iter().all(|&is_picked| is_picked);
    let shares = match product.picks.is_none_or(is_written) {
        true => pool.workers(),
        false => 1,
    };
    let cut = Cut::new(
        product.rows,
        columns.div_ceil(PANEL),
        pool.workers(),
        shares,
    );
    pool.run_owned(|worker| cut.first_task(worker), &|worker, task| {
        let (rows, panel) = cut.task(task);
        let mut winners = product.picks.map(|picks| lock(&picks.winners[worker]));
        isa.run(Tiles {
            product,
            column: panel * PANEL,
            rows,
            winners: winners.as_deref_mut(),
            room: &mut lock(&rooms[worker]),
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

    /// Multiplies `M` rows with the panel that begins at `column`.
    #[inline(always)]
    fn multiply<S: Simd, const M: usize>(
        &self,
        s: S,
        row: usize,
        column: usize,
        half: &mut Half,
        part: (usize, usize),
    ) {
        let (tile, spare) = (rows_of::<M>(&mut half.tile), rows_of(&mut half.spare));
        let panel = column / PANEL;
        self.factors.multiply(s, row, panel, tile, spare, part);
    }

    /// Ends the product of row `row`, which is `r` in the tile, and adds the bias.
    #[inline(always)]
    fn settle<S: Simd>(&self, s: S, row: usize, column: usize, half: &mut Half, r: usize) {
        let values = &mut half.tile[r];
        self.factors
            .settle(s, row, column / PANEL, values, &half.spare[r]);
        if let Some(bias) = self.bias {
            let bias = &bias[column..bias.len().min(column + PANEL)];
            for (value, bias) in values.iter_mut().zip(bias) {
                *value += bias;
            }
        }
    }
}

/// One task: output columns `column..column + 32` of `rows`.
struct Tiles<'a, F> {
    product: Product<'a, F>,
    column: usize,
    rows: Range<usize>,
    winners: Option<&'a mut Winners>,
    room: &'a mut Room,
}

impl<F: Factors> Kernel for Tiles<'_, F> {
    const HAS_INT8: bool = F::HAS_INT8;
    const HAS_BF16: bool = F::HAS_BF16;
    const HAS_TILES: bool = F::HAS_TILES;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut row = self.rows.start;
        // The tile that is multiplied and not finished, and where it is.
        let mut open: Option<(Range<usize>, usize)> = None;
        let mut half = 0;
        while row < self.rows.end {
            let left = self.rows.end - row;
            let height = if S::HAS_TILES && left > ROWS / 2 {
                self.tile::<S, ROWS>(s, row, half)
            } else if S::HAS_TILES {
                self.tile::<S, { ROWS / 2 }>(s, row, half)
            } else if S::ROWS >= 12 && left >= 12 {
                self.tile::<S, 12>(s, row, half)
            } else if S::ROWS >= 8 && left >= 8 {
                self.tile::<S, 8>(s, row, half)
            } else if S::ROWS >= 4 && left >= 4 {
                self.tile::<S, 4>(s, row, half)
            } else if left >= 2 {
                self.tile::<S, 2>(s, row, half)
            } else {
                self.tile::<S, 1>(s, row, half)
            };
            // A tile of a matrix unit may reach beyond the rows that there are.
            let mut done = Some((row..row + height.min(left), half));
            if S::HAS_TILES && !self.is_gated() {
                // The unit multiplies while the tile before is finished.
                std::mem::swap(&mut open, &mut done);
                half = 1 - half;
            }
            if let Some((rows, half)) = done {
                self.finish(s, rows, half);
            }
            row += height;
        }
        if let Some((rows, half)) = open {
            self.finish(s, rows, half);
        }
    }
}

/// What is made of the columns of one panel.
#[derive(Debug)]
struct Half {
    tile: Tile<ROWS>,
    /// As for [`Factors::multiply`].
    spare: Tile<ROWS>,
}

impl Default for Half {
    fn default() -> Self {
        Self {
            tile: [[0.0; PANEL]; ROWS],
            spare: [[0.0; PANEL]; ROWS],
        }
    }
}

/// Room for two tiles: one and what gates it, or one and the next.
#[derive(Debug, Default)]
pub(super) struct Room {
    halves: [Half; 2],
    /// What is made of the columns of a panel that are not those of the tile.
    beside: Half,
}

/// Returns the first `M` rows.
#[inline(always)]
fn rows_of<const M: usize>(tile: &mut Tile<ROWS>) -> &mut Tile<M> {
    tile.first_chunk_mut().expect("no tile is taller")
}

impl<F: Factors> Tiles<'_, F> {
    #[inline(always)]
    fn is_gated(&self) -> bool {
        matches!(self.product.epilogue, Epilogue::Gated(_))
    }

    /// Multiplies `M` rows from `row` on, into `half`, and for what gates them into the second; returns `M`.
    #[inline(always)]
    fn tile<S: Simd, const M: usize>(&mut self, s: S, row: usize, half: usize) -> usize {
        let part = self.part(row);
        let half = &mut self.room.halves[half];
        self.product
            .multiply::<S, M>(s, row, self.column, half, part);
        if self.is_gated() {
            self.up_half::<S, M>(s, row);
        }
        M
    }

    /// Returns the first column of the second half of the product, and how far it lies inside its panel.
    #[inline(always)]
    fn up_column(&self) -> (usize, usize) {
        let first = self.product.factors.n() / 2 + self.column;
        (first, first % PANEL)
    }

    /// Multiplies `M` rows for the columns `n / 2 + column..` of the product.
    #[inline(always)]
    fn up_half<S: Simd, const M: usize>(&mut self, s: S, row: usize) {
        let (first, offset) = self.up_column();
        let part = self.part(row);
        let (product, room) = (&self.product, &mut *self.room);
        let (up, beside) = (&mut room.halves[1], &mut room.beside);
        let panel = first - offset;
        product.multiply::<S, M>(s, row, panel, up, part);
        if offset == 0 {
            return;
        }
        let has_next = panel + PANEL < product.factors.n();
        if has_next {
            product.multiply::<S, M>(s, row, panel + PANEL, beside, part);
        }
        for r in 0..M.min(self.rows.end - row) {
            product.settle(s, row + r, panel, up, r);
            if has_next {
                product.settle(s, row + r, panel + PANEL, beside, r);
            }
            up.tile[r].copy_within(offset.., 0);
            up.tile[r][PANEL - offset..].copy_from_slice(&beside.tile[r][..offset]);
        }
    }

    /// Returns which of the task's tiles begins at `row`, and how many there are: its thread's next task is mostly
    /// the next panel.
    #[inline(always)]
    fn part(&self, row: usize) -> (usize, usize) {
        let tile = (row - self.rows.start) / ROWS;
        (tile, self.rows.len().div_ceil(ROWS))
    }

    /// Finishes the tile of `rows` in `half`, and stores it.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, rows: Range<usize>, half: usize) {
        let (up_column, up_offset) = self.up_column();
        for (r, row) in rows.enumerate() {
            let [first, second] = &mut self.room.halves;
            if let Epilogue::Gated(act) = self.product.epilogue {
                self.product.settle(s, row, self.column, first, r);
                // Else it is settled.
                if up_offset == 0 {
                    self.product.settle(s, row, up_column, second, r);
                }
                gate_row(s, act, &mut first.tile[r], &second.tile[r]);
            } else {
                let half = if half == 0 { first } else { second };
                self.product.settle(s, row, self.column, half, r);
            }
            self.finish_row(s, row, half, r);
        }
    }

    /// Applies the rest of the epilogue to row `r` of the tile, and stores it as `row`.
    #[inline(always)]
    fn finish_row<S: Simd>(&mut self, s: S, row: usize, half: usize, r: usize) {
        let values = &mut self.room.halves[half].tile[r];
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
        if let (Some(picks), Some(winners)) = (&self.product.picks, &mut self.winners)
            && picks.rows[row]
        {
            return winners.see(s, row, self.column, picks.vocabulary, values);
        }
        // SAFETY: the task alone has these columns of these rows.
        unsafe { out.write(s, row, self.column, &values[..width]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_covers_every_row_and_panel_once() {
        for workers in [1, 2, 3, 5, 16] {
            for rows in [0, 1, 31, 32, 33, 96, 97, 200, 256, 700, 1000] {
                for (panels, shares) in [(1, workers), (7, workers), (7, 1)] {
                    let cut = Cut::new(rows, panels, workers, shares);
                    let mut seen = vec![0; rows * panels];
                    for task in 0..cut.first_task(workers) {
                        let (range, panel) = cut.task(task);
                        assert!(range.len() <= ROW_BLOCK.next_multiple_of(ROWS));
                        range.for_each(|row| seen[row * panels + panel] += 1);
                    }
                    assert!(seen.iter().all(|&times| times == 1), "{cut:?}");
                    let firsts: Vec<usize> = (0..=workers).map(|it| cut.first_task(it)).collect();
                    assert!(firsts[0] == 0 && firsts.is_sorted(), "{cut:?}: {firsts:?}");
                }
            }
        }
    }
}

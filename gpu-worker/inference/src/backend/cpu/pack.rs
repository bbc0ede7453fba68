//! Weights in the order in which products read them.
//!
//! A matrix is cut into panels of [`PANEL`] output columns. Inside a panel lie, for each lane of the summed
//! dimension, the lanes of all 32 columns side by side: `[k / PACK][32][PACK]`. Missing columns are zero.
#![expect(unsafe_code, reason = "panels are packed in parallel")]

use std::sync::{Mutex, PoisonError};

use super::element::Element;
use super::packed_file::{PackedFile, Values};
use super::pool::Pool;
use super::storage::{Aligned, Shared};
use crate::backend::{BackendError, WeightDesc, WeightSource};
use crate::model::ModelError;

/// Columns of a panel: two AVX-512 registers.
pub(super) const PANEL: usize = 32;

/// Lanes of the summed dimension that a matrix unit takes at once: 64 bytes of a row. Rows of weights and of
/// activations are padded to whole steps with zeros.
pub(super) const STEP: usize = 16;

/// Returns the lanes of a row of `k` values, `pack` of them in a lane, in whole [`STEP`]s.
pub(super) fn lanes_of(k: usize, pack: usize) -> usize {
    k.div_ceil(pack).next_multiple_of(STEP)
}

/// Rows that a matrix unit takes at once: so many rows of activations can be read, whatever they hold.
pub(super) const ROWS: usize = 32;

/// Calls `pack` on all threads with each panel's number and its columns, rows of the matrix in f32: never more
/// than a few panels exist in f32.
pub(super) fn read_panels(
    pool: &Pool,
    desc: &WeightDesc,
    source: &dyn WeightSource,
    pack: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<(), BackendError> {
    let (n, k) = (desc.n, desc.k);
    assert_eq!(
        (source.rows(), source.cols()),
        (n, k),
        "the source of {} has its shape",
        desc.name
    );
    let failure: Mutex<Option<ModelError>> = Mutex::new(None);
    pool.run(n.div_ceil(PANEL), &|_, panel| {
        let columns = PANEL.min(n - panel * PANEL);
        let mut rows = vec![0.0; columns * k];
        match source.read_rows(panel * PANEL, &mut rows) {
            Ok(()) => pack(panel, &mut rows),
            Err(error) => {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(source) => Err(BackendError::Weight {
            name: desc.name.clone(),
            source,
        }),
        None => Ok(()),
    }
}

/// Returns the values of the panels of a matrix of `n` rows of `k` values.
pub(super) fn packed_len<E: Element>(n: usize, k: usize) -> usize {
    n.div_ceil(PANEL) * lanes_of(k, E::PACK) * PANEL * E::PACK
}

/// One packed matrix.
#[derive(Debug)]
pub(super) struct Packed<E> {
    /// Output features.
    pub(super) n: usize,
    /// Lanes of the summed dimension: `k`, divided by the values of a lane, in whole [`STEP`]s.
    pub(super) units: usize,
    k: usize,
    values: Values<E>,
}

impl<E: Element> Packed<E> {
    /// Takes a matrix from `file`, or reads and packs it, panel by panel.
    pub(super) fn load(
        pool: &Pool,
        file: &mut PackedFile,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Self, BackendError> {
        let (n, k) = (desc.n, desc.k);
        let panel_len = packed_len::<E>(1, k);
        let len = packed_len::<E>(n, k);
        let name = format!("{} {}", desc.name, E::NAME);
        let values = match file.blob(&name, len) {
            Some(values) => values,
            None => {
                let mut values = Aligned::zeros(len, &desc.name)?.on_huge_pages();
                let shared = Shared::new(&mut values);
                read_panels(pool, desc, source, |panel, rows| {
                    // SAFETY: each task has its own panel.
                    let out = unsafe { shared.part(panel * panel_len..(panel + 1) * panel_len) };
                    pack_panel(rows, k, out);
                })?;
                file.keep(&name, &values);
                Values::Owned(values)
            }
        };
        Ok(Self::new(n, k, values))
    }

    /// Makes a matrix of `n` rows of `k` values out of whole panels.
    pub(super) fn new(n: usize, k: usize, values: Values<E>) -> Self {
        let units = lanes_of(k, E::PACK);
        assert_eq!(
            values.len(),
            packed_len::<E>(n, k),
            "the panels hold the matrix"
        );
        Self {
            n,
            units,
            k,
            values,
        }
    }

    /// Returns one panel.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> &[E] {
        let len = self.units * PANEL * E::PACK;
        &self.values[panel * len..][..len]
    }

    /// Adds row `row` of the matrix, times `scale`, to `out`.
    pub(super) fn add_row(&self, row: usize, scale: f32, out: &mut [f32]) {
        assert!(
            row < self.n && out.len() == self.k,
            "the table has the row and its width"
        );
        let panel = self.panel(row / PANEL);
        let lanes = panel.chunks_exact(PANEL * E::PACK);
        for (out, lane) in out.chunks_mut(E::PACK).zip(lanes) {
            for (out, x) in out.iter_mut().zip(&lane[row % PANEL * E::PACK..]) {
                *out += x.to_f32() * scale;
            }
        }
    }

    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.values.bytes()
    }
}

/// Packs rows of `k` values, the columns of one panel.
pub(super) fn pack_panel<E: Element>(rows: &[f32], k: usize, out: &mut [E]) {
    for (column, row) in rows.chunks_exact(k.max(1)).enumerate() {
        for (i, &x) in row.iter().enumerate() {
            out[(i / E::PACK * PANEL + column) * E::PACK + i % E::PACK] = E::from_f32(x);
        }
    }
}

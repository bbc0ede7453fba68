//! Weights of the int8 recipe: which features are kept in bf16, and how the rest is rounded and packed.
#![expect(unsafe_code, reason = "panels are packed in parallel")]

use half::bf16;

use super::{CODE_MAX, CODE_ZERO, QUAD, block_of, mix};
use crate::backend::cpu::pack::{PANEL, Packed, lanes_of, pack_panel, packed_len, read_panels};
use crate::backend::cpu::packed_file::{PackedFile, Values};
use crate::backend::cpu::pool::Pool;
use crate::backend::cpu::storage::{Aligned, Shared};
use crate::backend::{BackendError, WeightDesc, WeightSource};

/// Which features of a row are kept in bf16, and how the rest closes up.
#[derive(Debug)]
pub(in crate::backend::cpu) struct Split {
    /// Features of a row.
    k: usize,
    /// Features that are kept.
    pub(super) kept: Vec<usize>,
    /// Features from the end of the row, and the places of kept ones that they take.
    moves: Vec<(usize, usize)>,
}

impl Split {
    /// Keeps the features whose byte in `mask` is not 0.
    pub(super) fn new(mask: &[u8]) -> Self {
        let (kept, rest): (Vec<_>, Vec<_>) = (0..mask.len()).partition(|&i| mask[i] != 0);
        let end = rest.len();
        let free = kept.iter().copied().filter(|&to| to < end);
        let moved = rest.iter().copied().filter(|&from| from >= end);
        Self {
            k: mask.len(),
            moves: moved.zip(free).collect(),
            kept,
        }
    }

    /// Returns the number of features that become codes.
    pub(super) fn coded(&self) -> usize {
        self.k - self.kept.len()
    }

    /// Copies the kept features of `row` to `kept`, and returns the rest, which is moved together.
    #[inline(always)]
    pub(super) fn apply<'a, T: Copy>(&self, row: &'a mut [T], kept: &mut [T]) -> &'a mut [T] {
        for (to, &from) in kept.iter_mut().zip(&self.kept) {
            *to = row[from];
        }
        for &(from, to) in &self.moves {
            row[to] = row[from];
        }
        &mut row[..self.coded()]
    }
}

/// One packed matrix: panels of `[k / 4][32][4]` codes, as in [`super::pack`], and the kept features beside them.
#[derive(Debug)]
pub(in crate::backend::cpu) struct PackedInt8 {
    /// Output features.
    pub(in crate::backend::cpu) n: usize,
    /// Quads of the summed dimension, as [`lanes_of`] rounds them up.
    pub(in crate::backend::cpu) units: usize,
    /// What is in codes, and what in `kept`.
    pub(in crate::backend::cpu) split: Split,
    /// The kept features, if there are any.
    pub(in crate::backend::cpu) kept: Option<Packed<bf16>>,
    pub(super) codes: Values<i8>,
    /// What one code is worth: `[n]`, padded to whole panels.
    pub(super) scales: Values<f32>,
    /// The first value of each column's sum: `[n]`, padded to whole panels.
    pub(super) offsets: Values<i32>,
}

impl PackedInt8 {
    /// Takes a matrix from `file`, or reads, rounds and packs it, panel by panel.
    pub(in crate::backend::cpu) fn load(
        pool: &Pool,
        file: &mut PackedFile,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Self, BackendError> {
        let name = |part| format!("{} int8 {part}", desc.name);
        let blobs = file.blob(&name("kept features"), desc.k).and_then(|mask| {
            let split = Split::new(&mask);
            let columns = desc.n.next_multiple_of(PANEL);
            let kept = packed_len::<bf16>(desc.n, split.kept.len());
            Some(Blobs {
                codes: file.blob(
                    &name("codes"),
                    columns * lanes_of(split.coded(), QUAD) * QUAD,
                )?,
                scales: file.blob(&name("scales"), columns)?,
                offsets: file.blob(&name("offsets"), columns)?,
                kept: file.blob(&name("kept"), kept)?,
                split,
            })
        });
        let blobs = match blobs {
            Some(blobs) => blobs,
            None => {
                let mut mask = vec![0; desc.k];
                for &feature in &desc.salient {
                    mask[feature as usize] = 1;
                }
                let blobs = pack(pool, desc, source, Split::new(&mask))?;
                file.keep(&name("kept features"), &mask);
                file.keep(&name("codes"), &blobs.codes);
                file.keep(&name("scales"), &blobs.scales);
                file.keep(&name("offsets"), &blobs.offsets);
                file.keep(&name("kept"), &blobs.kept);
                blobs
            }
        };
        let kept = blobs.split.kept.len();
        Ok(Self {
            n: desc.n,
            units: lanes_of(blobs.split.coded(), QUAD),
            kept: (kept > 0).then(|| Packed::new(desc.n, kept, blobs.kept)),
            split: blobs.split,
            codes: blobs.codes,
            scales: blobs.scales,
            offsets: blobs.offsets,
        })
    }

    /// Returns the input features.
    pub(in crate::backend::cpu) fn features(&self) -> usize {
        self.split.k
    }

    /// Returns the number of kept features.
    pub(in crate::backend::cpu) fn kept_features(&self) -> usize {
        self.split.kept.len()
    }

    /// Returns the bytes that it holds.
    pub(in crate::backend::cpu) fn bytes(&self) -> usize {
        self.codes.bytes()
            + self.scales.bytes()
            + self.offsets.bytes()
            + self.kept.as_ref().map_or(0, Packed::bytes)
    }
}

/// The parts of a packed matrix.
struct Blobs {
    split: Split,
    codes: Values<i8>,
    scales: Values<f32>,
    offsets: Values<i32>,
    kept: Values<bf16>,
}

fn pack(
    pool: &Pool,
    desc: &WeightDesc,
    source: &dyn WeightSource,
    split: Split,
) -> Result<Blobs, BackendError> {
    let columns = desc.n.next_multiple_of(PANEL);
    let panel_len = lanes_of(split.coded(), QUAD) * PANEL * QUAD;
    let kept_panel_len = packed_len::<bf16>(1, split.kept.len());
    let mut codes = Aligned::zeros(columns / PANEL * panel_len, &desc.name)?.on_huge_pages();
    let mut scales = Aligned::zeros(columns, &desc.name)?;
    let mut offsets = Aligned::zeros(columns, &desc.name)?;
    let mut kept = Aligned::zeros(columns / PANEL * kept_panel_len, &desc.name)?.on_huge_pages();
    let (shared_codes, shared_scales, shared_offsets, shared_kept) = (
        Shared::new(&mut codes),
        Shared::new(&mut scales),
        Shared::new(&mut offsets),
        Shared::new(&mut kept),
    );
    read_panels(pool, desc, source, |panel, rows| {
        let columns = panel * PANEL..(panel + 1) * PANEL;
        // SAFETY: each task has its own panel.
        let codes = unsafe { shared_codes.part(panel * panel_len..(panel + 1) * panel_len) };
        // SAFETY: as above.
        let scales = unsafe { shared_scales.part(columns.clone()) };
        // SAFETY: as above.
        let offsets = unsafe { shared_offsets.part(columns) };
        let kept_panel = panel * kept_panel_len..(panel + 1) * kept_panel_len;
        // SAFETY: as above.
        let kept_panel = unsafe { shared_kept.part(kept_panel) };
        let width = split.kept.len();
        let mut kept_rows = vec![0.0; rows.len() / desc.k.max(1) * width];
        let block = block_of(split.coded());
        for (column, row) in rows.chunks_exact_mut(desc.k.max(1)).enumerate() {
            let rest = split.apply(row, &mut kept_rows[column * width..][..width]);
            mix(rest, block);
            // The matrix is symmetric, and its square is `block` times the identity.
            scales[column] = pack_column(rest, column, codes, &mut offsets[column]) / block as f32;
        }
        pack_panel(&kept_rows, width, kept_panel);
    })?;
    Ok(Blobs {
        split,
        codes: Values::Owned(codes),
        scales: Values::Owned(scales),
        offsets: Values::Owned(offsets),
        kept: Values::Owned(kept),
    })
}

/// Writes the codes of one column of a panel and its offset, and returns its scale.
fn pack_column(row: &[f32], column: usize, codes: &mut [i8], offset: &mut i32) -> f32 {
    let greatest = row
        .iter()
        .fold(0.0, |greatest: f32, x| greatest.max(x.abs()));
    if row.iter().any(|x| !x.is_finite()) {
        return f32::NAN;
    }
    let scale = greatest / CODE_MAX;
    let inverse = if scale > 0.0 { scale.recip() } else { 0.0 };
    let mut sum = 0;
    for (i, x) in row.iter().enumerate() {
        let code = (x * inverse).round_ties_even().clamp(-CODE_MAX, CODE_MAX) as i8;
        sum += i32::from(code);
        codes[(i / QUAD * PANEL + column) * QUAD + i % QUAD] = code;
    }
    *offset = -CODE_ZERO * sum;
    scale
}

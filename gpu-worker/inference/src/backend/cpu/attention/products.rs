//! The two products of a tile, with all of its sums in registers: queries with keys, weights with values.
//!
//! A sum runs in ascending order whatever the tile's height `M` and the number of vectors `N` are.
#![expect(unsafe_code, reason = "unchecked loads in the inner loops")]

use super::{BLOCK, BLOCK_PAGES};
use crate::backend::cpu::element::Element;
use crate::backend::cpu::simd::Simd;
use crate::backend::state::HOST_PAGE_TOKENS;

/// Lanes of the widest vector.
pub(super) const LANES_MAX: usize = 16;

/// Pairs of the tallest tile whose sums are in vector registers: with four vectors each, they fill 24 of 32.
pub(super) const VECTOR_TILE: usize = 6;

/// Pairs of the tallest tile: the rows of a matrix unit's.
pub(super) const TILE: usize = 16;

/// One value for each token of a block, on cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Row<T>(pub(super) [T; BLOCK]);

/// Writes the scores of `height` queries with the keys of some pages, by a matrix unit.
#[inline(always)]
pub(super) fn score_tile<S: Simd, E: Element>(
    s: S,
    height: usize,
    queries: &[E],
    keys: &[&[E]],
    scores: &mut [Row<f32>; TILE],
) {
    let dk = queries.len() / height;
    // The page that is there twice makes scores that nobody reads.
    let last = keys.len() - 1;
    let keys = std::array::from_fn(|page| E::bf16s(keys[page.min(last)]));
    s.score_tile(height, E::bf16s(queries), dk, keys, flat_mut(scores));
}

/// `sums = sums * shrink + weights * values` for the `height` rows of `sums`, by a matrix unit.
///
/// `spare` has room for a page's values.
#[inline(always)]
pub(super) fn accumulate_tile<S: Simd, E: Element>(
    s: S,
    height: usize,
    sums: &mut [f32],
    values: &[&[E]],
    weights: Weights<'_, E>,
    spare: &mut [E],
) {
    let dv = sums.len() / height;
    if weights.shrinks {
        for (sums, &shrink) in sums.chunks_exact_mut(dv).zip(weights.shrink) {
            let mut at = 0;
            while at < dv {
                let sum = s.mul(s.load(&sums[at..]), s.splat(shrink));
                s.store(sum, &mut sums[at..]);
                at += S::LANES;
            }
        }
    }
    // Nothing is behind the last lane: whatever lies there, not even a zero weight may meet it.
    let page_units = HOST_PAGE_TOKENS / E::PACK;
    let last = values.len() - 1;
    let written = (weights.units - last * page_units) * dv * E::PACK;
    let mut pages = [E::bf16s(values[last]); BLOCK_PAGES];
    for (page, values) in pages.iter_mut().zip(&values[..last]) {
        *page = E::bf16s(values);
    }
    if written < spare.len() {
        spare[..written].copy_from_slice(&values[last][..written]);
        spare[written..].fill(E::default());
        pages[last] = E::bf16s(spare);
    }
    let weights = E::bf16s(flat(weights.rows));
    s.accumulate_tile(height, weights, &pages[..=last], dv, sums);
}

/// Returns the values of all rows, side by side.
#[inline(always)]
fn flat<T>(rows: &[Row<T>; TILE]) -> &[T] {
    // SAFETY: a row is as large as its tokens, which fill whole cache lines.
    unsafe { std::slice::from_raw_parts(rows.as_ptr().cast(), TILE * BLOCK) }
}

/// As [`flat`].
#[inline(always)]
fn flat_mut<T>(rows: &mut [Row<T>; TILE]) -> &mut [T] {
    // SAFETY: as for `flat`.
    unsafe { std::slice::from_raw_parts_mut(rows.as_mut_ptr().cast(), TILE * BLOCK) }
}

/// Writes the scores of `M` queries with the keys of some pages.
#[inline(always)]
pub(super) fn score<S: Simd, E: Element, const M: usize>(
    s: S,
    queries: &[E],
    keys: &[&[E]],
    scores: &mut [Row<f32>; TILE],
) {
    if S::LANES == HOST_PAGE_TOKENS {
        match *keys {
            [a, b, c, d] => dots::<S, E, M, 4>(s, queries, [a, b, c, d], 0, scores),
            // The page that is there twice makes scores that nobody reads.
            [a, b, c] => dots::<S, E, M, 4>(s, queries, [a, b, c, c], 0, scores),
            [a, b] => dots::<S, E, M, 2>(s, queries, [a, b], 0, scores),
            [a] => dots::<S, E, M, 2>(s, queries, [a, a], 0, scores),
            _ => unreachable!("a block has up to four pages, and a pair sees some of it"),
        }
    } else {
        for (page, keys) in keys.iter().enumerate() {
            let halves = [keys, &keys[S::LANES * E::PACK..]];
            dots::<S, E, M, 2>(s, queries, halves, page * HOST_PAGE_TOKENS, scores);
        }
    }
}

/// Writes the scores of `M` queries with `N` vectors of keys to the columns `column..` of `scores`.
/// Each panel begins with a vector's first token.
#[inline(always)]
fn dots<S: Simd, E: Element, const M: usize, const N: usize>(
    s: S,
    queries: &[E],
    panels: [&[E]; N],
    column: usize,
    scores: &mut [Row<f32>; TILE],
) {
    let line = HOST_PAGE_TOKENS * E::PACK;
    let dk = queries.len() / M;
    let units = dk / E::PACK;
    for panel in panels {
        assert!(
            panel.len() + line >= units * line + S::LANES * E::PACK,
            "a key block has as many lanes as a query"
        );
    }
    let mut sums = [[s.splat(0.0); N]; M];
    for unit in 0..units {
        let mut keys = [E::load(s, panels[0]); N];
        for (key, panel) in keys.iter_mut().zip(panels) {
            let at = unit * line;
            // SAFETY: `unit < units`, and the panel's length was asserted.
            *key = E::load(s, unsafe {
                panel.get_unchecked(at..at + S::LANES * E::PACK)
            });
        }
        for (r, sums) in sums.iter_mut().enumerate() {
            let at = r * dk + unit * E::PACK;
            // SAFETY: `r < M` and `unit < units`: inside `queries`.
            let query = E::splat(s, unsafe { queries.get_unchecked(at..at + E::PACK) });
            for (sum, &key) in sums.iter_mut().zip(&keys) {
                *sum = E::dot(s, *sum, key, query);
            }
        }
    }
    for (Row(scores), sums) in scores.iter_mut().zip(sums) {
        for (n, sum) in sums.into_iter().enumerate() {
            s.store(sum, &mut scores[column + n * S::LANES..]);
        }
    }
}

/// The weights of a tile.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a, E> {
    /// `[M, tokens]`.
    pub(super) rows: &'a [Row<E>; TILE],
    /// Lanes of tokens.
    pub(super) units: usize,
    /// What the sums so far shrink by: `[M]`.
    pub(super) shrink: &'a [f32; LANES_MAX],
    /// Whether any of them is not 1.
    pub(super) shrinks: bool,
}

/// `sums = sums * shrink + weights * values` for the `M` rows of `sums`.
#[inline(always)]
pub(super) fn accumulate<S: Simd, E: Element, const M: usize>(
    s: S,
    sums: &mut [f32],
    values: &[&[E]],
    weights: Weights<'_, E>,
) {
    let dv = sums.len() / M;
    let mut column = 0;
    if S::LANES == LANES_MAX {
        while column + 4 * S::LANES <= dv {
            columns::<S, E, M, 4>(s, sums, column, values, weights);
            column += 4 * S::LANES;
        }
        while column < dv {
            columns::<S, E, M, 1>(s, sums, column, values, weights);
            column += S::LANES;
        }
    } else {
        while column < dv {
            columns::<S, E, M, 2>(s, sums, column, values, weights);
            column += 2 * S::LANES;
        }
    }
}

/// [`accumulate`] for the `N` vectors of columns from `column` on.
#[inline(always)]
fn columns<S: Simd, E: Element, const M: usize, const N: usize>(
    s: S,
    sums: &mut [f32],
    column: usize,
    values: &[&[E]],
    weights: Weights<'_, E>,
) {
    let dv = sums.len() / M;
    let mut acc = [[s.splat(0.0); N]; M];
    for (r, acc) in acc.iter_mut().enumerate() {
        for (n, acc) in acc.iter_mut().enumerate() {
            let sum = s.load(&sums[r * dv + column + n * S::LANES..]);
            *acc = s.mul(sum, s.splat(weights.shrink[r]));
        }
    }
    let page_units = HOST_PAGE_TOKENS / E::PACK;
    let width = S::LANES * E::PACK;
    assert!(values.len() <= BLOCK_PAGES && column + N * S::LANES <= dv);
    for (page, values) in values.iter().enumerate() {
        assert!(values.len() >= page_units * dv * E::PACK);
        let first = page * page_units;
        for unit in first..weights.units.min(first + page_units) {
            let lane = ((unit - first) * dv + column) * E::PACK;
            let mut lanes = [E::load(s, values); N];
            for (n, lanes) in lanes.iter_mut().enumerate() {
                let at = lane + n * width;
                // SAFETY: a unit of the page, and columns below `dv`: inside the block, as asserted.
                *lanes = E::load(s, unsafe { values.get_unchecked(at..at + width) });
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let at = unit * E::PACK;
                // SAFETY: a unit of no more than four pages: inside a row.
                let weight = unsafe { weights.rows[r].0.get_unchecked(at..at + E::PACK) };
                let weight = E::splat(s, weight);
                for (acc, &lanes) in acc.iter_mut().zip(&lanes) {
                    *acc = E::dot(s, *acc, lanes, weight);
                }
            }
        }
    }
    for (r, acc) in acc.into_iter().enumerate() {
        for (n, acc) in acc.into_iter().enumerate() {
            s.store(acc, &mut sums[r * dv + column + n * S::LANES..]);
        }
    }
}

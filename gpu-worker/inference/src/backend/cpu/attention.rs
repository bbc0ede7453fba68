//! Attention over pages.
//!
//! A pair is one query row with one query head. A task has up to [`PAIRS`] pairs of one sequence and one KV
//! head, and walks the sequence's pages from position 0 with a running maximum, sum and accumulator. A page is
//! a tile: what a pair computes for a page depends on the pair's position and the page alone, so decodes,
//! chunks and recomputed rows give the same bits.
#![expect(unsafe_code, reason = "tasks write disjoint columns of the output")]

use std::ops::Range;

use super::element::Element;
use super::isa::{Isa, Kernel};
use super::kv::{BlockShape, Layer};
use super::math;
use super::simd::Simd;
use super::storage::{Output, Plane, write_values};
use crate::backend::exp::exp;
use crate::backend::scalar::visible;
use crate::backend::state::HOST_PAGE_TOKENS;
use crate::backend::{Attend, StepSequence};

/// Pairs of a task: enough to read a page once for many, few enough to stay in the first-level cache.
pub(super) const PAIRS: usize = 32;

/// Tokens of a tile.
const TILE: usize = HOST_PAGE_TOKENS;

/// Working memory of one thread.
#[derive(Debug)]
pub(super) struct Scratch<E> {
    /// `[PAIRS, dk]`.
    queries: Vec<E>,
    /// Weighted sums of values: `[PAIRS, dv]`.
    sums: Vec<f32>,
    /// Greatest score so far.
    max: [f32; PAIRS],
    /// Sum of weights so far.
    total: [f32; PAIRS],
    /// Positions that each pair sees.
    seen: [(usize, usize); PAIRS],
    /// A value block without the tokens that the sequence does not have.
    tail: Vec<E>,
}

impl<E: Element> Scratch<E> {
    /// Makes working memory for blocks of `shape`.
    pub(super) fn new(shape: BlockShape) -> Self {
        Self {
            queries: vec![E::default(); PAIRS * shape.dk],
            sums: vec![0.0; PAIRS * shape.dv],
            max: [0.0; PAIRS],
            total: [0.0; PAIRS],
            seen: [(0, 0); PAIRS],
            tail: vec![E::default(); shape.value_len()],
        }
    }
}

/// The operands that all tasks of one call share.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, E> {
    /// The call.
    pub(super) op: &'a Attend,
    /// `[R, ...]`: queries first.
    pub(super) qkv: &'a Plane<f32>,
    /// The layer's pages.
    pub(super) layer: &'a Layer<E>,
    /// Their shape.
    pub(super) shape: BlockShape,
    /// One a query head.
    pub(super) sinks: Option<&'a [f32]>,
    /// `[R, q_heads * dv]`.
    pub(super) out: Output<'a>,
}

/// What one task computes.
pub(super) struct Span<'a> {
    /// The sequence.
    pub(super) sequence: StepSequence,
    /// Its pages.
    pub(super) pages: &'a [u32],
    /// The KV head.
    pub(super) kv_head: usize,
    /// Pairs: row by row, and in each row the query heads of the KV head.
    pub(super) pairs: Range<usize>,
}

/// Computes one task.
pub(super) fn run<E: Element>(
    isa: Isa,
    operands: Operands<'_, E>,
    span: Span<'_>,
    scratch: &mut Scratch<E>,
) {
    isa.run(Task {
        operands,
        span,
        scratch,
    });
}

struct Task<'a, E> {
    operands: Operands<'a, E>,
    span: Span<'a>,
    scratch: &'a mut Scratch<E>,
}

impl<E: Element> Kernel for Task<'_, E> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let count = self.span.pairs.len();
        self.load_queries(s, count);
        let layer = self.operands.layer;
        let kv_len = self.span.sequence.kv_len as usize;
        let tiles = self.scratch.seen[0].0 / TILE..self.scratch.seen[count - 1].1.div_ceil(TILE);
        // Later pairs see later positions: the pairs that see a tile are neighbours.
        let (mut first, mut last) = (0, 0);
        for tile in tiles {
            let start = tile * TILE;
            while self.scratch.seen[first].1 <= start {
                first += 1;
            }
            while last < count && self.scratch.seen[last].0 < start + TILE {
                last += 1;
            }
            let page = self.span.pages[tile] as usize;
            let shape = self.operands.shape;
            let at = (page * shape.heads + self.span.kv_head) * shape.len();
            let (keys, values) = layer.blocks[at..at + shape.len()].split_at(shape.key_len());
            if start + TILE > kv_len {
                self.copy_tail(values, kv_len - start);
            }
            let mut pair = first;
            while pair < last {
                let left = last - pair;
                pair += if S::ROWS >= 8 && left >= 8 {
                    self.tile::<S, 8>(s, pair, start, keys, values)
                } else if S::ROWS >= 4 && left >= 4 {
                    self.tile::<S, 4>(s, pair, start, keys, values)
                } else if S::ROWS >= 4 && left == 3 {
                    self.tile::<S, 3>(s, pair, start, keys, values)
                } else if left >= 2 {
                    self.tile::<S, 2>(s, pair, start, keys, values)
                } else {
                    self.tile::<S, 1>(s, pair, start, keys, values)
                };
            }
        }
        self.finish(s, count);
    }
}

impl<E: Element> Task<'_, E> {
    /// Returns the row of a pair inside its sequence, and its query head.
    #[inline(always)]
    fn row_and_head(&self, pair: usize) -> (usize, usize) {
        let heads = &self.operands.op.heads;
        let group = heads.q_heads / heads.kv_heads;
        let pair = self.span.pairs.start + pair;
        (pair / group, self.span.kv_head * group + pair % group)
    }

    #[inline(always)]
    fn load_queries<S: Simd>(&mut self, s: S, count: usize) {
        let dk = self.operands.op.heads.dk;
        let width = self.operands.shape.dk;
        let qkv = self.operands.qkv;
        let sequence = self.span.sequence;
        for pair in 0..count {
            let (row, head) = self.row_and_head(pair);
            let position = (sequence.kv_len - sequence.q_len) as usize + row;
            let seen = visible(self.operands.op, position, sequence.kv_len as usize);
            self.scratch.seen[pair] = (seen.start, seen.end);
            let row = qkv.row(sequence.q_start as usize + row);
            write_values(
                s,
                &row[head * dk..][..dk],
                &mut self.scratch.queries[pair * width..][..dk],
            );
            self.scratch.max[pair] = f32::NEG_INFINITY;
            self.scratch.total[pair] = 0.0;
        }
        self.scratch.sums[..count * self.operands.shape.dv].fill(0.0);
    }

    /// Copies a value block with zeros from token `tokens` on: there, a page holds what it held before.
    #[inline(always)]
    fn copy_tail(&mut self, values: &[E], tokens: usize) {
        let dv = self.operands.shape.dv;
        self.scratch.tail.copy_from_slice(values);
        for token in tokens..TILE {
            let lane = &mut self.scratch.tail[token / E::PACK * dv * E::PACK..][..dv * E::PACK];
            let mut at = token % E::PACK;
            while at < lane.len() {
                lane[at] = E::default();
                at += E::PACK;
            }
        }
    }

    /// Adds one tile to `M` pairs from `pair` on; returns `M`.
    #[inline(always)]
    fn tile<S: Simd, const M: usize>(
        &mut self,
        s: S,
        pair: usize,
        start: usize,
        keys: &[E],
        values: &[E],
    ) -> usize {
        let mut scores = [[0.0; TILE]; M];
        self.score(s, pair, keys, &mut scores);
        let mut weights = [[E::default(); TILE]; M];
        let mut shrink = [0.0; M];
        for r in 0..M {
            self.mask(pair + r, start, &mut scores[r]);
            let max_before = self.scratch.max[pair + r];
            let max = greatest(&scores[r], max_before);
            shrink[r] = exp(max_before - max);
            let mut total = 0.0;
            let mut at = 0;
            while at < TILE {
                let weight = math::exp(s, s.sub(s.load(&scores[r][at..]), s.splat(max)));
                E::store(s, weight, &mut weights[r][at..]);
                total += s.sum(weight);
                at += S::LANES;
            }
            self.scratch.max[pair + r] = max;
            self.scratch.total[pair + r] = self.scratch.total[pair + r] * shrink[r] + total;
        }
        if start + TILE > self.span.sequence.kv_len as usize {
            let tail = std::mem::take(&mut self.scratch.tail);
            self.accumulate(s, pair, &tail, &weights, &shrink);
            self.scratch.tail = tail;
        } else {
            self.accumulate(s, pair, values, &weights, &shrink);
        }
        M
    }

    /// Computes the scaled and capped scores of `M` pairs with the 16 keys of a tile.
    #[inline(always)]
    fn score<S: Simd, const M: usize>(
        &self,
        s: S,
        pair: usize,
        keys: &[E],
        scores: &mut [[f32; TILE]; M],
    ) {
        let width = self.operands.shape.dk;
        let queries = &self.scratch.queries[pair * width..][..M * width];
        let op = self.operands.op;
        let mut token = 0;
        while token < TILE {
            // Two sums a pair, of even and odd lanes: one alone would wait for itself.
            let mut sums = [[s.splat(0.0); 2]; M];
            let mut twos = keys.chunks_exact(2 * TILE * E::PACK);
            let mut at = 0;
            for two in twos.by_ref() {
                let (even, odd) = two.split_at(TILE * E::PACK);
                let even = E::load(s, &even[token * E::PACK..]);
                let odd = E::load(s, &odd[token * E::PACK..]);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let query = r * width + at;
                    // SAFETY: `r < M`, and a key block has as many lanes as a query: inside `queries`.
                    let first = unsafe { queries.get_unchecked(query..query + E::PACK) };
                    // SAFETY: as above, one lane on.
                    let second =
                        unsafe { queries.get_unchecked(query + E::PACK..query + 2 * E::PACK) };
                    sums[0] = E::dot(s, sums[0], even, E::splat(s, first));
                    sums[1] = E::dot(s, sums[1], odd, E::splat(s, second));
                }
                at += 2 * E::PACK;
            }
            let rest = twos.remainder();
            if !rest.is_empty() {
                let key = E::load(s, &rest[token * E::PACK..]);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let query = E::splat(s, &queries[r * width + at..]);
                    sums[0] = E::dot(s, sums[0], key, query);
                }
            }
            for (scores, sums) in scores.iter_mut().zip(sums) {
                let sum = s.add(sums[0], sums[1]);
                let mut score = s.mul(sum, s.splat(op.scale));
                if let Some(cap) = op.softcap {
                    score = s.mul(math::tanh(s, s.div(score, s.splat(cap))), s.splat(cap));
                }
                s.store(score, &mut scores[token..]);
            }
            token += S::LANES;
        }
    }

    /// Hides the tokens of a tile that a pair does not see.
    #[inline(always)]
    fn mask(&self, pair: usize, start: usize, scores: &mut [f32; TILE]) {
        let (first, end) = self.scratch.seen[pair];
        if first > start || end < start + TILE {
            for (i, score) in scores.iter_mut().enumerate() {
                if !(first..end).contains(&(start + i)) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// `sums = sums * shrink + weights * values` for `M` pairs.
    #[inline(always)]
    fn accumulate<S: Simd, const M: usize>(
        &mut self,
        s: S,
        pair: usize,
        values: &[E],
        weights: &[[E; TILE]; M],
        shrink: &[f32; M],
    ) {
        let dv = self.operands.shape.dv;
        let sums = &mut self.scratch.sums[pair * dv..][..M * dv];
        let mut column = 0;
        while column < dv {
            let mut acc = [s.splat(0.0); M];
            for r in 0..M {
                acc[r] = s.mul(s.load(&sums[r * dv + column..]), s.splat(shrink[r]));
            }
            for (unit, lanes) in values.chunks_exact(dv * E::PACK).enumerate() {
                let value = E::load(s, &lanes[column * E::PACK..]);
                for r in 0..M {
                    let weight = E::splat(s, &weights[r][unit * E::PACK..]);
                    acc[r] = E::dot(s, acc[r], value, weight);
                }
            }
            for r in 0..M {
                s.store(acc[r], &mut sums[r * dv + column..]);
            }
            column += S::LANES;
        }
    }

    /// Divides by the sum of weights, and writes the pairs to the output.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, count: usize) {
        let dv = self.operands.op.heads.dv;
        for pair in 0..count {
            let (row, head) = self.row_and_head(pair);
            let mut total = self.scratch.total[pair];
            let mut factor = 1.0;
            if let Some(sinks) = self.operands.sinks {
                let max = if sinks[head] > self.scratch.max[pair] {
                    sinks[head]
                } else {
                    self.scratch.max[pair]
                };
                factor = exp(self.scratch.max[pair] - max);
                total = total * factor + exp(sinks[head] - max);
            }
            factor /= total;
            let sums = &mut self.scratch.sums[pair * self.operands.shape.dv..][..dv];
            for sum in sums.iter_mut() {
                // Adding zero turns -0 into +0: the sign of a zero depends on values that are multiplied by 0.
                *sum = *sum * factor + 0.0;
            }
            let row = self.span.sequence.q_start as usize + row;
            // SAFETY: a row and a head belong to one task.
            unsafe { self.operands.out.write(s, row, head * dv, sums) };
        }
    }
}

/// Returns the greatest of a tile's scores and `max`.
#[inline(always)]
fn greatest(scores: &[f32; TILE], max: f32) -> f32 {
    let mut lanes = *scores;
    let mut width = TILE / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = if lanes[i] > lanes[i + width] {
                lanes[i]
            } else {
                lanes[i + width]
            };
        }
        width /= 2;
    }
    if max > lanes[0] { max } else { lanes[0] }
}

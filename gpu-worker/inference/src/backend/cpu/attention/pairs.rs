//! What a task keeps of its pairs, and how a block of tokens is added to it.
//!
//! A tile of `M` pairs gets its scores from sums in registers, then its weights (an online softmax in powers of
//! two, at most one rescale a block), then its weighted values, again in registers.
//!
//! The bits of a pair are a function of its query and of what it sees: hidden tokens weigh exactly 0, pages
//! that a tile leaves out would have, and each lane has its own sum in ascending order whatever `M` is.

use std::ops::Range;

use super::products::{
    LANES_MAX, Row, TILE, VECTOR_TILE, Weights, accumulate, accumulate_tile, score, score_tile,
};
use super::schedule::PAIRS;
use super::{BLOCK, BLOCK_PAGES};
use crate::backend::BackendError;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::kv::BlockShape;
use crate::backend::cpu::math;
use crate::backend::cpu::simd::{Simd, prefetch};
use crate::backend::cpu::storage::Aligned;
use crate::backend::state::HOST_PAGE_TOKENS;

/// The score of a hidden token, and the reference before the first block: so low that its weight is
/// exactly 0 beside any score of a number, and not so low that a difference of two is no number.
const HIDDEN: f32 = -1e30;

/// How far above the reference a score may be before it becomes the reference, in powers of two: weights are then up
/// to 256, and the sums so far mostly need not shrink.
/// Source: Dao et al. 2025, FlashAttention-4, rescaling with a threshold.
const HEADROOM: f32 = 8.0;

/// The offsets of a block's tokens.
static OFFSETS: Row<f32> = {
    let mut offsets = [0.0; BLOCK];
    let mut token = 0;
    while token < BLOCK {
        offsets[token] = token as f32;
        token += 1;
    }
    Row(offsets)
};

/// The pages of one block of tokens, for one KV head.
#[derive(Debug)]
pub(super) struct Block<'a, E> {
    /// Position of the first token.
    pub(super) start: usize,
    /// Key blocks, `[dk / PACK][16][PACK]` each; empty behind the sequence's last page.
    pub(super) keys: [&'a [E]; BLOCK_PAGES],
    /// Value blocks, `[16 / PACK][dv][PACK]` each.
    pub(super) values: [&'a [E]; BLOCK_PAGES],
}

impl<E> Block<'_, E> {
    /// No tokens.
    pub(super) const EMPTY: Self = Self {
        start: 0,
        keys: [&[]; BLOCK_PAGES],
        values: [&[]; BLOCK_PAGES],
    };
}

/// The running state of up to [`PAIRS`] pairs.
#[derive(Debug)]
pub(super) struct Pairs<E> {
    shape: BlockShape,
    /// Scaled by the call's factor and log2(e): scores are then exponents of two. `[PAIRS, dk]`.
    pub(super) queries: Aligned<E>,
    /// Weighted sums of values: `[PAIRS, dv]`.
    pub(super) sums: Aligned<f32>,
    /// Sums of weights, lane by lane: `[PAIRS, LANES_MAX]`.
    totals: Aligned<f32>,
    /// The score that a pair's weights are relative to: its greatest so far, or at most [`HEADROOM`] below.
    pub(super) reference: [f32; PAIRS],
    /// Positions that each pair sees: the first, and the one after the last.
    pub(super) seen: [(usize, usize); PAIRS],
    /// Of the tile in work.
    scores: [Row<f32>; TILE],
    /// Of the tile in work.
    weights: [Row<E>; TILE],
    /// What the sums of the tile in work shrink by.
    shrink: [f32; LANES_MAX],
    /// Room for the values of a page.
    spare: Aligned<E>,
    /// Rows that the matrix unit is set to.
    height: usize,
}

impl<E: Element> Pairs<E> {
    /// Makes room for blocks of `shape`.
    pub(super) fn new(shape: BlockShape) -> Result<Self, BackendError> {
        let what = "attention";
        Ok(Self {
            shape,
            queries: Aligned::zeros(PAIRS * shape.dk, what)?,
            sums: Aligned::zeros(PAIRS * shape.dv, what)?,
            totals: Aligned::zeros(PAIRS * LANES_MAX, what)?,
            reference: [HIDDEN; PAIRS],
            seen: [(0, 0); PAIRS],
            scores: [Row([0.0; BLOCK]); TILE],
            weights: [Row([E::default(); BLOCK]); TILE],
            shrink: [0.0; LANES_MAX],
            spare: Aligned::zeros(shape.value_len(), what)?,
            height: 0,
        })
    }

    /// Returns the bytes behind its pointers.
    pub(super) fn bytes(&self) -> usize {
        self.queries.bytes() + self.sums.bytes() + self.totals.bytes() + self.spare.bytes()
    }

    /// Begins a task: whatever the matrix unit was set to, it is not now.
    pub(super) fn begin(&mut self) {
        self.height = 0;
    }

    /// Starts pair `pair`, which sees the positions `seen`, with `query` times `factor`.
    #[inline(always)]
    pub(super) fn start<S: Simd>(
        &mut self,
        s: S,
        pair: usize,
        query: &[f32],
        factor: f32,
        seen: Range<usize>,
    ) {
        // The padding stays as it was made, zero.
        let scaled = &mut self.queries[pair * self.shape.dk..][..query.len()];
        let mut at = 0;
        while at + S::LANES <= query.len() {
            let x = s.mul(s.load(&query[at..]), s.splat(factor));
            E::store(s, x, &mut scaled[at..]);
            at += S::LANES;
        }
        while at < query.len() {
            scaled[at] = E::from_f32(query[at] * factor);
            at += 1;
        }
        self.sums[pair * self.shape.dv..][..self.shape.dv].fill(0.0);
        self.totals[pair * LANES_MAX..][..LANES_MAX].fill(0.0);
        self.reference[pair] = HIDDEN;
        self.seen[pair] = (seen.start, seen.end);
    }

    /// Returns a pair's sum of weights.
    #[inline(always)]
    pub(super) fn total<S: Simd>(&self, s: S, pair: usize) -> f32 {
        s.sum(s.load(&self.totals[pair * LANES_MAX..]))
    }

    /// Adds a block to the pairs `pairs`, each of which sees some of its tokens, and asks for the block `ahead`
    /// while it computes. `softcap` is in powers of two.
    #[inline(always)]
    pub(super) fn add<S: Simd>(
        &mut self,
        s: S,
        pairs: Range<usize>,
        block: &Block<'_, E>,
        ahead: &Block<'_, E>,
        softcap: Option<f32>,
    ) {
        let mut pair = pairs.start;
        while pair < pairs.end {
            let height = tile_height::<S>(pairs.end - pair);
            if S::HAS_TILES && self.height != height {
                self.height = height;
                s.set_attention_rows(height);
            }
            let ahead = if pair == pairs.start {
                ahead
            } else {
                &Block::EMPTY
            };
            self.add_to_tile(s, pair..pair + height, block, ahead, softcap);
            pair += height;
        }
    }

    #[inline(always)]
    fn add_to_tile<S: Simd>(
        &mut self,
        s: S,
        tile: Range<usize>,
        block: &Block<'_, E>,
        ahead: &Block<'_, E>,
        softcap: Option<f32>,
    ) {
        let (mut first, mut end) = self.seen[tile.start];
        for &(pair_first, pair_end) in &self.seen[tile.clone()] {
            first = first.min(pair_first);
            end = end.max(pair_end);
        }
        // Pages that none of the pairs sees may be gone, and tokens behind the last are not written.
        let first_page = first.saturating_sub(block.start) / HOST_PAGE_TOKENS;
        let start = block.start + first_page * HOST_PAGE_TOKENS;
        let tokens = end.min(block.start + BLOCK) - start;
        let pages = first_page..first_page + tokens.div_ceil(HOST_PAGE_TOKENS);
        let queries = &self.queries[tile.start * self.shape.dk..tile.end * self.shape.dk];
        let (keys, values) = (&block.keys[pages.clone()], &block.values[pages]);
        // In two halves, so that the queue of misses has time to empty.
        ahead.keys.into_iter().for_each(prefetch);
        match tile.len() {
            height if S::HAS_TILES => score_tile(s, height, queries, keys, &mut self.scores),
            VECTOR_TILE if S::ROWS >= 12 => {
                score::<S, E, VECTOR_TILE>(s, queries, keys, &mut self.scores)
            }
            4 if S::ROWS >= 4 => score::<S, E, 4>(s, queries, keys, &mut self.scores),
            3 if S::ROWS >= 4 => score::<S, E, 3>(s, queries, keys, &mut self.scores),
            2 => score::<S, E, 2>(s, queries, keys, &mut self.scores),
            _ => score::<S, E, 1>(s, queries, keys, &mut self.scores),
        }
        if let Some(cap) = softcap {
            self.cap(s, tile.len(), keys.len() * HOST_PAGE_TOKENS, cap);
        }
        let shrinks = self.weigh(s, tile.clone(), start, keys.len() * HOST_PAGE_TOKENS);
        let sums = &mut self.sums[tile.start * self.shape.dv..tile.end * self.shape.dv];
        let weights = Weights {
            rows: &self.weights,
            units: tokens.div_ceil(E::PACK),
            shrink: &self.shrink,
            shrinks,
        };
        ahead.values.into_iter().for_each(prefetch);
        match tile.len() {
            height if S::HAS_TILES => {
                accumulate_tile(s, height, sums, values, weights, &mut self.spare);
            }
            VECTOR_TILE if S::ROWS >= 12 => {
                accumulate::<S, E, VECTOR_TILE>(s, sums, values, weights)
            }
            4 if S::ROWS >= 4 => accumulate::<S, E, 4>(s, sums, values, weights),
            3 if S::ROWS >= 4 => accumulate::<S, E, 3>(s, sums, values, weights),
            2 => accumulate::<S, E, 2>(s, sums, values, weights),
            _ => accumulate::<S, E, 1>(s, sums, values, weights),
        }
    }

    /// Caps the scores of the first `height` rows and `tokens` tokens.
    #[inline(always)]
    fn cap<S: Simd>(&mut self, s: S, height: usize, tokens: usize, cap: f32) {
        for Row(scores) in &mut self.scores[..height] {
            let mut at = 0;
            while at < tokens {
                let score = s.div(s.load(&scores[at..]), s.splat(cap));
                s.store(s.mul(math::tanh(s, score), s.splat(cap)), &mut scores[at..]);
                at += S::LANES;
            }
        }
    }

    /// Turns the scores of a tile with `tokens` tokens from position `start` on into weights. Returns whether any sums
    /// so far shrink.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, s: S, tile: Range<usize>, start: usize, tokens: usize) -> bool {
        let mut shrinks = false;
        for (row, pair) in tile.clone().enumerate() {
            let Row(scores) = &mut self.scores[row];
            let (first, end) = self.seen[pair];
            if first > start || end < start + tokens {
                let first = first.saturating_sub(start) as f32;
                let end = end.min(start + tokens) - start;
                hide(s, &mut scores[..tokens], first, end as f32);
            }
            let mut greatest = s.load(&scores[..]);
            let mut at = S::LANES;
            while at < tokens {
                greatest = s.max(greatest, s.load(&scores[at..]));
                at += S::LANES;
            }
            let greatest = s.greatest(greatest);
            let before = self.reference[pair];
            // A NaN never becomes the reference: it reaches the sums by its own weight.
            let is_above = greatest > before + HEADROOM;
            self.shrink[row] = if is_above { before - greatest } else { 0.0 };
            if is_above {
                self.reference[pair] = greatest;
                shrinks = true;
            }
        }
        let shrink = math::exp2(s, s.load(&self.shrink));
        s.store(shrink, &mut self.shrink);
        for (row, pair) in tile.enumerate() {
            let (Row(scores), Row(weights)) = (&self.scores[row], &mut self.weights[row]);
            let reference = s.splat(self.reference[pair]);
            let mut sum = s.splat(0.0);
            let mut at = 0;
            while at < tokens {
                let exponent = s.sub(s.load(&scores[at..]), reference);
                let weight = if E::IS_BF16 {
                    math::exp2_coarse(s, exponent)
                } else {
                    math::exp2(s, exponent)
                };
                E::store(s, weight, &mut weights[at..]);
                sum = s.add(sum, weight);
                at += S::LANES;
            }
            let total = &mut self.totals[pair * LANES_MAX..][..LANES_MAX];
            s.store(s.fma(s.load(total), s.splat(self.shrink[row]), sum), total);
        }
        shrinks
    }
}

/// Returns the height of the next tile of `left` pairs: one of those that are compiled.
#[inline(always)]
fn tile_height<S: Simd>(left: usize) -> usize {
    match left {
        left if S::HAS_TILES => left.min(TILE),
        VECTOR_TILE.. if S::ROWS >= 12 => VECTOR_TILE,
        // Three and two keep more sums in flight than four and one.
        5 if S::ROWS >= 4 => 3,
        4.. if S::ROWS >= 4 => 4,
        3 if S::ROWS >= 4 => 3,
        2.. => 2,
        _ => 1,
    }
}

/// Hides the scores before token `first` and from token `end` on.
#[inline(always)]
fn hide<S: Simd>(s: S, scores: &mut [f32], first: f32, end: f32) {
    let hidden = s.splat(HIDDEN);
    let mut at = 0;
    while at < scores.len() {
        let token = s.load(&OFFSETS.0[at..]);
        let score = s.select_less(token, s.splat(end), s.load(&scores[at..]), hidden);
        let score = s.select_less(token, s.splat(first), hidden, score);
        s.store(score, &mut scores[at..]);
        at += S::LANES;
    }
}

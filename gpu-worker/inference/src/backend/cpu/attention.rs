//! Attention over pages.
//!
//! A pair is one query row with one query head. A task walks blocks of [`BLOCK`] tokens from position 0 on with
//! a running reference, sum and accumulator for each of its pairs: first the blocks that its sequences have in
//! common, for all pairs together, then each sequence's own. What a pair computes for a block depends on the
//! pair's position and the block alone, so decodes, chunks, recomputed rows and any grouping give the same bits.
#![expect(unsafe_code, reason = "tasks write disjoint columns of the output")]

mod pairs;
mod products;
mod schedule;
#[cfg(test)]
mod tests;

use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

use self::pairs::{Block, Pairs};
use self::schedule::Assignment;
pub(super) use self::schedule::Schedule;
use super::element::Element;
use super::isa::{Isa, Kernel};
use super::kv::{BlockShape, Layer};
use super::pack::STEP;
use super::simd::Simd;
use super::storage::{Output, Plane};
use crate::backend::exp::exp;
use crate::backend::scalar::visible;
use crate::backend::state::HOST_PAGE_TOKENS;
use crate::backend::{Attend, BackendError, PageTable, StepSequence};

/// Pages of a block: as many vectors of scores as fill the registers of a tile of six pairs.
const BLOCK_PAGES: usize = 4;

/// Tokens of a block.
const BLOCK: usize = BLOCK_PAGES * HOST_PAGE_TOKENS;

/// Asking for the next block early pays for up to this many pairs: decodes.
const PAIRS_AHEAD: usize = 12;

/// Working memory of one thread.
#[derive(Debug)]
pub(super) struct Scratch<E>(Pairs<E>);

impl<E: Element> Scratch<E> {
    /// Makes working memory for blocks of `shape`.
    pub(super) fn new(shape: BlockShape) -> Result<Self, BackendError> {
        Ok(Self(Pairs::new(shape)?))
    }

    /// Returns the bytes behind its pointers.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// The operands that all tasks of one call share.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, E> {
    /// The call.
    pub(super) op: &'a Attend,
    /// `[R, ...]`: queries first.
    pub(super) qkv: &'a Plane<f32>,
    /// The step's sequences.
    pub(super) sequences: &'a [StepSequence],
    /// Their pages.
    pub(super) table: &'a PageTable,
    /// What the pages hold.
    pub(super) layer: &'a Layer<E>,
    /// Shape of a page's blocks.
    pub(super) shape: BlockShape,
    /// One a query head.
    pub(super) sinks: Option<&'a [f32]>,
    /// `[R, q_heads * dv]`.
    pub(super) out: Output<'a>,
}

/// Computes task `task` of `schedule`.
pub(super) fn run<E: Element>(
    isa: Isa,
    operands: Operands<'_, E>,
    schedule: &Schedule,
    task: usize,
    scratch: &mut Scratch<E>,
) {
    // A matrix unit takes whole steps of keys.
    let is_whole = operands.shape.dk.is_multiple_of(E::PACK * STEP);
    let isa = if isa == Isa::Amx && !is_whole {
        Isa::Avx512Bf16
    } else {
        isa
    };
    isa.run(Task {
        operands,
        assignment: schedule.task(task),
        pairs: &mut scratch.0,
    });
}

struct Task<'a, E> {
    operands: Operands<'a, E>,
    assignment: Assignment<'a>,
    pairs: &'a mut Pairs<E>,
}

/// Neighbouring pairs that walk the same blocks.
struct Walk {
    pairs: Range<usize>,
    /// The sequence whose pages they read.
    sequence: usize,
    blocks: Range<usize>,
}

impl<E: Element> Kernel for Task<'_, E> {
    const HAS_BF16: bool = E::IS_BF16;
    const HAS_TILES: bool = E::IS_BF16;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.pairs.begin();
        let count = self.start(s);
        let softcap = self.operands.op.softcap.map(|cap| cap * LOG2_E);
        let mut walk = Walk {
            pairs: 0..count,
            sequence: self.assignment.parts[0].sequence,
            blocks: 0..self.assignment.common,
        };
        let mut next = self.own_walk(0, 0);
        for part in 1.. {
            // Later pairs of a sequence see later positions: those that see a block are neighbours.
            let (mut first, mut end) = (walk.pairs.start, walk.pairs.start);
            for index in walk.blocks.clone() {
                let block = self.block(walk.sequence, index);
                while self.pairs.seen[first].1 <= block.start {
                    first += 1;
                }
                while end < walk.pairs.end && self.pairs.seen[end].0 < block.start + BLOCK {
                    end += 1;
                }
                let ahead = match &next {
                    // Many pairs take so long that the memory's delay is nothing beside.
                    _ if end - first > PAIRS_AHEAD => Block::EMPTY,
                    _ if index + 1 < walk.blocks.end => self.block(walk.sequence, index + 1),
                    Some(next) => self.block(next.sequence, next.blocks.start),
                    None => Block::EMPTY,
                };
                self.pairs.add(s, first..end, &block, &ahead, softcap);
            }
            let Some(own) = next else {
                break;
            };
            next = self.own_walk(part, own.pairs.end);
            walk = own;
        }
        self.finish(s);
    }
}

impl<'a, E: Element> Task<'a, E> {
    /// Loads the queries; returns the number of pairs.
    #[inline(always)]
    fn start<S: Simd>(&mut self, s: S) -> usize {
        let Operands {
            op, qkv, sequences, ..
        } = self.operands;
        let mut pair = 0;
        for part in self.assignment.parts {
            let sequence = &sequences[part.sequence];
            let len = sequence.kv_len as usize;
            for row in part.rows() {
                let position = len - sequence.q_len as usize + row;
                let seen = visible(op, position, len);
                let values = qkv.row(sequence.q_start as usize + row);
                for head in self.assignment.heads.clone() {
                    let query = &values[head * op.heads.dk..][..op.heads.dk];
                    self.pairs
                        .start(s, pair, query, op.scale * LOG2_E, seen.clone());
                    pair += 1;
                }
            }
        }
        pair
    }

    /// Returns the walk of a part, whose first pair is `first`, over what its sequence has for itself; none
    /// after the last part.
    #[inline(always)]
    fn own_walk(&self, part: usize, first: usize) -> Option<Walk> {
        let part = self.assignment.parts.get(part)?;
        let pairs = first..first + part.rows().len() * self.assignment.heads.len();
        let seen = &self.pairs.seen[pairs.clone()];
        let blocks = seen[0].0 / BLOCK..seen[seen.len() - 1].1.div_ceil(BLOCK);
        Some(Walk {
            pairs,
            sequence: part.sequence,
            blocks: blocks.start.max(self.assignment.common)..blocks.end,
        })
    }

    /// Returns the blocks of keys and values of the tokens `64 * block..` of a sequence.
    #[inline(always)]
    fn block(&self, sequence: usize, block: usize) -> Block<'a, E> {
        let Operands {
            table,
            layer,
            shape,
            ..
        } = self.operands;
        let pages = table.starts[sequence] as usize..table.starts[sequence + 1] as usize;
        let pages = &table.pages[pages][block * BLOCK_PAGES..];
        let mut found = Block {
            start: block * BLOCK,
            ..Block::EMPTY
        };
        for (i, &page) in pages.iter().take(BLOCK_PAGES).enumerate() {
            let at = (page as usize * shape.heads + self.assignment.kv_head) * shape.len();
            (found.keys[i], found.values[i]) =
                layer.blocks[at..at + shape.len()].split_at(shape.key_len());
        }
        found
    }

    /// Divides by the sums of weights, and writes the pairs to the output.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S) {
        let Operands {
            op,
            sequences,
            shape,
            ..
        } = self.operands;
        let dv = op.heads.dv;
        let mut pair = 0;
        for part in self.assignment.parts {
            for row in part.rows() {
                let row = sequences[part.sequence].q_start as usize + row;
                for head in self.assignment.heads.clone() {
                    let factor = self.factor(s, pair, head);
                    let sums = &mut self.pairs.sums[pair * shape.dv..][..dv];
                    for sum in sums.iter_mut() {
                        // Adding zero turns -0 into +0: the sign of a zero depends on values that are
                        // multiplied by 0.
                        *sum = *sum * factor + 0.0;
                    }
                    // SAFETY: a row and a head belong to one task.
                    unsafe { self.operands.out.write(s, row, head * dv, sums) };
                    pair += 1;
                }
            }
        }
    }

    /// Returns what the weighted sum of values of a pair is multiplied by.
    #[inline(always)]
    fn factor<S: Simd>(&self, s: S, pair: usize, head: usize) -> f32 {
        let total = self.pairs.total(s, pair);
        let Some(sinks) = self.operands.sinks else {
            return 1.0 / total;
        };
        let sink = sinks[head];
        let score = self.pairs.reference[pair] * LN_2;
        let max = if sink > score { sink } else { score };
        let factor = exp(score - max);
        factor / (total * factor + exp(sink - max))
    }
}

//! How the attention of a step is cut into tasks.
//!
//! A unit has rows of one or more sequences; a task is a unit with one slice of the query heads. Cuts decide
//! who computes a row and who reads keys and values together, never what a row's result is.

use std::cmp::Reverse;
use std::ops::Range;

use super::BLOCK;
use crate::backend::cpu::pool::first_row;
use crate::backend::scalar::visible;
use crate::backend::state::{HOST_PAGE_TOKENS, StepState};
use crate::backend::{Attend, HeadLayout, Mask, StepSequence};

/// Pairs (a query row with a query head) of a task. For heads of 64 in bf16, their queries (6 KB) and sums
/// (12 KB) pass through the first-level cache once a block, beside the block's own 16 KB.
pub(super) const PAIRS: usize = 48;

/// Tasks that each thread gets at least, if there is enough to do: the last one to end is then not late by
/// more than a part of this.
const TASKS_PER_WORKER: usize = 16;

/// Pairs times blocks of a task that is worth its own claim: some microseconds.
const WORK_MIN: usize = 24;

/// Rows of one sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Index of the sequence in the step.
    pub(super) sequence: usize,
    /// First row inside the sequence.
    first: u32,
    /// Row after the last.
    end: u32,
}

impl Part {
    /// Returns its rows inside the sequence.
    pub(super) fn rows(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }
}

/// Parts that one task computes.
#[derive(Debug, Clone, Copy)]
struct Unit {
    /// Parts, as a range of [`Schedule::parts`].
    first: usize,
    end: usize,
    /// Leading blocks that all of its sequences have in common, and all of its rows see.
    common: usize,
    /// Pairs times blocks.
    work: usize,
    /// The thread that has the first row.
    owner: usize,
}

/// What the cuts depend on beside the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    heads: HeadLayout,
    mask: Mask,
    window: Option<usize>,
}

/// One task.
#[derive(Debug)]
pub(super) struct Assignment<'a> {
    /// Its rows.
    pub(super) parts: &'a [Part],
    /// Leading blocks to walk for all of them together.
    pub(super) common: usize,
    /// The KV head.
    pub(super) kv_head: usize,
    /// Query heads of the KV head.
    pub(super) heads: Range<usize>,
}

/// The tasks of a step's attention, made once for all layers that are alike.
#[derive(Debug, Default)]
pub(in crate::backend::cpu) struct Schedule {
    made_for: Option<Key>,
    parts: Vec<Part>,
    units: Vec<Unit>,
    /// For each sequence, whether a shared prefix has placed its rows.
    placed: Vec<bool>,
    /// Query heads of a slice, the last of a KV head excepted.
    width: usize,
    /// Pairs of the last unit.
    open_pairs: usize,
    /// Work at which a unit is full.
    work_max: usize,
}

impl Schedule {
    /// Reserves room for steps of up to `rows` rows.
    pub(in crate::backend::cpu) fn with_rows(rows: usize) -> Self {
        Self {
            parts: Vec::with_capacity(rows),
            // One for each row, for each shared prefix, and for what is left.
            units: Vec::with_capacity(2 * rows + 1),
            placed: Vec::with_capacity(rows),
            ..Self::default()
        }
    }

    /// Forgets the tasks: another step begins.
    pub(in crate::backend::cpu) fn clear(&mut self) {
        self.made_for = None;
    }

    /// Returns the bytes that it holds.
    pub(in crate::backend::cpu) fn bytes(&self) -> usize {
        self.parts.capacity() * size_of::<Part>()
            + self.units.capacity() * size_of::<Unit>()
            + self.placed.capacity()
    }

    /// Makes the tasks of `op` for `workers` threads, unless the step has them already.
    pub(in crate::backend::cpu) fn prepare(
        &mut self,
        op: &Attend,
        state: &StepState,
        workers: usize,
    ) {
        let key = Key {
            heads: op.heads,
            mask: op.mask,
            window: op.window,
        };
        if self.made_for == Some(key) {
            return;
        }
        self.made_for = Some(key);
        self.parts.clear();
        self.units.clear();
        let sequences = &state.inputs.sequences;
        let width = key.width();
        self.width = width;
        let row_work = |sequence: &StepSequence, row| width * row_blocks(op, sequence, row).len();
        let all: usize = sequences
            .iter()
            .map(|sequence| {
                let rows = 0..sequence.q_len as usize;
                rows.map(|row| row_work(sequence, row)).sum::<usize>()
            })
            .sum();
        let slices = key.heads.kv_heads * key.slices();
        self.work_max = (all * slices / (workers * TASKS_PER_WORKER)).max(WORK_MIN);
        self.placed.clear();
        self.placed.resize(sequences.len(), false);
        for (pages, members) in state.shared_prefixes() {
            let common = common_blocks(op, sequences, pages, members);
            if common == 0 {
                continue;
            }
            self.open_unit(common);
            for &member in members {
                self.placed[member as usize] = true;
                self.place(op, sequences, member as usize);
            }
        }
        self.open_unit(0);
        for index in 0..sequences.len() {
            if !self.placed[index] {
                self.place(op, sequences, index);
            }
        }
        self.units.retain(|unit| unit.first < unit.end);
        for unit in &mut self.units {
            let part = self.parts[unit.first];
            let row = (sequences[part.sequence].q_start + part.first) as usize;
            // The first thread whose successor's rows begin later.
            let owner = |worker: &usize| first_row(state.rows(), workers, worker + 1) > row;
            unit.owner = (0..workers).find(owner).unwrap_or(0);
        }
        // The largest first: what is claimed last is small, and no thread waits long for it.
        self.units
            .sort_unstable_by_key(|unit| (unit.owner, Reverse(unit.work)));
    }

    /// Adds the rows of a sequence to the last unit, and to new ones once it is full.
    fn place(&mut self, op: &Attend, sequences: &[StepSequence], index: usize) {
        let sequence = &sequences[index];
        for row in 0..sequence.q_len {
            let mut last = self.units.len() - 1;
            let Unit { common, work, .. } = self.units[last];
            if self.open_pairs + self.width > PAIRS || work >= self.work_max {
                self.open_unit(common);
                last += 1;
            }
            let unit = &mut self.units[last];
            match self.parts[unit.first..].last_mut() {
                Some(part) if part.sequence == index => part.end += 1,
                Some(_) | None => self.parts.push(Part {
                    sequence: index,
                    first: row,
                    end: row + 1,
                }),
            }
            unit.end = self.parts.len();
            unit.work += self.width * row_blocks(op, sequence, row as usize).len();
            self.open_pairs += self.width;
        }
    }

    fn open_unit(&mut self, common: usize) {
        let at = self.parts.len();
        self.open_pairs = 0;
        self.units.push(Unit {
            first: at,
            end: at,
            common,
            work: 0,
            owner: 0,
        });
    }

    /// Returns the first of a thread's own tasks, those about its rows.
    pub(in crate::backend::cpu) fn first_task(&self, worker: usize) -> usize {
        let units = self.units.partition_point(|unit| unit.owner < worker);
        self.made_for
            .map_or(0, |key| units * key.heads.kv_heads * key.slices())
    }

    /// Returns a task.
    pub(super) fn task(&self, task: usize) -> Assignment<'_> {
        let key = self.made_for.expect("the step's tasks are made");
        let slices = key.slices();
        let unit = self.units[task / (key.heads.kv_heads * slices)];
        // The heads of a unit follow each other: their blocks lie side by side in a page.
        let kv_head = task / slices % key.heads.kv_heads;
        let group = key.group();
        let first = task % slices * key.width();
        let heads = first..group.min(first + key.width());
        Assignment {
            parts: &self.parts[unit.first..unit.end],
            common: unit.common,
            kv_head,
            heads: kv_head * group + heads.start..kv_head * group + heads.end,
        }
    }
}

impl Key {
    /// Returns the query heads of a KV head.
    fn group(&self) -> usize {
        self.heads.q_heads / self.heads.kv_heads
    }

    /// Returns into how many slices the query heads of a KV head are cut.
    fn slices(&self) -> usize {
        self.group().div_ceil(PAIRS)
    }

    /// Returns the query heads of a slice, the last excepted.
    fn width(&self) -> usize {
        self.group().div_ceil(self.slices())
    }
}

/// Returns the blocks that a row of a sequence walks.
fn row_blocks(op: &Attend, sequence: &StepSequence, row: usize) -> Range<usize> {
    let len = sequence.kv_len as usize;
    let seen = visible(op, len - sequence.q_len as usize + row, len);
    seen.start / BLOCK..seen.end.div_ceil(BLOCK)
}

/// Returns how many leading blocks the members of a share group have in common, and all of their rows see.
fn common_blocks(op: &Attend, sequences: &[StepSequence], pages: u32, members: &[u32]) -> usize {
    if op.window.is_some() {
        return 0;
    }
    let seen_by_all = members.iter().map(|&member| {
        let sequence = &sequences[member as usize];
        (sequence.kv_len - sequence.q_len) as usize
    });
    let shared = pages as usize * HOST_PAGE_TOKENS;
    seen_by_all.min().map_or(0, |seen| seen.min(shared) / BLOCK)
}

//! Steps over sequences, and how the suite compares what they give.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::backend::{PageTable, SampleRow, StepInputs, StepSequence};

/// Tokens and where their keys and values are.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    pub(super) slot: u32,
    pub(super) tokens: Vec<u32>,
    pub(super) pages: Vec<u32>,
}

/// Rows of a sequence that a step computes.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) sequence: usize,
    pub(super) rows: Range<usize>,
}

/// Log-probabilities of the whole vocabulary, by sequence and position.
pub(super) type Trace = BTreeMap<(usize, usize), Vec<f32>>;

/// Returns a sequence of `len` tokens that no other `seed` gives.
pub(super) fn sequence(seed: usize, len: usize, vocabulary: usize, pages: Range<u32>) -> Sequence {
    let token = |i: usize| ((i * 31 + seed * 17 + i * i * 7) % (vocabulary - 1)) as u32;
    Sequence {
        slot: seed as u32,
        tokens: (0..len).map(token).collect(),
        pages: pages.collect(),
    }
}

/// Returns a greedy row of `slot` that appends to its history.
pub(super) fn greedy(slot: u32, position: u32) -> SampleRow {
    SampleRow {
        seed: 1,
        logprobs: Some(0),
        ..SampleRow::greedy(slot, position)
    }
}

/// Builds the inputs of a step over `parts`, with logits for every row.
pub(super) fn step_inputs(
    sequences: &[Sequence],
    parts: &[Part],
    page_tokens: usize,
    groups: usize,
) -> StepInputs {
    let mut inputs = StepInputs::default();
    let mut table = PageTable {
        starts: vec![0],
        ..PageTable::default()
    };
    for part in parts {
        let sequence = &sequences[part.sequence];
        inputs.sequences.push(StepSequence {
            slot: sequence.slot,
            q_start: inputs.tokens.len() as u32,
            q_len: part.rows.len() as u32,
            kv_len: part.rows.end as u32,
        });
        for row in part.rows.clone() {
            inputs.tokens.push(sequence.tokens[row]);
            inputs.positions.push(row as u32);
            let page = sequence.pages[row / page_tokens] as usize;
            table
                .write_slots
                .push((page * page_tokens + row % page_tokens) as u32);
        }
        table
            .pages
            .extend(&sequence.pages[..part.rows.end.div_ceil(page_tokens)]);
        table.starts.push(table.pages.len() as u32);
    }
    inputs.page_tables = vec![table; groups];
    inputs.logit_rows = (0..inputs.tokens.len() as u32).collect();
    inputs.bucket = inputs.exact_bucket();
    inputs
}

/// Checks that two traces of the same rows are equal to the last bit.
pub(super) fn assert_same_bits(name: &str, left: &Trace, right: &Trace) {
    assert!(
        left.keys().eq(right.keys()),
        "{name}: the traces have the same rows"
    );
    for (key, left) in left {
        let same = left
            .iter()
            .zip(&right[key])
            .all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(
            same,
            "{name}: row {key:?} differs: {left:?} and {:?}",
            right[key]
        );
    }
}

/// Checks that two traces of the same rows agree within `tolerance`.
pub(super) fn assert_close(name: &str, got: &Trace, want: &Trace, tolerance: f32) {
    assert!(
        got.keys().eq(want.keys()),
        "{name}: the traces have the same rows"
    );
    for (key, got) in got {
        for (id, (a, b)) in got.iter().zip(&want[key]).enumerate() {
            assert!(
                (a - b).abs() <= tolerance,
                "{name}: row {key:?}, token {id}: {a} is not within {tolerance} of {b}"
            );
        }
    }
}

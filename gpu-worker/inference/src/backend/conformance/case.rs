//! Cases over whole decoders.

use super::model::{Decoder, PAGES};
use super::shape::{Shape, shapes};
use super::step::{Part, Sequence, Trace, assert_close, assert_same_bits, greedy, sequence};
use super::{MAX_ROWS, Suite, reference};
use crate::backend::{
    Backend, BackendError, SampleInputs, SampleRow, SlotReset, StepInputs, StepOutput,
};

/// Lengths of the sequences of a trace: within a page, at its border, past it, and many pages.
const LENGTHS: [usize; 4] = [5, 16, 17, 61];

pub(super) fn sequences(shape: &Shape) -> Vec<Sequence> {
    let mut first_page = 0;
    let make = |(seed, len): (usize, usize)| {
        let pages = first_page..first_page + len.div_ceil(16) as u32;
        first_page = pages.end;
        sequence(seed, len, shape.vocabulary, pages)
    };
    LENGTHS.into_iter().enumerate().map(make).collect()
}

/// Computes every sequence alone, all of its rows in one step.
pub(super) fn trace<B: Backend>(
    suite: &Suite<'_, B>,
    shape: &Shape,
) -> Result<Trace, BackendError> {
    let mut decoder = Decoder::load((suite.make)(), shape, suite.options)?;
    assert_eq!(
        decoder.backend.caps().page_tokens,
        16,
        "the suite lays pages out for 16 tokens"
    );
    Ok(alone(&mut decoder, &sequences(shape)))
}

pub(super) fn alone<B: Backend>(decoder: &mut Decoder<B>, sequences: &[Sequence]) -> Trace {
    let mut trace = Trace::new();
    for (i, sequence) in sequences.iter().enumerate() {
        trace.extend(decoder.observe(
            sequences,
            &[Part {
                sequence: i,
                rows: 0..sequence.tokens.len(),
            }],
        ));
    }
    trace
}

pub(super) fn matches_the_reference<B: Backend>(
    suite: &Suite<'_, B>,
    shape: &Shape,
) -> Result<(), BackendError> {
    let got = trace(suite, shape)?;
    let (backend, options) = reference();
    let mut scalar = Decoder::load(backend, shape, options)?;
    let want = alone(&mut scalar, &sequences(shape));
    assert_close(shape.name, &got, &want, suite.options.tolerance);
    Ok(())
}

/// Row by row, in chunks that end before, at and after page borders, and all sequences mixed in one step.
pub(super) fn rows_do_not_depend_on_the_schedule<B: Backend>(
    suite: &Suite<'_, B>,
    shape: &Shape,
) -> Result<(), BackendError> {
    let sequences = sequences(shape);
    let want = trace(suite, shape)?;
    for chunk in [1, 2, 7, 15, 16, 17, 31] {
        let mut decoder = Decoder::load((suite.make)(), shape, suite.options)?;
        let mut done = vec![0; sequences.len()];
        let mut got = Trace::new();
        while got.len() < want.len() {
            let mut left = MAX_ROWS;
            let mut parts = Vec::new();
            // Chunks of different lengths side by side: the second sequence decodes, the others advance.
            for (i, sequence) in sequences.iter().enumerate() {
                let len = if i == 1 { 1 } else { chunk }
                    .min(sequence.tokens.len() - done[i])
                    .min(left);
                if len > 0 {
                    parts.push(Part {
                        sequence: i,
                        rows: done[i]..done[i] + len,
                    });
                    done[i] += len;
                    left -= len;
                }
            }
            got.extend(decoder.observe(&sequences, &parts));
        }
        assert_same_bits(&format!("{}, chunks of {chunk}", shape.name), &got, &want);
    }
    Ok(())
}

pub(super) fn shared_pages_give_the_same_rows<B: Backend>(
    suite: &Suite<'_, B>,
) -> Result<(), BackendError> {
    let shape = &shapes()[0];
    let prefix = 32;
    let first = sequence(0, 50, shape.vocabulary, 0..4);
    let mut second = sequence(1, 45, shape.vocabulary, 4..7);
    second.tokens[..prefix].copy_from_slice(&first.tokens[..prefix]);
    let mut decoder = Decoder::load((suite.make)(), shape, suite.options)?;
    let own = [first.clone(), second.clone()];
    let mut want = decoder.observe(
        &own,
        &[Part {
            sequence: 1,
            rows: 0..45,
        }],
    );
    want.retain(|&(_, row), _| row >= prefix);

    let mut decoder = Decoder::load((suite.make)(), shape, suite.options)?;
    second.pages = vec![0, 1, 9];
    let shared = [first, second];
    decoder.observe(
        &shared,
        &[Part {
            sequence: 0,
            rows: 0..50,
        }],
    );
    let got = decoder.observe(
        &shared,
        &[Part {
            sequence: 1,
            rows: prefix..45,
        }],
    );
    assert_same_bits("prefix hits", &got, &want);
    Ok(())
}

/// Fills every page and every row of every buffer with NaN, and then computes as if nothing had been.
pub(super) fn stale_memory_is_never_read<B: Backend>(
    suite: &Suite<'_, B>,
) -> Result<(), BackendError> {
    for shape in shapes().into_iter().filter(|shape| !shape.tied) {
        let mut decoder = match Decoder::load((suite.make)(), &shape, suite.options) {
            Err(BackendError::Unsupported { .. }) => continue,
            loaded => loaded?,
        };
        let nan = shape.vocabulary as u32 - 1;
        for first_page in (0..PAGES as u32).step_by(MAX_ROWS / 16) {
            let mut poison = sequence(
                0,
                MAX_ROWS,
                shape.vocabulary,
                first_page..first_page + MAX_ROWS as u32 / 16,
            );
            poison.tokens.fill(nan);
            let inputs = decoder.inputs(
                &[poison],
                &[Part {
                    sequence: 0,
                    rows: 0..MAX_ROWS,
                }],
            );
            let rows = (0..MAX_ROWS as u32).map(|row| greedy(0, row)).collect();
            let output = decoder.step(
                &inputs,
                &SampleInputs {
                    rows,
                    vocabulary: shape.vocabulary,
                },
            );
            let all: Vec<u32> = (0..MAX_ROWS as u32).collect();
            assert_eq!(output.bad_rows, all, "{}: rows of NaN are bad", shape.name);
        }
        let got = alone(&mut decoder, &sequences(&shape));
        assert_same_bits(
            &format!("{}, poisoned", shape.name),
            &got,
            &trace(suite, &shape)?,
        );
    }
    Ok(())
}

pub(super) fn empty_steps_change_nothing<B: Backend>(
    suite: &Suite<'_, B>,
) -> Result<(), BackendError> {
    let shape = &shapes()[0];
    let sequences = sequences(shape);
    let mut decoder = Decoder::load((suite.make)(), shape, suite.options)?;
    let nothing = SampleInputs {
        rows: Vec::new(),
        vocabulary: shape.vocabulary,
    };
    for step in 0..2 {
        let empty = decoder.inputs(&sequences, &[]);
        assert_eq!(
            decoder.step(&empty, &nothing),
            StepOutput::default(),
            "empty step {step}"
        );
        // Rows without logits: a chunk that is not the prompt's last.
        let mut chunk = decoder.inputs(
            &sequences,
            &[Part {
                sequence: 3,
                rows: 20 * step..20 * step + 20,
            }],
        );
        chunk.logit_rows.clear();
        chunk.bucket = chunk.exact_bucket();
        assert_eq!(
            decoder.step(&chunk, &nothing),
            StepOutput::default(),
            "step {step} without logits"
        );
    }
    let got = decoder.observe(
        &sequences,
        &[Part {
            sequence: 3,
            rows: 40..61,
        }],
    );
    let mut want = trace(suite, shape)?;
    want.retain(|&(sequence, row), _| sequence == 3 && row >= 40);
    assert_same_bits("empty steps", &got, &want);
    Ok(())
}

/// Decodes with token ids from the host, with [`StepInputs::LAST`], and with a step of lookahead.
pub(super) fn last_tokens_come_from_the_slots<B: Backend>(
    suite: &Suite<'_, B>,
) -> Result<(), BackendError> {
    let host = generate(suite, Source::Host)?;
    assert_eq!(
        host,
        generate(suite, Source::Slots)?,
        "tokens from the host and from the slots"
    );
    if (suite.make)().caps().lookahead > 0 {
        assert_eq!(
            host,
            generate(suite, Source::SlotsAhead)?,
            "lookahead 0 and 1"
        );
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Host,
    Slots,
    SlotsAhead,
}

/// Tokens that each sequence generates; the first stops early, and its rows are dead from then on.
const BUDGETS: [usize; 3] = [4, 12, 12];

/// Generates greedily for three prompts, and returns their tokens.
fn generate<B: Backend>(
    suite: &Suite<'_, B>,
    source: Source,
) -> Result<Vec<Vec<u32>>, BackendError> {
    let shape = &shapes()[0];
    let mut decoder = Decoder::load((suite.make)(), shape, suite.options)?;
    let mut sequences: Vec<Sequence> = (0..BUDGETS.len())
        .map(|i| sequence(i, 7 + i, shape.vocabulary, 2 * i as u32..2 * i as u32 + 2))
        .collect();
    let prompts: Vec<usize> = sequences
        .iter()
        .map(|sequence| sequence.tokens.len())
        .collect();
    let mut generated: Vec<Vec<u32>> = vec![Vec::new(); sequences.len()];
    let steps = *BUDGETS.iter().max().expect("there are budgets");
    let mut open = None;
    for step in 0..steps {
        let parts: Vec<Part> = (0..sequences.len())
            .map(|i| match step {
                0 => Part {
                    sequence: i,
                    rows: 0..prompts[i],
                },
                _ => Part {
                    sequence: i,
                    rows: prompts[i] + step - 1..prompts[i] + step,
                },
            })
            .collect();
        if step > 0 {
            for (sequence, generated) in sequences.iter_mut().zip(&generated) {
                sequence.tokens.push(match source {
                    Source::Host => generated.last().copied().unwrap_or(0),
                    Source::Slots | Source::SlotsAhead => StepInputs::LAST | sequence.slot,
                });
            }
        }
        let mut inputs = decoder.inputs(&sequences, &parts);
        inputs.logit_rows = inputs
            .sequences
            .iter()
            .map(|s| s.q_start + s.q_len - 1)
            .collect();
        inputs.bucket = inputs.exact_bucket();
        if step == 0 {
            let reset = |s: &Sequence| SlotReset {
                slot: s.slot,
                prompt: s.tokens.clone(),
                output: Vec::new(),
            };
            inputs.resets = sequences.iter().map(reset).collect();
        }
        decoder.forward(&inputs);
        if let Some(ticket) = open.take() {
            keep(
                &mut generated,
                &decoder.backend.wait(ticket).expect("the device works"),
            );
        }
        let row = |(i, sequence): (usize, &Sequence)| SampleRow {
            live: step < BUDGETS[i],
            ..greedy(sequence.slot, step as u32)
        };
        let rows = sequences.iter().enumerate().map(row).collect();
        decoder.backend.sample(
            decoder.logits,
            &SampleInputs {
                rows,
                vocabulary: shape.vocabulary,
            },
        );
        open = Some(decoder.backend.end());
        if source != Source::SlotsAhead {
            let ticket = open.take().expect("the step has just ended");
            keep(
                &mut generated,
                &decoder.backend.wait(ticket).expect("the device works"),
            );
        }
    }
    if let Some(ticket) = open {
        keep(
            &mut generated,
            &decoder.backend.wait(ticket).expect("the device works"),
        );
    }
    Ok(generated)
}

/// Appends the step's tokens to the sequences that still run.
fn keep(generated: &mut [Vec<u32>], output: &StepOutput) {
    for ((generated, &token), budget) in generated.iter_mut().zip(&output.tokens).zip(BUDGETS) {
        if generated.len() < budget {
            generated.push(token);
        }
    }
}

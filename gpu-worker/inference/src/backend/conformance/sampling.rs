//! Cases over sampling: a model whose logits are exact on every backend.

use super::step::{Sequence, greedy};
use super::{MAX_ROWS, Suite, reference};
use crate::backend::{
    Backend, BackendError, Buf, Embed, Epilogue, GraphKey, Linear, Norm, NormKind, Recipe, Role,
    Rows, SampleInputs, SampleParams, SampleRow, Shard, SlotReset, StepInputs, StepOutput,
    StepSequence, Weight, WeightDesc, WeightSource, WeightUse,
};
use crate::model::ModelError;

const HIDDEN: usize = 16;
const VOCABULARY: usize = 300;

/// Rows of small integers over a power of two: sums of them are exact in f32 and bf16 products.
struct Exact {
    rows: usize,
    /// Values are -1 and 1, so that a row's root mean square is 1.
    signs: bool,
}

impl WeightSource for Exact {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        HIDDEN
    }

    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        for (i, out) in out.iter_mut().enumerate() {
            let hash = (first_row * HIDDEN + i).wrapping_mul(2_654_435_761) >> 7;
            *out = if self.signs {
                (hash % 2) as f32 * 2.0 - 1.0
            } else {
                (hash % 9) as f32 * 0.125 - 0.5
            };
        }
        Ok(())
    }
}

struct Ones;

impl WeightSource for Ones {
    fn rows(&self) -> usize {
        1
    }

    fn cols(&self) -> usize {
        HIDDEN
    }

    fn read_rows(&self, _first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        out.fill(1.0);
        Ok(())
    }
}

/// Embedding, norm, output layer.
struct Exactly<B> {
    backend: B,
    table: Weight,
    gain: Weight,
    output: Weight,
    x: Buf,
    hidden: Buf,
    logits: Buf,
}

impl<B: Backend> Exactly<B> {
    fn load(mut backend: B, recipe: Recipe) -> Result<Self, BackendError> {
        // Sampling is no matter of recipes, and int8 is exact for no weights.
        let recipe = match recipe {
            Recipe::F32 => Recipe::F32,
            Recipe::Bf16 | Recipe::Int8 => Recipe::Bf16,
        };
        let desc = |n, used_as| WeightDesc {
            name: "exact".to_owned(),
            n,
            k: HIDDEN,
            experts: 1,
            heads: 1,
            used_as,
            recipe,
            shard: Shard::Whole,
            salient: Vec::new(),
        };
        let table = backend.weight(
            &desc(VOCABULARY, WeightUse::Embedding),
            &Exact {
                rows: VOCABULARY,
                signs: true,
            },
        )?;
        let gain = backend.weight(&desc(1, WeightUse::Vector), &Ones)?;
        let output = backend.weight(
            &desc(VOCABULARY, WeightUse::Linear),
            &Exact {
                rows: VOCABULARY,
                signs: false,
            },
        )?;
        let x = backend.buf(MAX_ROWS, HIDDEN, Role::Residual)?;
        let hidden = backend.buf(MAX_ROWS, HIDDEN, Role::InputOf(output))?;
        let logits = backend.buf(MAX_ROWS, VOCABULARY, Role::Logits)?;
        backend.slots(MAX_ROWS, 64)?;
        backend.loaded();
        Ok(Self {
            backend,
            table,
            gain,
            output,
            x,
            hidden,
            logits,
        })
    }

    fn step(
        &mut self,
        tokens: Vec<u32>,
        resets: Vec<SlotReset>,
        samples: &SampleInputs,
    ) -> StepOutput {
        let rows = tokens.len() as u32;
        let one = |row| StepSequence {
            slot: samples.rows[row as usize].slot,
            q_start: row,
            q_len: 1,
            kv_len: 1,
        };
        let mut inputs = StepInputs {
            positions: vec![0; tokens.len()],
            tokens,
            sequences: (0..rows).map(one).collect(),
            logit_rows: (0..rows).collect(),
            resets,
            ..StepInputs::default()
        };
        inputs.bucket = inputs.exact_bucket();
        self.backend.begin(&inputs);
        let &mut Self {
            table,
            gain,
            output,
            x,
            hidden,
            logits,
            ..
        } = self;
        self.backend.graph(
            GraphKey {
                bucket: inputs.bucket,
                part: 0,
            },
            &mut |backend| {
                backend.embed(&Embed {
                    out: x,
                    table,
                    scale: 1.0,
                    positions: None,
                    token_types: None,
                });
                backend.norm(&Norm {
                    x,
                    add: None,
                    weight: gain,
                    bias: None,
                    kind: NormKind::Rms,
                    eps: 0.0,
                    plus_one: false,
                    out: hidden,
                });
                backend.linear(&Linear {
                    x: hidden,
                    weight: output,
                    bias: None,
                    out: logits,
                    epilogue: Epilogue::None,
                    rows: Rows::Logit,
                });
            },
        );
        self.backend.sample(logits, samples);
        let ticket = self.backend.end();
        self.backend.wait(ticket).expect("the device works")
    }
}

/// Returns rows of many parameters: alone, and in pairs.
fn rows() -> Vec<SampleRow> {
    let neutral = SampleParams {
        temperature: 0.8,
        ..SampleParams::GREEDY
    };
    let params = [
        SampleParams::GREEDY,
        neutral,
        SampleParams {
            temperature: 2.5,
            ..neutral
        },
        SampleParams {
            top_p: 0.3,
            ..neutral
        },
        SampleParams {
            top_p: 0.95,
            temperature: 4.0,
            ..neutral
        },
        SampleParams {
            top_k: 1,
            ..neutral
        },
        SampleParams {
            top_k: 40,
            ..neutral
        },
        SampleParams {
            min_p: 0.2,
            ..neutral
        },
        SampleParams {
            min_p: 0.01,
            top_k: 90,
            top_p: 0.7,
            ..neutral
        },
        SampleParams {
            repetition_penalty: 1.4,
            ..SampleParams::GREEDY
        },
        SampleParams {
            frequency_penalty: 0.7,
            presence_penalty: -0.5,
            repetition_penalty: 0.8,
            ..neutral
        },
    ];
    let mask = |i: usize| {
        Some(
            (0..VOCABULARY.div_ceil(32))
                .map(|w| 0x9249_2492u32.rotate_left((w + i) as u32))
                .collect(),
        )
    };
    let row = |(i, params): (usize, SampleParams)| SampleRow {
        seed: i as u64 * 0x1_0000_0001,
        choice: i as u32 % 3,
        params,
        mask: if i % 4 == 3 { mask(i) } else { None },
        bias: if i % 5 == 4 {
            vec![(3, 2.0), (250, -100.0), (17, 1.5)]
        } else {
            Vec::new()
        },
        logprobs: (i as u32 % 7).checked_sub(1),
        forced: (i % 13 == 12).then_some(i as u32),
        live: i % 17 != 16,
        ..greedy(i as u32, i as u32)
    };
    params
        .into_iter()
        .cycle()
        .take(44)
        .enumerate()
        .map(row)
        .collect()
}

fn resets(rows: &[SampleRow]) -> Vec<SlotReset> {
    let reset = |row: &SampleRow| SlotReset {
        slot: row.slot,
        prompt: (0..20)
            .map(|t| (t * 13 + row.slot) % VOCABULARY as u32)
            .collect(),
        output: (0..10)
            .map(|t| (t * t + row.slot * 3) % VOCABULARY as u32)
            .collect(),
    };
    rows.iter().map(reset).collect()
}

fn run<B: Backend>(model: &mut Exactly<B>, rows: &[SampleRow], vocabulary: usize) -> StepOutput {
    let tokens = rows
        .iter()
        .map(|row| row.slot * 5 % VOCABULARY as u32)
        .collect();
    model.step(
        tokens,
        resets(rows),
        &SampleInputs {
            rows: rows.to_vec(),
            vocabulary,
        },
    )
}

/// Equal logits must give equal tokens, for any parameters, in a batch and alone, padding ids never.
pub(super) fn draws_equal_the_reference<B: Backend>(
    suite: &Suite<'_, B>,
) -> Result<(), BackendError> {
    let mut model = Exactly::load((suite.make)(), suite.options.recipe)?;
    let (scalar, options) = reference();
    let mut scalar = Exactly::load(scalar, options.recipe)?;
    let rows = rows();
    for vocabulary in [VOCABULARY, VOCABULARY - 7] {
        let got = run(&mut model, &rows, vocabulary);
        let want = run(&mut scalar, &rows, vocabulary);
        assert_eq!(got.bad_rows, want.bad_rows);
        for (i, row) in rows.iter().enumerate().filter(|(_, row)| row.live) {
            assert_eq!(got.tokens[i], want.tokens[i], "token of {row:?}");
            assert!(
                row.forced.is_some() || (got.tokens[i] as usize) < vocabulary,
                "padding id for {row:?}"
            );
            assert!(
                (got.logprobs[i] - want.logprobs[i]).abs() < 1e-5,
                "log-probability of {row:?}"
            );
            let ids = |top: &[(u32, f32)]| top.iter().map(|entry| entry.0).collect::<Vec<_>>();
            assert_eq!(
                ids(&got.top_n[i]),
                ids(&want.top_n[i]),
                "most likely tokens of {row:?}"
            );
            let alone = run(&mut model, std::slice::from_ref(row), vocabulary);
            assert_eq!(alone.tokens[0], got.tokens[i], "{row:?} alone");
            assert_eq!(
                alone.logprobs[0].to_bits(),
                got.logprobs[i].to_bits(),
                "{row:?} alone"
            );
        }
    }
    Ok(())
}

/// Rows of one slot in one step see each other's tokens; dead rows leave no trace.
pub(super) fn histories_follow_the_slots<B: Backend>(
    suite: &Suite<'_, B>,
) -> Result<(), BackendError> {
    let params = SampleParams {
        presence_penalty: 100.0,
        ..SampleParams::GREEDY
    };
    let rows: Vec<SampleRow> = (0..12)
        .map(|i| SampleRow {
            params,
            live: i % 5 != 4,
            ..greedy(i / 6, i % 6)
        })
        .collect();
    let mut model = Exactly::load((suite.make)(), suite.options.recipe)?;
    let (scalar, options) = reference();
    let mut scalar = Exactly::load(scalar, options.recipe)?;
    let samples = SampleInputs {
        rows,
        vocabulary: VOCABULARY,
    };
    let sequence = Sequence {
        slot: 0,
        tokens: vec![9; 12],
        pages: Vec::new(),
    };
    for step in 0..3 {
        let resets = if step == 0 {
            resets(&[greedy(0, 0), greedy(1, 0)])
        } else {
            Vec::new()
        };
        let got = model.step(sequence.tokens.clone(), resets.clone(), &samples);
        let want = scalar.step(sequence.tokens.clone(), resets, &samples);
        for (i, row) in samples.rows.iter().enumerate().filter(|(_, row)| row.live) {
            assert_eq!(got.tokens[i], want.tokens[i], "step {step}, row {i}");
            let earlier =
                (0..i).filter(|&j| samples.rows[j].live && samples.rows[j].slot == row.slot);
            for j in earlier {
                assert_ne!(
                    got.tokens[i], got.tokens[j],
                    "step {step}: rows {i} and {j} of one slot"
                );
            }
        }
    }
    Ok(())
}

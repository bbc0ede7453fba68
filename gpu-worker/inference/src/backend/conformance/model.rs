//! Small random models, and steps over them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{MAX_ROWS, Options};
use crate::backend::{
    Activation, Attend, Backend, BackendError, Buf, Embed, Epilogue, GraphKey, HeadLayout, KvFrom,
    KvGroup, KvLayout, KvSpec, Linear, Mask, Norm, NormKind, PageTable, Role, RopeSpec, RopeStore,
    RopeStyle, RopeTable, Rows, SampleInputs, SampleParams, SampleRow, Shard, StepInputs,
    StepOutput, StepSequence, Weight, WeightDesc, WeightSource, WeightUse,
};
use crate::model::ModelError;

/// Pages of the pool; sequences of up to 16 pages get any of them.
pub(super) const PAGES: usize = 24;

/// The shape of a small decoder.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) hidden: usize,
    pub(super) heads: HeadLayout,
    pub(super) intermediate: usize,
    pub(super) vocabulary: usize,
    /// Style and rotated values of a head.
    pub(super) rope: Option<(RopeStyle, usize)>,
    pub(super) head_norms: bool,
    pub(super) biases: bool,
    /// Window of the first layer.
    pub(super) window: Option<usize>,
    pub(super) softcap: Option<f32>,
    pub(super) sinks: bool,
    pub(super) activation: Activation,
    pub(super) gated: bool,
    pub(super) norm: NormKind,
    pub(super) plus_one: bool,
    pub(super) tied: bool,
    /// Whether the suite also tries schedules on it.
    pub(super) invariance: bool,
}

fn base(name: &'static str, q_heads: usize, kv_heads: usize, dk: usize) -> Shape {
    Shape {
        name,
        hidden: 48,
        heads: HeadLayout {
            q_heads,
            kv_heads,
            dk,
            dv: dk,
        },
        intermediate: 64,
        vocabulary: 50,
        rope: Some((RopeStyle::Neox, dk)),
        head_norms: false,
        biases: false,
        window: None,
        softcap: None,
        sinks: false,
        activation: Activation::Silu,
        gated: true,
        norm: NormKind::Rms,
        plus_one: false,
        tied: false,
        invariance: false,
    }
}

/// Returns the shapes of the suite: each brings something that the others lack.
pub(super) fn shapes() -> Vec<Shape> {
    let swiglu = Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 1.0,
    };
    vec![
        Shape {
            invariance: true,
            tied: true,
            hidden: 96,
            intermediate: 160,
            ..base("llama", 9, 3, 64)
        },
        Shape {
            invariance: true,
            window: Some(20),
            ..base("window", 4, 1, 32)
        },
        Shape {
            hidden: 33,
            intermediate: 45,
            vocabulary: 37,
            biases: true,
            ..base("odd widths", 3, 1, 18)
        },
        Shape {
            hidden: 70,
            intermediate: 100,
            vocabulary: 65,
            ..base("head size 16", 2, 2, 16)
        },
        base("head size 80", 2, 1, 80),
        Shape {
            invariance: true,
            ..base("head size 128", 8, 1, 128)
        },
        base("head size 256", 2, 1, 256),
        base("many heads", 40, 1, 16),
        Shape {
            heads: HeadLayout {
                q_heads: 4,
                kv_heads: 2,
                dk: 24,
                dv: 16,
            },
            rope: Some((RopeStyle::Interleaved, 8)),
            ..base("key and value sizes differ", 4, 2, 24)
        },
        Shape {
            head_norms: true,
            biases: true,
            rope: None,
            ..base("head norms without rotation", 4, 2, 32)
        },
        Shape {
            softcap: Some(5.0),
            plus_one: true,
            activation: Activation::GeluTanh,
            ..base("caps", 4, 2, 32)
        },
        Shape {
            sinks: true,
            activation: swiglu,
            window: Some(16),
            biases: true,
            ..base("sinks", 8, 2, 16)
        },
        Shape {
            norm: NormKind::Layer,
            gated: false,
            biases: true,
            activation: Activation::GeluErf,
            ..base("layer norm without gate", 4, 4, 16)
        },
    ]
}

/// Weights by hash: any row can be read at any time.
pub(super) struct Noise {
    pub(super) seed: u64,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Values lie in `centre - spread .. centre + spread`.
    pub(super) spread: f32,
    pub(super) centre: f32,
    /// This row is NaN.
    pub(super) poisoned_row: Option<usize>,
}

impl Noise {
    fn value(&self, index: usize) -> f32 {
        let mut z = (self.seed << 32 | index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let unit = ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        // In bf16, so that a recipe's own rounding of weights does not count.
        half::bf16::from_f32(self.centre + unit * self.spread).to_f32()
    }
}

impl WeightSource for Noise {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        for (i, out) in out.iter_mut().enumerate() {
            let poisoned = self.poisoned_row == Some(first_row + i / self.cols);
            *out = if poisoned {
                f32::NAN
            } else {
                self.value(first_row * self.cols + i)
            };
        }
        Ok(())
    }
}

/// Loads weights of a small model.
pub(super) struct Loader<'a, B> {
    pub(super) backend: &'a mut B,
    pub(super) options: Options,
    pub(super) seed: u64,
}

impl<B: Backend> Loader<'_, B> {
    /// Loads a matrix stack `[stacks, n, k]` of random values.
    pub(super) fn stack(
        &mut self,
        experts: usize,
        heads: usize,
        n: usize,
        k: usize,
    ) -> Result<Weight, BackendError> {
        // Uniform values of variance 1 / k.
        let spread = (3.0 / k as f32).sqrt();
        let desc = self.desc(n, k, WeightUse::Linear);
        let desc = WeightDesc {
            experts,
            heads,
            ..desc
        };
        self.load(&desc, spread, 0.0, None)
    }

    /// Loads one matrix `[n, k]`.
    pub(super) fn matrix(&mut self, n: usize, k: usize) -> Result<Weight, BackendError> {
        self.stack(1, 1, n, k)
    }

    /// Loads a vector of values around `centre`.
    pub(super) fn vector(&mut self, k: usize, centre: f32) -> Result<Weight, BackendError> {
        let desc = self.desc(1, k, WeightUse::Vector);
        self.load(&desc, 0.3, centre, None)
    }

    /// Loads an embedding table whose last row is NaN unless it is tied.
    pub(super) fn table(&mut self, n: usize, k: usize, tied: bool) -> Result<Weight, BackendError> {
        let used_as = if tied {
            WeightUse::TiedEmbedding
        } else {
            WeightUse::Embedding
        };
        let desc = self.desc(n, k, used_as);
        let spread = if tied { (3.0 / k as f32).sqrt() } else { 1.0 };
        self.load(&desc, spread, 0.0, (!tied).then_some(n - 1))
    }

    fn desc(&self, n: usize, k: usize, used_as: WeightUse) -> WeightDesc {
        WeightDesc {
            name: format!("weight {}", self.seed),
            n,
            k,
            experts: 1,
            heads: 1,
            used_as,
            recipe: self.options.recipe,
            shard: Shard::Whole,
        }
    }

    fn load(
        &mut self,
        desc: &WeightDesc,
        spread: f32,
        centre: f32,
        poisoned_row: Option<usize>,
    ) -> Result<Weight, BackendError> {
        self.seed += 1;
        let rows = desc.experts * desc.heads * desc.n;
        let noise = Noise {
            seed: self.seed,
            rows,
            cols: desc.k,
            spread,
            centre,
            poisoned_row,
        };
        self.backend.weight(desc, &noise)
    }
}

/// A loaded decoder.
pub(super) struct Decoder<B> {
    pub(super) backend: B,
    pub(super) shape: Shape,
    handles: Handles,
    pub(super) logits: Buf,
    /// Steps that have begun.
    graphs: u32,
}

struct Handles {
    embedding: Weight,
    rope: Option<RopeTable>,
    layers: Vec<Layer>,
    final_norm: (Weight, Option<Weight>),
    output: Weight,
    x: Buf,
    delta: Buf,
    qkv: Buf,
    hidden: Buf,
}

struct Layer {
    norm: (Weight, Option<Weight>),
    qkv: (Weight, Option<Weight>),
    head_norms: Option<(Weight, Weight)>,
    sinks: Option<Weight>,
    attention_out: (Weight, Option<Weight>),
    mlp_norm: (Weight, Option<Weight>),
    up: (Weight, Option<Weight>),
    down: (Weight, Option<Weight>),
    qkv_in: Buf,
    attended: Buf,
    up_in: Buf,
    down_in: Buf,
    window: Option<usize>,
}

/// Layers of every decoder here.
const LAYERS: usize = 2;

impl<B: Backend> Decoder<B> {
    /// Loads a decoder of `shape`.
    pub(super) fn load(
        mut backend: B,
        shape: &Shape,
        options: Options,
    ) -> Result<Self, BackendError> {
        let rope = match shape.rope {
            Some((style, rotated)) => {
                let inv_freq = (0..rotated / 2)
                    .map(|i| 100f32.powf(-2.0 * i as f32 / rotated as f32))
                    .collect();
                Some(backend.rope_table(&RopeSpec {
                    style,
                    inv_freq,
                    attention_factor: 1.0,
                    max_positions: 512,
                })?)
            }
            None => None,
        };
        let mut loader = Loader {
            backend: &mut backend,
            options,
            seed: 0,
        };
        let embedding = loader.table(shape.vocabulary, shape.hidden, shape.tied)?;
        let layers = (0..LAYERS)
            .map(|i| load_layer(&mut loader, shape, i))
            .collect::<Result<Vec<_>, _>>()?;
        let norm_centre = if shape.plus_one { 0.0 } else { 1.0 };
        let final_norm = (
            loader.vector(shape.hidden, norm_centre)?,
            norm_bias(&mut loader, shape)?,
        );
        let output = if shape.tied {
            embedding
        } else {
            loader.matrix(shape.vocabulary, shape.hidden)?
        };
        let HeadLayout {
            q_heads,
            kv_heads,
            dk,
            dv,
        } = shape.heads;
        let handles = Handles {
            embedding,
            rope,
            layers,
            final_norm,
            output,
            x: backend.buf(MAX_ROWS, shape.hidden, Role::Residual)?,
            delta: backend.buf(MAX_ROWS, shape.hidden, Role::Residual)?,
            qkv: backend.buf(MAX_ROWS, q_heads * dk + kv_heads * (dk + dv), Role::Qkv)?,
            hidden: backend.buf(MAX_ROWS, shape.hidden, Role::InputOf(output))?,
        };
        let logits = backend.buf(MAX_ROWS, shape.vocabulary, Role::Logits)?;
        let groups = if shape.window.is_some() {
            vec![
                KvGroup {
                    layers: vec![1],
                    window: None,
                },
                KvGroup {
                    layers: vec![0],
                    window: shape.window,
                },
            ]
        } else {
            vec![KvGroup {
                layers: vec![0, 1],
                window: None,
            }]
        };
        let pages = vec![PAGES; groups.len()];
        let layout = KvLayout::Gqa {
            heads: kv_heads,
            dk,
            dv,
        };
        backend.kv(
            &KvSpec {
                groups,
                layout,
                dtype: options.kv,
            },
            &pages,
        )?;
        backend.slots(16, 2048)?;
        Ok(Self {
            backend,
            shape: shape.clone(),
            handles,
            logits,
            graphs: 0,
        })
    }

    /// Begins a step and runs the forward pass.
    pub(super) fn forward(&mut self, inputs: &StepInputs) {
        self.backend.begin(inputs);
        let key = GraphKey {
            bucket: inputs.bucket,
            part: self.graphs,
        };
        self.graphs += 1;
        let (handles, shape, logits) = (&self.handles, &self.shape, self.logits);
        self.backend
            .graph(key, &mut |backend| forward(backend, handles, shape, logits));
    }

    /// Runs a whole step.
    pub(super) fn step(&mut self, inputs: &StepInputs, samples: &SampleInputs) -> StepOutput {
        self.forward(inputs);
        self.backend.sample(self.logits, samples);
        let ticket = self.backend.end();
        self.backend.wait(ticket).expect("the device works")
    }

    /// Runs one step over `parts`, and returns the log-probabilities of each row, by sequence and position.
    pub(super) fn observe(&mut self, sequences: &[Sequence], parts: &[Part]) -> Trace {
        let inputs = self.inputs(sequences, parts);
        let keys: Vec<(usize, usize)> = parts
            .iter()
            .flat_map(|part| part.rows.clone().map(|row| (part.sequence, row)))
            .collect();
        let rows = keys.iter().map(|&(sequence, row)| SampleRow {
            top_n: self.shape.vocabulary as u32,
            ..greedy(sequences[sequence].slot, row as u32)
        });
        let samples = SampleInputs {
            rows: rows.collect(),
            vocabulary: self.shape.vocabulary,
        };
        let output = self.step(&inputs, &samples);
        assert_eq!(
            output.bad_rows,
            Vec::<u32>::new(),
            "{}: all logits are finite",
            self.shape.name
        );
        let by_id = |mut top: Vec<(u32, f32)>| {
            top.sort_by_key(|entry| entry.0);
            top.into_iter().map(|entry| entry.1).collect()
        };
        keys.into_iter()
            .zip(output.top_n.into_iter().map(by_id))
            .collect()
    }

    /// Builds the inputs of a step over `parts`, with logits for every row.
    pub(super) fn inputs(&self, sequences: &[Sequence], parts: &[Part]) -> StepInputs {
        step_inputs(
            sequences,
            parts,
            self.backend.caps().page_tokens,
            1 + usize::from(self.shape.window.is_some()),
        )
    }
}

fn norm_bias<B: Backend>(
    loader: &mut Loader<'_, B>,
    shape: &Shape,
) -> Result<Option<Weight>, BackendError> {
    match shape.norm {
        NormKind::Rms => Ok(None),
        NormKind::Layer => loader.vector(shape.hidden, 0.0).map(Some),
    }
}

fn load_layer<B: Backend>(
    loader: &mut Loader<'_, B>,
    shape: &Shape,
    index: usize,
) -> Result<Layer, BackendError> {
    let HeadLayout {
        q_heads,
        kv_heads,
        dk,
        dv,
    } = shape.heads;
    let norm_centre = if shape.plus_one { 0.0 } else { 1.0 };
    let linear = |loader: &mut Loader<'_, B>, n: usize, k: usize| -> Result<_, BackendError> {
        let weight = loader.matrix(n, k)?;
        let bias = if shape.biases {
            Some(loader.vector(n, 0.0)?)
        } else {
            None
        };
        Ok((weight, bias))
    };
    let norm = (
        loader.vector(shape.hidden, norm_centre)?,
        norm_bias(loader, shape)?,
    );
    let qkv = linear(loader, q_heads * dk + kv_heads * (dk + dv), shape.hidden)?;
    let head_norms = if shape.head_norms {
        Some((loader.vector(dk, 1.0)?, loader.vector(dk, 1.0)?))
    } else {
        None
    };
    let sinks = if shape.sinks {
        Some(loader.vector(q_heads, 0.0)?)
    } else {
        None
    };
    let attention_out = linear(loader, shape.hidden, q_heads * dv)?;
    let mlp_norm = (
        loader.vector(shape.hidden, norm_centre)?,
        norm_bias(loader, shape)?,
    );
    let up_rows = if shape.gated {
        2 * shape.intermediate
    } else {
        shape.intermediate
    };
    let up = linear(loader, up_rows, shape.hidden)?;
    let down = linear(loader, shape.hidden, shape.intermediate)?;
    let backend = &mut *loader.backend;
    Ok(Layer {
        norm,
        qkv,
        head_norms,
        sinks,
        attention_out,
        mlp_norm,
        up,
        down,
        qkv_in: backend.buf(MAX_ROWS, shape.hidden, Role::InputOf(qkv.0))?,
        attended: backend.buf(MAX_ROWS, q_heads * dv, Role::InputOf(attention_out.0))?,
        up_in: backend.buf(MAX_ROWS, shape.hidden, Role::InputOf(up.0))?,
        down_in: backend.buf(MAX_ROWS, shape.intermediate, Role::InputOf(down.0))?,
        window: if index == 0 { shape.window } else { None },
    })
}

fn forward<B: Backend>(backend: &mut B, handles: &Handles, shape: &Shape, logits: Buf) {
    let &Handles {
        x,
        delta,
        qkv,
        hidden,
        ..
    } = handles;
    let norm = |(weight, bias), add, out| Norm {
        x,
        add,
        weight,
        bias,
        kind: shape.norm,
        eps: 1e-5,
        plus_one: shape.plus_one,
        out,
    };
    let linear = |from, (weight, bias), out, epilogue| Linear {
        x: from,
        weight,
        bias,
        out,
        epilogue,
        rows: Rows::All,
    };
    let scale = 1.5;
    backend.embed(&Embed {
        out: x,
        table: handles.embedding,
        scale,
        positions: None,
        token_types: None,
    });
    for (index, layer) in handles.layers.iter().enumerate() {
        backend.norm(&norm(
            layer.norm,
            (index > 0).then_some(delta),
            layer.qkv_in,
        ));
        backend.linear(&linear(layer.qkv_in, layer.qkv, qkv, Epilogue::None));
        backend.rope_store(&RopeStore {
            qkv,
            heads: shape.heads,
            layer: index,
            rope: handles.rope,
            q_norm: layer.head_norms.map(|norms| (norms.0, 1e-6)),
            k_norm: layer.head_norms.map(|norms| (norms.1, 1e-6)),
            store: true,
        });
        backend.attend(&Attend {
            qkv,
            heads: shape.heads,
            layer: index,
            scale: (shape.heads.dk as f32).powf(-0.5),
            mask: Mask::Causal,
            window: layer.window,
            softcap: shape.softcap,
            sinks: layer.sinks,
            from: KvFrom::Pages,
            out: layer.attended,
        });
        backend.linear(&linear(
            layer.attended,
            layer.attention_out,
            x,
            Epilogue::Residual,
        ));
        backend.norm(&norm(layer.mlp_norm, None, layer.up_in));
        let epilogue = if shape.gated {
            Epilogue::Gated(shape.activation)
        } else {
            Epilogue::Act(shape.activation)
        };
        backend.linear(&linear(layer.up_in, layer.up, layer.down_in, epilogue));
        backend.linear(&linear(layer.down_in, layer.down, delta, Epilogue::None));
        backend.all_reduce(delta);
    }
    backend.norm(&norm(handles.final_norm, Some(delta), hidden));
    let epilogue = shape.softcap.map_or(Epilogue::None, Epilogue::Softcap);
    backend.linear(&Linear {
        rows: Rows::Logit,
        ..linear(hidden, (handles.output, None), logits, epilogue)
    });
}

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
        slot,
        live: true,
        seed: 1,
        choice: 0,
        position,
        params: SampleParams::GREEDY,
        mask: None,
        bias: Vec::new(),
        top_n: 0,
        forced: None,
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

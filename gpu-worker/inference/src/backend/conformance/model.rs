//! Small random decoders.

use super::shape::Shape;
use super::step::{Part, Sequence, Trace, greedy, step_inputs};
use super::weights::Loader;
use super::{MAX_ROWS, Options};
use crate::backend::{
    Attend, Backend, BackendError, Buf, Embed, Epilogue, GraphKey, HeadLayout, KvFrom, KvGroup,
    KvLayout, KvSpec, Linear, Mask, Norm, NormKind, Role, RopeSpec, RopeStore, RopeTable, Rows,
    SampleInputs, SampleRow, StepInputs, StepOutput, Weight,
};

/// Pages of the pool; sequences of up to 16 pages get any of them.
pub(super) const PAGES: usize = 24;

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
        backend.loaded();
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

    /// Makes the next step the first again: a backend may take its graph for that of an earlier one.
    #[cfg(test)]
    pub(super) fn restart_graphs(&mut self) {
        self.graphs = 0;
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
            logprobs: Some(self.shape.vocabulary as u32),
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

//! The forward pass of the Llama family over [`Backend`] operations.
//!
//! Owns the handles of weights and buffers. Reads nothing back and never looks at a step's sequences: those
//! travel in the step's inputs.

use super::salience::Salience;
use crate::backend::{
    Activation, Attend, Backend, BackendError, Bucket, Buf, Embed, Epilogue, GraphKey, HeadLayout,
    KvFrom, KvGroup, KvLayout, KvSpec, KvType, Linear, Mask, Norm, NormKind, Recipe, Role,
    RopeStore, RopeTable, Rows, Shard, Weight, WeightDesc, WeightUse,
};
use crate::model::{ModelConfig, WeightName, Weights};

/// Whether the forward pass is one graph: part 0 of its bucket.
const WHOLE_MODEL: u32 = 0;

/// How much of everything is allocated at load; nothing is allocated later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Rows of a step, at most.
    pub rows: usize,
    /// Logit rows of a step, at most.
    pub logit_rows: usize,
    /// Slots, which is the most sequences that run at once.
    pub sequences: usize,
    /// KV pages.
    pub pages: usize,
    /// Tokens of prompt and output that a slot remembers.
    pub history_tokens: usize,
}

/// A loaded decoder: embedding, layers of attention and gated MLP, output layer.
#[derive(Debug)]
pub struct Decoder {
    embedding: Weight,
    layers: Vec<Layer>,
    final_norm: Weight,
    output: Weight,
    rope: RopeTable,
    heads: HeadLayout,
    norm_eps: f32,
    score_scale: f32,
    buffers: Buffers,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Weight,
    qkv: Weight,
    qkv_bias: Option<Weight>,
    attention_output: Weight,
    mlp_norm: Weight,
    gate_up: Weight,
    down: Weight,
}

/// `R` rows, `H` hidden size, `I` MLP width, `S` logit rows, `V` vocabulary.
#[derive(Debug)]
struct Buffers {
    /// `[R, H]`, the residual stream.
    residual: Buf,
    /// `[R, H]`, the input of q, k and v.
    attention_input: Buf,
    /// `[R, (q_heads + 2 kv_heads) * head_dim]`.
    qkv: Buf,
    /// `[R, q_heads * head_dim]`, the input of the attention's output projection.
    attended: Buf,
    /// `[R, H]`, the input of gate and up.
    mlp_input: Buf,
    /// `[R, I]`, the input of down.
    gated: Buf,
    /// `[R, H]`, the input of the output layer.
    output_input: Buf,
    /// `[S, V]`.
    logits: Buf,
}

impl Decoder {
    /// Loads the weights into `backend` and allocates everything that steps need.
    ///
    /// # Errors
    ///
    /// [`BackendError::Weight`] if a weight cannot be read, and whatever the backend says of shapes and
    /// memory.
    pub fn load<B: Backend>(
        backend: &mut B,
        config: &ModelConfig,
        weights: &dyn Weights,
        plan: MemoryPlan,
        recipe: Recipe,
        kv_type: KvType,
        salience: &Salience,
    ) -> Result<Decoder, BackendError> {
        let heads = HeadLayout {
            q_heads: config.q_heads,
            kv_heads: config.kv_heads,
            dk: config.head_dim,
            dv: config.head_dim,
        };
        let mut loader = Loader {
            backend,
            config,
            weights,
            recipe,
            salience,
        };
        let embedding_use = if config.tied_embeddings {
            WeightUse::TiedEmbedding
        } else {
            WeightUse::Embedding
        };
        let embedding = loader.matrix(
            WeightName::Embedding,
            embedding_use,
            config.vocab_size,
            config.hidden_size,
        )?;
        let layers = (0..config.layers)
            .map(|index| loader.layer(index))
            .collect::<Result<Vec<_>, _>>()?;
        let final_norm = loader.vector(WeightName::FinalNorm, config.hidden_size)?;
        let output = if config.tied_embeddings {
            embedding
        } else {
            loader.matrix(
                WeightName::Output,
                WeightUse::Linear,
                config.vocab_size,
                config.hidden_size,
            )?
        };
        let rope = backend.rope_table(&config.rope)?;
        let buffers = Buffers::allocate(backend, config, plan, &layers, output)?;
        backend.kv(&kv_spec(config, kv_type), &[plan.pages])?;
        backend.slots(plan.sequences, plan.history_tokens)?;
        backend.loaded();
        Ok(Decoder {
            embedding,
            layers,
            final_norm,
            output,
            rope,
            heads,
            norm_eps: config.norm_eps,
            score_scale: (config.head_dim as f32).sqrt().recip(),
            buffers,
        })
    }

    /// Enqueues the forward pass of the step that `backend` has begun; [`Decoder::logits`] then holds the
    /// step's logit rows.
    pub fn forward<B: Backend>(&self, backend: &mut B, bucket: Bucket) {
        let key = GraphKey {
            bucket,
            part: WHOLE_MODEL,
        };
        backend.graph(key, &mut |backend| {
            backend.embed(&Embed {
                out: self.buffers.residual,
                table: self.embedding,
                scale: 1.0,
                positions: None,
                token_types: None,
            });
            for (index, layer) in self.layers.iter().enumerate() {
                self.attention(backend, index, layer);
                self.mlp(backend, layer);
            }
            self.norm(backend, self.final_norm, self.buffers.output_input);
            linear(
                backend,
                self.buffers.output_input,
                self.output,
                self.buffers.logits,
                Epilogue::None,
                Rows::Logit,
            );
        });
    }

    /// Returns the weights of products, with their names.
    pub(super) fn products(&self) -> impl Iterator<Item = (WeightName, Weight)> {
        let output = match self.output == self.embedding {
            true => WeightName::Embedding,
            false => WeightName::Output,
        };
        let layers = self.layers.iter().enumerate().flat_map(|(index, layer)| {
            [
                (WeightName::Qkv(index), layer.qkv),
                (WeightName::AttentionOutput(index), layer.attention_output),
                (WeightName::GateUp(index), layer.gate_up),
                (WeightName::Down(index), layer.down),
            ]
        });
        layers.chain([(output, self.output)])
    }

    /// Returns the logits `[S, V]` of the step.
    pub fn logits(&self) -> Buf {
        self.buffers.logits
    }

    fn attention<B: Backend>(&self, backend: &mut B, index: usize, layer: &Layer) {
        let buffers = &self.buffers;
        self.norm(backend, layer.attention_norm, buffers.attention_input);
        backend.linear(&Linear {
            x: buffers.attention_input,
            weight: layer.qkv,
            bias: layer.qkv_bias,
            out: buffers.qkv,
            epilogue: Epilogue::None,
            rows: Rows::All,
        });
        backend.rope_store(&RopeStore {
            qkv: buffers.qkv,
            heads: self.heads,
            layer: index,
            rope: Some(self.rope),
            q_norm: None,
            k_norm: None,
            store: true,
        });
        backend.attend(&Attend {
            qkv: buffers.qkv,
            heads: self.heads,
            layer: index,
            scale: self.score_scale,
            mask: Mask::Causal,
            window: None,
            softcap: None,
            sinks: None,
            from: KvFrom::Pages,
            out: buffers.attended,
        });
        linear(
            backend,
            buffers.attended,
            layer.attention_output,
            buffers.residual,
            Epilogue::Residual,
            Rows::All,
        );
    }

    fn mlp<B: Backend>(&self, backend: &mut B, layer: &Layer) {
        let buffers = &self.buffers;
        self.norm(backend, layer.mlp_norm, buffers.mlp_input);
        let gated = Epilogue::Gated(Activation::Silu);
        linear(
            backend,
            buffers.mlp_input,
            layer.gate_up,
            buffers.gated,
            gated,
            Rows::All,
        );
        linear(
            backend,
            buffers.gated,
            layer.down,
            buffers.residual,
            Epilogue::Residual,
            Rows::All,
        );
    }

    fn norm<B: Backend>(&self, backend: &mut B, weight: Weight, out: Buf) {
        backend.norm(&Norm {
            x: self.buffers.residual,
            add: None,
            weight,
            bias: None,
            kind: NormKind::Rms,
            eps: self.norm_eps,
            plus_one: false,
            out,
        });
    }
}

fn linear<B: Backend>(
    backend: &mut B,
    x: Buf,
    weight: Weight,
    out: Buf,
    epilogue: Epilogue,
    rows: Rows,
) {
    backend.linear(&Linear {
        x,
        weight,
        bias: None,
        out,
        epilogue,
        rows,
    });
}

fn kv_spec(config: &ModelConfig, dtype: KvType) -> KvSpec {
    KvSpec {
        groups: vec![KvGroup {
            layers: (0..config.layers).collect(),
            window: None,
        }],
        layout: KvLayout::Gqa {
            heads: config.kv_heads,
            dk: config.head_dim,
            dv: config.head_dim,
        },
        dtype,
    }
}

/// Returns how products with one weight are computed.
///
/// In int8 the MLP's second product stays in bf16: its input features are all alike, so that none can be kept in
/// more bits for all, and it alone makes a third of the recipe's error.
fn recipe_of(name: WeightName, recipe: Recipe) -> Recipe {
    match (name, recipe) {
        (WeightName::Down(_), Recipe::Int8) => Recipe::Bf16,
        _ => recipe,
    }
}

/// Brings weights from the file into the backend.
struct Loader<'a, B> {
    backend: &'a mut B,
    config: &'a ModelConfig,
    weights: &'a dyn Weights,
    recipe: Recipe,
    salience: &'a Salience,
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&mut self, index: usize) -> Result<Layer, BackendError> {
        let config = self.config;
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let q_width = config.q_heads * config.head_dim;
        let qkv_width = q_width + 2 * config.kv_heads * config.head_dim;
        Ok(Layer {
            attention_norm: self.vector(WeightName::AttentionNorm(index), hidden)?,
            qkv: self.linear(WeightName::Qkv(index), qkv_width, hidden)?,
            qkv_bias: if config.qkv_bias {
                Some(self.vector(WeightName::QkvBias(index), qkv_width)?)
            } else {
                None
            },
            attention_output: self.linear(WeightName::AttentionOutput(index), hidden, q_width)?,
            mlp_norm: self.vector(WeightName::MlpNorm(index), hidden)?,
            gate_up: self.linear(WeightName::GateUp(index), 2 * intermediate, hidden)?,
            down: self.linear(WeightName::Down(index), hidden, intermediate)?,
        })
    }

    fn linear(&mut self, name: WeightName, n: usize, k: usize) -> Result<Weight, BackendError> {
        self.matrix(name, WeightUse::Linear, n, k)
    }

    fn vector(&mut self, name: WeightName, k: usize) -> Result<Weight, BackendError> {
        self.matrix(name, WeightUse::Vector, 1, k)
    }

    fn matrix(
        &mut self,
        name: WeightName,
        used_as: WeightUse,
        n: usize,
        k: usize,
    ) -> Result<Weight, BackendError> {
        let shown = format!("{name:?}");
        let source = self
            .weights
            .source(name)
            .map_err(|source| BackendError::Weight {
                name: shown.clone(),
                source,
            })?;
        let desc = WeightDesc {
            name: shown,
            n,
            k,
            experts: 1,
            heads: 1,
            used_as,
            recipe: recipe_of(name, self.recipe),
            shard: Shard::Whole,
            salient: self.salience.of(name),
        };
        self.backend.weight(&desc, source.as_ref())
    }
}

impl Buffers {
    /// All layers share the buffers, whose types follow from the weights of the first.
    fn allocate<B: Backend>(
        backend: &mut B,
        config: &ModelConfig,
        plan: MemoryPlan,
        layers: &[Layer],
        output: Weight,
    ) -> Result<Buffers, BackendError> {
        let first = layers.first().ok_or_else(|| BackendError::Unsupported {
            backend: "every",
            what: "a model without layers".to_owned(),
        })?;
        let (rows, hidden) = (plan.rows, config.hidden_size);
        let q_width = config.q_heads * config.head_dim;
        let qkv_width = q_width + 2 * config.kv_heads * config.head_dim;
        Ok(Buffers {
            residual: backend.buf(rows, hidden, Role::Residual)?,
            attention_input: backend.buf(rows, hidden, Role::InputOf(first.qkv))?,
            qkv: backend.buf(rows, qkv_width, Role::Qkv)?,
            attended: backend.buf(rows, q_width, Role::InputOf(first.attention_output))?,
            mlp_input: backend.buf(rows, hidden, Role::InputOf(first.gate_up))?,
            gated: backend.buf(rows, config.intermediate_size, Role::InputOf(first.down))?,
            output_input: backend.buf(rows, hidden, Role::InputOf(output))?,
            logits: backend.buf(plan.logit_rows, config.vocab_size, Role::Logits)?,
        })
    }
}

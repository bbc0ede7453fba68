//! Handles, and what a backend is told at load.

use crate::model::ModelError;

/// What a backend can do, and how it wants steps to be shaped.
#[derive(Debug, Clone)]
pub struct Caps {
    /// Tokens in a KV page.
    pub page_tokens: usize,
    /// Steps that may be enqueued before the first is waited for, less one: 0 or 1.
    pub lookahead: usize,
    /// The most rows in one step.
    pub max_rows: usize,
    /// Version, backend, instruction set and recipe: results are bit-identical within one fingerprint.
    pub fingerprint: String,
}

/// A weight matrix on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weight(pub u32);

/// An activation buffer on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buf(pub u32);

/// A rotary table on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeTable(pub u32);

/// How numbers are stored in a weight file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// GGUF: 32 weights a block, f16 scale.
    Q4_0,
    /// GGUF: 32 weights a block, f16 scale and minimum.
    Q4_1,
    /// GGUF: 32 weights a block, f16 scale.
    Q8_0,
    /// GGUF: 256 weights a block, 6-bit scales and minima for 8 sub-blocks.
    Q4K,
    /// GGUF: 256 weights a block, 8-bit scales for 16 sub-blocks.
    Q6K,
}

/// How a linear layer computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recipe {
    /// Weights and activations in f32.
    F32,
    /// Weights in bf16, activations rounded to bf16, sums in f32.
    Bf16,
    /// Both operands mixed by blocks, weights in int8 by channel, activations in int8 by row, sums in i32; salient
    /// input features in bf16.
    Int8,
}

impl Recipe {
    /// Returns its name in fingerprints, and in the names of what is kept between runs. It changes when the
    /// same recipe gives other results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Recipe::F32 => "f32",
            Recipe::Bf16 => "bf16",
            Recipe::Int8 => "int8",
        }
    }

    /// Returns the number type of the KV cache beside it: 8 bits would round keys and values too coarsely.
    #[must_use]
    pub fn kv_type(self) -> KvType {
        match self {
            Recipe::F32 => KvType::F32,
            Recipe::Bf16 | Recipe::Int8 => KvType::Bf16,
        }
    }
}

/// What a weight is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightUse {
    /// The operand of [`super::Backend::linear`] and its kin: `[experts * heads, N, K]`.
    Linear,
    /// The table of [`super::Backend::embed`]: `[N, K]`, gathered by row.
    Embedding,
    /// The table of [`super::Backend::embed`], and the operand of the output layer (tied embeddings).
    TiedEmbedding,
    /// A norm gain or a bias: `N = 1`, K values, f32.
    Vector,
}

/// Which part of a weight this device holds (tensor parallelism).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shard {
    /// All of it.
    Whole,
    /// Rows `index/count` of the output dimension.
    Rows {
        /// This device.
        index: usize,
        /// All devices.
        count: usize,
    },
    /// Columns `index/count` of the input dimension; the product needs [`super::Backend::all_reduce`].
    Columns {
        /// This device.
        index: usize,
        /// All devices.
        count: usize,
    },
}

/// The shape and the treatment of one weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightDesc {
    /// The name that error messages show.
    pub name: String,
    /// Output features of one matrix.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Stacked experts; 1 for a dense layer.
    pub experts: usize,
    /// Stacked heads; 1 but for `linear_heads`.
    pub heads: usize,
    /// What it is used for.
    pub used_as: WeightUse,
    /// How products with it are computed.
    pub recipe: Recipe,
    /// Which part this device holds.
    pub shard: Shard,
    /// Input features that are mostly far greater than the others, ascending: a recipe of few bits may give them
    /// more. None are known if it is empty.
    pub salient: Vec<u32>,
}

/// Reads the numbers of one weight, row by row.
///
/// Rows are `experts * heads * n` rows of `k` values, in the order of the description.
pub trait WeightSource: Send + Sync {
    /// Returns the number of rows.
    fn rows(&self) -> usize;

    /// Returns the number of values in a row.
    fn cols(&self) -> usize;

    /// Writes rows `first_row..` as f32 into `out`, whose length is a multiple of [`WeightSource::cols`].
    ///
    /// # Errors
    ///
    /// [`ModelError`] if the file's bytes end early or do not decode.
    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError>;

    /// Returns the stored format and bytes when the rows lie in the file just as they are read: a backend
    /// may copy them without decoding.
    fn raw(&self) -> Option<(Format, &[u8])> {
        None
    }
}

/// What a buffer holds, from which a backend derives its element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The residual stream, f32 on every backend.
    Residual,
    /// The input of products with this weight: bf16, int8 with row scales, ...
    InputOf(Weight),
    /// Projected queries, keys and values.
    Qkv,
    /// Expert choices and their weights.
    Routing,
    /// Logits, f32.
    Logits,
    /// Pooled rows, f32.
    Pooled,
}

/// The kind of a rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Pairs `(i, i + d/2)`: Llama, Qwen, Gemma.
    Neox,
    /// Pairs `(2i, 2i + 1)`.
    Interleaved,
}

/// A rotary table: `inv_freq[i]` for each rotated pair, positions from 0.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Pair layout.
    pub style: RopeStyle,
    /// Radians a position, for each pair, after any scaling: `[rotary_dim / 2]`.
    pub inv_freq: Vec<f32>,
    /// Factor on cosine and sine (YaRN); 1.0 otherwise.
    pub attention_factor: f32,
    /// Positions to cover.
    pub max_positions: usize,
}

/// The shape of what attention caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvLayout {
    /// Grouped-query attention: `heads` K heads of `dk` and V heads of `dv`.
    Gqa {
        /// KV heads.
        heads: usize,
        /// Key size.
        dk: usize,
        /// Value size.
        dv: usize,
    },
    /// Multi-head latent attention: one latent and one rotated part a token.
    Latent {
        /// Latent size.
        rank: usize,
        /// Rotated part.
        rope: usize,
    },
}

/// Number type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvType {
    /// IEEE single: the reference, and `--precision f32`.
    F32,
    /// bfloat16.
    Bf16,
    /// 8-bit float, e4m3.
    Fp8,
}

/// Layers that share one page table: all full-attention layers, or all layers of one window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvGroup {
    /// Layer indices, ascending.
    pub layers: Vec<usize>,
    /// Sliding window in tokens, if any.
    pub window: Option<usize>,
}

/// The KV pool's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSpec {
    /// Layer groups; every layer with a cache is in exactly one.
    pub groups: Vec<KvGroup>,
    /// What one token of one layer needs.
    pub layout: KvLayout,
    /// Number type.
    pub dtype: KvType,
}

//! The arguments of the forward operations.

use super::{Buf, RopeTable, Weight};

/// Arguments of [`super::Backend::embed`].
#[derive(Debug, Clone)]
pub struct Embed {
    /// `[R, H]`, residual.
    pub out: Buf,
    /// Token table `[V, H]`.
    pub table: Weight,
    /// Factor on the row (Gemma); 1.0 otherwise.
    pub scale: f32,
    /// Learned position table (BERT).
    pub positions: Option<Weight>,
    /// Token type table (BERT).
    pub token_types: Option<Weight>,
}

/// The kind of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Root mean square.
    Rms,
    /// Mean and variance.
    Layer,
}

/// Arguments of [`super::Backend::norm`].
#[derive(Debug, Clone)]
pub struct Norm {
    /// `[R, C]`, residual; updated in place when `add` is given.
    pub x: Buf,
    /// `[R, C]`, added to `x` first.
    pub add: Option<Buf>,
    /// Gain `[C]`.
    pub weight: Weight,
    /// Bias `[C]`.
    pub bias: Option<Weight>,
    /// Which norm.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f32,
    /// Gain is `1 + weight` (Gemma).
    pub plus_one: bool,
    /// `[R, C]`.
    pub out: Buf,
}

/// Element-wise functions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU, tanh form.
    GeluTanh,
    /// GELU, exact form.
    GeluErf,
    /// SwiGLU of gpt-oss: inputs clamped to `limit`, `alpha` inside the sigmoid, up + 1.
    ClampedSwiglu {
        /// Slope.
        alpha: f32,
        /// Clamp.
        limit: f32,
    },
}

/// What happens to a product before it is stored. The bias comes first, then the rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Epilogue {
    /// Store it.
    None,
    /// `out += product`; `out` is a residual buffer.
    Residual,
    /// The weight is `[gate; up]` with `N = 2 I`: `out[R, I] = act(gate) * up`.
    Gated(Activation),
    /// `act(product)`.
    Act(Activation),
    /// `cap * tanh(product / cap)`.
    Softcap(f32),
}

/// Which rows an operation reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// All rows of the step.
    All,
    /// The step's logit rows, in their order.
    Logit,
}

/// Arguments of [`super::Backend::linear`].
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[R, K]`.
    pub x: Buf,
    /// `[N, K]`.
    pub weight: Weight,
    /// Bias `[N]`.
    pub bias: Option<Weight>,
    /// `[R, N]`, `[R, N / 2]` when gated, `[S, N]` for logit rows.
    pub out: Buf,
    /// What to do with the product.
    pub epilogue: Epilogue,
    /// Which rows.
    pub rows: Rows,
}

/// Arguments of [`super::Backend::linear_heads`].
#[derive(Debug, Clone)]
pub struct LinearHeads {
    /// `[R, heads, K]`.
    pub x: Buf,
    /// `[heads, N, K]`.
    pub weight: Weight,
    /// `[R, heads, N]`.
    pub out: Buf,
}

/// Where the heads of a projected row lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLayout {
    /// Query heads.
    pub q_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Size of a query or key head.
    pub dk: usize,
    /// Size of a value head.
    pub dv: usize,
}

/// Arguments of [`super::Backend::rope_store`].
#[derive(Debug, Clone)]
pub struct RopeStore {
    /// `[R, q_heads * dk + kv_heads * (dk + dv)]`: queries, keys, values. Queries are rotated in place.
    pub qkv: Buf,
    /// Head layout of `qkv`.
    pub heads: HeadLayout,
    /// The layer whose pages are written.
    pub layer: usize,
    /// Rotation; none for layers without.
    pub rope: Option<RopeTable>,
    /// RMS norm gain of each query head `[dk]` (Qwen3, Gemma 3), and its eps.
    pub q_norm: Option<(Weight, f32)>,
    /// RMS norm gain of each key head `[dk]`.
    pub k_norm: Option<(Weight, f32)>,
    /// Whether K and V go to the pages; false for encoders.
    pub store: bool,
}

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Those at its own position and before.
    Causal,
    /// All of its sequence.
    Bidirectional,
}

/// Where keys and values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvFrom {
    /// The sequence's pages, this step's rows included.
    Pages,
    /// This step's rows of `qkv` (encoders).
    ThisStep,
}

/// Arguments of [`super::Backend::attend`].
#[derive(Debug, Clone)]
pub struct Attend {
    /// `[R, ...]` as in [`RopeStore::qkv`], rotated.
    pub qkv: Buf,
    /// Head layout of `qkv`.
    pub heads: HeadLayout,
    /// The layer.
    pub layer: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Only the last `window` positions, the query's own included.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// One extra score a query head, in the denominator only (gpt-oss): `[q_heads]`.
    pub sinks: Option<Weight>,
    /// Where keys and values are.
    pub from: KvFrom,
    /// `[R, q_heads * dv]`.
    pub out: Buf,
}

/// How scores become expert weights.
#[derive(Debug, Clone, PartialEq)]
pub enum RouteScore {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid, with a bias that counts for the choice only.
    Sigmoid {
        /// `[E]`.
        bias: Option<Weight>,
    },
}

/// Arguments of [`super::Backend::route`].
#[derive(Debug, Clone)]
pub struct Route {
    /// `[R, H]`.
    pub x: Buf,
    /// Router `[E, H]`.
    pub weight: Weight,
    /// Bias `[E]` on the scores.
    pub bias: Option<Weight>,
    /// Score function.
    pub score: RouteScore,
    /// Expert groups and how many of them are kept.
    pub groups: Option<(usize, usize)>,
    /// Experts a row.
    pub top_k: usize,
    /// Whether the chosen weights are made to sum to one.
    pub renorm: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// The result.
    pub routing: Buf,
}

/// Which half of an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertHalf {
    /// `[gate; up]` with its activation: `[R * top_k, I]`.
    Up(Activation),
    /// Down, weighted and summed over the row's experts in their order: `[R, H]`.
    Down,
}

/// Arguments of [`super::Backend::linear_experts`].
#[derive(Debug, Clone)]
pub struct LinearExperts {
    /// `[R, K]` for `Up`, `[R * top_k, K]` for `Down`.
    pub x: Buf,
    /// `[E, N, K]`.
    pub weight: Weight,
    /// Bias `[E, N]`.
    pub bias: Option<Weight>,
    /// From [`super::Backend::route`].
    pub routing: Buf,
    /// Which half.
    pub half: ExpertHalf,
    /// The result.
    pub out: Buf,
}

/// How the rows of a sequence become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Their mean.
    Mean,
    /// The first.
    Cls,
    /// The last.
    Last,
}

/// Arguments of [`super::Backend::pool`].
#[derive(Debug, Clone)]
pub struct Pool {
    /// `[R, H]`.
    pub x: Buf,
    /// Which.
    pub kind: PoolKind,
    /// Whether the result is scaled to length one.
    pub l2: bool,
    /// Only the first of the values, before `l2`.
    pub dimensions: Option<usize>,
    /// `[sequences, H]`.
    pub out: Buf,
}

/// Names a forward graph: steps of one bucket run the same operations on the same shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GraphKey {
    /// The bucket of the step.
    pub bucket: super::Bucket,
    /// Which closure: 0 is the whole model.
    pub part: u32,
}

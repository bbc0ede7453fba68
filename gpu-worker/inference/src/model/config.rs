//! The shape of a model, whatever file it came from.

use crate::backend::RopeSpec;

/// A decoder of the Llama family, as the forward pass needs it.
///
/// Filled from `config.json` (both dialects of Hugging Face) or from GGUF metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// `llama`, ... as the file names it.
    pub architecture: String,
    /// Rows of the embedding table, padding included.
    pub vocab_size: usize,
    /// Ids from here on are padding and never sampled.
    pub tokenizer_vocab_size: usize,
    /// Residual width.
    pub hidden_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub q_heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// MLP width.
    pub intermediate_size: usize,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// Rotary frequencies, scaled as the file says.
    pub rope: RopeSpec,
    /// Biases on the q, k and v projections.
    pub qkv_bias: bool,
    /// The output layer is the embedding table.
    pub tied_embeddings: bool,
    /// The most tokens of prompt and output together.
    pub context_tokens: usize,
}

/// Names a weight of the decoder, whatever the file calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightName {
    /// `[vocab, hidden]`.
    Embedding,
    /// `[vocab, hidden]`; absent when tied.
    Output,
    /// `[hidden]`.
    FinalNorm,
    /// `[hidden]`, before attention.
    AttentionNorm(usize),
    /// `[(q_heads + 2 kv_heads) * head_dim, hidden]`: q, k, v rows, heads in Neox pair order.
    Qkv(usize),
    /// `[(q_heads + 2 kv_heads) * head_dim]`, only with `qkv_bias`.
    QkvBias(usize),
    /// `[hidden, q_heads * head_dim]`.
    AttentionOutput(usize),
    /// `[hidden]`, before the MLP.
    MlpNorm(usize),
    /// `[2 * intermediate, hidden]`: gate rows, then up rows.
    GateUp(usize),
    /// `[hidden, intermediate]`.
    Down(usize),
}

/// The largest hidden size, vocabulary, MLP width or context that is believed.
pub(super) const DIMENSION_MAX: usize = 1 << 24;
/// The largest head that is believed.
const HEAD_DIM_MAX: usize = 1024;

impl ModelConfig {
    /// Returns what is wrong with the numbers, if anything: after this no product of two of them overflows.
    pub(super) fn fault(&self) -> Option<String> {
        let sizes = [
            ("vocabulary", self.vocab_size),
            ("hidden size", self.hidden_size),
            ("layer count", self.layers),
            ("query head count", self.q_heads),
            ("KV head count", self.kv_heads),
            ("head size", self.head_dim),
            ("MLP width", self.intermediate_size),
            ("context length", self.context_tokens),
        ];
        if let Some((name, size)) = sizes
            .into_iter()
            .find(|&(_, size)| size == 0 || size > DIMENSION_MAX)
        {
            return Some(format!(
                "{name} is {size}, and must be 1 to {DIMENSION_MAX}"
            ));
        }
        if self.head_dim > HEAD_DIM_MAX || !self.head_dim.is_multiple_of(2) {
            return Some(format!(
                "head size is {}, and must be even and at most {HEAD_DIM_MAX}",
                self.head_dim
            ));
        }
        if !self.q_heads.is_multiple_of(self.kv_heads) {
            return Some(format!(
                "{} query heads do not share {} KV heads evenly",
                self.q_heads, self.kv_heads
            ));
        }
        if self.tokenizer_vocab_size > self.vocab_size {
            return Some(format!(
                "the tokenizer has {} tokens, the embedding table {} rows",
                self.tokenizer_vocab_size, self.vocab_size
            ));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            return Some(format!("the norm's epsilon is {}", self.norm_eps));
        }
        if let Some(frequency) = self
            .rope
            .inv_freq
            .iter()
            .find(|frequency| !frequency.is_finite())
        {
            return Some(format!("a rotary frequency is {frequency}"));
        }
        None
    }
}

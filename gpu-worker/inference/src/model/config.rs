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

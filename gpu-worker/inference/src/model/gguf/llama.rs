//! Makes a Llama model of a GGUF file.

use std::path::Path;
use std::sync::Arc;

use super::{Array, Fault, Gguf};
use crate::backend::{Format, RopeSpec, RopeStyle};
use crate::model::config::DIMENSION_MAX;
use crate::model::dequant::dequantise;
use crate::model::digest::Digest;
use crate::model::mapped::MappedFile;
use crate::model::rope::{RopeScaling, inverse_frequencies};
use crate::model::weights::{LlamaWeights, Naming, Tensor};
use crate::model::{ModelConfig, ModelError, OpenedModel};
use crate::text::{ChatTemplate, GgufVocabulary, TokenKind, Tokenizer, TokenizerError};

/// Tokens that end a turn, by text: files often name only one of several.
const END_OF_TURN: [&str; 8] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "</s>",
];

/// Opens a GGUF file.
pub(in crate::model) fn open(path: &Path) -> Result<OpenedModel, ModelError> {
    let file = MappedFile::open(path)?;
    let path = file.path.clone();
    let gguf = Gguf::parse(file.bytes()).map_err(|fault| fault.in_file(&path))?;
    let parts = read(&gguf, file.bytes()).map_err(|fault| fault.in_file(&path))?;
    let mut digest = Digest::new("gguf");
    digest.header(file.bytes(), gguf.data_start);
    let tensors = gguf.tensors.iter().map(|tensor| {
        digest.sample(&file.bytes()[tensor.range.clone()]);
        let (format, shape, range) = (tensor.format, tensor.shape.clone(), tensor.range.clone());
        (
            tensor.name.to_owned(),
            Tensor {
                file: 0,
                format,
                shape,
                range,
            },
        )
    });
    let tensors = tensors.collect();
    let weights = LlamaWeights {
        naming: Naming::Gguf,
        files: vec![file],
        tensors,
        config: parts.config.clone(),
    };
    weights.check()?;
    Ok(OpenedModel {
        config: parts.config,
        tokenizer: Some(Arc::new(parts.tokenizer)),
        chat_template: parts.chat_template.map(Arc::new),
        stop_tokens: parts.stop_tokens.into(),
        bos_token: parts.bos_token,
        weights_digest: digest.finish(),
        weights,
    })
}

/// What the header says, the tensors aside.
struct Parts {
    config: ModelConfig,
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
    stop_tokens: Vec<u32>,
    bos_token: Option<u32>,
}

fn read(gguf: &Gguf<'_>, bytes: &[u8]) -> Result<Parts, Fault> {
    let architecture = gguf.str("general.architecture")?;
    if architecture != "llama" {
        return Err(Fault::unsupported(format!("architecture {architecture}")));
    }
    let vocabulary = read_vocabulary(gguf)?;
    let config = read_config(gguf, bytes, vocabulary.tokens.len())?;
    let token = |name: &str| -> Result<Option<u32>, Fault> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = gguf.token(&key)? else {
            return Ok(None);
        };
        if id as usize >= vocabulary.tokens.len() {
            return Err(Fault::corrupt(format!(
                "{key} is {id}, of {} tokens",
                vocabulary.tokens.len()
            )));
        }
        Ok(Some(id))
    };
    let (bos, eos) = (token("bos")?, token("eos")?);
    let mut stop_tokens: Vec<u32> = [eos, token("eot")?, token("eom")?]
        .into_iter()
        .flatten()
        .collect();
    let tokenizer = Tokenizer::from_gguf(&vocabulary).map_err(|error| match error {
        TokenizerError::Unsupported(what) => Fault::unsupported(what),
        TokenizerError::Corrupt(what) => Fault::corrupt(what),
    })?;
    stop_tokens.extend(
        END_OF_TURN
            .iter()
            .filter_map(|text| tokenizer.special_id(text)),
    );
    stop_tokens.sort_unstable();
    stop_tokens.dedup();
    let text = |id: Option<u32>| id.map_or("", |id| vocabulary.tokens[id as usize]);
    let chat_template = gguf
        .optional_str("tokenizer.chat_template")?
        .map(|source| ChatTemplate::new(source, text(bos), text(eos)))
        .transpose()
        .map_err(|error| Fault::unsupported(format!("tokenizer.chat_template ({error})")))?;
    let add_bos = gguf.optional_bool("tokenizer.ggml.add_bos_token")?;
    let bos_token = bos.filter(|_| add_bos.unwrap_or_else(|| tokenizer.adds_bos_by_default()));
    Ok(Parts {
        config,
        tokenizer,
        chat_template,
        stop_tokens,
        bos_token,
    })
}

fn read_vocabulary<'a>(gguf: &Gguf<'a>) -> Result<GgufVocabulary<'a>, Fault> {
    let strings = |key: &str| -> Result<Vec<&'a str>, Fault> {
        let Some(array) = gguf.optional_array(key)? else {
            return Ok(Vec::new());
        };
        let text = |(i, value): (usize, super::Value<'a>)| {
            value
                .as_str()
                .ok_or_else(|| Fault::corrupt(format!("{key}[{i}] is not a string of UTF-8")))
        };
        array.iter().enumerate().map(text).collect()
    };
    if gguf
        .optional_array("tokenizer.ggml.tokens")?
        .map_or(0, Array::len)
        > DIMENSION_MAX
    {
        return Err(Fault::corrupt("tokenizer.ggml.tokens has too many tokens"));
    }
    let tokens = strings("tokenizer.ggml.tokens")?;
    let mut kinds: Vec<TokenKind> = match gguf.optional_array("tokenizer.ggml.token_type")? {
        None => vec![TokenKind::Normal; tokens.len()],
        Some(array) => array
            .iter()
            .enumerate()
            .map(|(i, value)| {
                let kind = value.as_u64().and_then(TokenKind::from_gguf);
                kind.ok_or_else(|| {
                    Fault::corrupt(format!("tokenizer.ggml.token_type[{i}] is not 0 to 6"))
                })
            })
            .collect::<Result<_, _>>()?,
    };
    if kinds.len() != tokens.len() {
        return Err(Fault::corrupt(format!(
            "tokenizer.ggml.tokens has {} entries, tokenizer.ggml.token_type {}",
            tokens.len(),
            kinds.len()
        )));
    }
    // Some converters took these for text; a user must not be able to end a turn.
    for (kind, text) in kinds.iter_mut().zip(&tokens) {
        if *kind == TokenKind::UserDefined && END_OF_TURN.contains(text) {
            *kind = TokenKind::Control;
        }
    }
    Ok(GgufVocabulary {
        model: gguf.str("tokenizer.ggml.model")?,
        pre: gguf
            .optional_str("tokenizer.ggml.pre")?
            .unwrap_or("default"),
        tokens,
        kinds,
        merges: strings("tokenizer.ggml.merges")?,
        add_space_prefix: gguf
            .optional_bool("tokenizer.ggml.add_space_prefix")?
            .unwrap_or(false),
    })
}

fn read_config(gguf: &Gguf<'_>, bytes: &[u8], tokens: usize) -> Result<ModelConfig, Fault> {
    if gguf
        .optional_usize("llama.expert_count")?
        .is_some_and(|count| count > 0)
    {
        return Err(Fault::unsupported(
            "a mixture of experts (llama.expert_count)",
        ));
    }
    if gguf
        .optional_usize("llama.attention.sliding_window")?
        .is_some_and(|window| window > 0)
    {
        return Err(Fault::unsupported(
            "windowed attention (llama.attention.sliding_window)",
        ));
    }
    let shape_of = |name: &str| gguf.tensors.iter().find(|tensor| tensor.name == name);
    let embedding = shape_of("token_embd.weight")
        .ok_or_else(|| Fault::corrupt("tensor token_embd.weight is missing"))?;
    let hidden_size = gguf.usize("llama.embedding_length")?;
    let q_heads = heads(gguf, "llama.attention.head_count")?
        .ok_or_else(|| Fault::corrupt("llama.attention.head_count is missing"))?;
    let kv_heads = heads(gguf, "llama.attention.head_count_kv")?.unwrap_or(q_heads);
    let head_dim = match gguf.optional_usize("llama.attention.key_length")? {
        Some(size) => size,
        None => hidden_size.checked_div(q_heads).unwrap_or(0),
    };
    for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        let size = gguf.optional_usize(key)?.unwrap_or(head_dim);
        if size != head_dim {
            return Err(Fault::unsupported(format!(
                "{key} {size} with heads of {head_dim}"
            )));
        }
    }
    let context_tokens = gguf.usize("llama.context_length")?;
    let mut config = ModelConfig {
        architecture: "llama".to_owned(),
        vocab_size: embedding.shape[0],
        tokenizer_vocab_size: tokens,
        hidden_size,
        layers: gguf.usize("llama.block_count")?,
        q_heads,
        kv_heads,
        head_dim,
        intermediate_size: gguf.usize("llama.feed_forward_length")?,
        norm_eps: gguf
            .optional_f64("llama.attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| Fault::corrupt("llama.attention.layer_norm_rms_epsilon is missing"))?
            as f32,
        rope: RopeSpec {
            style: RopeStyle::Neox,
            inv_freq: Vec::new(),
            attention_factor: 1.0,
            max_positions: context_tokens,
        },
        qkv_bias: shape_of("blk.0.attn_q.bias").is_some(),
        tied_embeddings: shape_of("output.weight").is_none(),
        context_tokens,
    };
    if shape_of("blk.0.attn_output.bias").is_some() {
        return Err(Fault::unsupported(
            "a bias on the attention output (blk.0.attn_output.bias)",
        ));
    }
    // Before the frequencies: it bounds their number.
    config
        .fault()
        .map_or(Ok(()), |what| Err(Fault::Corrupt(what)))?;
    config.rope.inv_freq = frequencies(gguf, bytes, head_dim)?;
    config
        .fault()
        .map_or(Ok(config), |what| Err(Fault::Corrupt(what)))
}

/// Reads a head count, which some architectures give for each layer.
fn heads(gguf: &Gguf<'_>, key: &str) -> Result<Option<usize>, Fault> {
    if let Some(array) = gguf.value(key).and_then(super::Value::as_array) {
        let mut counts = array
            .iter()
            .map(|value| value.as_u64().and_then(|count| usize::try_from(count).ok()));
        let first = counts
            .next()
            .flatten()
            .ok_or_else(|| Fault::corrupt(format!("{key} has no head count")))?;
        if counts.any(|count| count != Some(first)) {
            return Err(Fault::unsupported(format!(
                "{key} that differs between layers"
            )));
        }
        return Ok(Some(first));
    }
    gguf.optional_usize(key)
}

fn frequencies(gguf: &Gguf<'_>, bytes: &[u8], head_dim: usize) -> Result<Vec<f32>, Fault> {
    let theta = gguf
        .optional_f64("llama.rope.freq_base")?
        .unwrap_or(10_000.0);
    if !(theta.is_finite() && theta > 1.0) {
        return Err(Fault::corrupt(format!("llama.rope.freq_base is {theta}")));
    }
    let scaling = match gguf.optional_str("llama.rope.scaling.type")? {
        Some("linear") => linear(gguf.optional_f64("llama.rope.scaling.factor")?)?,
        None => linear(gguf.optional_f64("llama.rope.scale_linear")?)?,
        Some("none") => RopeScaling::None,
        Some(other) => {
            return Err(Fault::unsupported(format!(
                "llama.rope.scaling.type {other}"
            )));
        }
    };
    let mut frequencies = inverse_frequencies(theta, head_dim, scaling);
    let name = "rope_freqs.weight";
    if let Some(tensor) = gguf.tensors.iter().find(|tensor| tensor.name == name) {
        if tensor.shape != [head_dim / 2] || tensor.format != Format::F32 {
            return Err(Fault::corrupt(format!(
                "tensor {name} is {:?} of shape {:?}, and should be F32 of [{}]",
                tensor.format,
                tensor.shape,
                head_dim / 2
            )));
        }
        let mut factors = vec![0.0; head_dim / 2];
        dequantise(tensor.format, &bytes[tensor.range.clone()], &mut factors);
        for (frequency, factor) in frequencies.iter_mut().zip(factors) {
            *frequency /= factor;
        }
    }
    Ok(frequencies)
}

fn linear(factor: Option<f64>) -> Result<RopeScaling, Fault> {
    match factor {
        None => Ok(RopeScaling::None),
        Some(factor) if factor.is_finite() && factor > 0.0 => Ok(RopeScaling::Linear { factor }),
        Some(factor) => Err(Fault::corrupt(format!(
            "the rotary scaling factor is {factor}"
        ))),
    }
}

//! `config.json` and `generation_config.json` in both dialects of Hugging Face.
//!
//! The hub writes `rope_theta`, `rope_scaling` and `torch_dtype`, transformers 5 writes `rope_parameters` and
//! `dtype`. Unknown fields are ignored; a field that would change the arithmetic is refused by name.

use serde::Deserialize;
use serde_json::Value;

use super::ModelConfig;
use super::config::DIMENSION_MAX;
use super::gguf::Fault;
use super::rope::{RopeScaling, inverse_frequencies};
use crate::backend::{RopeSpec, RopeStyle};

/// The fields of `config.json` that are used.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigJson {
    #[serde(default)]
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: Option<f64>,
    max_position_embeddings: Option<usize>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    hidden_act: Option<String>,
    partial_rotary_factor: Option<f64>,
    quantization_config: Option<Value>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeJson>,
    rope_parameters: Option<RopeJson>,
    bos_token_id: Option<Value>,
    eos_token_id: Option<Value>,
}

/// `rope_scaling` or `rope_parameters`.
#[derive(Debug, Default, Deserialize)]
struct RopeJson {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

/// The fields of `generation_config.json` that are used.
#[derive(Debug, Default, Deserialize)]
pub(super) struct GenerationJson {
    bos_token_id: Option<Value>,
    eos_token_id: Option<Value>,
}

/// Parses one of the two files.
pub(super) fn parse<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Fault> {
    serde_json::from_slice(bytes)
        .map_err(|error| Fault::corrupt(format!("it does not parse: {error}")))
}

impl ConfigJson {
    /// Returns the architecture that the file asks for.
    pub(super) fn architecture(&self) -> &str {
        let first = self.architectures.as_ref().and_then(|names| names.first());
        first
            .or(self.model_type.as_ref())
            .map_or("none", String::as_str)
    }

    /// Converts the fields, with a tokenizer of `tokens` ids if there is one.
    pub(super) fn to_model(&self, tokens: Option<usize>) -> Result<ModelConfig, Fault> {
        self.refuse_what_is_not_built()?;
        let head_dim = self
            .head_dim
            .or_else(|| self.hidden_size.checked_div(self.num_attention_heads));
        let context_tokens = self.max_position_embeddings.unwrap_or(2048);
        let mut config = ModelConfig {
            architecture: "llama".to_owned(),
            vocab_size: self.vocab_size,
            tokenizer_vocab_size: tokens.unwrap_or(self.vocab_size),
            hidden_size: self.hidden_size,
            layers: self.num_hidden_layers,
            q_heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim: head_dim.unwrap_or(0),
            intermediate_size: self.intermediate_size,
            norm_eps: self.rms_norm_eps.unwrap_or(1e-6) as f32,
            rope: RopeSpec {
                style: RopeStyle::Neox,
                inv_freq: Vec::new(),
                attention_factor: 1.0,
                max_positions: context_tokens,
            },
            qkv_bias: false,
            tied_embeddings: self.tie_word_embeddings.unwrap_or(false),
            context_tokens,
        };
        // Before the frequencies: it bounds their number.
        config
            .fault()
            .map_or(Ok(()), |what| Err(Fault::Corrupt(what)))?;
        config.rope.inv_freq = self.frequencies(config.head_dim)?;
        config
            .fault()
            .map_or(Ok(config), |what| Err(Fault::Corrupt(what)))
    }

    fn refuse_what_is_not_built(&self) -> Result<(), Fault> {
        if self.architecture() != "LlamaForCausalLM" && self.architecture() != "llama" {
            return Err(Fault::unsupported(format!(
                "architecture {}",
                self.architecture()
            )));
        }
        if let Some(quantisation) = &self.quantization_config {
            let method = quantisation
                .get("quant_method")
                .and_then(Value::as_str)
                .unwrap_or("unnamed");
            return Err(Fault::unsupported(format!(
                "quantization_config of method {method}"
            )));
        }
        // In Llama, attention_bias puts a bias on the attention output too, which has no place in the forward pass.
        for (name, set) in [
            ("attention_bias", self.attention_bias),
            ("mlp_bias", self.mlp_bias),
        ] {
            if set == Some(true) {
                return Err(Fault::unsupported(name));
            }
        }
        if let Some(act) = self.hidden_act.as_deref().filter(|&act| act != "silu") {
            return Err(Fault::unsupported(format!("hidden_act {act}")));
        }
        let rope = [&self.rope_parameters, &self.rope_scaling]
            .into_iter()
            .flatten();
        let mut factors = rope
            .filter_map(|rope| rope.partial_rotary_factor)
            .chain(self.partial_rotary_factor);
        if let Some(factor) = factors.find(|&factor| factor != 1.0) {
            return Err(Fault::unsupported(format!(
                "partial_rotary_factor {factor}"
            )));
        }
        Ok(())
    }

    fn frequencies(&self, head_dim: usize) -> Result<Vec<f32>, Fault> {
        let default = RopeJson::default();
        let rope = self
            .rope_parameters
            .as_ref()
            .or(self.rope_scaling.as_ref())
            .unwrap_or(&default);
        let theta = rope.rope_theta.or(self.rope_theta).unwrap_or(10_000.0);
        if !(theta.is_finite() && theta > 1.0) {
            return Err(Fault::corrupt(format!("rope_theta is {theta}")));
        }
        let number = |name: &str, value: Option<f64>| match value {
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            Some(value) => Err(Fault::corrupt(format!(
                "{name} of the rotary scaling is {value}"
            ))),
            None => Err(Fault::corrupt(format!(
                "{name} of the rotary scaling is missing"
            ))),
        };
        let scaling = match rope.rope_type.as_deref() {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear {
                factor: number("factor", rope.factor)?,
            },
            Some("llama3") => RopeScaling::Llama3 {
                factor: number("factor", rope.factor)?,
                low: number("low_freq_factor", rope.low_freq_factor)?,
                high: number("high_freq_factor", rope.high_freq_factor)?,
                original_tokens: number(
                    "original_max_position_embeddings",
                    rope.original_max_position_embeddings,
                )?,
            },
            Some(other) => return Err(Fault::unsupported(format!("rotary scaling {other}"))),
        };
        Ok(inverse_frequencies(theta, head_dim, scaling))
    }

    /// Returns the ids that end a text, the generation configuration's if it has any.
    pub(super) fn stop_tokens(&self, generation: &GenerationJson) -> Result<Vec<u32>, Fault> {
        let mut ids = match &generation.eos_token_id {
            Some(ids) if !ids.is_null() => {
                token_ids("eos_token_id of generation_config.json", ids)?
            }
            _ => self
                .eos_token_id
                .as_ref()
                .map_or(Ok(Vec::new()), |ids| token_ids("eos_token_id", ids))?,
        };
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Returns the id that begins a text.
    pub(super) fn bos_token(&self, generation: &GenerationJson) -> Result<Option<u32>, Fault> {
        let id = generation
            .bos_token_id
            .as_ref()
            .or(self.bos_token_id.as_ref());
        Ok(id
            .map_or(Ok(Vec::new()), |id| token_ids("bos_token_id", id))?
            .first()
            .copied())
    }
}

/// Reads an id, a list of ids, or null.
fn token_ids(name: &str, value: &Value) -> Result<Vec<u32>, Fault> {
    let one = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.filter(|&id| (id as usize) < DIMENSION_MAX)
            .ok_or_else(|| {
                Fault::corrupt(format!(
                    "{name} is {value}, and should be a token id or a list of them"
                ))
            })
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(one).collect(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            Ok(vec![one(value)?])
        }
    }
}

#[cfg(test)]
mod tests;

//! The tensors of a Llama model by name, whichever of the two formats names them.
//!
//! Shapes are checked once, when the model is opened; after that a weight is only looked up.

use std::collections::BTreeMap;
use std::ops::Range;

use super::gguf::Fault;
use super::mapped::MappedFile;
use super::source::{Matrix, RowOrder, Stack, Vector};
use super::{ModelConfig, ModelError, WeightName, Weights};
use crate::backend::{Format, WeightSource};

/// Whose names, and whose order of rotary pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// `blk.0.attn_q.weight`; rows of q and k are interleaved.
    Gguf,
    /// `model.layers.0.self_attn.q_proj.weight`.
    HuggingFace,
}

/// Where a tensor lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    /// Index into the files.
    pub(super) file: usize,
    pub(super) format: Format,
    /// Outermost first.
    pub(super) shape: Vec<usize>,
    /// Its bytes in the file, as many as the shape takes.
    pub(super) range: Range<usize>,
}

/// The weights of a model on disk.
#[derive(Debug)]
pub(super) struct LlamaWeights {
    pub(super) naming: Naming,
    pub(super) files: Vec<MappedFile>,
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) config: ModelConfig,
}

/// A tensor that a weight is made of.
#[derive(Debug)]
struct Part {
    name: String,
    rows: usize,
    order: RowOrder,
}

/// What a weight is made of.
#[derive(Debug)]
enum Recipe {
    /// Matrices `[rows, cols]`, one below the other.
    Stacked { parts: Vec<Part>, cols: usize },
    /// Vectors `[rows]`, one after the other.
    Joined(Vec<Part>),
}

impl LlamaWeights {
    /// Checks that every weight is there and has the configuration's shape.
    ///
    /// # Errors
    ///
    /// [`ModelError::Corrupt`] with the name of the first tensor that is missing or has another shape.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        self.source(WeightName::Embedding)?;
        self.source(WeightName::FinalNorm)?;
        if !self.config.tied_embeddings {
            self.source(WeightName::Output)?;
        }
        for layer in 0..self.config.layers {
            for name in [
                WeightName::AttentionNorm(layer),
                WeightName::Qkv(layer),
                WeightName::AttentionOutput(layer),
                WeightName::MlpNorm(layer),
                WeightName::GateUp(layer),
                WeightName::Down(layer),
            ] {
                self.source(name)?;
            }
            if self.config.qkv_bias {
                self.source(WeightName::QkvBias(layer))?;
            }
        }
        Ok(())
    }

    fn recipe(&self, weight: WeightName) -> Recipe {
        let c = &self.config;
        let one = |name: String, rows| {
            vec![Part {
                name,
                rows,
                order: RowOrder::Stored,
            }]
        };
        let matrix = |name, rows, cols| Recipe::Stacked {
            parts: one(name, rows),
            cols,
        };
        let q_rows = c.q_heads * c.head_dim;
        match weight {
            WeightName::Embedding => matrix(
                self.global("token_embd", "model.embed_tokens"),
                c.vocab_size,
                c.hidden_size,
            ),
            WeightName::Output => matrix(
                self.global("output", "lm_head"),
                c.vocab_size,
                c.hidden_size,
            ),
            WeightName::FinalNorm => {
                Recipe::Joined(one(self.global("output_norm", "model.norm"), c.hidden_size))
            }
            WeightName::AttentionNorm(layer) => Recipe::Joined(one(
                self.layer(layer, "attn_norm", "input_layernorm", "weight"),
                c.hidden_size,
            )),
            WeightName::MlpNorm(layer) => Recipe::Joined(one(
                self.layer(layer, "ffn_norm", "post_attention_layernorm", "weight"),
                c.hidden_size,
            )),
            WeightName::Qkv(layer) => Recipe::Stacked {
                parts: self.qkv(layer, "weight"),
                cols: c.hidden_size,
            },
            WeightName::QkvBias(layer) => Recipe::Joined(self.qkv(layer, "bias")),
            WeightName::AttentionOutput(layer) => matrix(
                self.layer(layer, "attn_output", "self_attn.o_proj", "weight"),
                c.hidden_size,
                q_rows,
            ),
            WeightName::GateUp(layer) => {
                let mut parts = one(
                    self.layer(layer, "ffn_gate", "mlp.gate_proj", "weight"),
                    c.intermediate_size,
                );
                parts.extend(one(
                    self.layer(layer, "ffn_up", "mlp.up_proj", "weight"),
                    c.intermediate_size,
                ));
                Recipe::Stacked {
                    parts,
                    cols: c.hidden_size,
                }
            }
            WeightName::Down(layer) => matrix(
                self.layer(layer, "ffn_down", "mlp.down_proj", "weight"),
                c.hidden_size,
                c.intermediate_size,
            ),
        }
    }

    fn qkv(&self, layer: usize, suffix: &str) -> Vec<Part> {
        let c = &self.config;
        let rotated = match self.naming {
            Naming::Gguf => RowOrder::Interleaved {
                head_dim: c.head_dim,
            },
            Naming::HuggingFace => RowOrder::Stored,
        };
        [
            ("attn_q", "self_attn.q_proj", c.q_heads, rotated),
            ("attn_k", "self_attn.k_proj", c.kv_heads, rotated),
            ("attn_v", "self_attn.v_proj", c.kv_heads, RowOrder::Stored),
        ]
        .map(|(gguf, hugging_face, heads, order)| Part {
            name: self.layer(layer, gguf, hugging_face, suffix),
            rows: heads * c.head_dim,
            order,
        })
        .into()
    }

    fn global(&self, gguf: &str, hugging_face: &str) -> String {
        match self.naming {
            Naming::Gguf => format!("{gguf}.weight"),
            Naming::HuggingFace => format!("{hugging_face}.weight"),
        }
    }

    fn layer(&self, layer: usize, gguf: &str, hugging_face: &str, suffix: &str) -> String {
        match self.naming {
            Naming::Gguf => format!("blk.{layer}.{gguf}.{suffix}"),
            Naming::HuggingFace => format!("model.layers.{layer}.{hugging_face}.{suffix}"),
        }
    }

    /// Looks a tensor up and views it as a matrix, if it has the expected shape.
    fn matrix(&self, part: &Part, shape: &[usize], cols: usize) -> Result<Matrix<'_>, ModelError> {
        let Some(tensor) = self.tensors.get(&part.name) else {
            let path = self.files.first().map_or("", |file| &file.path);
            return Err(Fault::corrupt(format!("tensor {} is missing", part.name)).in_file(path));
        };
        let file = &self.files[tensor.file];
        if tensor.shape != shape {
            let what = format!(
                "tensor {} has shape {:?}, the configuration says {shape:?}",
                part.name, tensor.shape
            );
            return Err(Fault::corrupt(what).in_file(&file.path));
        }
        Ok(Matrix {
            format: tensor.format,
            bytes: &file.bytes()[tensor.range.clone()],
            rows: part.rows,
            cols,
            order: part.order,
        })
    }
}

impl Weights for LlamaWeights {
    fn source(&self, name: WeightName) -> Result<Box<dyn WeightSource + '_>, ModelError> {
        match self.recipe(name) {
            Recipe::Stacked { parts, cols } => {
                let parts = parts
                    .iter()
                    .map(|part| self.matrix(part, &[part.rows, cols], cols));
                Ok(Box::new(Stack::new(parts.collect::<Result<_, _>>()?)))
            }
            Recipe::Joined(parts) => {
                let parts = parts.iter().map(|part| {
                    let vector = self.matrix(part, &[part.rows], 1)?;
                    if !matches!(vector.format, Format::F32 | Format::F16 | Format::Bf16) {
                        let what = format!("vector {} of type {:?}", part.name, vector.format);
                        return Err(Fault::unsupported(what).in_file(&self.files[0].path));
                    }
                    Ok(vector)
                });
                Ok(Box::new(Vector::new(parts.collect::<Result<_, _>>()?)))
            }
        }
    }
}

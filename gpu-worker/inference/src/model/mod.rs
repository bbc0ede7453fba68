//! Reads models from disk: GGUF and safetensors.
//!
//! Never trusts a length or an offset from a file, and never panics on one. Start at [`open`].

mod config;
mod config_json;
mod dequant;
mod digest;
mod folder;
mod gguf;
mod mapped;
mod rope;
mod safetensors;
mod source;
mod weights;

use std::path::Path;
use std::sync::Arc;

pub use config::{ModelConfig, WeightName};

use crate::backend::WeightSource;
use crate::text::{ChatTemplate, Tokenizer};

/// Gives the weights of an opened model by name.
pub trait Weights: Send + Sync {
    /// Returns the source of one weight, concatenated and reordered as [`WeightName`] says.
    ///
    /// # Errors
    ///
    /// [`ModelError::Corrupt`] if the file lacks it or its shape is not the configuration's.
    fn source(&self, name: WeightName) -> Result<Box<dyn WeightSource + '_>, ModelError>;
}

/// A model on disk, ready to be loaded onto a device.
#[derive(Debug)]
pub struct OpenedModel {
    /// The model's shape.
    pub config: ModelConfig,
    /// The tokenizer, if the files hold one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The chat template, if the files hold one.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// Ids that end a text, ascending.
    pub stop_tokens: Arc<[u32]>,
    /// Goes before a prompt that no chat template wrote; none if the model wants none there.
    pub bos_token: Option<u32>,
    /// 32 hexadecimal digits over the headers and samples of the weights: part of the system fingerprint.
    pub weights_digest: String,
    weights: weights::LlamaWeights,
}

impl Weights for OpenedModel {
    fn source(&self, name: WeightName) -> Result<Box<dyn WeightSource + '_>, ModelError> {
        self.weights.source(name)
    }
}

/// Opens a `.gguf` file, or a folder with `config.json` and safetensors.
///
/// Maps the weights and reads none of them; every name and shape is checked against the configuration. The
/// files must not be written to as long as the model is open.
///
/// # Errors
///
/// [`ModelError::Io`] if a file cannot be read, [`ModelError::Corrupt`] if it breaks its format or contradicts
/// itself, [`ModelError::Unsupported`] if it asks for an architecture, a number format or a tokenizer that is
/// not built.
pub fn open(path: &Path) -> Result<OpenedModel, ModelError> {
    if path.is_dir() {
        folder::open(path)
    } else {
        gguf::llama::open(path)
    }
}

/// Why a model cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file or folder cannot be read.
    #[error("read {path}")]
    Io {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The bytes are not what the format allows.
    #[error("{path} is corrupt: {what}")]
    Corrupt {
        /// Which file.
        path: String,
        /// What is wrong, where.
        what: String,
    },
    /// The file is sound, and asks for something that is not built.
    #[error("{path}: {what} is not supported")]
    Unsupported {
        /// Which file.
        path: String,
        /// What.
        what: String,
    },
}

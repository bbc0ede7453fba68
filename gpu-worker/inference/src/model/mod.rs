//! Reads models from disk: GGUF and safetensors.
//!
//! Never trusts a length or an offset from a file, and never panics on one.

mod config;

pub use config::{ModelConfig, WeightName};

/// Gives the weights of an opened model by name.
pub trait Weights: Send + Sync {
    /// Returns the source of one weight, concatenated and reordered as [`WeightName`] says.
    ///
    /// # Errors
    ///
    /// [`ModelError::Corrupt`] if the file lacks it or its shape is not the configuration's.
    fn source(&self, name: WeightName) -> Result<Box<dyn crate::backend::WeightSource + '_>, ModelError>;
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

//! The models that a service offers. Parsed from TOML elsewhere; resolved here.

mod form;
mod server;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::batch::Endpoint;

pub use form::InvalidModel;
pub use server::{InvalidServer, Server};

/// Realtime list price; a batch pays half.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Dollars a million prompt tokens.
    pub input_per_million: f64,
    /// Dollars a million generated tokens.
    pub output_per_million: f64,
}

/// Where a model's files come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A file or a folder on this machine.
    Path(String),
    /// A Hugging Face repository, with an optional revision and the one file to take (GGUF).
    HuggingFace {
        /// `owner/name`.
        repo: String,
        /// Branch, tag or commit; `main` if none.
        revision: Option<String>,
        /// One file; the whole model if none.
        file: Option<String>,
    },
    /// A GGUF file, or a folder of safetensors, in S3: `s3://bucket/key` or `s3://bucket/prefix/`.
    S3(String),
    /// A file inside a PyPI package.
    Pypi {
        /// Package name.
        package: String,
        /// Exact version.
        version: String,
        /// Path inside the wheel.
        file: String,
    },
}

/// What answers a model's lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// The engine of this program, on files from a source.
    Native(Source),
    /// A server that speaks OpenAI's API.
    Http(Server),
}

/// One model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "form::ModelForm")]
pub struct Model {
    /// What `model` shows everywhere.
    pub id: String,
    /// Other names that lines may use.
    pub aliases: Vec<String>,
    /// What answers its lines.
    pub engine: Engine,
    /// The most tokens of prompt and output together; the file's own limit if none.
    pub context_tokens: Option<u32>,
    /// The endpoints that it serves.
    pub endpoints: Vec<Endpoint>,
    /// Realtime list price.
    pub price: Price,
    /// Who made it, as `GET /models` shows.
    pub owned_by: Option<String>,
    /// Tokens (prompt and output) a second of one worker, until it is measured.
    pub tokens_per_s: Option<u32>,
}

/// All models. Ids and aliases are unique.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Catalog {
    models: Vec<Model>,
    /// Whatever a line names, the only model runs it.
    answers_to_all: bool,
}

/// Why a catalog is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCatalog {
    /// Two models share a name.
    #[error("two models are named '{0}'")]
    DuplicateName(String),
    /// A name is empty or over 256 characters.
    #[error("'{0}' cannot name a model")]
    InvalidName(String),
    /// A price is negative or not finite.
    #[error("the price of '{0}' must be zero or more")]
    InvalidPrice(String),
    /// Its server cannot be called as it is described.
    #[error("model '{model}': {fault}")]
    InvalidServer {
        /// Id.
        model: String,
        /// What is wrong, and what to do.
        fault: InvalidServer,
    },
}

impl Catalog {
    /// Checks the models and makes a catalog of them.
    ///
    /// # Errors
    ///
    /// [`InvalidCatalog`] for the first fault.
    pub fn new(models: Vec<Model>) -> Result<Self, InvalidCatalog> {
        let mut seen = std::collections::HashSet::new();
        for model in &models {
            for name in std::iter::once(&model.id).chain(&model.aliases) {
                if name.is_empty() || name.chars().count() > 256 {
                    return Err(InvalidCatalog::InvalidName(
                        name.chars().take(128).collect(),
                    ));
                }
                if !seen.insert(name) {
                    return Err(InvalidCatalog::DuplicateName(name.clone()));
                }
            }
            let prices = [
                model.price.input_per_million,
                model.price.output_per_million,
            ];
            if prices
                .iter()
                .any(|price| !price.is_finite() || *price < 0.0)
            {
                return Err(InvalidCatalog::InvalidPrice(model.id.clone()));
            }
            if let Engine::Http(server) = &model.engine {
                server
                    .check()
                    .map_err(|fault| InvalidCatalog::InvalidServer {
                        model: model.id.clone(),
                        fault,
                    })?;
            }
        }
        Ok(Self {
            models,
            answers_to_all: false,
        })
    }

    /// Makes a catalog of one model that answers to every name.
    ///
    /// # Errors
    ///
    /// [`InvalidCatalog`].
    pub fn only(model: Model) -> Result<Self, InvalidCatalog> {
        Ok(Self {
            answers_to_all: true,
            ..Self::new(vec![model])?
        })
    }

    /// Returns all models, in the order of the file.
    #[must_use]
    pub fn models(&self) -> &[Model] {
        &self.models
    }

    /// Finds a model by id or alias.
    #[must_use]
    pub fn resolve(&self, name: &str) -> Option<&Model> {
        if self.answers_to_all {
            return self.models.first();
        }
        self.models
            .iter()
            .find(|model| model.id == name || model.aliases.iter().any(|alias| alias == name))
    }
}

//! Which model runs a line: the one that the line names, or the one that `--model` forces on all.

use std::path::Path;

use anyhow::Context as _;
use batch_core::batch::Endpoint;
use batch_core::catalog::{Catalog, Engine, Model, Price, Source};
use worker::service::Place;

use crate::config::Config;
use crate::failure::usage;
use crate::models::{Shelf, pull, served};

/// The models that a run may use.
pub(super) struct Choice {
    catalog: Catalog,
    shelf: Shelf,
}

impl Choice {
    /// Takes the catalog, or the one model that `wanted` names by a name of the catalog or a path: it then runs
    /// every line, whatever the line names.
    pub(super) fn new(config: &Config, shelf: Shelf, wanted: Option<&str>) -> anyhow::Result<Self> {
        let Some(wanted) = wanted else {
            return Ok(Self {
                catalog: config.catalog.clone(),
                shelf,
            });
        };
        let model = match config.catalog.resolve(wanted) {
            Some(model) => model.clone(),
            None if Path::new(wanted).exists() => from_path(wanted),
            None => {
                let known: Vec<&str> = config
                    .catalog
                    .models()
                    .iter()
                    .map(|model| model.id.as_str())
                    .collect();
                return Err(usage(format!(
                    "--model {wanted} is neither a file or folder nor in the catalog, which has: {}",
                    known.join(", ")
                )));
            }
        };
        Ok(Self {
            catalog: Catalog::only(model).context("take the model")?,
            shelf,
        })
    }

    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns where the model is, and fetches it first if it is not there and no server has it.
    pub(super) fn place(&self, id: &str) -> anyhow::Result<Place> {
        let model = self
            .catalog
            .resolve(id)
            .with_context(|| format!("find {id} in the catalog"))?;
        match &model.engine {
            Engine::Native(_) => Ok(Place::Files(pull(model, &self.shelf)?)),
            Engine::Http(server) => Ok(Place::Server(served(&model.id, server)?)),
        }
    }

    pub(super) fn context_tokens(&self, id: &str) -> Option<usize> {
        self.catalog
            .resolve(id)
            .and_then(|model| model.context_tokens)
            .map(|tokens| tokens as usize)
    }
}

fn from_path(path: &str) -> Model {
    let stem = Path::new(path)
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    Model {
        id: stem,
        aliases: Vec::new(),
        engine: Engine::Native(Source::Path(path.to_owned())),
        context_tokens: None,
        endpoints: Endpoint::ALL.to_vec(),
        price: Price {
            input_per_million: 0.0,
            output_per_million: 0.0,
        },
        owned_by: None,
        tokens_per_s: None,
    }
}

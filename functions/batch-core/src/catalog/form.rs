//! A model as configuration files write it: with `engine = "http"` and a server, or with a source.

use serde::Deserialize;

use super::{Engine, Model, Price, Server, Source};
use crate::batch::Endpoint;

/// The written form. Unknown fields are refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelForm {
    id: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    engine: EngineName,
    #[serde(default)]
    source: Option<Source>,
    #[serde(default)]
    server: Option<Server>,
    #[serde(default)]
    context_tokens: Option<u32>,
    endpoints: Vec<Endpoint>,
    price: Price,
    #[serde(default)]
    owned_by: Option<String>,
    #[serde(default)]
    tokens_per_s: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EngineName {
    #[default]
    Native,
    Http,
}

/// Why fields of a model do not go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidModel {
    /// Its lines would have nowhere to go.
    #[error(
        "model '{0}' has engine = \"http\" and no server: add server.url, such as \"http://127.0.0.1:8000/v1\""
    )]
    NoServer(String),
    /// Its files would not be used.
    #[error(
        "model '{0}' has engine = \"http\" and a source: remove source, the server has the model's files"
    )]
    ServedSource(String),
    /// Nobody could load it.
    #[error(
        "model '{0}' has no source: name its files, or a server with engine = \"http\" and server.url"
    )]
    NoSource(String),
    /// The server would not be called.
    #[error(
        "model '{0}' has a server, which engine = \"http\" alone uses: add that, or remove server"
    )]
    UnusedServer(String),
}

impl TryFrom<ModelForm> for Model {
    type Error = InvalidModel;

    fn try_from(form: ModelForm) -> Result<Self, InvalidModel> {
        let ModelForm {
            id,
            aliases,
            engine,
            source,
            server,
            context_tokens,
            endpoints,
            price,
            owned_by,
            tokens_per_s,
        } = form;
        let engine = match (engine, source, server) {
            (EngineName::Native, Some(source), None) => Engine::Native(source),
            (EngineName::Http, None, Some(server)) => Engine::Http(server),
            (EngineName::Native, _, Some(_)) => return Err(InvalidModel::UnusedServer(id)),
            (EngineName::Native, None, None) => return Err(InvalidModel::NoSource(id)),
            (EngineName::Http, Some(_), _) => return Err(InvalidModel::ServedSource(id)),
            (EngineName::Http, None, None) => return Err(InvalidModel::NoServer(id)),
        };
        Ok(Self {
            id,
            aliases,
            engine,
            context_tokens,
            endpoints,
            price,
            owned_by,
            tokens_per_s,
        })
    }
}

//! How the server of a model is called: as the catalog says, with a key from the environment.

use batch_core::catalog::Server;
use worker::http::{ApiKey, Served};

use crate::failure::usage;

/// Adds the key to what the catalog says of a model's server.
pub(crate) fn served(id: &str, server: &Server) -> anyhow::Result<Served> {
    let key = match &server.api_key_env {
        None => None,
        Some(name) => {
            let key = std::env::var(name).ok().filter(|key| !key.is_empty());
            let key = key.ok_or_else(|| {
                usage(format!(
                    "the environment variable {name} is not set: server.api_key_env of model '{id}' says that it holds the server's API key; set it, or remove the field if the server wants no key"
                ))
            })?;
            Some(ApiKey::new(key))
        }
    };
    Ok(Served {
        server: server.clone(),
        key,
    })
}

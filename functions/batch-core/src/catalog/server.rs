//! A server that speaks OpenAI's API (vLLM, SGLang, TensorRT-LLM, llama.cpp) and has a model of the catalog.

use serde::Deserialize;

use crate::limits::{
    SERVER_REQUESTS_DEFAULT, SERVER_REQUESTS_MAX, SERVER_TIMEOUT_S_DEFAULT, SERVER_TIMEOUT_S_MAX,
};

/// Where a server is, and how it is called.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// What an OpenAI SDK takes as its base URL: `http://127.0.0.1:8000/v1`. It holds no secret.
    pub url: String,
    /// What the server calls the model; the catalog's id if none.
    #[serde(default)]
    pub model: Option<String>,
    /// Environment variable of the workers with the server's API key; none sends no key.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// Requests of one worker that are in flight at once, at most.
    #[serde(default = "requests_default")]
    pub requests_max: u32,
    /// Seconds until a request is given up.
    #[serde(default = "timeout_default")]
    pub timeout_seconds: u32,
}

fn requests_default() -> u32 {
    SERVER_REQUESTS_DEFAULT
}

fn timeout_default() -> u32 {
    SERVER_TIMEOUT_S_DEFAULT
}

/// Why a server cannot be called as it is described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidServer {
    /// Not `http://` or `https://` with a host, or with more than a path behind it.
    #[error(
        "server.url must be http:// or https://, a host and a path, such as \"http://127.0.0.1:8000/v1\", without a query"
    )]
    Url,
    /// A password in an address ends in logs.
    #[error(
        "server.url must not hold a user or a password: name a variable with the key in server.api_key_env"
    )]
    SecretInUrl,
    /// Empty, or over 256 characters.
    #[error(
        "server.model must have 1 to 256 characters: the name that the server lists under /models"
    )]
    Model,
    /// No name of a variable.
    #[error(
        "server.api_key_env must be the name of an environment variable, such as \"VLLM_API_KEY\", and not the key itself"
    )]
    ApiKeyEnv,
    /// None at all, or too many.
    #[error("server.requests_max must be from 1 to {SERVER_REQUESTS_MAX}")]
    RequestsMax,
    /// No time at all, or too long.
    #[error("server.timeout_seconds must be from 1 to {SERVER_TIMEOUT_S_MAX}")]
    Timeout,
}

impl Server {
    /// Returns the address without a slash at its end: paths of endpoints follow.
    #[must_use]
    pub fn base(&self) -> &str {
        self.url.trim_end_matches('/')
    }

    /// Returns what the server calls the model that the catalog calls `id`.
    #[must_use]
    pub fn model_name<'a>(&'a self, id: &'a str) -> &'a str {
        self.model.as_deref().unwrap_or(id)
    }

    pub(super) fn check(&self) -> Result<(), InvalidServer> {
        check_url(&self.url)?;
        let name_fits = |name: &String| (1..=256).contains(&name.chars().count());
        if !self.model.as_ref().is_none_or(name_fits) {
            return Err(InvalidServer::Model);
        }
        if !self.api_key_env.as_deref().is_none_or(is_variable) {
            return Err(InvalidServer::ApiKeyEnv);
        }
        if !(1..=SERVER_REQUESTS_MAX).contains(&self.requests_max) {
            return Err(InvalidServer::RequestsMax);
        }
        if !(1..=SERVER_TIMEOUT_S_MAX).contains(&self.timeout_seconds) {
            return Err(InvalidServer::Timeout);
        }
        Ok(())
    }
}

fn check_url(url: &str) -> Result<(), InvalidServer> {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))
        .ok_or(InvalidServer::Url)?;
    let host = rest.split('/').next().unwrap_or_default();
    if host.contains('@') {
        return Err(InvalidServer::SecretInUrl);
    }
    let is_plain =
        |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'"' | b'\\');
    if host.is_empty() || host.starts_with(':') || !rest.bytes().all(is_plain) {
        return Err(InvalidServer::Url);
    }
    Ok(())
}

/// A key pasted in place of the name has lower-case letters or hyphens, as a rule.
fn is_variable(name: &str) -> bool {
    let starts = name.starts_with(|first: char| first.is_ascii_uppercase() || first == '_');
    let all = |rest: u8| rest.is_ascii_uppercase() || rest.is_ascii_digit() || rest == b'_';
    starts && name.bytes().all(all)
}

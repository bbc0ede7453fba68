//! Calls a server: its endpoints, and its health.

use std::time::Duration;

use batch_core::limits::{SERVER_ANSWER_BYTES_MAX, SERVER_CONNECT_S, SERVER_MODELS_BYTES_MAX};
use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{RequestBuilder, Response, redirect};
use serde::Deserialize;

use super::Served;
use super::verdict::Reply;

/// Why a server is not given lines.
#[derive(Debug, thiserror::Error)]
pub enum ServerAway {
    /// The key cannot stand in a header.
    #[error("the API key of the server at {0} has characters that no key has; correct it")]
    Key(String),
    /// This machine's certificates, or the address.
    #[error("prepare to call the server at {0}")]
    Client(String, #[source] reqwest::Error),
    /// No connection, or no answer in time.
    #[error("the server at {url} does not answer ({why}); start it, or correct server.url")]
    Silent {
        /// Base address.
        url: String,
        /// In a few words.
        why: &'static str,
    },
    /// It says itself that it cannot serve.
    #[error("the server at {url} is not well: GET {path} gives {status}")]
    Unwell {
        /// Base address.
        url: String,
        /// What was asked for.
        path: &'static str,
        /// HTTP status.
        status: u16,
    },
    /// It wants another key, or one at all.
    #[error(
        "the server at {url} refuses the API key ({status}); correct the variable that server.api_key_env names"
    )]
    KeyRefused {
        /// Base address.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// Something else is there.
    #[error(
        "the server at {url} does not look like one of OpenAI's API: neither its health nor its models can be read ({status}); correct server.url"
    )]
    Stranger {
        /// Base address.
        url: String,
        /// HTTP status.
        status: u16,
    },
}

/// A client of one server.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    /// Makes a client; nothing is called yet.
    ///
    /// # Errors
    ///
    /// [`ServerAway::Key`] and [`ServerAway::Client`].
    pub(crate) fn new(served: &Served) -> Result<Self, ServerAway> {
        use_a_crypto_provider();
        let base = served.server.base().to_owned();
        let mut headers = HeaderMap::new();
        if let Some(key) = &served.key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal()))
                .map_err(|_| ServerAway::Key(base.clone()))?;
            value.set_sensitive(true);
            headers.insert(reqwest::header::AUTHORIZATION, value);
        }
        let http = reqwest::Client::builder()
            .user_agent("nightshift")
            .default_headers(headers)
            // The text of a line goes to the server that the operator named, and nowhere else.
            .redirect(redirect::Policy::none())
            .connect_timeout(Duration::from_secs(SERVER_CONNECT_S))
            .timeout(Duration::from_secs(served.server.timeout_seconds.into()))
            .pool_max_idle_per_host(served.server.requests_max as usize)
            .build()
            .map_err(|error| ServerAway::Client(base.clone(), error))?;
        Ok(Self { http, base })
    }

    /// Posts a body and waits for all of the reply.
    pub(super) async fn post(&self, path: &str, body: Bytes) -> Reply {
        let request = self
            .http
            .post(format!("{}{path}", self.base))
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        match receive(request, SERVER_ANSWER_BYTES_MAX).await {
            Ok(reply) => reply,
            Err(error) if error.is_connect() => Reply::Unreachable,
            Err(error) if error.is_timeout() => Reply::TimedOut,
            Err(_) => Reply::CutOff,
        }
    }

    /// Asks for the server's health and its models, and returns their names: a server that is well answers one of both.
    ///
    /// # Errors
    ///
    /// [`ServerAway`].
    pub(super) async fn probe(&self) -> Result<Vec<String>, ServerAway> {
        let url = || self.base.clone();
        let root = self.base.strip_suffix("/v1").unwrap_or(&self.base);
        let (health, _) = self.get(format!("{root}/health")).await?;
        if health >= 500 {
            return Err(ServerAway::Unwell {
                url: url(),
                path: "/health",
                status: health,
            });
        }
        let (status, body) = self.get(format!("{}/models", self.base)).await?;
        match status {
            200..=299 => Ok(names(&body)),
            401 | 403 => Err(ServerAway::KeyRefused { url: url(), status }),
            500.. => Err(ServerAway::Unwell {
                url: url(),
                path: "/models",
                status,
            }),
            _ if (200..=299).contains(&health) => Ok(Vec::new()),
            _ => Err(ServerAway::Stranger { url: url(), status }),
        }
    }

    /// Reads a small answer.
    async fn get(&self, url: String) -> Result<(u16, Vec<u8>), ServerAway> {
        let request = self
            .http
            .get(url)
            .timeout(Duration::from_secs(SERVER_CONNECT_S));
        match receive(request, SERVER_MODELS_BYTES_MAX).await {
            Ok(Reply::Whole { status, body, .. }) => Ok((status, body)),
            // A list that is too long is one.
            Ok(Reply::TooLong | Reply::Unreachable | Reply::TimedOut | Reply::CutOff) => {
                Ok((200, Vec::new()))
            }
            Err(error) => Err(ServerAway::Silent {
                url: self.base.clone(),
                why: in_words(&error),
            }),
        }
    }
}

/// Makes sure that a server is well, and says so if it does not list the model.
///
/// # Errors
///
/// [`ServerAway`].
pub(crate) async fn look(client: &Client, id: &str, model: &str) -> Result<(), ServerAway> {
    let names = client.probe().await?;
    if !names.is_empty() && !names.iter().any(|name| name == model) {
        tracing::warn!(
            model.id = %id, server.model = %model,
            "the server does not list this model; if it refuses the lines, set server.model to the name that it lists"
        );
    }
    Ok(())
}

/// Reads a reply of at most so many bytes.
async fn receive(request: RequestBuilder, bytes_max: usize) -> Result<Reply, reqwest::Error> {
    let mut response = request.send().await?;
    let status = response.status().as_u16();
    let retry_after = retry_after(&response);
    if response
        .content_length()
        .is_some_and(|length| length > bytes_max as u64)
    {
        return Ok(Reply::TooLong);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > bytes_max {
            return Ok(Reply::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Reply::Whole {
        status,
        retry_after,
        body,
    })
}

fn retry_after(response: &Response) -> Option<String> {
    let value = response.headers().get(RETRY_AFTER)?;
    value.to_str().ok().map(str::to_owned)
}

/// The error itself names the address again, and more than a person needs.
fn in_words(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "no answer in time"
    } else if error.is_connect() {
        "no connection"
    } else {
        "the connection broke"
    }
}

/// Reads the names in a list of models; none if it is no such list.
fn names(body: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        id: String,
    }
    let list = serde_json::from_slice::<List>(body);
    list.map_or_else(
        |_| Vec::new(),
        |list| list.data.into_iter().map(|entry| entry.id).collect(),
    )
}

/// The process's own choice stands, if it made one.
fn use_a_crypto_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails if another thread was faster, with the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

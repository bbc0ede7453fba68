//! Answers lines by a server that speaks OpenAI's API, in place of the engine.
//!
//! Decisions are pure and take `now` and draws as arguments: [`letter`] makes requests, [`verdict`] says what a
//! reply means, [`pace`] how many requests may be in flight, [`desk`] which line is sent when. [`client`] and
//! [`courier`] do it. Never logs a body or a key.

mod client;
mod courier;
mod desk;
mod letter;
mod pace;
mod retry;
mod verdict;

use batch_core::catalog::Server;

pub use client::ServerAway;
pub(crate) use client::{Client, look};
pub(crate) use courier::{Courier, Outside, Route};

/// A server of the catalog, with its key.
#[derive(Debug, Clone)]
pub struct Served {
    /// As the catalog describes it.
    pub server: Server,
    /// What it wants to see, if anything.
    pub key: Option<ApiKey>,
}

/// A key that no log shows.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// Takes a key.
    #[must_use]
    pub fn new(key: String) -> Self {
        Self(key)
    }

    fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey")
    }
}

//! Reads a batch's input file once: rejects it with all its errors, or cuts it into shards.
//!
//! Nothing that is written here means anything until one conditional update of the batch publishes it.
//! A second run writes the very same blobs and records, so that any crash is repaired by running again.
//! Start at [`handle`]; `cut` is the thread that parses, `write` stores what it cuts.
#![warn(missing_docs)]

mod cut;
mod input;
mod stage;
mod write;

use std::sync::Arc;

use batch_core::catalog::Catalog;
use batch_core::settings::Settings;
use batch_io::Platform;
use batch_io::store::Store;

pub use stage::handle;

/// What the stage needs from outside.
#[derive(Debug, Clone)]
pub struct Context {
    /// Ports, clock and randomness.
    pub platform: Platform,
    /// Typed access to the records.
    pub store: Store,
    /// The models that lines may name.
    pub catalog: Arc<Catalog>,
    /// Limits and times.
    pub settings: Settings,
}

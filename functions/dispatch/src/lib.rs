//! Releases shards into the models' queues: fair between tenants, urgent batches first.
//!
//! `batch_core::dispatch::plan` decides; this crate reads what it needs and carries the releases out: the
//! record first, then the message. A lost message is reconcile's. Nothing here depends on having run before.
#![warn(missing_docs)]

mod jobs;
mod release;
mod scene;

use std::sync::Arc;

use batch_core::catalog::Catalog;
use batch_io::Platform;
use batch_io::store::Store;

pub use release::{ModelBacklog, handle};

/// What the dispatcher needs from outside.
#[derive(Debug, Clone)]
pub struct Context {
    /// Ports, clock and randomness.
    pub platform: Platform,
    /// Typed access to the records.
    pub store: Store,
    /// The models of the service.
    pub catalog: Arc<Catalog>,
}

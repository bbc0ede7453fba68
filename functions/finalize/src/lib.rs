//! Writes a sealed batch's result files in input order, proves them complete, and ends the batch.
//!
//! Works under its own lease and epoch; file names carry the epoch, so that two finalizers never write one
//! blob, unless one goes on from the place that another saved when its time was over. Whoever cannot go on
//! from it starts over. A read error is retried by running again and never becomes an error line; results that
//! contradict the input's index are left for a person. Start at [`handle`].
#![warn(missing_docs)]

mod pace;
mod place;
mod result_file;
mod shards;
mod stage;
mod walk;

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
}

//! Finds what is stuck, lost or over, and asks for it again: the source of truth about "stuck".
//!
//! Every entry of the work index is read again strongly and acted on conditionally, so that two reconcilers
//! at once are harmless and a run may end anywhere. One bad record never stops the others. Start at
//! [`handle`].
#![warn(missing_docs)]

mod backlogs;
mod batches;
mod ended;
mod give_up;
mod messages;
mod pass;
mod report;
mod retention;
mod run;
mod shards;

use batch_io::Platform;
use batch_io::store::Store;

pub use report::Report;
pub use run::handle;

/// What a run needs from outside.
#[derive(Debug, Clone)]
pub struct Context {
    /// Ports, clock and randomness.
    pub platform: Platform,
    /// Typed access to the records.
    pub store: Store,
}

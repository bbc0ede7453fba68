//! Typed access to the records: keys, item forms and conditional updates, written once over the port.
//!
//! `batch-core` decides, this module writes the decision down, under the condition that what was read is
//! still so. Every call may be repeated and may race with another process: after an error of unknown
//! outcome, call again. Nothing here touches a blob or a queue.

mod actions;
mod assemblies;
mod backlogs;
mod batch_form;
mod batch_list;
mod batches;
mod commits;
mod creation;
mod due;
mod fields;
mod files;
mod fleet;
mod hold;
mod keys;
mod listed;
mod memory;
mod paths;
mod quota;
mod retention;
mod shard_form;
mod shards;
mod splits;
mod stages;
#[cfg(test)]
mod tests;
mod uploads;
mod verdicts;

use std::fmt;
use std::sync::Arc;

use batch_core::settings::Timing;

use crate::port::Records;

pub use assemblies::AssemblyEnded;
pub use backlogs::{Cursors, ReleasedShard};
pub use batches::{Applied, ApplyError, BatchView};
pub use commits::{Commit, CommitDelta};
pub use creation::{Created, Creation, NewBatch, Retry};
pub use due::DueRef;
pub use files::{FileCollection, FileQuery};
pub use keys::KeyRecord;
pub use listed::Listed;
pub use shards::{Lapsed, ShardClaim};
pub use splits::SplitShard;
pub use stages::{Claimed, Publication, Published, Stage};
pub use uploads::UploadCollection;
pub use verdicts::{Finish, Finished};

/// Typed access to the records. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    records: Arc<dyn Records>,
    timing: Timing,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Makes a store over `records`, whose leases last as `timing` says.
    pub fn new(records: Arc<dyn Records>, timing: Timing) -> Self {
        Self { records, timing }
    }

    /// Returns the times that leases and looks go by.
    #[must_use]
    pub fn timing(&self) -> &Timing {
        &self.timing
    }
}

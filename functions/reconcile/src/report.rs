//! What one run did, in numbers.

/// Counts of what a run found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Windows that closed.
    pub windows_closed: u64,
    /// Batches that were sealed.
    pub batches_sealed: u64,
    /// Jobs of stuck stages that were sent again.
    pub stages_resent: u64,
    /// Jobs that put files together and were sent again.
    pub assemblies_resent: u64,
    /// Messages of shards that were sent again, after a loss of the message or of the worker.
    pub shards_resent: u64,
    /// Shards that were split.
    pub shards_split: u64,
    /// Lines that were given up as error lines.
    pub lines_given_up: u64,
    /// Models whose dispatch was asked for.
    pub dispatches: u64,
    /// Files whose bytes and records were removed.
    pub files_removed: u64,
    /// Uploads whose parts and records were removed.
    pub uploads_removed: u64,
    /// Ended batches whose shards, index and results were removed.
    pub batches_cleared: u64,
    /// Memories of creates that were removed.
    pub creations_forgotten: u64,
    /// Registrations of workers that were removed.
    pub workers_removed: u64,
    /// Entries that could not be handled now; the next run tries again.
    pub failures: u64,
}

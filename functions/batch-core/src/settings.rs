//! What an operator may set, and the defaults for one machine.

use crate::limits;

/// Spans between periodic acts, and lengths of leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between commits of a shard; a commit renews its lease.
    pub commit_ms: i64,
    /// Between looks for cancel, expiry and lost leases.
    pub control_ms: i64,
    /// Length of a lease (shards and stages).
    pub lease_ms: i64,
    /// How long after its end a lease may be taken over (clock skew).
    pub takeover_ms: i64,
    /// Between cancel or expiry, and the seal.
    pub seal_grace_ms: i64,
    /// Between runs of reconcile.
    pub reconcile_ms: i64,
    /// Between runs of dispatch.
    pub dispatch_ms: i64,
    /// How long a released shard's message may stay unanswered before reconcile sends another.
    pub message_lost_ms: i64,
    /// How long a worker's registration lasts.
    pub worker_expiry_ms: i64,
}

impl Timing {
    /// One machine, one clock.
    pub const EMBEDDED: Timing = Timing {
        commit_ms: 2_000,
        control_ms: 1_000,
        lease_ms: 15_000,
        takeover_ms: 0,
        seal_grace_ms: 5_000,
        reconcile_ms: 2_000,
        dispatch_ms: 2_000,
        message_lost_ms: 30_000,
        worker_expiry_ms: 15_000,
    };
}

/// Limits of the contract that an operator may raise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Times.
    pub timing: Timing,
    /// Requests in a batch.
    pub lines_max: u64,
    /// Bytes of a batch's input file.
    pub file_bytes_max: u64,
    /// Batches that a tenant may create in an hour.
    pub batches_per_hour_max: u64,
    /// Estimated tokens that a tenant may have waiting; none is no limit.
    pub enqueued_tokens_max: Option<u64>,
    /// For tests: closes every window after so many milliseconds.
    pub window_override_ms: Option<i64>,
}

impl Settings {
    /// The contract's own limits on one machine.
    pub const EMBEDDED: Settings = Settings {
        timing: Timing::EMBEDDED,
        lines_max: limits::LINES_PER_FILE_DEFAULT,
        file_bytes_max: limits::FILE_BYTES_DEFAULT,
        batches_per_hour_max: limits::BATCHES_PER_HOUR_DEFAULT,
        enqueued_tokens_max: None,
        window_override_ms: None,
    };
}

//! What an operator may set, and the defaults for one machine and for AWS.

use serde::Deserialize;

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

    /// Returns these spans, each divided by `times`.
    fn sped_up(self, times: u32) -> Self {
        let shorter = |ms: i64| ms / i64::from(times.max(1));
        Self {
            commit_ms: shorter(self.commit_ms),
            control_ms: shorter(self.control_ms),
            lease_ms: shorter(self.lease_ms),
            takeover_ms: shorter(self.takeover_ms),
            seal_grace_ms: shorter(self.seal_grace_ms),
            reconcile_ms: shorter(self.reconcile_ms),
            dispatch_ms: shorter(self.dispatch_ms),
            message_lost_ms: shorter(self.message_lost_ms),
            worker_expiry_ms: shorter(self.worker_expiry_ms),
        }
    }

    /// Many machines, whose clocks may differ by seconds, and services that bill calls.
    pub const AWS: Timing = Timing {
        commit_ms: 30_000,
        control_ms: 5_000,
        lease_ms: 90_000,
        takeover_ms: 30_000,
        seal_grace_ms: 10_000,
        reconcile_ms: 60_000,
        dispatch_ms: 60_000,
        message_lost_ms: 900_000,
        worker_expiry_ms: 90_000,
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
    /// Bytes that completing an upload may copy and read before it answers; files above are put together by
    /// a job.
    pub inline_assembly_bytes_max: u64,
    /// For tests: closes every window but that of 24 hours after so many milliseconds.
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
        inline_assembly_bytes_max: limits::INLINE_ASSEMBLY_BYTES_DEFAULT,
        window_override_ms: None,
    };

    /// The contract's own limits on AWS.
    pub const AWS: Settings = Settings {
        timing: Timing::AWS,
        ..Settings::EMBEDDED
    };

    /// Returns how long a batch has that asks for `asked_ms`.
    #[must_use]
    pub fn window_ms(&self, asked_ms: i64) -> i64 {
        if asked_ms == limits::WINDOW_MS_DEFAULT {
            asked_ms
        } else {
            self.window_override_ms.unwrap_or(asked_ms)
        }
    }

    /// Returns these settings with what an operator has set.
    #[must_use]
    pub fn with(self, set: &SettingsOverrides) -> Self {
        let SettingsOverrides {
            lines_per_file,
            file_bytes,
            batches_per_hour,
            enqueued_tokens,
            testing,
        } = set;
        Self {
            timing: testing
                .times_faster
                .map_or(self.timing, |times| self.timing.sped_up(times)),
            lines_max: lines_per_file.unwrap_or(self.lines_max),
            file_bytes_max: file_bytes.unwrap_or(self.file_bytes_max),
            batches_per_hour_max: batches_per_hour.unwrap_or(self.batches_per_hour_max),
            enqueued_tokens_max: enqueued_tokens.or(self.enqueued_tokens_max),
            inline_assembly_bytes_max: testing
                .inline_assembly_bytes
                .unwrap_or(self.inline_assembly_bytes_max),
            window_override_ms: testing
                .window_seconds
                .map(|seconds| (seconds * 1000.0) as i64)
                .or(self.window_override_ms),
        }
    }
}

/// What an operator may set; everything else keeps its default.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SettingsOverrides {
    /// Requests in a batch.
    pub lines_per_file: Option<u64>,
    /// Bytes of a batch's input file.
    pub file_bytes: Option<u64>,
    /// Batches that a tenant may create in an hour.
    pub batches_per_hour: Option<u64>,
    /// Estimated tokens that a tenant may have waiting.
    pub enqueued_tokens: Option<u64>,
    /// For tests.
    pub testing: TestingOverrides,
}

/// What a test may set so that it need not wait for hours.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TestingOverrides {
    /// Closes every window but that of 24 hours after so many seconds.
    pub window_seconds: Option<f64>,
    /// Divides every span of [`Timing`] by this.
    pub times_faster: Option<u32>,
    /// Lets a job put together every upload above so many bytes.
    pub inline_assembly_bytes: Option<u64>,
}

//! The two records of a batch: what was asked, and how it goes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::catalog::Price;
use crate::file::ExpiresAfter;
use crate::id::{BatchId, FileId, LineNo, TenantId};
use crate::lifecycle::State;
use crate::time::UnixMs;

/// The endpoints that lines may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Endpoint {
    /// Chat.
    #[serde(rename = "/v1/chat/completions")]
    ChatCompletions,
    /// Plain text continuation.
    #[serde(rename = "/v1/completions")]
    Completions,
    /// Vectors.
    #[serde(rename = "/v1/embeddings")]
    Embeddings,
    /// The Responses API, without its stored state.
    #[serde(rename = "/v1/responses")]
    Responses,
}

impl Endpoint {
    /// Every endpoint, in the order that error messages list them.
    pub const ALL: [Endpoint; 4] = [
        Endpoint::ChatCompletions,
        Endpoint::Completions,
        Endpoint::Embeddings,
        Endpoint::Responses,
    ];

    /// Returns the path, as lines and batches name it.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::ChatCompletions => "/v1/chat/completions",
            Endpoint::Completions => "/v1/completions",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Responses => "/v1/responses",
        }
    }
}

/// What a user asked for. Never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchParams {
    /// Name.
    pub id: BatchId,
    /// Owner.
    pub tenant: TenantId,
    /// Endpoint of every line.
    pub endpoint: Endpoint,
    /// As the user gave it: it may name nothing.
    pub input_file_id: String,
    /// As the user gave it: `24h`.
    pub completion_window: String,
    /// When the window closes.
    pub expires_at: UnixMs,
    /// When it was created.
    pub created_at: UnixMs,
    /// The user's pairs, in their order.
    pub metadata: Option<Vec<(String, String)>>,
    /// How long the result files live.
    pub output_expires_after: Option<ExpiresAfter>,
    /// The input's size, when the file existed at create; none makes validation fail.
    pub input_bytes: Option<u64>,
    /// Prices by model id, as they were at create.
    pub prices: BTreeMap<String, Price>,
    /// Tokens a second of one worker by model id, as they were known at create: a second validation
    /// cuts the very same shards.
    pub rates: BTreeMap<String, u32>,
    /// The record that remembers this create for retries, if there is one.
    pub creation: Option<String>,
    /// Version of this record's form; an older process refuses a newer one.
    pub schema: u32,
}

/// The lease of a stage (validate, finalize).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StageLease {
    /// Raised by every claim: the fencing token.
    pub epoch: u64,
    /// When another may claim it; in the past when nobody holds it.
    pub until: UnixMs,
}

/// Tokens of finished lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// Prompt tokens that were found in a cache.
    pub cached: u64,
    /// Generated tokens.
    pub output: u64,
}

/// Lines of a batch. `completed` and `failed` never go down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LineCounts {
    /// All lines; fixed once published.
    pub total: u64,
    /// Lines with a 2xx response.
    pub completed: u64,
    /// Other finished lines.
    pub failed: u64,
}

/// When what happened; none until it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Moments {
    /// Published.
    pub in_progress_at: Option<UnixMs>,
    /// Sealed, or draining after expiry.
    pub finalizing_at: Option<UnixMs>,
    /// Cancel asked.
    pub cancelling_at: Option<UnixMs>,
    /// Ended (which terminal state is in [`State`]).
    pub ended_at: Option<UnixMs>,
}

/// How a batch goes. Changes by field updates that are conditional on `state`, never as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchRun {
    /// Where it stands.
    pub state: State,
    /// Set with a draining state: when the grace ends.
    pub seal_at: Option<UnixMs>,
    /// The lease of the stage that works on it.
    pub stage: StageLease,
    /// Models by slot: shard ids name a slot.
    pub models: Vec<String>,
    /// Lines.
    pub counts: LineCounts,
    /// Shards; a split adds one.
    pub shards_total: u64,
    /// Shards that are done.
    pub shards_done: u64,
    /// Windows of the input, each with an index blob.
    pub windows: u32,
    /// Tokens of finished lines.
    pub tokens: TokenCounts,
    /// Cost of finished lines, in 10⁻¹² dollars.
    pub cost_picodollars: u64,
    /// Tokens that all lines were estimated to take.
    pub estimated_tokens: u64,
    /// When what happened.
    pub moments: Moments,
    /// Output file, once ended.
    pub output_file_id: Option<FileId>,
    /// Error file, once ended.
    pub error_file_id: Option<FileId>,
    /// Digests and line counts, once ended.
    pub manifest: Option<Manifest>,
    /// Epoch of the finalizer that has saved its place: the next one goes on from there.
    pub saved_place: Option<u64>,
}

impl BatchRun {
    /// Returns whether every shard is done: the batch can be sealed if it is open.
    #[must_use]
    pub fn shards_are_done(&self) -> bool {
        self.shards_total > 0 && self.shards_done >= self.shards_total
    }
}

/// Proof of what went in and came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The input file.
    pub input: FileDigest,
    /// The output file.
    pub output: Option<FileDigest>,
    /// The error file.
    pub error: Option<FileDigest>,
}

/// One file in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// SHA-256, hexadecimal.
    pub sha256: String,
    /// Lines (requests).
    pub lines: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One reason for which a file was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationError {
    /// Machine-readable reason.
    pub code: String,
    /// Sentence for a person; echoes at most 128 characters of a value.
    pub message: String,
    /// Physical line; none for faults of the whole file.
    pub line: Option<LineNo>,
    /// The parameter at fault.
    pub param: Option<String>,
}

//! Batches as clients see them: every key always, null until it has a value.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::batch::{
    BatchParams, BatchRun, Endpoint, LineCounts, Manifest, TokenCounts, ValidationError,
};
use crate::lifecycle::{State, Status, Terminal};
use crate::time::UnixMs;
use crate::wire::Progress;

/// A batch object.
#[derive(Debug, Clone, Serialize)]
pub struct BatchObject<'a> {
    id: String,
    object: &'static str,
    endpoint: Endpoint,
    model: Option<&'a str>,
    errors: Option<Errors<'a>>,
    input_file_id: &'a str,
    completion_window: &'a str,
    status: Status,
    output_file_id: Option<String>,
    error_file_id: Option<String>,
    created_at: i64,
    in_progress_at: Option<i64>,
    expires_at: i64,
    finalizing_at: Option<i64>,
    completed_at: Option<i64>,
    failed_at: Option<i64>,
    expired_at: Option<i64>,
    cancelling_at: Option<i64>,
    cancelled_at: Option<i64>,
    request_counts: LineCounts,
    usage: Option<Usage>,
    metadata: Option<Metadata<'a>>,
    progress: Progress,
    cost: Cost,
    manifest: Option<&'a Manifest>,
}

#[derive(Debug, Clone, Serialize)]
struct Errors<'a> {
    object: &'static str,
    data: &'a [ValidationError],
}

#[derive(Debug, Clone, Serialize)]
struct Usage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Debug, Clone, Serialize)]
struct InputDetails {
    cached_tokens: u64,
}

#[derive(Debug, Clone, Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

/// What the finished lines cost, at batch price.
#[derive(Debug, Clone, Serialize)]
struct Cost {
    currency: &'static str,
    amount: f64,
}

#[derive(Debug, Clone)]
struct Metadata<'a>(&'a [(String, String)]);

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'a> BatchObject<'a> {
    /// Shows a batch. `errors` are those of a rejected file.
    #[must_use]
    pub fn new(
        params: &'a BatchParams,
        run: &'a BatchRun,
        errors: Option<&'a [ValidationError]>,
        progress: Progress,
    ) -> Self {
        let status = run.state.status();
        let secs = |moment: Option<UnixMs>| moment.map(UnixMs::secs);
        let ended_as = |terminal: Terminal| {
            if run.state == State::Ended(terminal) {
                secs(run.moments.ended_at)
            } else {
                None
            }
        };
        let errors = (status == Status::Failed).then(|| Errors {
            object: "list",
            data: errors.unwrap_or_default(),
        });
        Self {
            id: params.id.to_string(),
            object: "batch",
            endpoint: params.endpoint,
            model: if let [model] = run.models.as_slice() {
                Some(model)
            } else {
                None
            },
            errors,
            input_file_id: &params.input_file_id,
            completion_window: &params.completion_window,
            status,
            output_file_id: run.output_file_id.map(|id| id.to_string()),
            error_file_id: run.error_file_id.map(|id| id.to_string()),
            created_at: params.created_at.secs(),
            in_progress_at: secs(run.moments.in_progress_at),
            expires_at: params.expires_at.secs(),
            finalizing_at: secs(run.moments.finalizing_at),
            completed_at: ended_as(Terminal::Completed),
            failed_at: ended_as(Terminal::Failed),
            expired_at: ended_as(Terminal::Expired),
            cancelling_at: secs(run.moments.cancelling_at),
            cancelled_at: ended_as(Terminal::Cancelled),
            request_counts: run.counts,
            usage: run.state.is_terminal().then(|| usage(run.tokens)),
            metadata: params.metadata.as_deref().map(Metadata),
            progress,
            cost: Cost {
                currency: "usd",
                amount: dollars(run.cost_picodollars),
            },
            manifest: run.manifest.as_ref(),
        }
    }
}

fn usage(tokens: TokenCounts) -> Usage {
    Usage {
        input_tokens: tokens.input,
        input_tokens_details: InputDetails {
            cached_tokens: tokens.cached,
        },
        output_tokens: tokens.output,
        output_tokens_details: OutputDetails {
            reasoning_tokens: 0,
        },
        total_tokens: tokens.input + tokens.output,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a display of dollars; the ledger keeps the exact number"
)]
fn dollars(picodollars: u64) -> f64 {
    picodollars as f64 / 1e12
}

impl Status {
    /// Returns the word on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Status::Validating => "validating",
            Status::Failed => "failed",
            Status::InProgress => "in_progress",
            Status::Finalizing => "finalizing",
            Status::Completed => "completed",
            Status::Expired => "expired",
            Status::Cancelling => "cancelling",
            Status::Cancelled => "cancelled",
        }
    }
}

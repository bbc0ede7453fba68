//! One shard that this worker holds: its open lines, its results, and the commit that is under way.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use batch_core::batch::{BatchParams, TokenCounts};
use batch_core::catalog::Price;
use batch_core::format::segment::{self, LineResult};
use batch_core::format::{FormatError, shard as shard_format};
use batch_core::id::{BatchId, LineNo, TenantId, batch_request_id};
use batch_core::line;
use batch_core::message::QueueName;
use batch_core::price;
use batch_core::settings::Timing;
use batch_core::shard::{SegmentRef, Shard};
use batch_core::time::UnixMs;
use batch_io::store::CommitDelta;
use bytes::Bytes;

use super::has_passed;
use crate::pipeline::{Answered, LineFault, LineJob, LineKey, answer_record};

/// How long a commit that failed waits before it is tried again.
const RETRY_MS: i64 = 500;

/// A line of the shard that has no result yet.
#[derive(Debug)]
struct OpenLine {
    line: LineNo,
    custom_id_json: String,
}

/// What a commit writes. Kept until its outcome is known: a repeat must write the very same.
#[derive(Debug, Clone)]
pub(super) struct CommitDraft {
    pub(super) segment: Option<(SegmentRef, Bytes)>,
    pub(super) delta: CommitDelta,
    pub(super) last: bool,
}

/// A held shard.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) tenant: TenantId,
    pub(super) batch: BatchId,
    pub(super) shard: Shard,
    pub(super) queue: QueueName,
    /// Lines that the engine has not been given yet, in their order.
    pub(super) waiting: VecDeque<LineJob>,
    committed_at: UnixMs,
    /// When the last commit failed, unless one succeeded since.
    failed_at: Option<UnixMs>,
    price: Option<Price>,
    open: HashMap<LineKey, OpenLine>,
    results: BTreeMap<LineNo, (bool, TokenCounts, Vec<u8>)>,
    draft: Option<CommitDraft>,
    next_segment: u32,
}

/// Where a claimed shard came from, and what its batch says.
#[derive(Debug)]
pub(super) struct Claimed<'a> {
    pub(super) shard: Shard,
    pub(super) params: &'a BatchParams,
    pub(super) queue: QueueName,
    pub(super) now: UnixMs,
}

/// Why a shard's blobs cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShardFault {
    #[error("read a blob of the shard")]
    Format(#[from] FormatError),
    #[error("line {0} of the shard does not read as it did in validation")]
    Line(u64),
}

impl Held {
    /// Reads the shard's lines, and leaves out those that its segments have: the rest waits for the engine.
    pub(super) fn open(
        claimed: Claimed<'_>,
        lines: &[u8],
        segments: &[Bytes],
        mut next_key: impl FnMut() -> LineKey,
    ) -> Result<Self, ShardFault> {
        let Claimed {
            shard,
            params,
            queue,
            now,
        } = claimed;
        let mut finished = BTreeSet::new();
        for blob in segments {
            for result in segment::decode(blob) {
                finished.insert(result?.line);
            }
        }
        let subset: Option<BTreeSet<u32>> = shard
            .subset
            .as_ref()
            .map(|list| list.iter().copied().collect());
        let run: Arc<str> = params.id.to_string().into();
        let mut open = HashMap::new();
        let mut jobs = VecDeque::new();
        for (ordinal, line) in shard_format::decode(lines).enumerate() {
            let line = line?;
            let mine = subset
                .as_ref()
                .is_none_or(|subset| u32::try_from(ordinal).is_ok_and(|n| subset.contains(&n)));
            if !mine || finished.contains(&line.line) {
                continue;
            }
            let request = line::open(line.raw).ok_or(ShardFault::Line(line.line.0))?;
            let key = next_key();
            open.insert(
                key,
                OpenLine {
                    line: line.line,
                    custom_id_json: request.custom_id_json.to_owned(),
                },
            );
            jobs.push_back(LineJob {
                key,
                endpoint: params.endpoint,
                run: Arc::clone(&run),
                custom_id_json: request.custom_id_json.to_owned(),
                line: line.line,
                created_at: params.created_at,
                request_id: batch_request_id(params.id, line.line),
                body: request.body.to_owned(),
                salt: salt(&params.tenant),
            });
        }
        let price = params.prices.get(&shard.model).copied();
        Ok(Self {
            tenant: params.tenant.clone(),
            batch: params.id,
            shard,
            queue,
            waiting: jobs,
            committed_at: now,
            failed_at: None,
            price,
            open,
            results: BTreeMap::new(),
            draft: None,
            next_segment: 0,
        })
    }

    /// Takes in the answer of one of its lines.
    pub(super) fn finish_line(
        &mut self,
        key: LineKey,
        result: &Result<Answered, LineFault>,
        request_id: &str,
    ) {
        let Some(OpenLine {
            line,
            custom_id_json,
        }) = self.open.remove(&key)
        else {
            return;
        };
        let tokens = result
            .as_ref()
            .map_or(TokenCounts::default(), |answered| answered.tokens);
        let record = answer_record(self.batch, line, &custom_id_json, request_id, result);
        self.results.insert(line, (result.is_ok(), tokens, record));
    }

    /// Returns whether every line has a result.
    pub(super) fn is_finished(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns how many lines have no result.
    pub(super) fn open_lines(&self) -> usize {
        self.open.len()
    }

    /// Returns how many lines the engine has been given, and has not answered.
    pub(super) fn running_lines(&self) -> usize {
        self.open.len() - self.waiting.len()
    }

    /// Returns whether something would be lost if the shard were abandoned now.
    pub(super) fn has_unwritten(&self) -> bool {
        !self.results.is_empty()
            || self
                .draft
                .as_ref()
                .is_some_and(|draft| draft.segment.is_some())
    }

    /// Returns whether it is time for a commit: all lines have results, some have had them for a while, or half
    /// of the lease is over. One that failed is not tried again at once.
    pub(super) fn is_commit_due(&self, now: UnixMs, timing: &Timing) -> bool {
        let after_ms = if self.has_unwritten() {
            timing.commit_ms
        } else {
            timing.commit_ms.max(timing.lease_ms / 2)
        };
        let wanted = self.is_finished() || has_passed(self.committed_at, now, after_ms);
        let rested = self
            .failed_at
            .is_none_or(|at| has_passed(at, now, RETRY_MS.min(timing.commit_ms)));
        wanted && rested
    }

    /// Returns the lines that have no result.
    pub(super) fn open_keys(&self) -> impl Iterator<Item = LineKey> + '_ {
        self.open.keys().copied()
    }

    /// Returns the commit to write: the one whose outcome is unknown, or a new one of all results so far.
    pub(super) fn draft(&mut self) -> CommitDraft {
        if let Some(draft) = &self.draft {
            return draft.clone();
        }
        let mut delta = CommitDelta::default();
        let mut blob = Vec::new();
        for (line, (ok, tokens, record)) in std::mem::take(&mut self.results) {
            segment::encode_result(
                &mut blob,
                &LineResult {
                    line,
                    ok,
                    tokens,
                    record: &record,
                },
            );
            delta.completed += u64::from(ok);
            delta.failed += u64::from(!ok);
            delta.tokens.input += tokens.input;
            delta.tokens.cached += tokens.cached;
            delta.tokens.output += tokens.output;
            delta.cost_picodollars += self
                .price
                .map_or(0, |price| price::cost_picodollars(price, tokens));
        }
        let segment = (!blob.is_empty()).then(|| {
            let segment = SegmentRef {
                epoch: self.shard.epoch,
                number: self.next_segment,
            };
            (segment, Bytes::from(blob))
        });
        let draft = CommitDraft {
            segment,
            delta,
            last: self.open.is_empty(),
        };
        self.draft = Some(draft.clone());
        draft
    }

    /// The draft is written. Returns whether it was the last.
    pub(super) fn committed(&mut self, shard: Shard, now: UnixMs) -> bool {
        let draft = self.draft.take();
        if draft.as_ref().is_some_and(|draft| draft.segment.is_some()) {
            self.next_segment += 1;
        }
        self.shard = shard;
        self.committed_at = now;
        self.failed_at = None;
        draft.is_some_and(|draft| draft.last)
    }

    /// The draft is not written, or nobody knows.
    pub(super) fn commit_failed(&mut self, now: UnixMs) {
        self.failed_at = Some(now);
    }
}

/// Prefix pages are shared within a tenant only.
fn salt(tenant: &TenantId) -> u64 {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(tenant.as_str().as_bytes())
        .iter()
        .take(8)
        .fold(0, |salt, byte| salt << 8 | u64::from(*byte))
}

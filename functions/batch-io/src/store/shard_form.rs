//! A shard's record, and a backlog's, as items.
//!
//! A shard's item also counts its lines that have results, which no caller sees: it is the guard that keeps a
//! batch's sums from passing its total.

use batch_core::id::WorkerId;
use batch_core::settings::Timing;
use batch_core::shard::{Backlog, SegmentRef, Shard, ShardId, ShardState};
use batch_core::time::UnixMs;
use serde::{Deserialize, Serialize};

use super::actions::{int_is, text_is};
use super::fields::{Attrs, Fields};
use super::paths;
use crate::IoError;
use crate::port::{Condition, Due, Item, RecordKey, Update, WorkKind};

const CUT: &str = "cut";
const STATE: &str = "state";
const OWNER: &str = "owner";
const AT: &str = "at";
const EPOCH: &str = "epoch";
const LOSSES: &str = "losses";
const SEGMENTS: &str = "segments";
pub(super) const FINISHED: &str = "finished";

const PENDING: &str = "pending";
const RELEASED: &str = "released";
const LEASED: &str = "leased";
const DONE: &str = "done";
const SPLIT: &str = "split";

const MODEL: &str = "model";
pub(super) const NEXT: &str = "next";
const SHARDS: &str = "shards";
pub(super) const ESTIMATED_TOKENS: &str = "estimated_tokens";
const DEADLINE: &str = "deadline";

/// What changes only with a split.
#[derive(Debug, Serialize, Deserialize)]
struct Cut {
    model: String,
    window: u32,
    lines: u32,
    estimated_tokens: u64,
    subset: Option<Vec<u32>>,
    alone: bool,
}

/// A shard, and how many of its lines have results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShardRecord {
    pub(super) shard: Shard,
    pub(super) finished: u64,
}

pub(super) fn shard_item(shard: &Shard, timing: &Timing) -> Item {
    let mut attrs = Attrs::of_record().int(FINISHED, 0).into_item().attrs;
    attrs.extend(shard_attrs(shard).into_vec());
    Item {
        attrs,
        due: shard_due(shard, timing),
    }
}

/// Writes all of a shard but the count of its results.
pub(super) fn shard_update(shard: &Shard, timing: &Timing) -> Update {
    let remove = match shard.state {
        ShardState::Leased { .. } => vec![],
        ShardState::Released { .. } => vec![OWNER],
        ShardState::Pending | ShardState::Done | ShardState::Split => vec![OWNER, AT],
    };
    Update {
        set: shard_attrs(shard).into_vec(),
        remove: remove.into_iter().map(str::to_owned).collect(),
        due: Some(shard_due(shard, timing)),
        ..Update::default()
    }
}

pub(super) fn read_shard(key: &RecordKey, item: &Item) -> Result<ShardRecord, IoError> {
    let fields = Fields::of(key, item)?;
    let id: Option<ShardId> = key
        .sort
        .strip_prefix(paths::SHARD)
        .and_then(|name| name.parse().ok());
    let cut: Cut = fields.json(CUT)?;
    let state = match fields.text(STATE)? {
        PENDING => ShardState::Pending,
        RELEASED => ShardState::Released {
            check_at: fields.moment(AT)?,
        },
        LEASED => ShardState::Leased {
            owner: fields.parsed::<WorkerId>(OWNER)?,
            until: fields.moment(AT)?,
        },
        DONE => ShardState::Done,
        SPLIT => ShardState::Split,
        _ => return Err(fields.corrupt(STATE)),
    };
    let shard = Shard {
        id: id.ok_or_else(|| fields.corrupt("sort key"))?,
        model: cut.model,
        window: cut.window,
        lines: cut.lines,
        estimated_tokens: cut.estimated_tokens,
        subset: cut.subset,
        state,
        epoch: fields.count(EPOCH)?,
        losses: fields.count(LOSSES)?,
        alone: cut.alone,
        segments: parse_segments(fields.text(SEGMENTS)?).ok_or_else(|| fields.corrupt(SEGMENTS))?,
    };
    Ok(ShardRecord {
        shard,
        finished: fields.count(FINISHED)?,
    })
}

/// Nothing but the count of results differs from what was read.
pub(super) fn is_unchanged(shard: &Shard) -> Condition {
    let at = state_moment(shard.state).map(|at| int_is(AT, at.0));
    Condition::All(
        [is_at_commit(shard), text_is(STATE, shard_word(shard.state))]
            .into_iter()
            .chain(at)
            .collect(),
    )
}

/// The holder's epoch leases it, with the results that the holder knows. The moment is left out: after a
/// lost reply the holder knows an older one.
pub(super) fn is_held(shard: &Shard) -> Condition {
    Condition::All(vec![is_at_commit(shard), text_is(STATE, LEASED)])
}

pub(super) fn is_pending() -> Condition {
    text_is(STATE, PENDING)
}

/// Releases a pending shard without reading it: all that a release changes.
pub(super) fn release_update(state: ShardState, timing: &Timing) -> Update {
    Update {
        set: Attrs::default()
            .text(STATE, shard_word(state))
            .opt_moment(AT, state_moment(state))
            .into_vec(),
        due: Some(state_due(state, timing)),
        ..Update::default()
    }
}

pub(super) fn backlog_item(backlog: &Backlog) -> Item {
    let attrs = Attrs::of_record()
        .text(MODEL, &backlog.model)
        .int(NEXT, i64::from(backlog.next))
        .int(SHARDS, i64::from(backlog.shards))
        .count(ESTIMATED_TOKENS, backlog.estimated_tokens)
        .int(DEADLINE, backlog.deadline.0);
    Item {
        due: backlog_due(backlog),
        ..attrs.into_item()
    }
}

pub(super) fn read_backlog(key: &RecordKey, item: &Item) -> Result<Backlog, IoError> {
    let fields = Fields::of(key, item)?;
    let slot = key
        .sort
        .strip_prefix(paths::BACKLOG)
        .and_then(|slot| slot.parse().ok());
    Ok(Backlog {
        slot: slot.ok_or_else(|| fields.corrupt("sort key"))?,
        model: fields.text(MODEL)?.to_owned(),
        next: fields.count(NEXT)?,
        shards: fields.count(SHARDS)?,
        estimated_tokens: fields.count(ESTIMATED_TOKENS)?,
        deadline: fields.moment(DEADLINE)?,
    })
}

pub(super) fn backlog_due(backlog: &Backlog) -> Option<Due> {
    (backlog.next < backlog.shards).then_some(Due {
        kind: WorkKind::Backlog,
        at: backlog.deadline,
    })
}

fn is_at_commit(shard: &Shard) -> Condition {
    Condition::All(vec![
        int_is(EPOCH, super::fields::to_int(shard.epoch)),
        text_is(SEGMENTS, segments_text(&shard.segments)),
    ])
}

fn shard_attrs(shard: &Shard) -> Attrs {
    let cut = Cut {
        model: shard.model.clone(),
        window: shard.window,
        lines: shard.lines,
        estimated_tokens: shard.estimated_tokens,
        subset: shard.subset.clone(),
        alone: shard.alone,
    };
    let owner = match shard.state {
        ShardState::Leased { owner, .. } => Some(owner.to_string()),
        ShardState::Pending
        | ShardState::Released { .. }
        | ShardState::Done
        | ShardState::Split => None,
    };
    Attrs::default()
        .json(CUT, &cut)
        .text(STATE, shard_word(shard.state))
        .opt_text(OWNER, owner)
        .opt_moment(AT, state_moment(shard.state))
        .count(EPOCH, shard.epoch)
        .int(LOSSES, i64::from(shard.losses))
        .text(SEGMENTS, segments_text(&shard.segments))
}

fn shard_word(state: ShardState) -> &'static str {
    match state {
        ShardState::Pending => PENDING,
        ShardState::Released { .. } => RELEASED,
        ShardState::Leased { .. } => LEASED,
        ShardState::Done => DONE,
        ShardState::Split => SPLIT,
    }
}

fn state_moment(state: ShardState) -> Option<UnixMs> {
    match state {
        ShardState::Released { check_at } => Some(check_at),
        ShardState::Leased { until, .. } => Some(until),
        ShardState::Pending | ShardState::Done | ShardState::Split => None,
    }
}

fn shard_due(shard: &Shard, timing: &Timing) -> Option<Due> {
    state_due(shard.state, timing)
}

/// A lease is looked at when it may be taken over, not before.
fn state_due(state: ShardState, timing: &Timing) -> Option<Due> {
    let at = match state {
        ShardState::Released { check_at } => check_at,
        ShardState::Leased { until, .. } => until.plus_ms(timing.takeover_ms),
        ShardState::Pending | ShardState::Done | ShardState::Split => return None,
    };
    Some(Due {
        kind: WorkKind::Shard,
        at,
    })
}

/// `1-0,1-1,2-0`: a third of the same in JSON.
fn segments_text(segments: &[SegmentRef]) -> String {
    segments
        .iter()
        .map(SegmentRef::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

fn parse_segments(text: &str) -> Option<Vec<SegmentRef>> {
    let parse = |part: &str| {
        let (epoch, number) = part.split_once('-')?;
        Some(SegmentRef {
            epoch: epoch.parse().ok()?,
            number: number.parse().ok()?,
        })
    };
    if text.is_empty() {
        Some(Vec::new())
    } else {
        text.split(',').map(parse).collect()
    }
}

//! Shards: what a worker leases. This module holds their names and records.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::WorkerId;
use crate::time::UnixMs;

/// Names a shard within its batch: `000-000012`, and `000-000012.01` for a child of a child.
///
/// Sorts by model slot, then number, then path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId {
    /// Index into the batch's models.
    pub slot: u16,
    /// From 0 within the slot.
    pub number: u32,
    /// Halves taken by splits, `0` and `1`; empty for a shard of the input.
    pub path: String,
}

impl ShardId {
    /// Names the shard `number` of the input's model `slot`.
    #[must_use]
    pub fn root(slot: u16, number: u32) -> Self {
        Self {
            slot,
            number,
            path: String::new(),
        }
    }

    /// Returns the shard of the input whose blob holds this one's lines.
    #[must_use]
    pub fn to_root(&self) -> Self {
        Self::root(self.slot, self.number)
    }

    /// Returns the two children.
    #[must_use]
    pub fn children(&self) -> [Self; 2] {
        ['0', '1'].map(|half| Self {
            slot: self.slot,
            number: self.number,
            path: format!("{}{half}", self.path),
        })
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03}-{:06}", self.slot, self.number)?;
        if self.path.is_empty() {
            Ok(())
        } else {
            write!(f, ".{}", self.path)
        }
    }
}

/// A text that names no shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' names no shard")]
pub struct InvalidShardId(String);

impl FromStr for ShardId {
    type Err = InvalidShardId;

    fn from_str(text: &str) -> Result<Self, InvalidShardId> {
        let invalid = || InvalidShardId(text.chars().take(64).collect());
        let (root, path) = text.split_once('.').unwrap_or((text, ""));
        let (slot, number) = root.split_once('-').ok_or_else(invalid)?;
        let id = Self {
            slot: slot.parse().map_err(|_| invalid())?,
            number: number.parse().map_err(|_| invalid())?,
            path: path.to_owned(),
        };
        if id.to_string() == text && path.bytes().all(|b| matches!(b, b'0' | b'1')) {
            Ok(id)
        } else {
            Err(invalid())
        }
    }
}

impl Serialize for ShardId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ShardId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Names a segment of results within its shard: `<epoch>-<number>`.
///
/// A segment that the shard's record does not name does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentRef {
    /// The lease epoch that wrote it.
    pub epoch: u64,
    /// From 0 within the epoch.
    pub number: u32,
}

impl fmt::Display for SegmentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.number)
    }
}

/// Where a shard stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum ShardState {
    /// Not yet given to a queue.
    Pending,
    /// A message for it is in a queue.
    Released {
        /// When reconcile should look whether the message got lost.
        check_at: UnixMs,
    },
    /// A worker runs it.
    Leased {
        /// Which.
        owner: WorkerId,
        /// When others may take it.
        until: UnixMs,
    },
    /// All its lines have results in its segments.
    Done,
    /// Its unfinished lines went to two children; its segments stay.
    Split,
}

/// The record of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Name.
    pub id: ShardId,
    /// Model id (not an alias).
    pub model: String,
    /// The window of the input that it was cut from.
    pub window: u32,
    /// Lines in it.
    pub lines: u32,
    /// Tokens that they were estimated to take.
    pub estimated_tokens: u64,
    /// For a child: which lines of the root's blob are its own, as ordinals from 0, ascending.
    pub subset: Option<Vec<u32>>,
    /// Where it stands.
    pub state: ShardState,
    /// Raised by every claim, hand-back, lapse and split: the fencing token.
    pub epoch: u64,
    /// Leases that ended by a death or lapse since the last split.
    pub losses: u32,
    /// It runs alone on its worker: a one-line child whose ancestors were lost too often.
    pub alone: bool,
    /// Its results, in the order of commits.
    pub segments: Vec<SegmentRef>,
}

/// The unreleased shards of one model of one batch: the dispatcher's unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// Index into the batch's models.
    pub slot: u16,
    /// Model id.
    pub model: String,
    /// The first shard that is not released.
    pub next: u32,
    /// Shards in all.
    pub shards: u32,
    /// Tokens that the unreleased shards were estimated to take.
    pub estimated_tokens: u64,
    /// When the batch's window closes.
    pub deadline: UnixMs,
}

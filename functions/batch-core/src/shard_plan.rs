//! Cuts the lines of one window into shards.

use crate::id::LineNo;
use crate::limits::{SHARD_BYTES_MAX, SHARD_LINES_MAX, SHARD_SECONDS_TARGET, SHARDS_BY_TIME_MAX};
use crate::line::PromptKey;

/// What the cut needs to know of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLine<'a> {
    /// Its place in the input file.
    pub line: LineNo,
    /// Its model: index into the batch's models.
    pub slot: u16,
    /// Its size.
    pub bytes: usize,
    /// Tokens that it is estimated to take.
    pub estimated_tokens: u64,
    /// What to order it by.
    pub prompt: PromptKey<'a>,
}

/// The time rule: a shard closes when it would take one worker longer than two minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeRule {
    /// Tokens of a shard; none if the model's rate is not known.
    pub tokens_max: Option<u64>,
    /// Bytes below which a shard is never closed for its time.
    pub bytes_min: u64,
}

impl TimeRule {
    /// Makes the rule for a model with this rate, if known, and an input file of this size.
    #[must_use]
    pub fn new(tokens_per_s: Option<u32>, file_bytes: u64) -> Self {
        let tokens_max = tokens_per_s.map(|rate| u64::from(rate.max(1)) * SHARD_SECONDS_TARGET);
        Self {
            tokens_max,
            bytes_min: file_bytes / SHARDS_BY_TIME_MAX,
        }
    }
}

/// A shard to be: lines of one model, in the order in which they should run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardDraft {
    /// Index into the batch's models.
    pub slot: u16,
    /// Indexes into the window's lines.
    pub lines: Vec<u32>,
    /// Their size.
    pub bytes: usize,
    /// Tokens that they are estimated to take.
    pub estimated_tokens: u64,
}

/// Orders the lines of a window by model and shared prompt prefix, and cuts them into shards.
///
/// Each line is in exactly one shard; the same window gives the same shards. `rule` tells the time rule
/// of a slot.
///
/// # Panics
///
/// If a window has 2³² lines or more.
#[must_use]
pub fn plan_window(lines: &[WindowLine<'_>], rule: impl Fn(u16) -> TimeRule) -> Vec<ShardDraft> {
    let count = u32::try_from(lines.len()).expect("a window has at most 20,000 lines");
    let mut order: Vec<u32> = (0..count).collect();
    let line = |index: u32| &lines[index as usize];
    order.sort_unstable_by_key(|index| (line(*index).slot, line(*index).prompt, line(*index).line));
    let mut drafts: Vec<ShardDraft> = Vec::new();
    for index in order {
        let next = line(index);
        match drafts.last_mut() {
            Some(draft) if draft.slot == next.slot && draft.takes(next, rule(next.slot)) => {
                draft.add(index, next)
            }
            Some(_) | None => {
                let mut draft = ShardDraft {
                    slot: next.slot,
                    lines: Vec::new(),
                    bytes: 0,
                    estimated_tokens: 0,
                };
                draft.add(index, next);
                drafts.push(draft);
            }
        }
    }
    drafts
}

impl ShardDraft {
    fn takes(&self, line: &WindowLine<'_>, rule: TimeRule) -> bool {
        let over_time = rule
            .tokens_max
            .is_some_and(|max| self.estimated_tokens.saturating_add(line.estimated_tokens) > max)
            && self.bytes as u64 >= rule.bytes_min;
        self.lines.len() < SHARD_LINES_MAX
            && self.bytes.saturating_add(line.bytes) <= SHARD_BYTES_MAX
            && !over_time
    }

    fn add(&mut self, index: u32, line: &WindowLine<'_>) {
        self.lines.push(index);
        self.bytes = self.bytes.saturating_add(line.bytes);
        self.estimated_tokens = self.estimated_tokens.saturating_add(line.estimated_tokens);
    }
}

#[cfg(test)]
mod tests;

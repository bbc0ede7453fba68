//! The plan of one step: which rows run, on which pages, and which of them are sampled.
//!
//! A plan is made by the scheduler and never changed. It names everything the executor needs; the executor
//! has no choices left.

use std::sync::Arc;

use super::sequence::SequenceId;

/// The token of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowToken {
    /// The host knows it.
    Known(u32),
    /// It was sampled by a step whose results are not here yet: the last token of the sequence's slot.
    Last,
}

/// What a slot must hold before the step: the sequence starts, or starts again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Restore {
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) output: Vec<u32>,
}

/// Consecutive rows of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) id: SequenceId,
    /// Which stay in the batch this is; the next one has other pages.
    pub(crate) stay: u64,
    pub(crate) slot: u32,
    /// Position of the first row.
    pub(crate) start: usize,
    pub(crate) tokens: Vec<RowToken>,
    /// The pages of all tokens up to the last row, in token order.
    pub(crate) pages: Vec<u32>,
    pub(crate) restore: Option<Restore>,
}

impl Run {
    /// Returns how many tokens lie in the cache once the rows are written.
    pub(crate) fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

/// A part of a prompt that is not its end. There is nothing to sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartialPrefill {
    pub(crate) run: Run,
}

/// A decode, or the end of a prompt: its last row gives the next token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SampledRun {
    pub(crate) run: Run,
    /// Index of that token in the output.
    pub(crate) output_index: u32,
}

/// One step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// First in row order; one logit row each.
    pub(crate) sampled: Vec<SampledRun>,
    /// After them.
    pub(crate) partial: Vec<PartialPrefill>,
}

impl Plan {
    /// Returns whether there is nothing to run.
    pub(crate) fn is_empty(&self) -> bool {
        self.sampled.is_empty() && self.partial.is_empty()
    }

    /// Returns all runs in row order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run> {
        let sampled = self.sampled.iter().map(|sampled| &sampled.run);
        sampled.chain(self.partial.iter().map(|partial| &partial.run))
    }
}

/// What the executor found out about one sampled run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The token is accepted, and the sequence may go on.
    Goes(u32),
    /// The token is accepted, and ends the text.
    Stops(u32),
    /// The logits are not finite.
    NotFinite,
    /// The sequence had ended before the step's results came: a surplus row, of which nothing counts.
    Surplus,
}

/// Why a sequence left the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// A verdict said so.
    Stopped,
    /// The output is as long as it may be.
    Full,
    /// A logit was not finite.
    NotFinite,
}

/// A sequence that ended with a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: SequenceId,
    pub(crate) reason: EndReason,
    /// Tokens of its prompt that were found in the cache when it first started.
    pub(crate) cached_tokens: u32,
}

//! What a step is like, and what it may be at most.

use super::*;

/// How attention cuts its rows: what the work list of block items depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::cuda) struct Cut {
    /// Query heads that share a KV head.
    pub(in crate::backend::cuda) group: usize,
    /// Rows of a block item, heads counted apart.
    pub(in crate::backend::cuda) block_rows: usize,
    /// Whether a row sees only keys before its own.
    pub(in crate::backend::cuda) causal: bool,
}

/// Bounds of a step, known at load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::backend::cuda) struct Bounds {
    /// Rows.
    pub(in crate::backend::cuda) rows: usize,
    /// Logit rows.
    pub(in crate::backend::cuda) logit_rows: usize,
    /// Page tables.
    pub(in crate::backend::cuda) groups: usize,
    /// Entries of one page table.
    pub(in crate::backend::cuda) pages: usize,
    /// Slots.
    pub(in crate::backend::cuda) slots: usize,
    /// Tokens of a slot's history.
    pub(in crate::backend::cuda) history_tokens: usize,
    /// Slots of partial results.
    pub(in crate::backend::cuda) partials: usize,
    /// The most query heads that share a KV head.
    pub(in crate::backend::cuda) group: usize,
}

/// What the host remembers of the step in work.
#[derive(Debug, Default)]
pub(in crate::backend::cuda) struct HostStep {
    /// Rows that operations run on: at least the step's own.
    pub(in crate::backend::cuda) rows: usize,
    /// Logit rows that operations run on.
    pub(in crate::backend::cuda) logit_rows: usize,
    /// Sequences.
    pub(in crate::backend::cuda) sequences: Vec<StepSequence>,
    /// Share groups.
    pub(super) share_groups: Vec<ShareGroup>,
    /// Rows of the step itself.
    pub(in crate::backend::cuda) own_rows: usize,
    pub(super) own_logit_rows: usize,
    /// Whether the step names token types.
    pub(in crate::backend::cuda) has_types: bool,
    /// Whether sequences have pages; encoders have none.
    pub(in crate::backend::cuda) paged: bool,
    /// Whether every sequence has one row, and each row's logits are needed.
    pub(in crate::backend::cuda) decodes_only: bool,
    /// Work items of decodes.
    pub(in crate::backend::cuda) decode_items: usize,
    /// Work items of blocks, by head layout.
    pub(in crate::backend::cuda) block_items: [usize; LAYOUTS_MAX],
    /// Rows whose partial results are merged.
    pub(in crate::backend::cuda) merge_rows: usize,
    /// Sequences that went to the decode list.
    pub(super) decoding: Vec<bool>,
}

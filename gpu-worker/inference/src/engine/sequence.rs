//! One sequence inside the scheduler: what is known of it, and the rows it asks for next.
//!
//! Data that only a running sequence has lives in [`Running`]; a waiting one holds no pages and no slot.

use std::sync::Arc;

use super::kv::{Table, Tokens};
use super::lengths::OutputLength;
use super::plan::{PartialPrefill, Plan, Restore, RowToken, Run, SampledRun};
use super::queue::Rank;

/// Names a sequence within one engine. Several requests may wait for the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SequenceId(pub(crate) u64);

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) prompt: Arc<[u32]>,
    pub(super) output: Vec<u32>,
    pub(super) salt: u64,
    /// The most tokens of output.
    pub(super) limit: usize,
    /// What is known of the length of its output.
    pub(super) length: OutputLength,
    /// Tokens sampled by steps whose results are not here yet.
    pub(super) pending: usize,
    /// Prompt tokens found in the cache at the first start.
    pub(super) cached: Option<usize>,
    pub(super) stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    Waiting(Rank),
    Running(Running),
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) age: u64,
    pub(super) stay: u64,
    pub(super) slot: u32,
    pub(super) table: Table,
    /// Tokens whose K and V are computed, or planned to be.
    pub(super) planned: usize,
    /// Tokens known at the start of this stay: the prefill's length.
    pub(super) prefill: usize,
    /// Whether the slot still has to be set.
    pub(super) fresh: bool,
}

impl Sequence {
    pub(super) fn tokens(&self) -> Tokens<'_> {
        Tokens {
            prompt: &self.prompt,
            output: &self.output,
        }
    }

    /// Whether every token it may have is sampled or about to be.
    pub(super) fn is_exhausted(&self) -> bool {
        self.output.len() + self.pending >= self.limit
    }

    /// Plans its next chunk, if it is still prefilling, within `budget` rows.
    pub(super) fn plan_chunk(&mut self, id: SequenceId, budget: &mut usize, plan: &mut Plan) {
        let Stage::Running(running) = &self.stage else {
            return;
        };
        let start = running.planned;
        if *budget == 0 || start >= running.prefill {
            return;
        }
        let end = running.prefill.min(start + *budget);
        *budget -= end - start;
        let is_last = end == running.prefill;
        let tokens = self
            .tokens()
            .range(start, end)
            .iter()
            .map(|token| RowToken::Known(*token))
            .collect();
        if is_last {
            plan.sampled.push(self.plan_sampled(id, tokens));
        } else {
            let run = self.plan_run(id, tokens);
            plan.partial.push(PartialPrefill { run });
        }
    }

    /// Plans rows of which the last gives the next token.
    pub(super) fn plan_sampled(&mut self, id: SequenceId, tokens: Vec<RowToken>) -> SampledRun {
        let run = self.plan_run(id, tokens);
        let output_index = self.output.len() + self.pending;
        self.pending += 1;
        SampledRun {
            run,
            output_index: u32::try_from(output_index).expect("an output is shorter than a context"),
        }
    }

    fn plan_run(&mut self, id: SequenceId, tokens: Vec<RowToken>) -> Run {
        let Stage::Running(running) = &mut self.stage else {
            unreachable!("only running sequences get rows")
        };
        let start = running.planned;
        running.planned += tokens.len();
        let restore = std::mem::take(&mut running.fresh).then(|| Restore {
            prompt: Arc::clone(&self.prompt),
            output: self.output.clone(),
        });
        Run {
            id,
            stay: running.stay,
            slot: running.slot,
            start,
            pages: running.table.page_numbers(running.planned),
            tokens,
            restore,
        }
    }
}

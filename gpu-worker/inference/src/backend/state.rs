//! What the host backends keep of a step: its inputs, the slots, and the results that wait for their ticket.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sampling::{History, Sampled, Sampler};
use super::{PageTable, SampleInputs, StepInputs, StepOutput, Ticket};

/// Tokens in a page of the scalar and the CPU backend: one 512-bit register of keys.
pub(super) const HOST_PAGE_TOKENS: usize = 16;

/// The step in work, and the finished ones.
#[derive(Debug, Default)]
pub(super) struct StepState {
    /// The inputs, with every [`StepInputs::LAST`] resolved. Share groups are in the fields below.
    pub(super) inputs: StepInputs,
    /// Pages in common, and one after the last of its members, for each share group.
    prefixes: Vec<(u32, usize)>,
    /// Members of the share groups, group after group.
    prefix_members: Vec<u32>,
    /// One history a slot. Locks are never contended: a slot belongs to one row, or to rows of one task.
    slots: Vec<Mutex<History>>,
    rows_max: usize,
    pages_max: usize,
    output: StepOutput,
    finished: VecDeque<(Ticket, StepOutput)>,
    tickets: u64,
}

/// Rows of logits.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogitRows<'a> {
    /// `[rows, stride]`.
    pub(super) values: &'a [f32],
    /// Values from row to row.
    pub(super) stride: usize,
}

impl StepState {
    /// Reserves room for steps of up to `rows` rows.
    pub(super) fn with_rows(rows: usize) -> Self {
        let mut state = Self {
            rows_max: rows,
            ..Self::default()
        };
        state.inputs.tokens.reserve(rows);
        state.inputs.positions.reserve(rows);
        state.inputs.token_types.reserve(rows);
        state.inputs.sequences.reserve(rows);
        state.inputs.logit_rows.reserve(rows);
        // A sequence has a row at least, and is in one group at most.
        state.prefixes.reserve(rows);
        state.prefix_members.reserve(rows);
        state
    }

    /// Makes room for the page tables of `groups` layer groups.
    pub(super) fn make_page_tables(&mut self, groups: usize) {
        self.inputs.page_tables.resize(groups, PageTable::default());
        self.reserve_page_tables();
    }

    /// Makes the slots.
    pub(super) fn make_slots(&mut self, slots: usize, history_tokens: usize) {
        self.slots = (0..slots)
            .map(|_| Mutex::new(History::with_capacity(history_tokens)))
            .collect();
        // Every sequence of a step has a slot, and no more tokens than its history.
        self.pages_max = slots * history_tokens.div_ceil(HOST_PAGE_TOKENS);
        self.reserve_page_tables();
    }

    fn reserve_page_tables(&mut self) {
        for table in &mut self.inputs.page_tables {
            table.pages.reserve(self.pages_max);
            table.starts.reserve(self.rows_max + 1);
            table.write_slots.reserve(self.rows_max);
        }
    }

    /// Copies the inputs, resets slots, and resolves tokens that only the slots know.
    pub(super) fn begin(&mut self, inputs: &StepInputs) {
        for reset in &inputs.resets {
            self.slot(reset.slot).reset(&reset.prompt, &reset.output);
        }
        let own = &mut self.inputs;
        own.bucket = inputs.exact_bucket();
        own.tokens.clone_from(&inputs.tokens);
        own.positions.clone_from(&inputs.positions);
        own.token_types.clone_from(&inputs.token_types);
        own.sequences.clone_from(&inputs.sequences);
        own.logit_rows.clone_from(&inputs.logit_rows);
        own.page_tables
            .resize(inputs.page_tables.len(), PageTable::default());
        for (own, table) in own.page_tables.iter_mut().zip(&inputs.page_tables) {
            own.pages.clone_from(&table.pages);
            own.starts.clone_from(&table.starts);
            own.write_slots.clone_from(&table.write_slots);
        }
        self.prefixes.clear();
        self.prefix_members.clear();
        for group in &inputs.share_groups {
            self.prefix_members.extend_from_slice(&group.members);
            self.prefixes.push((group.pages, self.prefix_members.len()));
        }
        for token in &mut self.inputs.tokens {
            if *token & StepInputs::LAST != 0 {
                *token = lock(&self.slots[(*token & !StepInputs::LAST) as usize]).last();
            }
        }
        self.output = StepOutput::default();
    }

    /// Returns the share groups: pages in common, and the sequences that have them.
    pub(super) fn shared_prefixes(&self) -> impl Iterator<Item = (u32, &[u32])> {
        let starts = std::iter::once(0).chain(self.prefixes.iter().map(|prefix| prefix.1));
        self.prefixes
            .iter()
            .zip(starts)
            .map(|(&(pages, end), start)| (pages, &self.prefix_members[start..end]))
    }

    /// Returns the rows of the step.
    pub(super) fn rows(&self) -> usize {
        self.inputs.tokens.len()
    }

    /// Samples the rows `range` of `logits`, in order, and appends to their slots. A row that is `known` needs
    /// no logits.
    #[inline(always)]
    pub(super) fn sample(
        &self,
        range: std::ops::Range<usize>,
        logits: LogitRows<'_>,
        inputs: &SampleInputs,
        sampler: &mut Sampler,
        known: impl Fn(usize) -> Option<Sampled>,
        mut done: impl FnMut(usize, Sampled),
    ) {
        for row in range {
            let live =
                &logits.values[row * logits.stride..][..inputs.vocabulary.min(logits.stride)];
            let mut history = self.slot(inputs.rows[row].slot);
            let sampled = match known(row) {
                Some(sampled) => sampled,
                None => sampler.sample(live, &inputs.rows[row], &history),
            };
            if let Sampled::Token { id, .. } = sampled {
                history.push(id);
            }
            done(row, sampled);
        }
    }

    /// Adds the results of the step's logit rows, in their order.
    pub(super) fn store_samples(&mut self, samples: impl Iterator<Item = Sampled>) {
        for (row, sampled) in samples.enumerate() {
            let (id, logprob, top) = match sampled {
                Sampled::Dead => (0, 0.0, Vec::new()),
                Sampled::Bad => {
                    self.output.bad_rows.push(row as u32);
                    (0, 0.0, Vec::new())
                }
                Sampled::Token { id, logprob, top } => (id, logprob, top),
            };
            self.output.tokens.push(id);
            self.output.logprobs.push(logprob);
            self.output.top_n.push(top);
        }
    }

    /// Sets the pooled rows of the step.
    pub(super) fn store_pooled(&mut self, pooled: Vec<Vec<f32>>) {
        self.output.pooled = pooled;
    }

    /// Closes the step.
    ///
    /// # Panics
    ///
    /// If more than `lookahead + 1` tickets are open.
    pub(super) fn end(&mut self, lookahead: usize) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.finished
            .push_back((ticket, std::mem::take(&mut self.output)));
        assert!(
            self.finished.len() <= lookahead + 1,
            "{} tickets are open",
            self.finished.len()
        );
        ticket
    }

    /// Takes the results of `ticket`.
    ///
    /// # Panics
    ///
    /// If the ticket is not open.
    pub(super) fn take(&mut self, ticket: Ticket) -> StepOutput {
        let at = self
            .finished
            .iter()
            .position(|entry| entry.0 == ticket)
            .expect("the ticket is open");
        self.finished
            .remove(at)
            .expect("the position was just found")
            .1
    }

    /// Returns the bytes that slots and step inputs hold.
    pub(super) fn bytes(&self) -> usize {
        let inputs = &self.inputs;
        let words = inputs.tokens.capacity()
            + inputs.positions.capacity()
            + inputs.token_types.capacity()
            + 4 * inputs.sequences.capacity()
            + inputs.logit_rows.capacity()
            + inputs
                .page_tables
                .iter()
                .map(|t| t.pages.capacity() + t.starts.capacity() + t.write_slots.capacity())
                .sum::<usize>()
            + self.prefix_members.capacity();
        words * size_of::<u32>()
            + self.prefixes.capacity() * size_of::<(u32, usize)>()
            + self
                .slots
                .iter()
                .map(|slot| lock(slot).bytes())
                .sum::<usize>()
    }

    fn slot(&self, slot: u32) -> MutexGuard<'_, History> {
        lock(&self.slots[slot as usize])
    }
}

fn lock(slot: &Mutex<History>) -> MutexGuard<'_, History> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

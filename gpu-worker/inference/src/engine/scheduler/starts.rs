//! Which waiting sequences start with a step.
//!
//! A sequence starts when a slot is free, its pages are there, and the pool is expected to hold it together
//! with all that run until they end. A guess that was too low ends in a preemption, never in a failure.

use super::Scheduler;
use crate::engine::admission::{Forecast, Tenure};
use crate::engine::kv::{Hit, Lookup};
use crate::engine::order::Candidate;
use crate::engine::plan::Plan;
use crate::engine::queue::Rank;
use crate::engine::sequence::{Running, Sequence, SequenceId, Stage};

/// The pool as those see it that want to start.
struct Outlook {
    forecast: Forecast,
    /// Pages that the sequences of the forecast have for themselves.
    own_pages: usize,
}

impl Scheduler {
    /// Starts waiting sequences in their order while there is room. One that waits for a page which another
    /// computes lets those behind it pass; one that waits for memory does not.
    ///
    /// Costs one pass over the running sequences for the step, and one more for each that starts.
    pub(super) fn plan_starts(&mut self, plan: &mut Plan, budget: &mut usize) {
        if *budget == 0 || self.slots.is_empty() || self.waiting.len() == 0 {
            return;
        }
        self.order_waiting();
        let first: Vec<SequenceId> = self
            .waiting
            .iter()
            .take(2 * self.limits.sequences)
            .collect();
        let mut outlook = self.outlook();
        for id in first {
            if *budget == 0 || self.slots.is_empty() {
                return;
            }
            let sequence = self.sequences.get(&id).expect("a waiting sequence is here");
            assert_eq!(
                sequence.pending, 0,
                "a sequence starts again before its last token is known"
            );
            match self.kv.lookup(sequence.salt, sequence.tokens()) {
                Lookup::Computing => {}
                Lookup::Found(hit) => {
                    let tenure = self.tenure(sequence, hit.pages());
                    if !self.has_room_for(sequence, &hit, tenure, &outlook) {
                        return;
                    }
                    outlook.forecast.add(tenure);
                    outlook.own_pages += self.kv.pages_for(sequence.tokens().len()) - hit.pages();
                    self.start(id, hit);
                    let sequence = self
                        .sequences
                        .get_mut(&id)
                        .expect("a waiting sequence is here");
                    sequence.plan_chunk(id, budget, plan);
                }
            }
        }
    }

    fn order_waiting(&mut self) {
        let describe = |id| {
            let sequence = self.sequences.get(&id).expect("a waiting sequence is here");
            Candidate {
                salt: sequence.salt,
                prompt: &sequence.prompt,
                expected: self.lengths.expect(sequence.length, sequence.limit),
            }
        };
        let samples = self.lengths.samples();
        let page_tokens = self.kv.page_tokens();
        for (id, rank) in self.waiting.put_in_order(samples, page_tokens, describe) {
            let sequence = self
                .sequences
                .get_mut(&id)
                .expect("a waiting sequence is here");
            sequence.stage = Stage::Waiting(rank);
        }
    }

    fn outlook(&self) -> Outlook {
        let mut own_pages = 0;
        let mut tenures = Vec::with_capacity(self.limits.sequences);
        for id in self.running.values() {
            let sequence = self.sequences.get(id).expect("a running sequence is here");
            if let Stage::Running(running) = &sequence.stage {
                let own = self.kv.own_pages(&running.table);
                own_pages += own;
                tenures.push(self.tenure(sequence, running.table.len() - own));
            }
        }
        Outlook {
            forecast: Forecast::new(tenures),
            own_pages,
        }
    }

    /// Returns what a sequence holds for itself beside `shared_pages`, and how long it is expected to go on.
    fn tenure(&self, sequence: &Sequence, shared_pages: usize) -> Tenure {
        let page_tokens = self.kv.page_tokens();
        let so_far = sequence.output.len() + sequence.pending;
        // One that has outlived what was expected goes on for a while: a page, until more is known.
        let output = self
            .lengths
            .expect(sequence.length, sequence.limit)
            .max(so_far + page_tokens)
            .min(sequence.limit);
        let stored = sequence.prompt.len() + so_far;
        Tenure {
            // On average half of the last page is empty.
            held: (stored + page_tokens / 2).saturating_sub(shared_pages * page_tokens),
            remaining: output.saturating_sub(so_far),
        }
    }

    /// Whether the pages of a sequence are there now, and all that run are expected to find theirs later.
    fn has_room_for(
        &self,
        sequence: &Sequence,
        hit: &Hit,
        tenure: Tenure,
        outlook: &Outlook,
    ) -> bool {
        let now = self.kv.pages_for(sequence.tokens().len()) - hit.pages();
        let available = self.kv.available_beside(hit);
        if now > available {
            return false;
        }
        let room = (available + outlook.own_pages) * self.kv.page_tokens();
        self.running.is_empty() || outlook.forecast.peak_with(tenure) <= room
    }

    fn start(&mut self, id: SequenceId, hit: Hit) {
        let sequence = self
            .sequences
            .get_mut(&id)
            .expect("a waiting sequence is here");
        let Stage::Waiting(rank) = sequence.stage else {
            unreachable!("a sequence in the waiting set waits")
        };
        let age = match rank {
            Rank::Preempted { age } => age,
            Rank::New { .. } => {
                self.ages += 1;
                self.ages
            }
        };
        self.waiting.start(rank);
        self.running.insert(age, id);
        self.stays += 1;
        let cached = hit.pages() * self.kv.page_tokens();
        if sequence.cached.is_none() {
            sequence.cached = Some(cached);
            self.counters.cached_tokens += cached as u64;
        }
        let table = self.kv.open(sequence.salt, sequence.tokens(), hit);
        sequence.stage = Stage::Running(Running {
            age,
            stay: self.stays,
            slot: self
                .slots
                .pop()
                .expect("a start is planned only with a free slot"),
            table,
            planned: cached,
            prefill: sequence.tokens().len(),
            fresh: true,
        });
    }
}

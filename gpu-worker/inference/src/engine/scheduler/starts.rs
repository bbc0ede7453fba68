//! Which waiting sequences start with a step.
//!
//! A sequence starts when a slot is free, its pages are there, and the pages that all running sequences are
//! expected to need later are there too. A guess that was too low ends in a preemption, never in a failure.

use super::Scheduler;
use crate::engine::RequestId;
use crate::engine::kv::{Hit, Lookup};
use crate::engine::order::Rank;
use crate::engine::plan::Plan;
use crate::engine::sequence::{Running, Sequence, Stage};

impl Scheduler {
    /// Starts waiting sequences in their order while there is room. One that waits for a page which another
    /// computes lets those behind it pass; one that waits for memory does not.
    pub(super) fn plan_starts(&mut self, plan: &mut Plan, budget: &mut usize) {
        let first: Vec<RequestId> = self
            .waiting
            .values()
            .take(2 * self.limits.sequences)
            .copied()
            .collect();
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
                Lookup::Found(hit) if self.has_room_for(sequence, &hit) => {
                    self.start(id, hit);
                    let sequence = self
                        .sequences
                        .get_mut(&id)
                        .expect("a waiting sequence is here");
                    sequence.plan_chunk(id, budget, plan);
                }
                Lookup::Found(_) => return,
            }
        }
    }

    /// Whether the pages of a sequence are there now, and all that run are expected to find theirs later.
    fn has_room_for(&self, sequence: &Sequence, hit: &Hit) -> bool {
        let now = self.kv.pages_for(sequence.tokens().len()) - hit.pages();
        let available = self.kv.available_beside(hit);
        if self.running.is_empty() {
            return now <= available;
        }
        let later = self.pages_expected(sequence) - hit.pages();
        let others: usize = self
            .running
            .values()
            .map(|id| {
                let other = self.sequences.get(id).expect("a running sequence is here");
                match &other.stage {
                    Stage::Running(running) => self
                        .pages_expected(other)
                        .saturating_sub(running.table.len()),
                    Stage::Waiting(_) => 0,
                }
            })
            .sum();
        later.max(now) + others <= available
    }

    fn pages_expected(&self, sequence: &Sequence) -> usize {
        let so_far = sequence.output.len() + sequence.pending;
        let output = self
            .estimate
            .expect(so_far, sequence.limit, self.kv.page_tokens());
        self.kv.pages_for(sequence.prompt.len() + output - 1)
    }

    fn start(&mut self, id: RequestId, hit: Hit) {
        let sequence = self
            .sequences
            .get_mut(&id)
            .expect("a waiting sequence is here");
        let Stage::Waiting(rank) = &sequence.stage else {
            unreachable!("a sequence in the waiting set waits")
        };
        let age = match rank {
            Rank::Preempted { age } => *age,
            Rank::New { .. } => {
                self.ages += 1;
                self.ages
            }
        };
        self.waiting.remove(rank);
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

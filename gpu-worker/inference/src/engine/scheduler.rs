//! Decides what each step runs: `plan`, then `apply`.
//!
//! Owns the waiting and the running sequences and the KV pages. Knows no tensors, no text and no clock.
//! [`Scheduler::plan`] decides and marks what it planned as under way; [`Scheduler::apply`] takes in what
//! came of it. Up to two plans may be under way: a row whose token is not here yet is planned as
//! [`RowToken::Last`]. Who starts when is decided in [`starts`], in the order of [`super::queue`].

mod starts;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::kv::{KvCache, Tokens};
use super::lengths::{LearnedLengths, LengthClass, OutputLength};
use super::plan::{EndReason, Ended, Plan, RowToken, Run, SampledRun, Verdict};
use super::queue::{Lane, Rank, WaitingQueue};
use super::sequence::{Sequence, SequenceId, Stage};
use super::{Request, RequestFailure};

/// The bounds that the scheduler keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Rows in a step.
    pub(crate) step_tokens: usize,
    /// Sequences that run at once; no more than `step_tokens`.
    pub(crate) sequences: usize,
    /// KV pages.
    pub(crate) pages: u32,
    /// Tokens in a page.
    pub(crate) page_tokens: usize,
    /// Tokens of prompt and output together.
    pub(crate) context_tokens: usize,
    /// Whether pages are shared at all.
    pub(crate) prefix_cache: bool,
}

/// What the scheduler must know of a sequence.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) id: SequenceId,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) salt: u64,
    pub(crate) max_tokens: usize,
    /// Whether nothing can end the output before `max_tokens`.
    pub(crate) runs_to_limit: bool,
    pub(crate) lane: Lane,
}

impl Arrival {
    /// Takes what the scheduler must know from a request.
    pub(crate) fn new(id: SequenceId, request: &Request) -> Arrival {
        Arrival {
            id,
            prompt: Arc::clone(&request.prompt),
            salt: request.salt,
            max_tokens: usize::try_from(request.max_tokens).unwrap_or(usize::MAX),
            runs_to_limit: request.ignore_eos && request.stop.is_empty(),
            lane: if request.urgent {
                Lane::Urgent
            } else {
                Lane::Patient
            },
        }
    }
}

/// Counters of the scheduler.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) preemptions: u64,
    submitted: u64,
    left: u64,
}

/// The scheduler; see the module.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    kv: KvCache,
    sequences: HashMap<SequenceId, Sequence>,
    waiting: WaitingQueue,
    /// By age, which is the order of the first start.
    running: BTreeMap<u64, SequenceId>,
    slots: Vec<u32>,
    lengths: LearnedLengths,
    ages: u64,
    stays: u64,
    counters: Counters,
}

impl Scheduler {
    /// Makes a scheduler without sequences.
    ///
    /// # Panics
    ///
    /// If a step has no room for one row of each running sequence, or nothing can run at all.
    pub(crate) fn new(limits: Limits) -> Scheduler {
        assert!(
            limits.sequences > 0 && limits.sequences <= limits.step_tokens,
            "{} sequences do not fit a step of {} tokens",
            limits.sequences,
            limits.step_tokens
        );
        let slots = u32::try_from(limits.sequences).expect("slots are counted in 32 bits");
        Scheduler {
            limits,
            kv: KvCache::new(limits.pages, limits.page_tokens, limits.prefix_cache),
            sequences: HashMap::new(),
            waiting: WaitingQueue::default(),
            running: BTreeMap::new(),
            slots: (0..slots).rev().collect(),
            lengths: LearnedLengths::default(),
            ages: 0,
            stays: 0,
            counters: Counters::default(),
        }
    }

    /// Adds a sequence to those that wait.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::ContextTooLong`] if the prompt leaves no room for output, and
    /// [`RequestFailure::PoolTooSmall`] if the whole pool would not hold the sequence.
    ///
    /// # Panics
    ///
    /// If the prompt is empty, or the id was used before and is still here.
    pub(crate) fn submit(&mut self, arrival: Arrival) -> Result<(), RequestFailure> {
        let prompt_tokens = arrival.prompt.len();
        assert!(
            prompt_tokens > 0,
            "a prompt without tokens reached the scheduler"
        );
        if prompt_tokens >= self.limits.context_tokens {
            return Err(RequestFailure::ContextTooLong {
                prompt_tokens: saturate(prompt_tokens),
                context_tokens: saturate(self.limits.context_tokens),
            });
        }
        let limit = arrival
            .max_tokens
            .clamp(1, self.limits.context_tokens - prompt_tokens);
        // The last token of the output is never stored.
        let needed = prompt_tokens + limit - 1;
        if self.kv.pages_for(needed) > self.kv.total() {
            return Err(RequestFailure::PoolTooSmall {
                pool_tokens: saturate(self.kv.total() * self.kv.page_tokens()),
                needed_tokens: saturate(needed),
            });
        }
        let length = if arrival.runs_to_limit {
            OutputLength::Limit
        } else {
            OutputLength::Learned(LengthClass::new(arrival.salt, &arrival.prompt, limit))
        };
        self.counters.submitted += 1;
        let rank = self.waiting.push(arrival.lane, arrival.id);
        let sequence = Sequence {
            prompt: arrival.prompt,
            output: Vec::new(),
            salt: arrival.salt,
            limit,
            length,
            pending: 0,
            cached: None,
            stage: Stage::Waiting(rank),
        };
        let earlier = self.sequences.insert(arrival.id, sequence);
        assert!(
            earlier.is_none(),
            "sequence id {} is used twice",
            arrival.id.0
        );
        Ok(())
    }

    /// Lets a sequence that has never run start with the urgent ones.
    pub(crate) fn hurry(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        if let Stage::Waiting(
            rank @ Rank::New {
                lane: Lane::Patient,
                ..
            },
        ) = sequence.stage
        {
            self.waiting.remove(rank);
            sequence.stage = Stage::Waiting(self.waiting.push(Lane::Urgent, id));
        }
    }

    /// Drops a sequence. Rows of it that are under way come to nothing.
    pub(crate) fn abort(&mut self, id: SequenceId) {
        self.remove(id);
        self.assert_consistent();
    }

    /// Plans the next step: one row for every running decode, then chunks of prompts, the oldest first, then
    /// sequences that start, until the step's token budget is used up.
    pub(crate) fn plan(&mut self) -> Plan {
        let mut plan = Plan::default();
        let preemptions = self.counters.preemptions;
        self.plan_decodes(&mut plan);
        let mut budget = self.limits.step_tokens - plan.sampled.len();
        self.plan_prefills(&mut plan, &mut budget);
        // Whoever just lost its pages would only take them back.
        if self.counters.preemptions == preemptions {
            self.plan_starts(&mut plan, &mut budget);
        }
        plan
    }

    /// Takes in the results of a plan, one verdict for each sampled run. Returns who ended.
    ///
    /// # Panics
    ///
    /// If verdicts are missing, or an invariant of the accounting is broken.
    pub(crate) fn apply(&mut self, plan: &Plan, verdicts: &[Verdict]) -> Vec<Ended> {
        assert_eq!(
            plan.sampled.len(),
            verdicts.len(),
            "a plan is applied with the results of another"
        );
        let mut ended = Vec::new();
        for partial in &plan.partial {
            self.share_computed(&partial.run);
        }
        for (sampled, verdict) in plan.sampled.iter().zip(verdicts) {
            self.share_computed(&sampled.run);
            if let Some(reason) = self.accept(sampled, *verdict) {
                let sequence = self
                    .remove(sampled.run.id)
                    .expect("a sequence that just got a token is here");
                if reason != EndReason::NotFinite {
                    self.lengths.learn(sequence.length, sequence.output.len());
                }
                ended.push(Ended {
                    id: sampled.run.id,
                    reason,
                    cached_tokens: saturate(sequence.cached.unwrap_or(0)),
                });
            }
        }
        self.assert_consistent();
        ended
    }

    /// Returns the numbers of waiting and running sequences.
    pub(crate) fn queues(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Returns the numbers of all pages, and of those that are free or can be freed at once.
    pub(crate) fn pages(&self) -> (usize, usize) {
        (self.kv.total(), self.kv.available())
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    fn plan_decodes(&mut self, plan: &mut Plan) {
        let by_age: Vec<SequenceId> = self.running.values().copied().collect();
        for id in by_age {
            let sequence = self.sequences.get(&id).expect("a running sequence is here");
            let Stage::Running(running) = &sequence.stage else {
                continue;
            };
            if running.planned < running.prefill || sequence.is_exhausted() {
                continue;
            }
            let position = running.planned;
            if !self.make_room(id, position + 1) {
                continue;
            }
            let sequence = self
                .sequences
                .get_mut(&id)
                .expect("a running sequence is here");
            let token = sequence.output.get(position - sequence.prompt.len());
            let tokens = vec![token.map_or(RowToken::Last, |token| RowToken::Known(*token))];
            plan.sampled.push(sequence.plan_sampled(id, tokens));
        }
    }

    /// Gets pages for `tokens` tokens of a running sequence, taking them from the newest ones if it must.
    /// Returns false if the sequence itself had to give way.
    fn make_room(&mut self, id: SequenceId, tokens: usize) -> bool {
        loop {
            let sequence = self
                .sequences
                .get_mut(&id)
                .expect("a running sequence is here");
            let Stage::Running(running) = &mut sequence.stage else {
                return false;
            };
            if self.kv.grow(&mut running.table, tokens) {
                return true;
            }
            let newest = *self
                .running
                .last_key_value()
                .expect("the sequence itself is running")
                .1;
            assert!(
                self.running.len() > 1,
                "a sequence that was checked to fit the pool alone does not"
            );
            self.preempt(newest);
        }
    }

    fn preempt(&mut self, id: SequenceId) {
        let sequence = self
            .sequences
            .get_mut(&id)
            .expect("a running sequence is here");
        let Stage::Running(running) = &sequence.stage else {
            unreachable!("a sequence in the running set runs")
        };
        let age = running.age;
        let rank = self.waiting.push_preempted(age, id);
        let stage = std::mem::replace(&mut sequence.stage, Stage::Waiting(rank));
        self.running.remove(&age);
        self.leave(stage);
        self.counters.preemptions += 1;
    }

    fn plan_prefills(&mut self, plan: &mut Plan, budget: &mut usize) {
        for id in self.running.values() {
            let sequence = self
                .sequences
                .get_mut(id)
                .expect("a running sequence is here");
            sequence.plan_chunk(*id, budget, plan);
        }
    }

    /// Shares the pages that a run has filled, if the sequence is still in the same stay.
    fn share_computed(&mut self, run: &Run) {
        let Some(sequence) = self.sequences.get_mut(&run.id) else {
            return;
        };
        self.counters.prompt_tokens += sequence
            .prompt
            .len()
            .min(run.end())
            .saturating_sub(run.start) as u64;
        let tokens = Tokens {
            prompt: &sequence.prompt,
            output: &sequence.output,
        };
        if let Stage::Running(running) = &mut sequence.stage {
            assert_eq!(
                running.stay, run.stay,
                "a sequence ran again before its step was applied"
            );
            self.kv.share(&mut running.table, tokens, run.end());
        }
    }

    fn accept(&mut self, sampled: &SampledRun, verdict: Verdict) -> Option<EndReason> {
        let sequence = self.sequences.get_mut(&sampled.run.id)?;
        sequence.pending -= 1;
        assert_eq!(
            sequence.output.len(),
            sampled.output_index as usize,
            "a token is accepted out of order"
        );
        let (token, stops) = match verdict {
            Verdict::Goes(token) => (token, false),
            Verdict::Stops(token) => (token, true),
            Verdict::NotFinite => return Some(EndReason::NotFinite),
            Verdict::Surplus => unreachable!("a row of a sequence that is here is not surplus"),
        };
        sequence.output.push(token);
        self.counters.completion_tokens += 1;
        if stops {
            return Some(EndReason::Stopped);
        }
        (sequence.output.len() == sequence.limit).then_some(EndReason::Full)
    }

    fn remove(&mut self, id: SequenceId) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(&id)?;
        self.counters.left += 1;
        let nowhere = Stage::Waiting(Rank::Preempted { age: 0 });
        let stage = std::mem::replace(&mut sequence.stage, nowhere);
        match &stage {
            Stage::Waiting(rank) => {
                self.waiting.remove(*rank);
            }
            Stage::Running(running) => {
                self.running.remove(&running.age);
            }
        }
        self.leave(stage);
        Some(sequence)
    }

    fn leave(&mut self, stage: Stage) {
        match stage {
            Stage::Waiting(_) => {}
            Stage::Running(running) => {
                self.slots.push(running.slot);
                self.kv.close(running.table);
            }
        }
    }

    fn assert_consistent(&self) {
        self.kv.assert_balanced();
        let (waiting, running) = self.queues();
        let here = self.sequences.len();
        assert_eq!(waiting + running, here, "a sequence neither waits nor runs");
        assert_eq!(
            self.slots.len() + running,
            self.limits.sequences,
            "a slot is lost or doubled"
        );
        assert_eq!(
            here as u64 + self.counters.left,
            self.counters.submitted,
            "a sequence is lost"
        );
    }
}

fn saturate(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;

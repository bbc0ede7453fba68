//! Decides what each step runs: `plan`, then `apply`.
//!
//! Owns the waiting and the running sequences and the KV pages. Knows no tensors, no text and no clock.
//! [`Scheduler::plan`] decides and marks what it planned as under way; [`Scheduler::apply`] takes in what
//! came of it. Up to two plans may be under way: a row whose token is not here yet is planned as
//! [`RowToken::Last`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::kv::{Hit, KvCache, Lookup, Tokens};
use super::order::{OutputEstimate, Rank};
use super::plan::{EndReason, Ended, Plan, RowToken, Run, SampledRun, Verdict};
use super::sequence::{Running, Sequence, Stage};
use super::{RequestFailure, RequestId};

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

/// What the scheduler must know of a request.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) id: RequestId,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) salt: u64,
    pub(crate) max_tokens: usize,
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
    sequences: HashMap<RequestId, Sequence>,
    waiting: BTreeMap<Rank, RequestId>,
    /// By age, which is the order of the first start.
    running: BTreeMap<u64, RequestId>,
    slots: Vec<u32>,
    estimate: OutputEstimate,
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
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            slots: (0..slots).rev().collect(),
            estimate: OutputEstimate::new(),
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
        assert!(prompt_tokens > 0, "a prompt without tokens reached the scheduler");
        if prompt_tokens >= self.limits.context_tokens {
            return Err(RequestFailure::ContextTooLong {
                prompt_tokens: saturate(prompt_tokens),
                context_tokens: saturate(self.limits.context_tokens),
            });
        }
        let limit = arrival.max_tokens.clamp(1, self.limits.context_tokens - prompt_tokens);
        // The last token of the output is never stored.
        let needed = prompt_tokens + limit - 1;
        if self.kv.pages_for(needed) > self.kv.total() {
            return Err(RequestFailure::PoolTooSmall {
                pool_tokens: saturate(self.kv.total() * self.kv.page_tokens()),
                needed_tokens: saturate(needed),
            });
        }
        let rank = Rank::new(self.counters.submitted, arrival.salt, Arc::clone(&arrival.prompt));
        self.counters.submitted += 1;
        self.waiting.insert(rank.clone(), arrival.id);
        let sequence = Sequence {
            prompt: arrival.prompt,
            output: Vec::new(),
            salt: arrival.salt,
            limit,
            pending: 0,
            cached: None,
            stage: Stage::Waiting(rank),
        };
        let earlier = self.sequences.insert(arrival.id, sequence);
        assert!(earlier.is_none(), "request id {} is used twice", arrival.id.0);
        Ok(())
    }

    /// Drops a sequence. Rows of it that are under way come to nothing.
    pub(crate) fn abort(&mut self, id: RequestId) {
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
        assert_eq!(plan.sampled.len(), verdicts.len(), "a plan is applied with the results of another");
        let mut ended = Vec::new();
        for partial in &plan.partial {
            self.share_computed(&partial.run);
        }
        for (sampled, verdict) in plan.sampled.iter().zip(verdicts) {
            self.share_computed(&sampled.run);
            if let Some(reason) = self.accept(sampled, *verdict) {
                let sequence = self.remove(sampled.run.id).expect("a sequence that just got a token is here");
                self.estimate.learn(sequence.output.len());
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

    /// Returns whether the sequence is here, so that rows of it count.
    pub(crate) fn is_live(&self, id: RequestId) -> bool {
        self.sequences.contains_key(&id)
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
        let by_age: Vec<RequestId> = self.running.values().copied().collect();
        for id in by_age {
            let sequence = self.sequences.get(&id).expect("a running sequence is here");
            let Stage::Running(running) = &sequence.stage else { continue };
            if running.planned < running.prefill || sequence.is_exhausted() {
                continue;
            }
            let position = running.planned;
            if !self.make_room(id, position + 1) {
                continue;
            }
            let sequence = self.sequences.get_mut(&id).expect("a running sequence is here");
            let token = sequence.output.get(position - sequence.prompt.len());
            let tokens = vec![token.map_or(RowToken::Last, |token| RowToken::Known(*token))];
            plan.sampled.push(sequence.plan_sampled(id, tokens));
        }
    }

    /// Gets pages for `tokens` tokens of a running sequence, taking them from the newest ones if it must.
    /// Returns false if the sequence itself had to give way.
    fn make_room(&mut self, id: RequestId, tokens: usize) -> bool {
        loop {
            let sequence = self.sequences.get_mut(&id).expect("a running sequence is here");
            let Stage::Running(running) = &mut sequence.stage else { return false };
            if self.kv.grow(&mut running.table, tokens) {
                return true;
            }
            let newest = *self.running.last_key_value().expect("the sequence itself is running").1;
            assert!(
                self.running.len() > 1,
                "a sequence that was checked to fit the pool alone does not"
            );
            self.preempt(newest);
        }
    }

    fn preempt(&mut self, id: RequestId) {
        let sequence = self.sequences.get_mut(&id).expect("a running sequence is here");
        let Stage::Running(running) = &sequence.stage else {
            unreachable!("a sequence in the running set runs")
        };
        let age = running.age;
        let rank = Rank::Preempted { age };
        let stage = std::mem::replace(&mut sequence.stage, Stage::Waiting(rank.clone()));
        self.running.remove(&age);
        self.waiting.insert(rank, id);
        self.leave(stage);
        self.counters.preemptions += 1;
    }

    fn plan_prefills(&mut self, plan: &mut Plan, budget: &mut usize) {
        for id in self.running.values() {
            let sequence = self.sequences.get_mut(id).expect("a running sequence is here");
            sequence.plan_chunk(*id, budget, plan);
        }
    }

    /// Starts waiting sequences in their order while there is room. One that waits for a page which another
    /// computes lets those behind it pass; one that waits for memory does not.
    fn plan_starts(&mut self, plan: &mut Plan, budget: &mut usize) {
        let first: Vec<RequestId> = self.waiting.values().take(2 * self.limits.sequences).copied().collect();
        for id in first {
            if *budget == 0 || self.slots.is_empty() {
                return;
            }
            let sequence = self.sequences.get(&id).expect("a waiting sequence is here");
            assert_eq!(sequence.pending, 0, "a sequence starts again before its last token is known");
            match self.kv.lookup(sequence.salt, sequence.tokens()) {
                Lookup::Computing => {}
                Lookup::Found(hit) if self.has_room_for(sequence, &hit) => {
                    self.start(id, hit);
                    let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is here");
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
                    Stage::Running(running) => self.pages_expected(other).saturating_sub(running.table.len()),
                    Stage::Waiting(_) => 0,
                }
            })
            .sum();
        later.max(now) + others <= available
    }

    fn pages_expected(&self, sequence: &Sequence) -> usize {
        let so_far = sequence.output.len() + sequence.pending;
        let output = self.estimate.expect(so_far, sequence.limit, self.kv.page_tokens());
        self.kv.pages_for(sequence.prompt.len() + output - 1)
    }

    fn start(&mut self, id: RequestId, hit: Hit) {
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is here");
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
            slot: self.slots.pop().expect("a start is planned only with a free slot"),
            table,
            planned: cached,
            prefill: sequence.tokens().len(),
            fresh: true,
        });
    }

    /// Shares the pages that a run has filled, if the sequence is still in the same stay.
    fn share_computed(&mut self, run: &Run) {
        let Some(sequence) = self.sequences.get_mut(&run.id) else { return };
        self.counters.prompt_tokens +=
            sequence.prompt.len().min(run.end()).saturating_sub(run.start) as u64;
        let tokens = Tokens {
            prompt: &sequence.prompt,
            output: &sequence.output,
        };
        if let Stage::Running(running) = &mut sequence.stage
            && running.stay == run.stay
        {
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

    fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(&id)?;
        self.counters.left += 1;
        let nowhere = Stage::Waiting(Rank::Preempted { age: 0 });
        let stage = std::mem::replace(&mut sequence.stage, nowhere);
        match &stage {
            Stage::Waiting(rank) => {
                self.waiting.remove(rank);
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
        assert_eq!(self.slots.len() + running, self.limits.sequences, "a slot is lost or doubled");
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

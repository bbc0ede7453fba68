//! Which requests wait for which sequence: those whose results must be equal wait for the same one.
//!
//! The first to ask a question makes a sequence; those that ask it while the sequence waits or runs share it,
//! and those that ask it later get the result that was kept. Every request gets a result of its own, with
//! full usage. Knows no pages and no steps, and never trusts a hash: questions are compared in full.

mod answers;
mod question;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use super::sequence::SequenceId;
use super::{Generation, Outcome, RequestId};
use answers::Answers;
pub(super) use question::Question;

/// What becomes of a request that asks a question.
#[derive(Debug)]
pub(super) enum Asked {
    /// The result is known.
    Answered(Generation),
    /// It waits for this sequence.
    Joined(SequenceId),
    /// Nobody has asked before: it needs a sequence; see [`Duplicates::open`].
    New(Arc<Question>),
}

/// Requests and work saved by the map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Saved {
    /// Requests that got the result of an equal one.
    pub(super) requests: u64,
    /// Their tokens of prompt and output.
    pub(super) tokens: u64,
}

#[derive(Debug)]
struct Waiting {
    question: Arc<Question>,
    /// In the order of arrival. The first is charged for what was computed, the others are copies.
    requests: Vec<RequestId>,
}

/// The map from requests to sequences.
#[derive(Debug)]
pub(super) struct Duplicates {
    /// Whether equal requests share a sequence; otherwise each has its own.
    enabled: bool,
    computing: HashMap<Arc<Question>, SequenceId>,
    waiting: HashMap<SequenceId, Waiting>,
    sequence_of: HashMap<RequestId, SequenceId>,
    answers: Answers,
    saved: Saved,
    sequences: u64,
}

impl Duplicates {
    /// Makes an empty map.
    pub(super) fn new(enabled: bool) -> Duplicates {
        Duplicates {
            enabled,
            computing: HashMap::new(),
            waiting: HashMap::new(),
            sequence_of: HashMap::new(),
            answers: Answers::default(),
            saved: Saved::default(),
            sequences: 0,
        }
    }

    /// Asks a question for a request, which joins those that asked it before, if there are any.
    pub(super) fn ask(&mut self, request: RequestId, question: Question) -> Asked {
        if !self.enabled {
            return Asked::New(Arc::new(question));
        }
        if let Some(&sequence) = self.computing.get(&question) {
            self.attach(request, sequence);
            let waiting = self.waiting.get_mut(&sequence);
            let waiting = waiting.expect("a question that is computed is waited for");
            waiting.requests.push(request);
            return Asked::Joined(sequence);
        }
        match self.answers.get(&question) {
            Some(answer) => {
                let answer = copy(answer);
                self.saved.count(&answer);
                Asked::Answered(answer)
            }
            None => Asked::New(Arc::new(question)),
        }
    }

    /// Returns the name of the next sequence.
    pub(super) fn next_sequence(&self) -> SequenceId {
        SequenceId(self.sequences)
    }

    /// Lets a request wait for [`Duplicates::next_sequence`], which computes the answer to its question.
    pub(super) fn open(&mut self, request: RequestId, question: Arc<Question>) {
        let sequence = self.next_sequence();
        self.sequences += 1;
        self.attach(request, sequence);
        if self.enabled {
            self.computing.insert(Arc::clone(&question), sequence);
        }
        let requests = vec![request];
        self.waiting
            .insert(sequence, Waiting { question, requests });
    }

    /// Drops a request. Returns its sequence if nobody waits for that any more; where others do, it goes on
    /// for them.
    pub(super) fn leave(&mut self, request: RequestId) -> Option<SequenceId> {
        let sequence = self.sequence_of.remove(&request)?;
        let waiting = self.waiting.get_mut(&sequence)?;
        waiting.requests.retain(|other| *other != request);
        if !waiting.requests.is_empty() {
            return None;
        }
        self.end(sequence);
        Some(sequence)
    }

    /// Takes in what became of a sequence. Returns the outcomes of all who waited for it, in the order of
    /// their arrival.
    ///
    /// # Panics
    ///
    /// If nobody waited for the sequence.
    pub(super) fn close(
        &mut self,
        sequence: SequenceId,
        outcome: Outcome,
    ) -> impl Iterator<Item = (RequestId, Outcome)> + use<> {
        let Waiting { question, requests } = self.end(sequence);
        let mut requests = requests.into_iter();
        let first = requests.next().expect("a sequence is waited for");
        self.sequence_of.remove(&first);
        let mut copies = Vec::with_capacity(requests.len());
        for request in requests {
            self.sequence_of.remove(&request);
            let copied = match &outcome {
                Outcome::Finished(generation) => {
                    self.saved.count(generation);
                    Outcome::Finished(copy(generation))
                }
                Outcome::Failed(failure) => Outcome::Failed(failure.clone()),
            };
            copies.push((request, copied));
        }
        // A failure is not kept: if the device had a bad moment, the next one to ask may have luck.
        if self.enabled
            && let Outcome::Finished(generation) = &outcome
        {
            self.answers.keep(question, generation);
        }
        std::iter::once((first, outcome)).chain(copies)
    }

    /// Returns what was saved so far.
    pub(super) fn saved(&self) -> Saved {
        self.saved
    }

    /// Returns whether no request waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    fn attach(&mut self, request: RequestId, sequence: SequenceId) {
        let earlier = self.sequence_of.insert(request, sequence);
        assert!(earlier.is_none(), "request id {} is used twice", request.0);
    }

    fn end(&mut self, sequence: SequenceId) -> Waiting {
        let waiting = self
            .waiting
            .remove(&sequence)
            .expect("a sequence that ends was waited for");
        if self.enabled {
            self.computing.remove(&waiting.question);
        }
        waiting
    }
}

impl Saved {
    fn count(&mut self, copied: &Generation) {
        self.requests += 1;
        self.tokens += u64::from(copied.prompt_tokens) + u64::from(copied.completion_tokens);
    }
}

/// Returns a result for a request that nothing was computed for: all of its prompt counts as cached.
fn copy(generation: &Generation) -> Generation {
    Generation {
        cached_tokens: generation.prompt_tokens,
        ..generation.clone()
    }
}

//! The engine over a backend: plans a step, enqueues it, takes in its results.
//!
//! With a backend that looks ahead, the forward pass of step n + 1 is enqueued before the results of step n
//! are waited for; what step n ended is dead by the time that step n + 1 samples. Decides nothing itself:
//! [`super::scheduler`] plans, [`super::generating`] judges tokens.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::assemble::step_inputs;
use super::decoder::{Decoder, MemoryPlan};
use super::duplicates::{Asked, Duplicates, Question};
use super::generating::{Generating, SampledToken};
use super::plan::{Plan, SampledRun, Verdict};
use super::salience::Salience;
use super::scheduler::{Arrival, Limits, Scheduler};
use super::sequence::SequenceId;
use super::{Engine, Outcome, Request, RequestFailure, RequestId, Stats};
use crate::backend::{
    Backend, BackendError, KvType, Recipe, SampleInputs, SampleRow, StepOutput, Ticket,
};
use crate::model::{ModelConfig, Weights};
use crate::text::stop::TokenText;

/// How an engine is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Rows of a step, at most: decodes and prompt chunks together.
    pub max_step_tokens: usize,
    /// Sequences that run at once, at most.
    pub max_sequences: usize,
    /// Tokens that the KV pool holds.
    pub kv_tokens: usize,
    /// Tokens of prompt and output together, at most; the model's own limit holds besides.
    pub context_tokens: usize,
    /// Whether requests of one salt share the pages of common prefixes. Never changes a result.
    pub prefix_cache: bool,
    /// Whether requests whose results must be equal are computed once. Never changes a result.
    pub duplicates: bool,
    /// How products are computed.
    pub recipe: Recipe,
    /// Number type of the KV cache.
    pub kv_type: KvType,
    /// What the weights are packed by, where they are not packed yet.
    pub salience: Salience,
    /// Names the weights in the fingerprint (a digest).
    pub weights_id: String,
}

/// An [`Engine`] over a [`Backend`].
pub struct BatchEngine<B> {
    backend: B,
    decoder: Decoder,
    text: Arc<dyn TokenText>,
    scheduler: Scheduler,
    duplicates: Duplicates,
    sequences: HashMap<SequenceId, Generating>,
    outcomes: Vec<(RequestId, Outcome)>,
    /// The step whose results are not here yet; always none for a backend that does not look ahead.
    under_way: Option<UnderWay>,
    steps: u64,
    /// Ids from here on are padding.
    vocabulary: usize,
    context_tokens: usize,
    fingerprint: String,
}

impl<B> std::fmt::Debug for BatchEngine<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchEngine")
            .field("fingerprint", &self.fingerprint)
            .field("steps", &self.steps)
            .field("sequences", &self.sequences.len())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct UnderWay {
    plan: Plan,
    ticket: Ticket,
}

impl<B: Backend> BatchEngine<B> {
    /// Loads a model into `backend`, and allocates all that its steps will need.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if the weights cannot be read, or if what the configuration asks for does not fit.
    pub fn load(
        mut backend: B,
        model: &ModelConfig,
        weights: &dyn Weights,
        text: Arc<dyn TokenText>,
        config: &EngineConfig,
    ) -> Result<BatchEngine<B>, BackendError> {
        let caps = backend.caps().clone();
        let rows = config.max_step_tokens.clamp(1, caps.max_rows);
        let sequences = config.max_sequences.clamp(1, rows);
        let pages = config.kv_tokens.div_ceil(caps.page_tokens).max(1);
        let context_tokens = config.context_tokens.min(model.context_tokens);
        let plan = MemoryPlan {
            rows,
            logit_rows: sequences,
            sequences,
            pages,
            history_tokens: context_tokens,
        };
        let decoder = Decoder::load(
            &mut backend,
            model,
            weights,
            plan,
            config.recipe,
            config.kv_type,
            &config.salience,
        )?;
        let scheduler = Scheduler::new(Limits {
            step_tokens: rows,
            sequences,
            pages: u32::try_from(pages).map_err(|_| BackendError::Unsupported {
                backend: "every",
                what: format!("a KV pool of {pages} pages"),
            })?,
            page_tokens: caps.page_tokens,
            context_tokens,
            prefix_cache: config.prefix_cache,
        });
        Ok(BatchEngine {
            backend,
            decoder,
            text,
            scheduler,
            duplicates: Duplicates::new(config.duplicates),
            sequences: HashMap::new(),
            outcomes: Vec::new(),
            under_way: None,
            steps: 0,
            vocabulary: model.tokenizer_vocab_size.min(model.vocab_size),
            context_tokens,
            fingerprint: format!("{} {}", caps.fingerprint, config.weights_id),
        })
    }

    /// Returns the backend, for what it tells of itself.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    fn check_prompt(&self, prompt: &[u32]) -> Result<(), RequestFailure> {
        if prompt.is_empty() {
            return Err(RequestFailure::InvalidPrompt("it has no tokens".to_owned()));
        }
        match prompt
            .iter()
            .find(|token| **token as usize >= self.vocabulary)
        {
            Some(token) => Err(RequestFailure::InvalidPrompt(format!(
                "token {token} is not one of the {} tokens of the vocabulary",
                self.vocabulary
            ))),
            None => Ok(()),
        }
    }

    fn accept_request(&mut self, mut request: Request) -> Result<(), RequestFailure> {
        self.check_prompt(&request.prompt)?;
        request
            .logit_bias
            .retain(|(token, _)| (*token as usize) < self.vocabulary);
        match self.duplicates.ask(request.id, Question::of(&request)) {
            Asked::Answered(generation) => self
                .outcomes
                .push((request.id, Outcome::Finished(generation))),
            Asked::Joined(sequence) if request.urgent => self.scheduler.hurry(sequence),
            Asked::Joined(_) => {}
            Asked::New(question) => {
                let id = self.duplicates.next_sequence();
                self.scheduler.submit(Arrival::new(id, &request))?;
                self.duplicates.open(request.id, question);
                self.sequences.insert(id, Generating::new(request));
            }
        }
        Ok(())
    }

    fn sample_inputs(&self, plan: &Plan) -> SampleInputs {
        let row = |sampled: &SampledRun| match self.sequences.get(&sampled.run.id) {
            Some(generating) => generating.sample_row(sampled.run.slot, sampled.output_index),
            None => dead_row(sampled),
        };
        SampleInputs {
            rows: plan.sampled.iter().map(row).collect(),
            vocabulary: self.vocabulary,
        }
    }

    /// Waits for a step and takes in what came of it.
    fn finish(&mut self, step: &UnderWay) -> Result<(), BackendError> {
        let output = self.backend.wait(step.ticket)?;
        let verdicts = self.judge(&step.plan, output);
        for ended in self.scheduler.apply(&step.plan, &verdicts) {
            let generating = self
                .sequences
                .remove(&ended.id)
                .expect("a sequence that ended was submitted");
            let outcome = generating.finish(ended, self.text.as_ref());
            self.outcomes
                .extend(self.duplicates.close(ended.id, outcome));
        }
        Ok(())
    }

    fn judge(&mut self, plan: &Plan, mut output: StepOutput) -> Vec<Verdict> {
        let bad: HashSet<u32> = output.bad_rows.iter().copied().collect();
        let mut verdicts = Vec::with_capacity(plan.sampled.len());
        for (row, sampled) in (0u32..).zip(&plan.sampled) {
            let index = row as usize;
            verdicts.push(match self.sequences.get_mut(&sampled.run.id) {
                None => Verdict::Surplus,
                Some(_) if bad.contains(&row) => Verdict::NotFinite,
                Some(generating) => {
                    let token = SampledToken {
                        token: output.tokens[index],
                        logprob: output.logprobs[index],
                        top: output
                            .top_n
                            .get_mut(index)
                            .map(std::mem::take)
                            .unwrap_or_default(),
                    };
                    generating.accept(token, self.text.as_ref())
                }
            });
        }
        verdicts
    }
}

impl<B: Backend + Send> Engine for BatchEngine<B> {
    fn submit(&mut self, request: Request) {
        let id = request.id;
        if let Err(failure) = self.accept_request(request) {
            self.outcomes.push((id, Outcome::Failed(failure)));
        }
    }

    fn abort(&mut self, id: RequestId) {
        if let Some(sequence) = self.duplicates.leave(id) {
            self.scheduler.abort(sequence);
            self.sequences.remove(&sequence);
        }
        self.outcomes.retain(|(other, _)| *other != id);
    }

    fn step(&mut self) -> Result<bool, BackendError> {
        let plan = self.scheduler.plan();
        let before = self.under_way.take();
        if plan.is_empty() {
            let Some(before) = before else {
                assert!(
                    self.duplicates.is_idle(),
                    "sequences wait, and none can run"
                );
                return Ok(false);
            };
            self.finish(&before)?;
            return Ok(true);
        }
        let inputs = step_inputs(&plan, self.backend.caps().page_tokens);
        self.backend.begin(&inputs);
        self.decoder.forward(&mut self.backend, inputs.bucket);
        if let Some(before) = before {
            self.finish(&before)?;
        }
        let samples = self.sample_inputs(&plan);
        self.backend.sample(self.decoder.logits(), &samples);
        let step = UnderWay {
            ticket: self.backend.end(),
            plan,
        };
        self.steps += 1;
        if self.backend.caps().lookahead == 0 {
            self.finish(&step)?;
        } else {
            self.under_way = Some(step);
        }
        Ok(true)
    }

    fn take(&mut self) -> Vec<(RequestId, Outcome)> {
        std::mem::take(&mut self.outcomes)
    }

    fn stats(&self) -> Stats {
        let (waiting, running) = self.scheduler.queues();
        let (pages_total, pages_free) = self.scheduler.pages();
        let counters = self.scheduler.counters();
        let saved = self.duplicates.saved();
        Stats {
            waiting,
            running,
            steps: self.steps,
            prompt_tokens: counters.prompt_tokens,
            cached_tokens: counters.cached_tokens,
            completion_tokens: counters.completion_tokens,
            copied: saved.requests,
            copied_tokens: saved.tokens,
            preemptions: counters.preemptions,
            pages_total,
            pages_free,
        }
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn context_tokens(&self) -> u32 {
        u32::try_from(self.context_tokens).unwrap_or(u32::MAX)
    }
}

/// A row of a sequence that ended after the step was planned: it costs nothing and changes nothing.
fn dead_row(sampled: &SampledRun) -> SampleRow {
    SampleRow {
        live: false,
        ..SampleRow::greedy(sampled.run.slot, sampled.output_index)
    }
}

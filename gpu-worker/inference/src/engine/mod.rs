//! Schedules sequences over a backend: `submit`, `step`, `take`.
//!
//! The scheduler plans, the backend computes, the engine applies: it decides nothing after the plan is made.
//! Requests whose results must be equal are one sequence ([`duplicates`]). Sequences wait in an order that
//! serves cache and batch ([`queue`], [`order`]), and start when the pool is expected to hold them to their
//! ends ([`admission`], [`lengths`]). Nothing of that ever changes a result.

mod admission;
mod assemble;
mod decoder;
mod duplicates;
mod generating;
mod kv;
mod lengths;
mod order;
mod pages;
mod plan;
pub mod quality;
mod queue;
mod radix;
mod run;
mod salience;
mod scheduler;
mod sequence;

use std::sync::Arc;

use crate::backend::{BackendError, SampleParams};

pub use decoder::{Decoder, MemoryPlan};
pub use run::{BatchEngine, EngineConfig};
pub use salience::Salience;

/// Names a request within one engine. Chosen by the caller, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One sequence to generate.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its name.
    pub id: RequestId,
    /// Prompt token ids; not empty.
    pub prompt: Arc<[u32]>,
    /// Pages are shared only between requests of one salt (a tenant).
    pub salt: u64,
    /// Starts before requests that are not, three times of four while both wait.
    pub urgent: bool,
    /// Seed of the draws.
    pub seed: u64,
    /// Index of the choice (`n > 1`).
    pub choice: u32,
    /// The most tokens to generate; at least 1.
    pub max_tokens: u32,
    /// How tokens are chosen.
    pub params: SampleParams,
    /// Added to logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// How many of the most likely tokens to report with each token; none: no logprobs at all.
    pub logprobs: Option<u32>,
    /// Byte strings that end the text, cut before the earliest match.
    pub stop: Vec<Vec<u8>>,
    /// Tokens that end the text, unless `ignore_eos`.
    pub stop_tokens: Arc<[u32]>,
    /// Goes on past `stop_tokens` up to `max_tokens`.
    pub ignore_eos: bool,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or a stop string.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
}

/// One generated token that contributes text, with its log-probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token: u32,
    /// Log-probability before masks, penalties and temperature.
    pub logprob: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It ran to its end.
    Finished(Generation),
    /// It can never run; other requests are not touched.
    Failed(RequestFailure),
}

/// The result of a request that ran.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The text's bytes up to the stop string, valid UTF-8 (invalid sequences replaced).
    pub text: String,
    /// Every token generated, the stop token included.
    pub tokens: Vec<u32>,
    /// Tokens that contribute text, when asked for.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, found in the cache: all, if the whole result is that of an equal request.
    pub cached_tokens: u32,
    /// Every generated token counts, the stop token too.
    pub completion_tokens: u32,
}

/// Why one request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestFailure {
    /// Prompt and output do not fit the model's context.
    #[error(
        "this model's maximum context length is {context_tokens} tokens, the request has {prompt_tokens} prompt tokens"
    )]
    ContextTooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// The model's limit.
        context_tokens: u32,
    },
    /// The KV pool cannot hold it even alone.
    #[error("the KV cache holds {pool_tokens} tokens, the request may need {needed_tokens}")]
    PoolTooSmall {
        /// Tokens that the pool holds.
        pool_tokens: u32,
        /// Tokens that the request needs.
        needed_tokens: u32,
    },
    /// A logit was NaN or infinite.
    #[error("the model produced a value that is not finite")]
    NotFinite,
    /// The prompt has no tokens, or a token outside the vocabulary.
    #[error("invalid prompt: {0}")]
    InvalidPrompt(String),
}

/// Counters of an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that do not run yet. Requests whose results must be equal are one sequence.
    pub waiting: usize,
    /// Sequences in the batch of the next step.
    pub running: usize,
    /// Steps so far.
    pub steps: u64,
    /// Prompt tokens computed (cached ones not included).
    pub prompt_tokens: u64,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Requests that got the result of an equal one.
    pub copied: u64,
    /// Their tokens of prompt and output, which are in no other count.
    pub copied_tokens: u64,
    /// Sequences that lost their pages and were computed again.
    pub preemptions: u64,
    /// KV pages in all.
    pub pages_total: usize,
    /// KV pages that are free or can be freed at once.
    pub pages_free: usize,
}

/// An engine behind an object: what the worker holds.
pub trait Engine: Send {
    /// Adds a request. It starts at some later step.
    fn submit(&mut self, request: Request);

    /// Drops a request, running or not. Its outcome never comes.
    fn abort(&mut self, id: RequestId);

    /// Runs one step. Returns false if there was nothing to do.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if the device failed: nothing that is not yet taken can be trusted to come.
    fn step(&mut self) -> Result<bool, BackendError>;

    /// Takes the outcomes that are ready, in the order of their end.
    fn take(&mut self) -> Vec<(RequestId, Outcome)>;

    /// Returns the engine's counters.
    fn stats(&self) -> Stats;

    /// Returns version, backend, instruction set, recipe and weights: the `system_fingerprint`.
    fn fingerprint(&self) -> &str;

    /// Returns the most tokens of prompt and output together.
    fn context_tokens(&self) -> u32;
}

//! A request from its submission to its outcome: tokens, text and log-probabilities.
//!
//! Owns the rules by which a token ends a text. Knows no pages and no steps.

use super::plan::{EndReason, Ended, Verdict};
use super::{FinishReason, Generation, Outcome, Request, RequestFailure, TokenLogprob};
use crate::backend::SampleRow;
use crate::text::stop::{StopText, TokenText};

/// A token as the backend reports it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SampledToken {
    pub(super) token: u32,
    pub(super) logprob: f32,
    pub(super) top: Vec<(u32, f32)>,
}

/// A request and what it has generated so far.
#[derive(Debug)]
pub(super) struct Generating {
    request: Request,
    tokens: Vec<u32>,
    text: StopText,
    /// One for each token; empty unless asked for.
    logprobs: Vec<TokenLogprob>,
}

impl Generating {
    pub(super) fn new(request: Request) -> Generating {
        Generating {
            text: StopText::new(&request.stop),
            request,
            tokens: Vec::new(),
            logprobs: Vec::new(),
        }
    }

    /// Returns how the token at `position` of the output is to be chosen.
    pub(super) fn sample_row(&self, slot: u32, position: u32) -> SampleRow {
        SampleRow {
            slot,
            live: true,
            seed: self.request.seed,
            choice: self.request.choice,
            position,
            params: self.request.params,
            mask: None,
            bias: self.request.logit_bias.clone(),
            logprobs: self.request.logprobs,
            forced: None,
        }
    }

    /// Takes the next token and says whether the text goes on.
    pub(super) fn accept(&mut self, sampled: SampledToken, text: &dyn TokenText) -> Verdict {
        let SampledToken {
            token,
            logprob,
            top,
        } = sampled;
        let index = self.tokens.len();
        self.tokens.push(token);
        if self.request.logprobs.is_some() {
            self.logprobs.push(TokenLogprob {
                token,
                logprob,
                top,
            });
        }
        let is_stop_token = !self.request.ignore_eos && self.request.stop_tokens.contains(&token);
        if is_stop_token || self.text.push(index, token, text) {
            Verdict::Stops(token)
        } else {
            Verdict::Goes(token)
        }
    }

    /// Turns the request into its outcome.
    pub(super) fn finish(self, ended: Ended, text: &dyn TokenText) -> Outcome {
        let finish_reason = match ended.reason {
            EndReason::Stopped => FinishReason::Stop,
            EndReason::Full => FinishReason::Length,
            EndReason::NotFinite => return Outcome::Failed(RequestFailure::NotFinite),
        };
        let logprobs = self.request.logprobs.map(|_| {
            let mut logprobs: Vec<Option<TokenLogprob>> =
                self.logprobs.into_iter().map(Some).collect();
            self.text
                .contributing()
                .filter_map(|index| logprobs[index].take())
                .collect()
        });
        Outcome::Finished(Generation {
            text: self.text.text(text),
            logprobs,
            finish_reason,
            prompt_tokens: count(self.request.prompt.len()),
            cached_tokens: ended.cached_tokens,
            completion_tokens: count(self.tokens.len()),
            tokens: self.tokens,
        })
    }
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("a request is shorter than a context")
}

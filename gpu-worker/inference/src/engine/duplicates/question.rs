//! What a request's result depends on, and nothing else.

use std::sync::Arc;

use crate::backend::SampleParams;
use crate::engine::Request;

/// All that decides a result. Requests with equal questions have equal results, bit for bit.
///
/// Floats are held as their bits, so that equality is exact; 0.0 and -0.0 are two questions, which costs
/// only a chance to share.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    /// Results never cross tenants, though they would be the same.
    salt: u64,
    prompt: Arc<[u32]>,
    max_tokens: u32,
    logit_bias: Vec<(u32, u32)>,
    /// Repetition, frequency and presence.
    penalties: [u32; 3],
    /// None if the most likely token is always taken.
    draw: Option<Draw>,
    logprobs: Option<u32>,
    stop: Vec<Vec<u8>>,
    /// Empty if they are ignored.
    stop_tokens: Arc<[u32]>,
}

/// What only draws depend on.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Draw {
    temperature: u32,
    top_p: u32,
    top_k: u32,
    min_p: u32,
    seed: u64,
    choice: u32,
}

impl Question {
    /// Returns the question that a request asks.
    pub(crate) fn of(request: &Request) -> Question {
        // Named one by one, so that a new field is not forgotten here.
        let Request {
            id: _,
            prompt,
            salt,
            urgent: _,
            seed,
            choice,
            max_tokens,
            params:
                SampleParams {
                    temperature,
                    top_p,
                    top_k,
                    min_p,
                    repetition_penalty,
                    frequency_penalty,
                    presence_penalty,
                },
            logit_bias,
            logprobs,
            stop,
            stop_tokens,
            ignore_eos,
        } = request;
        let penalties = [repetition_penalty, frequency_penalty, presence_penalty];
        let draw = Draw {
            temperature: temperature.to_bits(),
            top_p: top_p.to_bits(),
            top_k: *top_k,
            min_p: min_p.to_bits(),
            seed: *seed,
            choice: *choice,
        };
        let biases = logit_bias.iter();
        let mut logit_bias: Vec<(u32, u32)> =
            biases.map(|(t, bias)| (*t, bias.to_bits())).collect();
        // Stable: what is added to one token keeps its order, on which the last bit depends.
        logit_bias.sort_by_key(|(token, _)| *token);
        Question {
            salt: *salt,
            prompt: Arc::clone(prompt),
            max_tokens: *max_tokens,
            logit_bias,
            penalties: penalties.map(|penalty| penalty.to_bits()),
            draw: (!request.params.is_greedy()).then_some(draw),
            logprobs: *logprobs,
            stop: stop.clone(),
            stop_tokens: if *ignore_eos {
                Arc::from([])
            } else {
                Arc::clone(stop_tokens)
            },
        }
    }

    /// Returns the bytes that it holds beside its own size. Stop tokens are shared by all of a model.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.prompt)
            + size_of_val(&*self.logit_bias)
            + size_of_val(&*self.stop)
            + self.stop.iter().map(Vec::len).sum::<usize>()
    }
}

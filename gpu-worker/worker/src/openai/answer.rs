//! Renders the bodies of responses, field by field as OpenAI orders them.

use batch_core::batch::TokenCounts;
use inference::engine::{FinishReason, Generation, TokenLogprob};
use serde_json::{Value, json};

use super::fields::LineError;
use super::responses::Echo;
use super::{AnswerShape, Answerer, PromptText};

pub(super) fn render(
    shape: &AnswerShape,
    generations: &[Generation],
    answerer: &Answerer<'_>,
    text: &dyn PromptText,
) -> Result<String, LineError> {
    let all_finite = generations
        .iter()
        .flat_map(|g| g.logprobs.iter().flatten())
        .all(|entry| {
            entry.logprob.is_finite() && entry.top.iter().all(|(_, logprob)| logprob.is_finite())
        });
    if !all_finite {
        // JSON has no such numbers, and a null would pass for an answer.
        return Err(LineError::server(
            "a log-probability is not finite",
            "non_finite_result",
        ));
    }
    let tokens = token_counts(shape, generations);
    let body = match shape {
        AnswerShape::Chat => chat(generations, tokens, answerer, text),
        AnswerShape::Completion { echo, .. } => {
            completion(generations, echo.as_deref(), tokens, answerer, text)
        }
        AnswerShape::Response { echo } => response(generations, tokens, echo, answerer),
    };
    Ok(body.to_string())
}

fn suffix<'a>(answerer: &Answerer<'a>) -> &'a str {
    answerer
        .request_id
        .strip_prefix("batch_req_")
        .unwrap_or(answerer.request_id)
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn chat(
    generations: &[Generation],
    tokens: TokenCounts,
    answerer: &Answerer<'_>,
    text: &dyn PromptText,
) -> Value {
    let choices: Vec<Value> = generations
        .iter()
        .enumerate()
        .map(|(index, generation)| {
            let logprobs = generation.logprobs.as_ref().map(|entries| {
                json!({"content": entries.iter().map(|entry| chat_logprob(entry, text)).collect::<Vec<_>>(), "refusal": null})
            });
            json!({
                "index": index,
                "message": {"role": "assistant", "content": generation.text, "refusal": null},
                "logprobs": logprobs,
                "finish_reason": finish_reason(generation.finish_reason),
            })
        })
        .collect();
    json!({
        "id": format!("chatcmpl-{}", suffix(answerer)),
        "object": "chat.completion",
        "created": answerer.now.secs(),
        "model": answerer.model,
        "choices": choices,
        "usage": usage(tokens),
        "system_fingerprint": answerer.fingerprint,
    })
}

fn chat_logprob(entry: &TokenLogprob, text: &dyn PromptText) -> Value {
    let one = |token: u32, logprob: f32| {
        let bytes = text.token_bytes(token);
        json!({"token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes})
    };
    let mut value = one(entry.token, entry.logprob);
    value["top_logprobs"] = entry
        .top
        .iter()
        .map(|(token, logprob)| one(*token, *logprob))
        .collect();
    value
}

fn completion(
    generations: &[Generation],
    echo: Option<&[String]>,
    tokens: TokenCounts,
    answerer: &Answerer<'_>,
    text: &dyn PromptText,
) -> Value {
    let choices: Vec<Value> = generations
        .iter()
        .enumerate()
        .map(|(index, generation)| {
            let prompt = echo
                .and_then(|echo| echo.get(index))
                .map_or("", String::as_str);
            let logprobs = generation.logprobs.as_ref();
            json!({
                "text": format!("{prompt}{}", generation.text),
                "index": index,
                "logprobs": logprobs.map(|entries| completion_logprobs(entries, text)),
                "finish_reason": finish_reason(generation.finish_reason),
            })
        })
        .collect();
    json!({
        "id": format!("cmpl-{}", suffix(answerer)),
        "object": "text_completion",
        "created": answerer.now.secs(),
        "model": answerer.model,
        "choices": choices,
        "usage": usage(tokens),
        "system_fingerprint": answerer.fingerprint,
    })
}

fn completion_logprobs(entries: &[TokenLogprob], text: &dyn PromptText) -> Value {
    let shown = |token: u32| String::from_utf8_lossy(&text.token_bytes(token)).into_owned();
    let tokens: Vec<String> = entries.iter().map(|entry| shown(entry.token)).collect();
    let offsets: Vec<usize> = tokens
        .iter()
        .scan(0, |at, token| {
            let start = *at;
            *at += token.chars().count();
            Some(start)
        })
        .collect();
    let top: Vec<Value> = entries
        .iter()
        .map(|entry| {
            // The token that was drawn is listed too, also where it is not among the most likely.
            let drawn = std::iter::once((entry.token, entry.logprob));
            let drawn = drawn.filter(|(token, _)| entry.top.iter().all(|(top, _)| top != token));
            entry
                .top
                .iter()
                .copied()
                .chain(drawn)
                .map(|(token, logprob)| (shown(token), json!(logprob)))
                .collect()
        })
        .collect();
    json!({
        "tokens": tokens,
        "token_logprobs": entries.iter().map(|entry| entry.logprob).collect::<Vec<_>>(),
        "top_logprobs": top,
        "text_offset": offsets,
    })
}

/// Adds up the tokens of a line; a prompt that several choices share is counted once.
pub(super) fn token_counts(shape: &AnswerShape, generations: &[Generation]) -> TokenCounts {
    let choices_per_prompt = match shape {
        AnswerShape::Chat | AnswerShape::Response { .. } => generations.len(),
        AnswerShape::Completion { choices, .. } => *choices as usize,
    };
    let prompts = || generations.iter().step_by(choices_per_prompt.max(1));
    TokenCounts {
        input: prompts().map(|g| u64::from(g.prompt_tokens)).sum(),
        cached: prompts().map(|g| u64::from(g.cached_tokens)).sum(),
        output: generations
            .iter()
            .map(|g| u64::from(g.completion_tokens))
            .sum(),
    }
}

fn usage(tokens: TokenCounts) -> Value {
    let TokenCounts {
        input: prompt,
        cached,
        output: completion,
    } = tokens;
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}

fn response(
    generations: &[Generation],
    tokens: TokenCounts,
    echo: &Echo,
    answerer: &Answerer<'_>,
) -> Value {
    let TokenCounts {
        input,
        cached,
        output,
    } = tokens;
    let generation = generations.first();
    let cut = generation.is_some_and(|g| g.finish_reason == FinishReason::Length);
    let status = if cut { "incomplete" } else { "completed" };
    let message = json!({
        "type": "message",
        "id": format!("msg_{}", suffix(answerer)),
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": generation.map_or("", |g| g.text.as_str()), "annotations": [], "logprobs": []}],
    });
    json!({
        "id": format!("resp_{}", suffix(answerer)),
        "object": "response",
        "created_at": answerer.now.secs(),
        "completed_at": (!cut).then(|| answerer.now.secs()),
        "status": status,
        "error": null,
        "incomplete_details": cut.then(|| json!({"reason": "max_output_tokens"})),
        "instructions": echo.instructions,
        "max_output_tokens": echo.max_output_tokens,
        "metadata": echo.metadata,
        "model": answerer.model,
        "output": [message],
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "reasoning": {"effort": null, "summary": null},
        "store": false,
        "temperature": echo.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": echo.top_p,
        "truncation": "disabled",
        "usage": {
            "input_tokens": input,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input + output,
        },
    })
}

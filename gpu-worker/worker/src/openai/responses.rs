//! `/v1/responses`, without stored state: text in, text out.

use serde_json::{Map, Value, json};

use super::chat;
use super::fields::{Fields, LineError, wrong_type};
use super::sampling::Sampling;
use super::{AnswerShape, LineContext, PreparedLine, PromptText};

/// Values of the request that the response shows again.
#[derive(Debug, Clone)]
pub struct Echo {
    pub(super) instructions: Value,
    pub(super) metadata: Value,
    pub(super) max_output_tokens: Value,
    pub(super) temperature: f32,
    pub(super) top_p: f32,
}

pub(super) fn prepare(
    body: &Fields,
    context: &LineContext<'_>,
    text: &dyn PromptText,
) -> Result<PreparedLine, LineError> {
    refuse_what_is_not_built(body)?;
    let sampling = Sampling::read(body, context)?;
    let max_tokens = body.integer("max_output_tokens", 1, i64::from(u32::MAX))?;
    let messages = messages(body)?;
    let prompt = text.chat(&messages, context.created_at)?;
    let sequences = sampling
        .sequences(prompt, 0, max_tokens.map(|max| max as u32), None, context)
        .take(1)
        .collect();
    let show = |name: &str| body.get(name).cloned().unwrap_or(Value::Null);
    let echo = Echo {
        instructions: show("instructions"),
        metadata: body.get("metadata").cloned().unwrap_or_else(|| json!({})),
        max_output_tokens: json!(max_tokens),
        temperature: sampling.params.temperature,
        top_p: sampling.params.top_p,
    };
    Ok(PreparedLine {
        sequences,
        shape: AnswerShape::Response {
            echo: Box::new(echo),
        },
    })
}

fn refuse_what_is_not_built(body: &Fields) -> Result<(), LineError> {
    for name in ["previous_response_id", "conversation", "prompt"] {
        body.refuse_unless(name, |_| false, "a line of a batch has no stored state")?;
    }
    body.refuse_unless(
        "background",
        |value| value == &Value::Bool(false),
        "a batch is in the background already",
    )?;
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    body.refuse_unless("tools", is_empty, "this engine does not call tools")?;
    body.refuse_unless("include", is_empty, "nothing further can be included")?;
    let is_text = |value: &Value| {
        value
            .get("format")
            .is_none_or(|format| format.get("type").and_then(Value::as_str) == Some("text"))
    };
    body.refuse_unless("text", is_text, "only the format 'text' is available")?;
    body.refuse_unless(
        "truncation",
        |value| value.as_str() == Some("disabled"),
        "only 'disabled' is available",
    )?;
    body.refuse_unless(
        "top_logprobs",
        |value| value.as_u64() == Some(0),
        "log-probabilities are not available here",
    )
}

/// Brings `instructions` and `input` into the form of chat messages.
fn messages(body: &Fields) -> Result<Value, LineError> {
    let mut list = Vec::new();
    if let Some(instructions) = body.string("instructions")? {
        list.push(json!({"role": "system", "content": instructions}));
    }
    match body.require("input")? {
        Value::String(input) => list.push(json!({"role": "user", "content": input})),
        Value::Array(items) => {
            let plain: Vec<Value> = items
                .iter()
                .enumerate()
                .map(item)
                .collect::<Result<_, _>>()?;
            list.extend(chat::messages(&plain, "input")?);
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(wrong_type("input", "a string or an array", other));
        }
    }
    Ok(Value::Array(list))
}

fn item((index, item): (usize, &Value)) -> Result<Value, LineError> {
    if !item.is_object() {
        return Err(wrong_type(&format!("input[{index}]"), "an object", item));
    }
    match item.get("type").and_then(Value::as_str) {
        None | Some("message") => {
            let mut message = Map::new();
            for name in ["role", "content"] {
                if let Some(value) = item.get(name) {
                    message.insert(name.to_owned(), value.clone());
                }
            }
            Ok(Value::Object(message))
        }
        Some(_) => Err(LineError::unsupported(
            &format!("input[{index}].type"),
            "only messages are available",
        )),
    }
}

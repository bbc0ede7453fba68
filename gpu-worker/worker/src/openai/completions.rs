//! `/v1/completions`.

use serde_json::Value;

use super::fields::{Fields, LineError, wrong_type};
use super::sampling::Sampling;
use super::{AnswerShape, LineContext, PreparedLine, PromptText};

/// Tokens generated when a request does not say: OpenAI's default for this endpoint.
const MAX_TOKENS_DEFAULT: u32 = 16;

/// The most prompts of a request.
const PROMPTS_MAX: usize = 2_048;

/// The most alternatives a token may list: OpenAI's limit for this endpoint.
const LOGPROBS_MAX: i64 = 5;

enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

pub(super) fn prepare(
    body: &Fields,
    context: &LineContext<'_>,
    text: &dyn PromptText,
) -> Result<PreparedLine, LineError> {
    body.refuse_unless(
        "suffix",
        |value| value.as_str() == Some(""),
        "this model does not fill in the middle",
    )?;
    let sampling = Sampling::read(body, context)?;
    body.refuse_unless(
        "best_of",
        |value| value.as_u64() == Some(u64::from(sampling.choices)),
        "only the value of 'n' is available",
    )?;
    let max_tokens = body
        .integer("max_tokens", 1, i64::from(u32::MAX))?
        .map_or(MAX_TOKENS_DEFAULT, |max| max as u32);
    let logprobs = body
        .integer("logprobs", 0, LOGPROBS_MAX)?
        .map(|top| top as u32);
    let echo = body.boolean("echo")?.unwrap_or(false);
    if echo && logprobs.is_some() {
        return Err(LineError::unsupported(
            "echo",
            "log-probabilities of the prompt are not available",
        ));
    }
    let mut sequences = Vec::new();
    let mut echoes = Vec::new();
    for prompt in prompts(body.require("prompt")?)? {
        let (ids, shown) = match prompt {
            Prompt::Text(prompt) => (text.plain(&prompt), prompt),
            Prompt::Tokens(ids) => {
                let bytes: Vec<u8> = ids.iter().flat_map(|id| text.token_bytes(*id)).collect();
                (ids, String::from_utf8_lossy(&bytes).into_owned())
            }
        };
        let first = sequences.len() as u32;
        sequences.extend(sampling.sequences(ids, first, Some(max_tokens), logprobs, context));
        echoes.resize(sequences.len(), shown);
    }
    Ok(PreparedLine {
        sequences,
        shape: AnswerShape::Completion {
            echo: echo.then_some(echoes),
            choices: sampling.choices,
        },
    })
}

fn prompts(value: &Value) -> Result<Vec<Prompt>, LineError> {
    let Value::Array(list) = value else {
        let wanted = "a string, an array of strings, an array of token ids, or an array of those";
        return match value.as_str() {
            Some(text) => Ok(vec![Prompt::Text(text.to_owned())]),
            None => Err(wrong_type("prompt", wanted, value)),
        };
    };
    let Some(first) = list.first() else {
        return Err(LineError::invalid(
            "prompt",
            "empty_array",
            "Invalid 'prompt': an empty array has no prompt.",
        ));
    };
    if first.is_number() {
        return Ok(vec![Prompt::Tokens(tokens(list, "prompt")?)]);
    }
    if list.len() > PROMPTS_MAX {
        return Err(LineError::invalid(
            "prompt",
            "array_above_max_length",
            format!(
                "Invalid 'prompt': at most {PROMPTS_MAX} prompts are allowed, but got {}.",
                list.len()
            ),
        ));
    }
    list.iter()
        .enumerate()
        .map(|(index, item)| match item {
            Value::String(text) => Ok(Prompt::Text(text.clone())),
            Value::Array(ids) => tokens(ids, &format!("prompt[{index}]")).map(Prompt::Tokens),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(wrong_type(
                &format!("prompt[{index}]"),
                "a string or an array of token ids",
                item,
            )),
        })
        .collect()
}

/// Reads token ids; whether the model has them is for the engine to say.
fn tokens(list: &[Value], param: &str) -> Result<Vec<u32>, LineError> {
    let token = |(index, id): (usize, &Value)| {
        let token = id.as_u64().and_then(|id| u32::try_from(id).ok());
        token.ok_or_else(|| wrong_type(&format!("{param}[{index}]"), "a token id", id))
    };
    list.iter().enumerate().map(token).collect()
}

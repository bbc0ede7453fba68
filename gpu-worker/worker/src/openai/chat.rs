//! `/v1/chat/completions`.

use serde_json::{Map, Value, json};

use super::fields::{Fields, LineError, missing, wrong_type};
use super::sampling::Sampling;
use super::{AnswerShape, LineContext, PreparedLine, PromptText};

/// The most alternatives a token may list: OpenAI's limit.
const TOP_LOGPROBS_MAX: i64 = 20;

pub(super) fn prepare(
    body: &Fields,
    context: &LineContext<'_>,
    text: &dyn PromptText,
) -> Result<PreparedLine, LineError> {
    refuse_what_is_not_built(body)?;
    let list = body.require("messages")?;
    let list = list
        .as_array()
        .ok_or_else(|| wrong_type("messages", "an array of objects", list))?;
    let messages = Value::Array(messages(list, "messages")?);
    let sampling = Sampling::read(body, context)?;
    let max_tokens = body
        .integer("max_completion_tokens", 1, i64::from(u32::MAX))?
        .or(body.integer("max_tokens", 1, i64::from(u32::MAX))?)
        .map(|max| max as u32);
    let logprobs = logprobs(body)?;
    let prompt = text.chat(&messages, context.created_at)?;
    let sequences = sampling
        .sequences(prompt, 0, max_tokens, logprobs, context)
        .collect();
    Ok(PreparedLine {
        sequences,
        shape: AnswerShape::Chat,
    })
}

/// What would give the answer another form is done, or it is an error: never silently dropped. Hints that only
/// steer a hosted service (`store`, `service_tier`, `reasoning_effort`, `prediction`, ...) do no harm.
fn refuse_what_is_not_built(body: &Fields) -> Result<(), LineError> {
    let is_text = |value: &Value| value.get("type").and_then(Value::as_str) == Some("text");
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    body.refuse_unless(
        "response_format",
        is_text,
        "only the type 'text' is available",
    )?;
    body.refuse_unless("tools", is_empty, "this engine does not call tools")?;
    body.refuse_unless("functions", is_empty, "this engine does not call functions")?;
    body.refuse_unless(
        "tool_choice",
        |v| matches!(v.as_str(), Some("none" | "auto")),
        "this engine does not call tools",
    )?;
    body.refuse_unless(
        "function_call",
        |v| matches!(v.as_str(), Some("none" | "auto")),
        "this engine does not call functions",
    )?;
    body.refuse_unless("audio", |_| false, "this model does not make audio")?;
    let only_text = |value: &Value| {
        value
            .as_array()
            .is_some_and(|list| list.iter().all(|item| item == "text"))
    };
    body.refuse_unless("modalities", only_text, "this model makes text alone")?;
    body.refuse_unless(
        "web_search_options",
        |_| false,
        "this engine does not search the web",
    )
}

fn logprobs(body: &Fields) -> Result<Option<u32>, LineError> {
    let wanted = body.boolean("logprobs")?.unwrap_or(false);
    let top = body.integer("top_logprobs", 0, TOP_LOGPROBS_MAX)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
        (false, None) => Ok(None),
        (false, Some(_)) => Err(LineError::invalid(
            "top_logprobs",
            "invalid_value",
            "Invalid 'top_logprobs': it needs 'logprobs' to be true.",
        )),
    }
}

/// Checks messages and brings them into the form that chat templates read: content is one string.
pub(super) fn messages(list: &[Value], param: &str) -> Result<Vec<Value>, LineError> {
    if list.is_empty() {
        return Err(LineError::invalid(
            param,
            "empty_array",
            format!(
                "Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array instead."
            ),
        ));
    }
    list.iter()
        .enumerate()
        .map(|(index, message)| self::message(message, &format!("{param}[{index}]")))
        .collect()
}

fn message(value: &Value, param: &str) -> Result<Value, LineError> {
    let object = value
        .as_object()
        .ok_or_else(|| wrong_type(param, "an object", value))?;
    let role = match object.get("role") {
        Some(Value::String(role)) => role.as_str(),
        Some(other) => return Err(wrong_type(&format!("{param}.role"), "a string", other)),
        None => return Err(missing(&format!("{param}.role"))),
    };
    let role = match role {
        "developer" => "system",
        "system" | "user" | "assistant" | "tool" => role,
        _ => {
            let shown: String = role
                .chars()
                .take(batch_core::limits::ECHO_CHARS_MAX)
                .collect();
            return Err(LineError::invalid(
                &format!("{param}.role"),
                "invalid_value",
                format!(
                    "Invalid value: '{shown}'. Supported values are: 'system', 'developer', 'user', 'assistant', and 'tool'."
                ),
            ));
        }
    };
    if object.get("tool_calls").is_some_and(|calls| {
        !calls.is_null() && calls.as_array().is_none_or(|list| !list.is_empty())
    }) {
        return Err(LineError::unsupported(
            &format!("{param}.tool_calls"),
            "this engine does not call tools",
        ));
    }
    let content = content(object, role, &format!("{param}.content"))?;
    let mut message = Map::new();
    message.insert("role".to_owned(), json!(role));
    message.insert("content".to_owned(), Value::String(content));
    if let Some(Value::String(name)) = object.get("name") {
        message.insert("name".to_owned(), json!(name));
    }
    Ok(Value::Object(message))
}

fn content(object: &Map<String, Value>, role: &str, param: &str) -> Result<String, LineError> {
    match object.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts
            .iter()
            .enumerate()
            .map(|(index, part)| part_text(part, &format!("{param}[{index}]")))
            .collect(),
        None | Some(Value::Null) if role == "assistant" => Ok(String::new()),
        None | Some(Value::Null) => Err(missing(param)),
        Some(other) => Err(wrong_type(param, "a string or an array of parts", other)),
    }
}

fn part_text(part: &Value, param: &str) -> Result<String, LineError> {
    let object = part
        .as_object()
        .ok_or_else(|| wrong_type(param, "an object", part))?;
    let name = format!("{param}.type");
    let kind = object.get("type").ok_or_else(|| missing(&name))?;
    let kind = kind
        .as_str()
        .ok_or_else(|| wrong_type(&name, "a string", kind))?;
    let field = match kind {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        _ => {
            return Err(LineError::unsupported(&name, "this model reads text alone"));
        }
    };
    let name = format!("{param}.{field}");
    match object.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(wrong_type(&name, "a string", other)),
        None => Err(missing(&name)),
    }
}

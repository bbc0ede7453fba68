//! Translates between OpenAI's bodies and the engine's sequences. Pure: no IO, no clock.
//!
//! [`prepare`] turns the body of a line into sequences, or into the error that becomes its error line.
//! [`answer`] turns their generations into the body of the response.

mod answer;
mod chat;
mod completions;
mod fields;
mod responses;
mod sampling;
#[cfg(test)]
mod tests;

use batch_core::batch::{Endpoint, TokenCounts};
use batch_core::time::UnixMs;
use inference::engine::{Generation, RequestFailure};
use serde_json::Value;

pub use fields::LineError;
pub use sampling::SequenceSpec;

/// How a model turns text into token ids.
pub trait PromptText {
    /// Renders messages with the model's chat template and tokenises them.
    ///
    /// # Errors
    ///
    /// [`LineError`] if the template refuses the messages, or the model has none.
    fn chat(&self, messages: &Value, now: UnixMs) -> Result<Vec<u32>, LineError>;

    /// Tokenises a plain prompt, with a start token where the model wants one.
    fn plain(&self, text: &str) -> Vec<u32>;

    /// Returns the bytes that a token is shown as: those that it stands for, or a control token's own text.
    fn token_bytes(&self, token: u32) -> Vec<u8>;
}

/// What a line's answer depends on beside its body.
#[derive(Debug, Clone)]
pub struct LineContext<'a> {
    /// The line's endpoint.
    pub endpoint: Endpoint,
    /// Names the batch, or the run of a local file: draws without a seed depend on it.
    pub run: &'a str,
    /// The line's custom_id as a JSON string, as the user wrote it.
    pub custom_id_json: &'a str,
    /// When the batch was created: the only time that templates see.
    pub created_at: UnixMs,
    /// Positions of the model.
    pub context_tokens: u32,
}

/// A line, ready for the engine.
#[derive(Debug, Clone)]
pub struct PreparedLine {
    /// Its sequences, in the order of their choices.
    pub sequences: Vec<SequenceSpec>,
    /// How the answer looks.
    pub shape: AnswerShape,
}

/// How the answer of a line looks.
#[derive(Debug, Clone)]
pub enum AnswerShape {
    /// `chat.completion`.
    Chat,
    /// `text_completion`; `echo` holds the prompt text of each choice where it was asked for.
    Completion {
        /// Prompt texts by choice.
        echo: Option<Vec<String>>,
        /// Choices of each prompt: a prompt counts once in the usage.
        choices: u32,
    },
    /// `response`; echoes some of the request.
    Response {
        /// The request's own values.
        echo: Box<responses::Echo>,
    },
}

/// Turns the body of a line into sequences.
///
/// # Errors
///
/// [`LineError`], the 4xx of that line alone.
pub fn prepare(
    body: &str,
    context: &LineContext<'_>,
    text: &dyn PromptText,
) -> Result<PreparedLine, LineError> {
    let body = fields::parse(body)?;
    match context.endpoint {
        Endpoint::ChatCompletions => chat::prepare(&body, context, text),
        Endpoint::Completions => completions::prepare(&body, context, text),
        Endpoint::Responses => responses::prepare(&body, context, text),
        Endpoint::Embeddings => Err(LineError::unsupported(
            "model",
            "this model does not make embeddings",
        )),
    }
}

/// Who answers, as the response shows it.
#[derive(Debug, Clone)]
pub struct Answerer<'a> {
    /// Model id.
    pub model: &'a str,
    /// The engine's fingerprint.
    pub fingerprint: &'a str,
    /// The line's request id (`batch_req_...`): ids in the body derive from it.
    pub request_id: &'a str,
    /// When the answer was made.
    pub now: UnixMs,
}

/// Renders the body of a line's response, as JSON on one line.
///
/// # Errors
///
/// [`LineError`] if a number in the result is not finite.
pub fn answer(
    shape: &AnswerShape,
    generations: &[Generation],
    answerer: &Answerer<'_>,
    text: &dyn PromptText,
) -> Result<String, LineError> {
    answer::render(shape, generations, answerer, text)
}

/// Adds up the tokens that a line is billed for.
#[must_use]
pub fn token_counts(shape: &AnswerShape, generations: &[Generation]) -> TokenCounts {
    answer::token_counts(shape, generations)
}

/// Turns a failure of the engine into the line's error.
#[must_use]
pub fn failure(endpoint: Endpoint, failure: &RequestFailure) -> LineError {
    let param = match endpoint {
        Endpoint::ChatCompletions => "messages",
        Endpoint::Completions => "prompt",
        Endpoint::Embeddings | Endpoint::Responses => "input",
    };
    let code = match failure {
        RequestFailure::ContextTooLong { .. } => "context_length_exceeded",
        RequestFailure::PoolTooSmall { .. } => "context_length_exceeded",
        RequestFailure::InvalidPrompt(_) => "invalid_prompt",
        RequestFailure::NotFinite => {
            return LineError::server(
                "the model produced a value that is not finite",
                "non_finite_result",
            );
        }
    };
    let mut message = capitalised(&failure.to_string());
    if let RequestFailure::PoolTooSmall { .. } = failure {
        message.push_str(
            " Set a smaller 'max_tokens', or ask the operator to raise kv_tokens under [engine].",
        );
    }
    LineError::invalid(param, code, message)
}

pub(crate) fn capitalised(sentence: &str) -> String {
    let mut chars = sentence.chars();
    match chars.next() {
        Some(first) => first
            .to_uppercase()
            .chain(chars)
            .chain(std::iter::once('.'))
            .collect(),
        None => String::new(),
    }
}

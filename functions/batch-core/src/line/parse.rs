//! Checks one line: its envelope, and of its body what the service must know.

use std::borrow::Cow;

use super::body::BodyFields;
use super::envelope::{Envelope, NoEnvelope};
use super::json::{Kind, unescape};
use super::problem;
use crate::batch::{Endpoint, ValidationError};
use crate::catalog::{Catalog, Model};
use crate::id::LineNo;
use crate::limits::CUSTOM_ID_CHARS_MAX;

/// Output tokens that a line is taken to need when it sets no maximum.
const OUTPUT_TOKENS_DEFAULT: u64 = 256;

/// The most output tokens that a line is taken to need: a huge maximum says little about the answer.
const OUTPUT_TOKENS_ESTIMATE_MAX: u64 = 32_768;

/// The most choices that a line is taken to need: OpenAI's limit of `n`; a line that asks for more is refused.
const CHOICES_ESTIMATE_MAX: u64 = 128;

/// Bytes of a prompt that are taken for one token.
const BYTES_PER_TOKEN: u64 = 4;

/// What a physical line is.
#[derive(Debug, Clone, PartialEq)]
pub enum Parsed<'a> {
    /// White space: no request.
    Blank,
    /// A request.
    Good(Line<'a>),
    /// No request, for at least one reason.
    Bad {
        /// The unescaped custom_id, if it has one at least: it may be a duplicate too.
        custom_id: Option<Cow<'a, [u8]>>,
        /// In the order of the keys.
        errors: Vec<ValidationError>,
    },
}

/// A sound line. Everything is borrowed from the line, the model from the catalog.
#[derive(Debug, Clone, PartialEq)]
pub struct Line<'a> {
    /// The custom_id after unescaping, for comparing; a lone surrogate is three bytes, as UTF-8 would have it.
    pub custom_id: Cow<'a, [u8]>,
    /// The custom_id as a JSON string, as written.
    pub custom_id_json: &'a str,
    /// Model id (not an alias).
    pub model: &'a str,
    /// The body, as written.
    pub body: &'a str,
    /// A quarter of the prompt's bytes plus, for each choice, the most output tokens that the line allows, or 256.
    pub estimated_tokens: u64,
    /// What to order lines by.
    pub prompt: PromptKey<'a>,
}

/// Orders lines so that those with a long common prefix are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PromptKey<'a> {
    /// What comes before the prompt (responses), as JSON; empty if nothing.
    pub instructions: &'a str,
    /// The prompt as JSON, as written.
    pub prompt: &'a str,
}

/// Checks the line `no` of a batch for `endpoint`.
#[must_use]
pub fn parse<'a>(
    line: &'a [u8],
    no: LineNo,
    endpoint: Endpoint,
    catalog: &'a Catalog,
) -> Parsed<'a> {
    let Ok(text) = std::str::from_utf8(line) else {
        return not_json(no, " It is not valid UTF-8.");
    };
    if text.trim_start().is_empty() {
        return Parsed::Blank;
    }
    let envelope = match Envelope::read(text) {
        Ok(envelope) => envelope,
        Err(NoEnvelope::NotJson) if text.starts_with('\u{feff}') => {
            return not_json(
                no,
                " It starts with a byte order mark, which only the first line of a file may.",
            );
        }
        Err(NoEnvelope::NotJson) => return not_json(no, ""),
        Err(NoEnvelope::NotAnObject) => return not_json(no, " It must be a JSON object."),
        Err(NoEnvelope::RepeatedKey(key)) => {
            return not_json(no, &format!(" The key '{key}' appears more than once."));
        }
    };
    let mut check = Check {
        no,
        endpoint,
        catalog,
        errors: Vec::new(),
    };
    let custom_id = check.custom_id(&envelope);
    check.method(&envelope);
    let url_fits = check.url(&envelope);
    let model = check.body(&envelope, url_fits);
    let errors = check.errors;
    match (custom_id, model, envelope.custom_id, envelope.body) {
        (Some(custom_id), Some(model), Some(custom_id_json), Some(body)) if errors.is_empty() => {
            let prompt = prompt_key(endpoint, &envelope.fields);
            let estimated_tokens = estimate(endpoint, model, &envelope.fields, prompt);
            Parsed::Good(Line {
                custom_id,
                custom_id_json,
                model: &model.id,
                body,
                estimated_tokens,
                prompt,
            })
        }
        (custom_id, ..) => Parsed::Bad { custom_id, errors },
    }
}

fn not_json<'a>(no: LineNo, detail: &str) -> Parsed<'a> {
    Parsed::Bad {
        custom_id: None,
        errors: vec![problem::invalid_json(no, detail)],
    }
}

/// The checks of one line.
struct Check<'a> {
    no: LineNo,
    endpoint: Endpoint,
    catalog: &'a Catalog,
    errors: Vec<ValidationError>,
}

impl<'a> Check<'a> {
    /// Returns a required value if it is of the wanted kind.
    fn required(
        &mut self,
        key: &'static str,
        value: Option<&'a str>,
        wanted: Kind,
    ) -> Option<&'a str> {
        let Some(value) = value else {
            self.errors.push(problem::missing(self.no, key));
            return None;
        };
        let got = Kind::of(value);
        if got != wanted {
            self.errors
                .push(problem::wrong_type(self.no, key, wanted.name(), got.name()));
            return None;
        }
        Some(value)
    }

    fn custom_id(&mut self, envelope: &Envelope<'a>) -> Option<Cow<'a, [u8]>> {
        let token = self.required("custom_id", envelope.custom_id, Kind::String)?;
        let custom_id = unescape(token);
        // Every character starts with a byte that continues none, in a lone surrogate's three bytes too.
        let chars = custom_id
            .iter()
            .filter(|byte| **byte & 0xc0 != 0x80)
            .count();
        if custom_id.is_empty() {
            self.errors.push(problem::custom_id_empty(self.no));
            None
        } else if chars > CUSTOM_ID_CHARS_MAX {
            self.errors
                .push(problem::custom_id_too_long(self.no, chars));
            None
        } else {
            Some(custom_id)
        }
    }

    fn method(&mut self, envelope: &Envelope<'a>) {
        if let Some(token) = self.required("method", envelope.method, Kind::String) {
            let method = unescape(token);
            if *method != *b"POST" {
                self.errors.push(problem::invalid_method(
                    self.no,
                    &String::from_utf8_lossy(&method),
                ));
            }
        }
    }

    fn url(&mut self, envelope: &Envelope<'a>) -> bool {
        let Some(token) = self.required("url", envelope.url, Kind::String) else {
            return false;
        };
        let fits = *unescape(token) == *self.endpoint.path().as_bytes();
        if !fits {
            self.errors.push(problem::invalid_url(self.no));
        }
        fits
    }

    /// A line for another endpoint is not measured by this one: its url says it all.
    fn body(&mut self, envelope: &Envelope<'a>, url_fits: bool) -> Option<&'a Model> {
        self.required("body", envelope.body, Kind::Object)?;
        let fields = &envelope.fields;
        let model = self.model(fields, url_fits);
        if url_fits && prompt_key(self.endpoint, fields).prompt.is_empty() {
            self.errors
                .push(problem::prompt_missing(self.no, self.endpoint));
        }
        if fields.stream == Some("true") {
            self.errors.push(problem::streaming(self.no, self.endpoint));
        }
        model
    }

    fn model(&mut self, fields: &BodyFields<'a>, url_fits: bool) -> Option<&'a Model> {
        let Some(token) = fields.model else {
            self.errors.push(problem::model_missing(self.no));
            return None;
        };
        let kind = Kind::of(token);
        if kind != Kind::String {
            self.errors.push(problem::wrong_type(
                self.no,
                "body.model",
                Kind::String.name(),
                kind.name(),
            ));
            return None;
        }
        let name = unescape(token);
        let found = std::str::from_utf8(&name)
            .ok()
            .and_then(|name| self.catalog.resolve(name));
        let Some(model) = found else {
            self.errors.push(problem::model_unknown(
                self.no,
                &String::from_utf8_lossy(&name),
            ));
            return None;
        };
        if url_fits && !model.endpoints.contains(&self.endpoint) {
            self.errors.push(problem::model_of_other_endpoint(
                self.no,
                &String::from_utf8_lossy(&name),
                self.endpoint,
            ));
            return None;
        }
        Some(model)
    }
}

/// Returns the prompt of a body, empty if it has none.
fn prompt_key<'a>(endpoint: Endpoint, fields: &BodyFields<'a>) -> PromptKey<'a> {
    let (instructions, prompt) = match endpoint {
        Endpoint::ChatCompletions => (None, fields.messages),
        Endpoint::Completions => (None, fields.prompt),
        Endpoint::Embeddings => (None, fields.input),
        Endpoint::Responses => (fields.instructions, fields.input),
    };
    PromptKey {
        instructions: instructions.unwrap_or_default(),
        prompt: prompt.unwrap_or_default(),
    }
}

fn estimate(
    endpoint: Endpoint,
    model: &Model,
    fields: &BodyFields<'_>,
    prompt: PromptKey<'_>,
) -> u64 {
    let prompt_bytes = (prompt.instructions.len() + prompt.prompt.len()) as u64;
    let output_tokens = match endpoint {
        Endpoint::Embeddings => 0,
        Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Responses => {
            let most = model
                .context_tokens
                .map_or(OUTPUT_TOKENS_ESTIMATE_MAX, u64::from);
            let asked = fields
                .max_tokens
                .and_then(|digits| digits.parse::<u64>().ok());
            asked
                .unwrap_or(OUTPUT_TOKENS_DEFAULT)
                .min(most)
                .min(OUTPUT_TOKENS_ESTIMATE_MAX)
        }
    };
    let choices = fields
        .choices
        .and_then(|digits| digits.parse::<u64>().ok())
        .unwrap_or(1)
        .clamp(1, CHOICES_ESTIMATE_MAX);
    (prompt_bytes / BYTES_PER_TOKEN + output_tokens * choices).max(1)
}

#[cfg(test)]
mod tests;

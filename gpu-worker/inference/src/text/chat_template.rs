//! Chat templates: messages to a prompt, as transformers renders them.
//!
//! Messages come from users: they cannot forge a control token, nor make a render cost more than in proportion
//! to their size. Templates come with a model, and their loops, calls, nesting and output are bounded too; yet
//! the engine charges nothing for printing or comparing a list that holds another many times over, so a
//! template is to be trusted as its model is. Reads no clock: the time is an argument.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value as Jinja};
use serde::Serialize as _;
use serde_json::ser::{Formatter, PrettyFormatter};
use serde_json::{Map, Value};

use super::deep_stack::on_stack;
use super::guard::Guard;
use super::strftime::strftime;
use super::tokenizer::Tokenizer;

/// The longest template that is compiled; the longest known has 20 kB.
const SOURCE_BYTES_MAX: usize = 1 << 16;
/// Instructions, and units of 64 bytes made, that every render may use.
const FUEL_BASE: u64 = 50_000;
/// Fuel for each value in the messages: real templates take some dozens of instructions a message.
const FUEL_PER_VALUE: u64 = 100;
/// Bytes of the messages for one fuel more: the engine copies 64 bytes for one.
const BYTES_PER_FUEL: u64 = 4;
/// No render takes more.
const FUEL_MAX: u64 = 4_000_000;
/// Calls inside calls.
const RECURSION_MAX: usize = 64;
/// Lists in lists of what is written as JSON; requests are parsed with less.
const JSON_DEPTH_MAX: usize = 192;
/// Spaces that a level is indented by.
const INDENT_MAX: usize = 16;
/// Stack for [`RECURSION_MAX`] calls.
const STACK_BYTES_BASE: usize = 4 << 20;
/// A level of nesting costs a template 1.5 fuel, and the engine less than 400 bytes of stack.
const STACK_BYTES_PER_FUEL: usize = 512;
/// A level of the syntax tree takes at least two bytes of source, and the compiler less than a kilobyte of stack.
const STACK_BYTES_PER_SOURCE_BYTE: usize = 1024;
/// The longest message of the template's own that is passed on.
const REFUSAL_CHARS_MAX: usize = 300;
const NAME: &str = "chat_template";

/// Why a prompt could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template does not compile.
    #[error("the chat template does not compile: {0}")]
    Syntax(String),
    /// The template itself refused the messages, with these words.
    #[error("the chat template refuses the messages: {0}")]
    Refused(String),
    /// The template does not work on these messages.
    #[error("the chat template fails: {0}")]
    Failed(String),
    /// Rendering took more than it may.
    #[error("the chat template takes more than {fuel} steps")]
    TooExpensive {
        /// What it was allowed.
        fuel: u64,
    },
    /// The system has no memory for the stack that rendering may need.
    #[error("no stack of {bytes} bytes to render the chat template on")]
    NoStack {
        /// What is needed.
        bytes: usize,
    },
    /// The messages use up all private-use characters.
    #[error("the messages hold every private-use character of the last plane")]
    NoStandIns,
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts that it writes for `bos_token` and `eos_token`.
    ///
    /// # Errors
    ///
    /// [`TemplateError::Syntax`] if it does not compile.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::Syntax(format!(
                "{} bytes, with a limit of {SOURCE_BYTES_MAX}",
                source.len()
            )));
        }
        let source = without_generation_tags(source);
        let stack_bytes = STACK_BYTES_BASE + STACK_BYTES_PER_SOURCE_BYTE * source.len();
        let compiled = on_stack(stack_bytes, || compile(&source));
        let environment = compiled.map_err(|_| TemplateError::NoStack { bytes: stack_bytes })?;
        let environment = environment.map_err(|error| TemplateError::Syntax(summary(&error)))?;
        Ok(Self {
            environment,
            source,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        })
    }

    /// Renders messages into a prompt.
    ///
    /// `messages` is the list of a request, `extra` more variables (`add_generation_prompt`, ...), `now_unix_s`
    /// what `strftime_now` takes for now. The text does not tell what users wrote from what the template wrote:
    /// [`ChatTemplate::encode`] does.
    ///
    /// # Errors
    ///
    /// [`TemplateError`] if the template refuses the messages, fails on them, or takes too long.
    pub fn render(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        extra: &Map<String, Value>,
        now_unix_s: i64,
    ) -> Result<String, TemplateError> {
        let mut size = Size::default();
        let more = tools.into_iter().chain(extra.values());
        std::iter::once(messages)
            .chain(more)
            .for_each(|value| size.add(value));
        let fuel = size.fuel();
        let mut context = Map::new();
        context.insert("documents".to_owned(), Value::Null);
        context.insert("add_generation_prompt".to_owned(), Value::Bool(false));
        context.insert("bos_token".to_owned(), Value::String(self.bos.clone()));
        context.insert("eos_token".to_owned(), Value::String(self.eos.clone()));
        context.extend(
            extra
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        context.insert("messages".to_owned(), messages.clone());
        context.insert("tools".to_owned(), tools.cloned().unwrap_or(Value::Null));
        let bytes = STACK_BYTES_BASE
            + STACK_BYTES_PER_FUEL * usize::try_from(fuel).unwrap_or(usize::MAX >> 16);
        on_stack(bytes, || self.render_context(&context, fuel, now_unix_s))
            .map_err(|_| TemplateError::NoStack { bytes })?
    }

    fn render_context(
        &self,
        context: &Map<String, Value>,
        fuel: u64,
        now_unix_s: i64,
    ) -> Result<String, TemplateError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        environment.add_function("strftime_now", move |format: &str| {
            strftime(format, now_unix_s).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    "strftime_now knows no such format",
                )
            })
        });
        let template = environment
            .get_template(NAME)
            .expect("the template was added when this was made");
        template
            .render(Serde(context))
            .map_err(|error| match (error.kind(), refusal_of(&error)) {
                (ErrorKind::OutOfFuel, _) => TemplateError::TooExpensive { fuel },
                (_, Some(words)) => TemplateError::Refused(words),
                (_, None) => TemplateError::Failed(summary(&error)),
            })
    }

    /// Renders messages into the token ids of a prompt.
    ///
    /// Arguments as for [`ChatTemplate::render`]. Only what the template itself writes becomes a special token;
    /// the same text in a message, a tool or an extra variable stays text. If there is none such, the ids are
    /// those of the rendered text.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render`], and [`TemplateError::NoStandIns`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &Value,
        tools: Option<&Value>,
        extra: &Map<String, Value>,
        now_unix_s: i64,
    ) -> Result<Vec<u32>, TemplateError> {
        let extra_value = Value::Object(extra.clone());
        let sources: Vec<&Value> = [messages, &extra_value].into_iter().chain(tools).collect();
        let guard = Guard::new(tokenizer.control_texts(), &sources, &self.source)
            .ok_or(TemplateError::NoStandIns)?;
        let tools = tools.map(|tools| guard.guard(tools));
        let rendered = self.render(
            &guard.guard(messages),
            tools.as_ref(),
            &guard.guard_members(extra),
            now_unix_s,
        )?;
        let (text, guarded) = guard.restore(&rendered);
        Ok(tokenizer.encode_guarded(&text, &guarded))
    }
}

fn compile(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", tojson);
    environment.add_template_owned(NAME, source.to_owned())?;
    Ok(environment)
}

/// How much there is for a template to walk.
#[derive(Debug, Default)]
struct Size {
    values: u64,
    bytes: u64,
}

impl Size {
    fn add(&mut self, value: &Value) {
        self.values += 1;
        match value {
            Value::String(text) => self.bytes += text.len() as u64,
            Value::Array(values) => values.iter().for_each(|value| self.add(value)),
            Value::Object(members) => members.iter().for_each(|(key, value)| {
                self.bytes += key.len() as u64;
                self.add(value);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn fuel(&self) -> u64 {
        (FUEL_BASE + FUEL_PER_VALUE * self.values + self.bytes / BYTES_PER_FUEL).min(FUEL_MAX)
    }
}

/// Describes an error without the values it is about: they are what users wrote.
fn summary(error: &Error) -> String {
    match error.line() {
        Some(line) => format!("{} in line {line}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// What `raise_exception` was called with, on its way out.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn raise_exception(words: &str) -> Result<Jinja, Error> {
    let words = words.chars().take(REFUSAL_CHARS_MAX).collect();
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(words)))
}

fn refusal_of(error: &Error) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Refusal(words)) = cause.downcast_ref() {
            return Some(words.clone());
        }
        source = cause.source();
    }
    None
}

/// Writes JSON as Python's `json.dumps` does with `ensure_ascii=False`: keys in order, nothing escaped for HTML.
fn tojson(state: &State<'_, '_>, value: &Jinja, options: Kwargs) -> Result<Jinja, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Given by some templates, and what happens anyway.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let value = json_of(state, value, JSON_DEPTH_MAX)?;
    let mut json = Vec::new();
    let done = match indent {
        None => value.serialize(&mut serde_json::Serializer::with_formatter(
            &mut json, Spaced,
        )),
        Some(width) => {
            let indent = " ".repeat(width.min(INDENT_MAX));
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(
                &mut json, formatter,
            ))
        }
    };
    done.map_err(|_| Error::new(ErrorKind::InvalidOperation, "the value is no JSON"))?;
    let json = String::from_utf8(json)
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "the JSON is no text"))?;
    Ok(Jinja::from_safe_string(json))
}

/// Copies a value, for one fuel a part: a value that holds another many times over has more parts than memory.
fn json_of(state: &State<'_, '_>, value: &Jinja, levels: usize) -> Result<Value, Error> {
    let invalid = |what: &'static str| Error::new(ErrorKind::InvalidOperation, what);
    state.consume_fuel(1)?;
    let levels = levels
        .checked_sub(1)
        .ok_or_else(|| invalid("the value is nested too deeply"))?;
    let kind = value.kind();
    if matches!(kind, ValueKind::Seq | ValueKind::Iterable) {
        let items = value.try_iter()?.map(|item| json_of(state, &item, levels));
        return Ok(Value::Array(items.collect::<Result<_, _>>()?));
    }
    if kind == ValueKind::Map {
        let members = value.try_iter()?.map(|key| {
            let member = json_of(state, &value.get_item(&key)?, levels)?;
            Ok((key.to_string(), member))
        });
        return Ok(Value::Object(members.collect::<Result<_, Error>>()?));
    }
    state.consume_fuel(value.as_str().map_or(0, |text| text.len() as u64 / 64))?;
    serde_json::to_value(value).map_err(|_| invalid("the value is no JSON"))
}

/// `{"a": 1, "b": [2, 3]}`
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Turns `{% generation %}`, a tag of transformers that marks what to train on, into one without effect.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |at| at + 2);
        let (tag, after) = tag.split_at(end);
        let words = tag.trim_start_matches("{%").trim_end_matches("%}");
        match words.trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;

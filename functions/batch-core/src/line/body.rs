//! A glance into a body: the few fields that validation and ordering need, as written.
//!
//! Everything else in a body is for the engine, which sees the user's own bytes.

use super::json::{Malformed, Scanner, unescape};

/// Raw values of a body; of a key that is repeated, the last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BodyFields<'a> {
    pub(super) model: Option<&'a str>,
    pub(super) stream: Option<&'a str>,
    pub(super) messages: Option<&'a str>,
    pub(super) input: Option<&'a str>,
    pub(super) prompt: Option<&'a str>,
    pub(super) instructions: Option<&'a str>,
    pub(super) max_tokens: Option<&'a str>,
    pub(super) choices: Option<&'a str>,
}

impl<'a> BodyFields<'a> {
    /// Reads an object and returns it as written, with its fields.
    pub(super) fn read(scanner: &mut Scanner<'a>) -> Result<(&'a str, Self), Malformed> {
        let mut fields = Self::default();
        let raw = scanner.spanned(|scanner| {
            scanner.object(|scanner, key| {
                let key = unescape(key);
                let value = scanner.value()?;
                let slot = match &*key {
                    b"model" => &mut fields.model,
                    b"stream" => &mut fields.stream,
                    b"messages" => &mut fields.messages,
                    b"input" => &mut fields.input,
                    b"prompt" => &mut fields.prompt,
                    b"instructions" => &mut fields.instructions,
                    b"max_tokens" | b"max_completion_tokens" | b"max_output_tokens" => {
                        &mut fields.max_tokens
                    }
                    b"n" => &mut fields.choices,
                    _ => return Ok(()),
                };
                *slot = Some(value).filter(|value| *value != "null");
                Ok(())
            })
        })?;
        Ok((raw, fields))
    }
}

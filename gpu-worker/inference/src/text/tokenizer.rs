//! One tokenizer, whichever file it came from.
//!
//! Adds no token that the text does not spell: whoever builds a prompt puts BOS there. Shared between threads.

use super::gguf_tokenizer::{GgufTokenizer, GgufVocabulary};
use super::json_tokenizer::JsonTokenizer;
use super::specials::SpecialMatcher;

/// Tokens of a vocabulary, at most; the largest known has 262,144.
pub(super) const VOCABULARY_MAX: usize = 1 << 20;

/// Whether the texts of special tokens stand for these tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// They do: the text comes from a template.
    Parse,
    /// They are text like any other: the text comes from a user.
    Plain,
}

/// Why a tokenizer cannot be made of what a file says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The file contradicts itself or its format.
    #[error("the tokenizer is corrupt: {0}")]
    Corrupt(String),
    /// The file asks for something that is not built.
    #[error("{0} is not supported")]
    Unsupported(String),
}

/// Turns text into token ids and back.
#[derive(Debug)]
pub struct Tokenizer {
    pipeline: Pipeline,
    table: TokenTable,
}

#[derive(Debug)]
enum Pipeline {
    Gguf(Box<GgufTokenizer>),
    Json(Box<JsonTokenizer>),
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Corrupt`] if it contradicts itself, [`TokenizerError::Unsupported`] if it is not a
    /// byte-pair encoding.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let (json, table) = JsonTokenizer::new(bytes)?;
        Ok(Self {
            pipeline: Pipeline::Json(Box::new(json)),
            table,
        })
    }

    /// Makes a tokenizer of a GGUF file's metadata.
    pub(crate) fn from_gguf(vocabulary: &GgufVocabulary<'_>) -> Result<Self, TokenizerError> {
        let (gguf, table) = GgufTokenizer::new(vocabulary)?;
        Ok(Self {
            pipeline: Pipeline::Gguf(Box::new(gguf)),
            table,
        })
    }

    /// Encodes a text.
    #[must_use]
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        match (&self.pipeline, specials) {
            (Pipeline::Gguf(gguf), Specials::Parse) => gguf.encode(text, |_, _| true),
            (Pipeline::Gguf(gguf), Specials::Plain) => {
                gguf.encode(text, |_, special| !special.control)
            }
            (Pipeline::Json(json), Specials::Parse) => json.parse(text),
            (Pipeline::Json(json), Specials::Plain) => json.plain(text),
        }
    }

    /// Encodes a text as [`Specials::Parse`] does, but no special token begins at a `guarded` byte offset.
    ///
    /// `guarded` is ascending.
    #[must_use]
    pub fn encode_guarded(&self, text: &str, guarded: &[usize]) -> Vec<u32> {
        let is_guarded = |at: usize| guarded.binary_search(&at).is_ok();
        match &self.pipeline {
            Pipeline::Gguf(gguf) => {
                gguf.encode(text, |at, special| !(special.control && is_guarded(at)))
            }
            Pipeline::Json(json) => json.encode_guarded(text, is_guarded),
        }
    }

    /// Decodes ids in one go: special tokens are skipped, invalid UTF-8 becomes U+FFFD, unknown ids nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.pipeline {
            Pipeline::Gguf(_) => {
                let bytes: Vec<u8> = ids
                    .iter()
                    .flat_map(|&id| self.token_bytes(id))
                    .copied()
                    .collect();
                String::from_utf8(bytes)
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
            }
            Pipeline::Json(json) => json.decode(ids),
        }
    }

    /// Returns the bytes that a token stands for, perhaps part of a character; none for special tokens and
    /// ids outside the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// Returns the number of ids: one more than the highest.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.table.ends.len()
    }

    /// Returns whether a token is special: written by templates, skipped in text.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.special_text(id).is_some()
    }

    /// Returns the text of a special token, such as `<|im_end|>`; none for other tokens.
    #[must_use]
    pub fn special_text(&self, id: u32) -> Option<&str> {
        let specials = &self.table.specials;
        let at = specials.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(specials[at].1.as_str())
    }

    /// Returns the special token with this text.
    #[must_use]
    pub fn special_id(&self, text: &str) -> Option<u32> {
        self.table
            .specials
            .iter()
            .find(|(_, special)| special == text)
            .map(|&(id, _)| id)
    }

    /// Returns the texts that [`Specials::Parse`] takes for tokens and [`Specials::Plain`] does not.
    pub(super) fn control_texts(&self) -> impl Iterator<Item = &str> {
        let matcher: &SpecialMatcher = match &self.pipeline {
            Pipeline::Gguf(gguf) => gguf.specials(),
            Pipeline::Json(json) => json.specials(),
        };
        matcher
            .all()
            .filter(|special| special.control)
            .map(|special| special.text.as_str())
    }

    /// Returns whether the tokenizer's own rules begin every text with `id`.
    pub(crate) fn begins_with(&self, id: u32) -> bool {
        match &self.pipeline {
            Pipeline::Gguf(_) => false,
            Pipeline::Json(json) => json.begins_with(id),
        }
    }

    /// Returns whether texts begin with BOS where a GGUF file does not say.
    pub(crate) fn adds_bos_by_default(&self) -> bool {
        match &self.pipeline {
            Pipeline::Gguf(gguf) => gguf.adds_bos_by_default(),
            Pipeline::Json(_) => false,
        }
    }
}

/// The bytes of every token, one after the other, and which are special.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
    /// Ascending by id.
    specials: Vec<(u32, String)>,
}

impl TokenTable {
    /// Adds the next token.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
    }

    /// Adds the next token, which is special.
    pub(super) fn push_special(&mut self, text: &str) {
        let id = u32::try_from(self.ends.len()).expect("vocabularies are bounded");
        self.specials.push((id, text.to_owned()));
        self.push(&[]);
    }

    fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }
}

#[cfg(test)]
mod tests;

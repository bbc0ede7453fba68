//! Byte-pair encoding with the vocabulary of a GGUF file, id for id as llama.cpp does it.

use std::collections::BTreeSet;

use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab};

use super::byte_level::{bytes_of, char_of};
use super::specials::{Special, SpecialMatcher};
use super::split::PreTokenizer;
use super::tokenizer::{TokenTable, TokenizerError, VOCABULARY_MAX};

/// What a GGUF file says about a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Text.
    Normal,
    /// Stands for what the vocabulary lacks.
    Unknown,
    /// Written by templates, never by users.
    Control,
    /// Text that is never split.
    UserDefined,
    /// Padding of the vocabulary.
    Unused,
    /// One byte.
    Byte,
}

impl TokenKind {
    /// Returns the kind that a file gives by number.
    pub(crate) fn from_gguf(kind: u64) -> Option<Self> {
        Some(match kind {
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The tokenizer's part of a GGUF file's metadata.
#[derive(Debug)]
pub(crate) struct GgufVocabulary<'a> {
    /// `tokenizer.ggml.model`.
    pub(crate) model: &'a str,
    /// `tokenizer.ggml.pre`.
    pub(crate) pre: &'a str,
    /// Texts by id.
    pub(crate) tokens: Vec<&'a str>,
    /// Kinds by id, as many as tokens.
    pub(crate) kinds: Vec<TokenKind>,
    /// Pairs, most important first, each with a space between.
    pub(crate) merges: Vec<&'a str>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub(crate) add_space_prefix: bool,
}

/// Encodes text.
#[derive(Debug)]
pub(super) struct GgufTokenizer {
    bpe: BPE,
    pre: PreTokenizer,
    specials: SpecialMatcher,
    add_space_prefix: bool,
    /// Alphabet characters without a token: they yield none, and no merge crosses them.
    missing: BTreeSet<char>,
}

impl GgufTokenizer {
    pub(super) fn new(
        vocabulary: &GgufVocabulary<'_>,
    ) -> Result<(Self, TokenTable), TokenizerError> {
        if vocabulary.model != "gpt2" {
            return Err(TokenizerError::Unsupported(format!(
                "tokenizer.ggml.model {}",
                vocabulary.model
            )));
        }
        let pre = PreTokenizer::named(vocabulary.pre).ok_or_else(|| {
            TokenizerError::Unsupported(format!("tokenizer.ggml.pre {}", vocabulary.pre))
        })?;
        if vocabulary.tokens.is_empty() || vocabulary.tokens.len() > VOCABULARY_MAX {
            return Err(TokenizerError::Corrupt(format!(
                "tokenizer.ggml.tokens has {} entries, and must have 1 to {VOCABULARY_MAX}",
                vocabulary.tokens.len()
            )));
        }
        let mut table = TokenTable::default();
        let mut specials = Vec::new();
        let mut vocab = Vocab::new();
        let mut texts = BTreeSet::new();
        for ((id, &text), &kind) in (0..).zip(&vocabulary.tokens).zip(&vocabulary.kinds) {
            if !texts.insert(text) {
                return Err(TokenizerError::Corrupt(format!(
                    "tokenizer.ggml.tokens[{id}] is there before"
                )));
            }
            let control = matches!(kind, TokenKind::Control | TokenKind::Unknown);
            if control || kind == TokenKind::UserDefined {
                specials.push(Special {
                    text: text.to_owned(),
                    id,
                    control,
                });
            }
            match kind {
                // Not in the vocabulary of merges: no text but its own may ever become a control token.
                TokenKind::Control | TokenKind::Unknown => table.push_special(text),
                TokenKind::UserDefined => {
                    vocab.insert(text.to_owned(), id);
                    table.push(text.as_bytes());
                }
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => {
                    vocab.insert(text.to_owned(), id);
                    table.push(&bytes_of(text));
                }
            }
        }
        let merges = read_merges(&vocabulary.merges, &vocab)?;
        let missing = (0..=255)
            .map(char_of)
            .filter(|c| !vocab.contains_key(c.encode_utf8(&mut [0; 4]) as &str))
            .collect();
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(matches!(pre, PreTokenizer::Llama3 { digits: 3 }))
            .build()
            .map_err(|error| TokenizerError::Corrupt(format!("tokenizer.ggml.merges: {error}")))?;
        let specials = SpecialMatcher::new(specials);
        Ok((
            Self {
                bpe,
                pre,
                specials,
                add_space_prefix: vocabulary.add_space_prefix,
                missing,
            },
            table,
        ))
    }

    /// Encodes a text in which `sees` says which special tokens count, given their offset.
    pub(super) fn encode(&self, text: &str, sees: impl Fn(usize, &Special) -> bool) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut done = 0;
        for (range, id) in self.specials.find(text, sees) {
            self.encode_fragment(&text[done..range.start], &mut ids);
            ids.push(id);
            done = range.end;
        }
        self.encode_fragment(&text[done..], &mut ids);
        ids
    }

    fn encode_fragment(&self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        // llama.cpp prefixes texts of this kind of vocabulary only where the file says so.
        let prefixed;
        let text = if self.add_space_prefix && !text.starts_with(' ') {
            prefixed = format!(" {text}");
            &prefixed
        } else {
            text
        };
        let mut word = String::new();
        for piece in self.pre.pieces(text) {
            word.clear();
            word.extend(piece.bytes().map(char_of));
            for part in word.split(|c| self.missing.contains(&c)) {
                let tokens = self
                    .bpe
                    .tokenize(part)
                    .expect("byte-pair merging without an unknown token cannot fail");
                ids.extend(tokens.iter().map(|token| token.id));
            }
        }
    }

    pub(super) fn specials(&self) -> &SpecialMatcher {
        &self.specials
    }

    /// Returns whether llama.cpp begins a text with BOS where the file does not say.
    pub(super) fn adds_bos_by_default(&self) -> bool {
        matches!(self.pre, PreTokenizer::Llama3 { digits: 3 })
    }
}

/// Splits merges, and checks what the library takes for granted: that both sides and the whole are tokens.
fn read_merges(merges: &[&str], vocab: &Vocab) -> Result<Vec<(String, String)>, TokenizerError> {
    if merges.len() > 4 * VOCABULARY_MAX {
        return Err(TokenizerError::Corrupt(format!(
            "tokenizer.ggml.merges has {} entries",
            merges.len()
        )));
    }
    let split = |(i, merge): (usize, &&str)| {
        // A token may begin with a space, so the first character is never the separator.
        let at = merge
            .char_indices()
            .skip(1)
            .find(|&(_, c)| c == ' ')
            .map(|(at, _)| at);
        let (left, right) = at
            .map(|at| (&merge[..at], &merge[at + 1..]))
            .unwrap_or_default();
        let known = vocab.contains_key(left)
            && vocab.contains_key(right)
            && vocab.contains_key(format!("{left}{right}").as_str());
        if !known {
            return Err(TokenizerError::Corrupt(format!(
                "tokenizer.ggml.merges[{i}] is not of known tokens"
            )));
        }
        Ok((left.to_owned(), right.to_owned()))
    };
    merges.iter().enumerate().map(split).collect()
}

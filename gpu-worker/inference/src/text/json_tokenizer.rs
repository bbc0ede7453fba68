//! The tokenizer of a `tokenizer.json`, run by the `tokenizers` library.

use serde_json::Value;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{DecoderWrapper, ModelWrapper, PreTokenizerWrapper, Tokenizer as Hub};

use super::byte_level;
use super::specials::{Special, SpecialMatcher};
use super::tokenizer::{TokenTable, TokenizerError, VOCABULARY_MAX};

/// Encodes text.
#[derive(Debug)]
pub(super) struct JsonTokenizer {
    /// Recognises special tokens.
    parse: Hub,
    /// Does not.
    plain: Hub,
    /// Does not, and takes no text for the beginning of one; only if that makes a difference.
    plain_inner: Option<Hub>,
    specials: SpecialMatcher,
}

impl JsonTokenizer {
    pub(super) fn new(bytes: &[u8]) -> Result<(Self, TokenTable), TokenizerError> {
        let corrupt = |error: &dyn std::fmt::Display| {
            TokenizerError::Corrupt(format!("it does not parse: {error}"))
        };
        let json: Value = serde_json::from_slice(bytes).map_err(|error| corrupt(&error))?;
        check(&json)?;
        let mut parse: Hub = serde_json::from_value(json).map_err(|error| corrupt(&error))?;
        parse
            .with_truncation(None)
            .map_err(|error| corrupt(&error))?;
        parse.with_padding(None);
        if !matches!(parse.get_model(), ModelWrapper::BPE(_)) {
            return Err(TokenizerError::Unsupported(
                "a tokenizer that is not byte-pair encoding".to_owned(),
            ));
        }
        let mut plain = parse.clone();
        plain.set_encode_special_tokens(true);
        let plain_inner = inner(&plain);
        let table = read_table(&parse)?;
        let added = parse.get_added_vocabulary().get_added_tokens_decoder();
        let specials = added.iter().filter(|(_, token)| token.special);
        let specials = specials.map(|(&id, token)| Special {
            text: token.content.clone(),
            id,
            control: true,
        });
        let specials = SpecialMatcher::new(specials);
        Ok((
            Self {
                parse,
                plain,
                plain_inner,
                specials,
            },
            table,
        ))
    }

    pub(super) fn parse(&self, text: &str) -> Vec<u32> {
        encode(&self.parse, text)
    }

    pub(super) fn plain(&self, text: &str) -> Vec<u32> {
        encode(&self.plain, text)
    }

    /// Encodes a text in which special tokens at `guarded` offsets are plain text.
    ///
    /// Where there are any, special tokens that eat white space around them or match whole words only are
    /// taken for ordinary ones: no such token is written by a chat template.
    pub(super) fn encode_guarded(
        &self,
        text: &str,
        is_guarded: impl Fn(usize) -> bool,
    ) -> Vec<u32> {
        let free = self.specials.find(text, |at, _| !is_guarded(at));
        if free == self.specials.find(text, |_, _| true) {
            return self.parse(text);
        }
        let mut ids = Vec::new();
        let mut done = 0;
        for (range, id) in free {
            ids.extend(self.fragment(text, done..range.start));
            ids.push(id);
            done = range.end;
        }
        ids.extend(self.fragment(text, done..text.len()));
        ids
    }

    fn fragment(&self, text: &str, range: std::ops::Range<usize>) -> Vec<u32> {
        if range.is_empty() {
            return Vec::new();
        }
        let tokenizer = self
            .plain_inner
            .as_ref()
            .filter(|_| range.start > 0)
            .unwrap_or(&self.plain);
        encode(tokenizer, &text[range])
    }

    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.parse
            .decode(ids, true)
            .expect("decoders of byte-pair encodings accept every token")
    }

    pub(super) fn specials(&self) -> &SpecialMatcher {
        &self.specials
    }

    /// Returns whether the post-processor begins every text with `id`.
    pub(super) fn begins_with(&self, id: u32) -> bool {
        self.parse
            .encode_fast("", true)
            .is_ok_and(|encoding| encoding.get_ids().first() == Some(&id))
    }
}

fn encode(tokenizer: &Hub, text: &str) -> Vec<u32> {
    let encoding = tokenizer.encode_fast(text, false);
    encoding
        .expect("what can fail was checked when the tokenizer was read")
        .get_ids()
        .to_vec()
}

/// Returns a copy for text that is not at the start, if a word there is written differently.
fn inner(plain: &Hub) -> Option<Hub> {
    let Some(PreTokenizerWrapper::Metaspace(metaspace)) = plain.get_pre_tokenizer() else {
        return None;
    };
    if metaspace.get_prepend_scheme() != PrependScheme::First {
        return None;
    }
    let mut metaspace = metaspace.clone();
    metaspace.set_prepend_scheme(PrependScheme::Never);
    let mut inner = plain.clone();
    inner.with_pre_tokenizer(Some(metaspace));
    Some(inner)
}

/// Refuses what the library would panic on, and what makes encoding fail or vary.
fn check(json: &Value) -> Result<(), TokenizerError> {
    let corrupt = |what: String| Err(TokenizerError::Corrupt(what));
    let model = &json["model"];
    let Some(vocab) = model["vocab"].as_object() else {
        return corrupt("model.vocab is not an object".to_owned());
    };
    for field in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[field].as_str().is_some_and(|text| !text.is_empty()) {
            return Err(TokenizerError::Unsupported(format!("model.{field}")));
        }
    }
    if model["dropout"]
        .as_f64()
        .is_some_and(|dropout| dropout != 0.0)
    {
        return Err(TokenizerError::Unsupported("model.dropout".to_owned()));
    }
    if model["unk_token"]
        .as_str()
        .is_some_and(|unknown| !vocab.contains_key(unknown))
    {
        return corrupt("model.unk_token is not in model.vocab".to_owned());
    }
    let added = json["added_tokens"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let ids = vocab.values().chain(added.iter().map(|token| &token["id"]));
    for id in ids {
        if id.as_u64().is_none_or(|id| id >= VOCABULARY_MAX as u64) {
            return corrupt(format!("token id {id}, with a limit of {VOCABULARY_MAX}"));
        }
    }
    for (i, merge) in model["merges"]
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .enumerate()
    {
        let pair = match merge {
            Value::String(pair) => pair.split_once(' '),
            Value::Array(pair) => pair
                .first()
                .and_then(Value::as_str)
                .zip(pair.get(1).and_then(Value::as_str)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
        };
        let known = pair.is_some_and(|(left, right)| {
            vocab.contains_key(left)
                && vocab.contains_key(right)
                && vocab.contains_key(&format!("{left}{right}"))
        });
        if !known {
            return corrupt(format!("model.merges[{i}] is not a pair of known tokens"));
        }
    }
    Ok(())
}

/// Reads the bytes of every token, by the alphabet that the decoder knows.
fn read_table(hub: &Hub) -> Result<TokenTable, TokenizerError> {
    let byte_level = hub.get_decoder().is_some_and(is_byte_level);
    let added = hub.get_added_vocabulary().get_added_tokens_decoder();
    let last = hub.get_vocab(true).into_values().max();
    let last = last.ok_or_else(|| TokenizerError::Corrupt("the vocabulary is empty".to_owned()))?;
    if last as usize >= VOCABULARY_MAX {
        return Err(TokenizerError::Corrupt(format!(
            "token id {last}, with a limit of {VOCABULARY_MAX}"
        )));
    }
    let mut table = TokenTable::default();
    for id in 0..=last {
        match (added.get(&id), hub.id_to_token(id)) {
            (Some(token), _) if token.special => table.push_special(&token.content),
            (Some(token), _) => table.push(token.content.as_bytes()),
            (None, Some(text)) if byte_level => table.push(&byte_level::bytes_of(&text)),
            (None, Some(text)) => table.push(&bytes_with_fallback(&text)),
            (None, None) => table.push(&[]),
        }
    }
    Ok(table)
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(is_byte_level),
        DecoderWrapper::BPE(_)
        | DecoderWrapper::WordPiece(_)
        | DecoderWrapper::Metaspace(_)
        | DecoderWrapper::CTC(_)
        | DecoderWrapper::Replace(_)
        | DecoderWrapper::Fuse(_)
        | DecoderWrapper::Strip(_)
        | DecoderWrapper::ByteFallback(_) => false,
    }
}

/// Returns the bytes of a token in the manner of sentencepiece: `<0x0A>` is a byte, `▁` a space.
fn bytes_with_fallback(token: &str) -> Vec<u8> {
    let byte = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|hex| hex.len() == 2);
    match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => token.replace('▁', " ").into_bytes(),
    }
}

//! The text of a growing sequence, and the stop strings that end it.
//!
//! Owns the bytes that accepted tokens stand for and the search for stop strings in them. Never decides
//! which tokens are accepted, and never reads a byte twice: the search is Knuth-Morris-Pratt, one state a
//! stop string.

use super::Tokenizer;

/// What the engine must know of a tokenizer: the text side of token ids.
pub trait TokenText: Send + Sync {
    /// Returns the bytes that `id` adds to the text; they may be a part of a UTF-8 character.
    fn token_bytes(&self, id: u32) -> &[u8];

    /// Returns the text of `ids` decoded at once, special tokens skipped, invalid UTF-8 replaced.
    fn decode(&self, ids: &[u32]) -> String;

    /// Returns whether `id` is a special token, which never contributes text.
    fn is_special(&self, id: u32) -> bool;
}

impl TokenText for Tokenizer {
    fn token_bytes(&self, id: u32) -> &[u8] {
        self.token_bytes(id)
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.decode(ids)
    }

    fn is_special(&self, id: u32) -> bool {
        self.is_special(id)
    }
}

/// One stop string and how much of it the text's tail matches.
///
/// Source: Knuth, Morris and Pratt 1977, "Fast pattern matching in strings".
#[derive(Debug, Clone)]
struct Matcher {
    pattern: Vec<u8>,
    /// For each prefix length, less one, the longest proper border of that prefix.
    borders: Vec<usize>,
    matched: usize,
}

impl Matcher {
    fn new(pattern: Vec<u8>) -> Matcher {
        let mut borders = vec![0; pattern.len()];
        let mut border = 0;
        for end in 1..pattern.len() {
            while border > 0 && pattern[end] != pattern[border] {
                border = borders[border - 1];
            }
            if pattern[end] == pattern[border] {
                border += 1;
            }
            borders[end] = border;
        }
        Matcher {
            pattern,
            borders,
            matched: 0,
        }
    }

    /// Takes one byte; returns whether the pattern ends with it.
    fn push(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.pattern[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        if self.pattern[self.matched] == byte {
            self.matched += 1;
        }
        let ended = self.matched == self.pattern.len();
        if ended {
            self.matched = self.borders[self.matched - 1];
        }
        ended
    }
}

/// The bytes of a sequence's accepted tokens, watched for stop strings.
///
/// A token that completes one or more stop strings ends the text; it is cut at the first byte of the match
/// that starts earliest.
#[derive(Debug, Clone)]
pub struct StopText {
    bytes: Vec<u8>,
    /// For each token that contributes bytes, its index in the output and where its bytes begin.
    contributions: Vec<Contribution>,
    /// Ids of the tokens pushed, for the decode at the end.
    ids: Vec<u32>,
    matchers: Vec<Matcher>,
    cut: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Contribution {
    output_index: usize,
    start_byte: usize,
}

impl StopText {
    /// Makes an empty text that ends at any of `stop`; empty stop strings are ignored.
    pub fn new(stop: &[Vec<u8>]) -> StopText {
        StopText {
            bytes: Vec::new(),
            contributions: Vec::new(),
            ids: Vec::new(),
            matchers: stop
                .iter()
                .filter(|pattern| !pattern.is_empty())
                .map(|pattern| Matcher::new(pattern.clone()))
                .collect(),
            cut: None,
        }
    }

    /// Adds the token at `output_index`; returns whether it completes a stop string.
    ///
    /// Takes time linear in the token's own bytes. Nothing is added once the text has ended.
    pub fn push(&mut self, output_index: usize, id: u32, text: &dyn TokenText) -> bool {
        if self.cut.is_some() {
            return true;
        }
        self.ids.push(id);
        if text.is_special(id) {
            return false;
        }
        let bytes = text.token_bytes(id);
        if bytes.is_empty() {
            return false;
        }
        self.contributions.push(Contribution {
            output_index,
            start_byte: self.bytes.len(),
        });
        for &byte in bytes {
            self.bytes.push(byte);
            for matcher in &mut self.matchers {
                if matcher.push(byte) {
                    let start = self.bytes.len() - matcher.pattern.len();
                    self.cut = Some(self.cut.map_or(start, |cut| cut.min(start)));
                }
            }
        }
        self.cut.is_some()
    }

    /// Returns the text: all of it, or what precedes the stop string.
    ///
    /// Without a stop string it is one decode of all tokens. A cut text is what that decode would begin
    /// with: bytes that the decode drops at the front (a leading space) are dropped here too.
    pub fn text(&self, text: &dyn TokenText) -> String {
        let whole = text.decode(&self.ids);
        let Some(cut) = self.cut else { return whole };
        let bytes_alone = String::from_utf8_lossy(&self.bytes);
        let dropped = if bytes_alone.ends_with(whole.as_str()) {
            bytes_alone.len() - whole.len()
        } else {
            0
        };
        let kept = &self.bytes[dropped.min(cut)..cut];
        String::from_utf8_lossy(kept).into_owned()
    }

    /// Returns the output indices of the tokens that contribute at least one byte to the text.
    pub fn contributing(&self) -> impl Iterator<Item = usize> + '_ {
        let end = self.cut.unwrap_or(self.bytes.len());
        self.contributions
            .iter()
            .take_while(move |contribution| contribution.start_byte < end)
            .map(|contribution| contribution.output_index)
    }
}

#[cfg(test)]
mod tests;

//! Pre-tokenizers: where byte-pair merging may not cross.
//!
//! Written out by hand, as llama.cpp does, rather than by a regex library: libraries differ in their Unicode
//! tables, and backtrack without a bound on hostile text. Linear in the text's length.

use super::unicode::{Class, class_of};

/// A pre-tokenizer, by the name that GGUF files give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// Each number character alone, then GPT-2's.
    SmolLm,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,D}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Llama3 {
        /// D: the most number characters in one piece.
        digits: usize,
    },
}

impl PreTokenizer {
    /// Returns the pre-tokenizer that a GGUF file names.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" => Self::Gpt2,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" => Self::SmolLm,
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "lfm2" => {
                Self::Llama3 { digits: 3 }
            }
            "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" => Self::Llama3 { digits: 1 },
            _ => return None,
        })
    }

    /// Splits `text` into pieces that are not empty and together are the text.
    pub(super) fn pieces(self, text: &str) -> impl Iterator<Item = &str> {
        let (mut segment, mut rest) = ("", text);
        std::iter::from_fn(move || {
            if segment.is_empty() {
                if rest.is_empty() {
                    return None;
                }
                (segment, rest) = rest.split_at(self.first_segment(rest));
            }
            let piece;
            (piece, segment) = segment.split_at(self.first_piece(segment));
            Some(piece)
        })
    }

    /// Returns the length of the part that is split as a text of its own.
    fn first_segment(self, text: &str) -> usize {
        match self {
            Self::SmolLm => match leading(text, |class| class == Class::Number, 1) {
                0 => leading(text, |class| class != Class::Number, usize::MAX),
                number => number,
            },
            Self::Gpt2 | Self::Llama3 { .. } => text.len(),
        }
    }

    /// Returns the length of the first piece of a text that is not empty.
    fn first_piece(self, text: &str) -> usize {
        match self {
            Self::Gpt2 | Self::SmolLm => first_piece_gpt2(text),
            Self::Llama3 { digits } => first_piece_llama3(text, digits),
        }
    }
}

fn first_piece_gpt2(text: &str) -> usize {
    if let Some(len) = contraction(text, |bytes, suffix| bytes == suffix) {
        return len;
    }
    let space = usize::from(text.starts_with(' '));
    let class = text[space..].chars().next().map(class_of);
    match class {
        Some(class @ (Class::Letter | Class::Number | Class::Other)) => {
            space + leading(&text[space..], |c| c == class, usize::MAX)
        }
        Some(Class::Space) | None => white_space(text),
    }
}

fn first_piece_llama3(text: &str, digits: usize) -> usize {
    if let Some(len) = contraction(text, <[u8]>::eq_ignore_ascii_case) {
        return len;
    }
    let mut chars = text.chars();
    let first = chars.next().expect("the text is not empty");
    let class = class_of(first);
    let is_letter = |class| class == Class::Letter;
    // One character may come before letters, but for a number or a line break.
    if class != Class::Number && !matches!(first, '\r' | '\n') {
        let prefix = if class == Class::Letter {
            0
        } else {
            first.len_utf8()
        };
        let letters = leading(&text[prefix..], is_letter, usize::MAX);
        if letters > 0 {
            return prefix + letters;
        }
    }
    if class == Class::Number {
        return leading(text, |class| class == Class::Number, digits);
    }
    let space = usize::from(first == ' ');
    let others = leading(&text[space..], |class| class == Class::Other, usize::MAX);
    if others > 0 {
        let breaks = text[space + others..]
            .bytes()
            .take_while(|byte| b"\r\n".contains(byte))
            .count();
        return space + others + breaks;
    }
    let spaces = &text[..leading(text, |class| class == Class::Space, usize::MAX)];
    match spaces.rfind(['\r', '\n']) {
        Some(last_break) => last_break + 1,
        None => white_space(text),
    }
}

/// Returns the length of an English contraction at the start of the text.
fn contraction(text: &str, is: impl Fn(&[u8], &[u8]) -> bool) -> Option<usize> {
    let after = text.strip_prefix('\'')?.as_bytes();
    [b"s".as_slice(), b"t", b"m", b"d", b"re", b"ve", b"ll"]
        .into_iter()
        .find(|suffix| {
            after
                .get(..suffix.len())
                .is_some_and(|bytes| is(bytes, suffix))
        })
        .map(|suffix| 1 + suffix.len())
}

/// Returns the length of leading white space, less its last character if something follows: that one belongs
/// to what follows.
fn white_space(text: &str) -> usize {
    let all = leading(text, |class| class == Class::Space, usize::MAX);
    let last = text[..all].chars().next_back().map_or(0, char::len_utf8);
    if all == text.len() || all == last {
        all
    } else {
        all - last
    }
}

/// Returns the length in bytes of at most `max` leading characters of a class.
fn leading(text: &str, is: impl Fn(Class) -> bool, max: usize) -> usize {
    text.char_indices()
        .take(max)
        .find(|&(_, c)| !is(class_of(c)))
        .map(|(at, _)| at)
        .unwrap_or_else(|| {
            text.char_indices()
                .nth(max)
                .map_or(text.len(), |(at, _)| at)
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(pre: &str, text: &str, expected: &[&str]) {
        let pre = PreTokenizer::named(pre).unwrap();
        assert_eq!(pre.pieces(text).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn gpt2_keeps_one_space_with_the_word() {
        check(
            "gpt-2",
            "it's  a 12 !?\n\n x",
            &["it", "'s", " ", " a", " 12", " !?", "\n\n", " x"],
        );
        check("gpt-2", "a  ", &["a", "  "]);
        check("gpt-2", "'S'll'v", &["'", "S", "'ll", "'", "v"]);
    }

    #[test]
    fn smollm_takes_numbers_one_by_one() {
        check("smollm", "a 12  3", &["a", " ", "1", "2", "  ", "3"]);
        check("smollm", "x²½", &["x", "²", "½"]);
    }

    #[test]
    fn llama3_takes_three_digits_and_line_breaks() {
        check(
            "llama-bpe",
            "12345 ab!\r\nx \n\n y",
            &["123", "45", " ab", "!\r\n", "x", " \n\n", " y"],
        );
        check("llama-bpe", "I'LL \u{a0}z", &["I", "'LL", " ", "\u{a0}z"]);
    }

    #[test]
    fn qwen2_takes_one_digit() {
        check("qwen2", "12 a", &["1", "2", " a"]);
    }

    #[test]
    fn unknown_names_are_none() {
        assert_eq!(PreTokenizer::named("default"), None);
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_text(text in "(\\PC|[ \t\r\n'sdtle0-9\u{85}\u{a0}\u{2028}]){0,40}") {
            for name in ["gpt-2", "smollm", "llama-bpe", "qwen2"] {
                let pieces: Vec<&str> = PreTokenizer::named(name).unwrap().pieces(&text).collect();
                prop_assert_eq!(pieces.concat(), text.as_str());
                prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
            }
        }
    }
}

//! A scanner that checks JSON without building anything.
//!
//! Iterative, so that nesting costs one bit a level and never the stack. It takes every number and every
//! escape that the grammar allows, lone surrogates too: what a value means is for others to say.
//! Source: RFC 8259.

use std::borrow::Cow;

/// A text that is no JSON. Where and why is not told: users are told the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// What a value is, by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

impl Kind {
    /// Returns the kind of a value that [`Scanner::value`] returned.
    pub(super) fn of(value: &str) -> Self {
        match value.as_bytes().first() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            Some(b't' | b'f') => Kind::Boolean,
            Some(b'n') => Kind::Null,
            Some(_) | None => Kind::Number,
        }
    }

    /// Returns the kind with its article.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Null => "null",
            Kind::Boolean => "a boolean",
            Kind::Number => "a number",
            Kind::String => "a string",
            Kind::Array => "an array",
            Kind::Object => "an object",
        }
    }
}

/// Reads one text from the start to the end.
#[derive(Debug, Clone)]
pub(super) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Returns how many bytes are read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Returns the first byte of the next token, past white space.
    pub(super) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(self.at) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// Checks that only white space is left.
    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        if self.peek().is_none() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }

    /// Reads an object; `member` gets each key as written and must read the value.
    pub(super) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &'a str) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.expect(b'{')?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.key()?;
            member(self, key)?;
            match self.take()? {
                b',' => {}
                b'}' => return Ok(()),
                _ => return Err(Malformed),
            }
        }
    }

    /// Returns what `read` read, as written.
    pub(super) fn spanned(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<(), Malformed>,
    ) -> Result<&'a str, Malformed> {
        self.peek();
        let start = self.at;
        read(self)?;
        Ok(&self.text[start..self.at])
    }

    /// Reads any value and returns it as written.
    pub(super) fn value(&mut self) -> Result<&'a str, Malformed> {
        let mut open = Nesting::default();
        self.peek();
        let start = self.at;
        loop {
            let container = match self.peek().ok_or(Malformed)? {
                b'{' => Some(Container::Object),
                b'[' => Some(Container::Array),
                b'"' => self.string().map(|_| None)?,
                b'-' | b'0'..=b'9' => self.number().map(|()| None)?,
                b't' => self.word("true").map(|()| None)?,
                b'f' => self.word("false").map(|()| None)?,
                b'n' => self.word("null").map(|()| None)?,
                _ => return Err(Malformed),
            };
            if let Some(container) = container {
                self.at += 1;
                open.push(container);
                if self.peek() != Some(container.end()) {
                    if container == Container::Object {
                        self.key()?;
                    }
                    continue;
                }
            }
            // A value ended, or an empty container is about to: close whatever ends here.
            loop {
                let Some(container) = open.top() else {
                    return Ok(&self.text[start..self.at]);
                };
                let next = self.take()?;
                if next == container.end() {
                    open.pop();
                } else if next == b',' {
                    if container == Container::Object {
                        self.key()?;
                    }
                    break;
                } else {
                    return Err(Malformed);
                }
            }
        }
    }

    /// Reads a key and its colon.
    fn key(&mut self) -> Result<&'a str, Malformed> {
        if self.peek() != Some(b'"') {
            return Err(Malformed);
        }
        let key = self.string()?;
        self.expect(b':')?;
        Ok(key)
    }

    fn take(&mut self) -> Result<u8, Malformed> {
        let byte = self.peek().ok_or(Malformed)?;
        self.at += 1;
        Ok(byte)
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Malformed> {
        if self.take()? == wanted {
            Ok(())
        } else {
            Err(Malformed)
        }
    }

    fn word(&mut self, word: &str) -> Result<(), Malformed> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let bytes = &self.text.as_bytes()[self.at..];
        let count = bytes
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        self.at += count;
        if count > 0 { Ok(()) } else { Err(Malformed) }
    }

    fn number(&mut self) -> Result<(), Malformed> {
        let bytes = self.text.as_bytes();
        if bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        if bytes.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = bytes.get(self.at) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Reads a string that starts here and returns it with its quotes.
    fn string(&mut self) -> Result<&'a str, Malformed> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut at = start + 1;
        loop {
            at += plain_len(&bytes[at..]);
            match bytes.get(at) {
                Some(b'"') => {
                    self.at = at + 1;
                    return Ok(&self.text[start..=at]);
                }
                Some(b'\\') => at += escape_len(&bytes[at..]).ok_or(Malformed)?,
                Some(_) | None => return Err(Malformed),
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Array,
    Object,
}

impl Container {
    fn end(self) -> u8 {
        match self {
            Container::Array => b']',
            Container::Object => b'}',
        }
    }
}

/// The open containers, one bit each: 16 MiB of brackets take 2 MiB.
#[derive(Debug, Default)]
struct Nesting {
    /// Full words below `word`.
    below: Vec<u64>,
    word: u64,
    depth: usize,
}

impl Nesting {
    fn push(&mut self, container: Container) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.below.push(self.word);
        }
        self.word = (self.word << 1) | u64::from(container == Container::Object);
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.word >>= 1;
        if self.depth > 0
            && self.depth.is_multiple_of(64)
            && let Some(word) = self.below.pop()
        {
            self.word = word;
        }
    }

    fn top(&self) -> Option<Container> {
        let top = if self.word & 1 == 1 {
            Container::Object
        } else {
            Container::Array
        };
        (self.depth > 0).then_some(top)
    }
}

/// Returns how many bytes come before a quote, a backslash or a control character; eight at a time.
///
/// Source: Mycroft 1987, the test for a zero byte in a word.
fn plain_len(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = ONES << 7;
    let mut at = 0;
    while let Some(chunk) = bytes[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (ONES * u64::from(b'"'));
        let backslash = word ^ (ONES * u64::from(b'\\'));
        let stops = (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        let stops = stops & HIGHS;
        if stops != 0 {
            // Borrows can only mark bytes above a true one, so that the lowest mark is true.
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let tail = bytes[at..]
        .iter()
        .take_while(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20));
    at + tail.count()
}

/// Returns the length of the escape that starts here; none if there is no such escape.
fn escape_len(bytes: &[u8]) -> Option<usize> {
    match bytes.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' => bytes
            .get(2..6)?
            .iter()
            .all(u8::is_ascii_hexdigit)
            .then_some(6),
        _ => None,
    }
}

/// Returns what a string token says, a lone surrogate as the three bytes that UTF-8 would give it.
///
/// `token` is as [`Scanner`] returned it, quotes included.
pub(super) fn unescape(token: &str) -> Cow<'_, [u8]> {
    let inner = token
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(token)
        .as_bytes();
    if memchr::memchr(b'\\', inner).is_none() {
        return Cow::Borrowed(inner);
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let (unit, mut taken) = (code_unit(rest), escape_len(rest).unwrap_or(1));
        let mut code = u32::from(unit);
        if (0xd800..0xdc00).contains(&unit) && rest.get(taken) == Some(&b'\\') {
            let low = code_unit(&rest[taken..]);
            if (0xdc00..0xe000).contains(&low) {
                code = 0x1_0000 + ((u32::from(unit) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
                taken += 6;
            }
        }
        push_code(&mut out, code);
        rest = &rest[taken.min(rest.len())..];
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

/// Returns the code unit of the escape that starts here.
fn code_unit(escape: &[u8]) -> u16 {
    match escape.get(1) {
        Some(b'b') => 0x08,
        Some(b'f') => 0x0c,
        Some(b'n') => 0x0a,
        Some(b'r') => 0x0d,
        Some(b't') => 0x09,
        Some(b'u') => {
            let digits = escape.get(2..6).unwrap_or_default();
            digits
                .iter()
                .fold(0, |unit, digit| (unit << 4) | hex_value(*digit))
        }
        Some(byte) => u16::from(*byte),
        None => u16::from(b'\\'),
    }
}

fn hex_value(digit: u8) -> u16 {
    u16::from(match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 0,
    })
}

fn push_code(out: &mut Vec<u8>, code: u32) {
    if let Some(char) = char::from_u32(code) {
        out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        let [_, _, high, low] = code.to_be_bytes();
        out.extend([
            0xe0 | (high >> 4),
            0x80 | ((high & 0xf) << 2) | (low >> 6),
            0x80 | (low & 0x3f),
        ]);
    }
}

#[cfg(test)]
mod tests;

//! Splits a stream of bytes into physical lines. Only a line feed ends a line.

use crate::id::LineNo;
use crate::limits::LINE_BYTES_MAX;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// What is kept of an unfinished line: one BOM and one carriage return do not count as its bytes.
const CARRY_BYTES_MAX: usize = LINE_BYTES_MAX + BOM.len() + 1;

/// One physical line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawLine<'a> {
    /// Its bytes, without the line feed, a carriage return before that, and the BOM of the file.
    Whole(&'a [u8]),
    /// It is longer than the limit: only its size is known.
    TooLong {
        /// Size.
        bytes: u64,
    },
}

/// Splits chunks, cut anywhere, into lines.
///
/// Holds at most one line, and copies only lines that span chunks. One UTF-8 BOM at the very start is
/// skipped. A last line without a line feed counts; nothing after the last line feed is no line.
#[derive(Debug, Default)]
pub struct LineSplitter {
    carry: Vec<u8>,
    /// Bytes of a line that outgrew the carry, which then holds its first ones.
    oversize: Option<Oversize>,
    lines: u64,
}

#[derive(Debug, Clone, Copy)]
struct Oversize {
    bytes: u64,
    last: u8,
}

impl LineSplitter {
    /// Starts at the first byte of a file.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many lines ended so far.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Takes the next chunk and hands every line that ends in it to `sink`.
    pub fn push(&mut self, chunk: &[u8], mut sink: impl FnMut(LineNo, RawLine<'_>)) {
        let mut rest = chunk;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            if self.carry.is_empty() {
                self.lines += 1;
                sink(LineNo(self.lines), whole(self.lines, line));
            } else {
                self.keep(line);
                self.emit(&mut sink);
            }
        }
        self.keep(rest);
    }

    /// Hands the last line to `sink`, if the file does not end with a line feed.
    pub fn finish(mut self, mut sink: impl FnMut(LineNo, RawLine<'_>)) {
        if !self.carry.is_empty() {
            self.emit(&mut sink);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        if let Some(oversize) = &mut self.oversize {
            oversize.bytes += bytes.len() as u64;
            oversize.last = *last;
        } else if self.carry.len() + bytes.len() <= CARRY_BYTES_MAX {
            self.carry.extend_from_slice(bytes);
        } else {
            self.oversize = Some(Oversize {
                bytes: (self.carry.len() + bytes.len()) as u64,
                last: *last,
            });
            self.carry
                .extend_from_slice(&bytes[..bytes.len().min(BOM.len())]);
            self.carry.truncate(BOM.len());
            self.carry.shrink_to_fit();
        }
    }

    fn emit(&mut self, sink: &mut impl FnMut(LineNo, RawLine<'_>)) {
        self.lines += 1;
        let line = match self.oversize.take() {
            None => whole(self.lines, &self.carry),
            Some(Oversize { bytes, last }) => {
                let bom = if self.lines == 1 && self.carry.starts_with(BOM) {
                    BOM.len() as u64
                } else {
                    0
                };
                RawLine::TooLong {
                    bytes: bytes - bom - u64::from(last == b'\r'),
                }
            }
        };
        sink(LineNo(self.lines), line);
        self.carry.clear();
    }
}

fn whole(number: u64, bytes: &[u8]) -> RawLine<'_> {
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let bytes = if number == 1 {
        bytes.strip_prefix(BOM).unwrap_or(bytes)
    } else {
        bytes
    };
    if bytes.len() <= LINE_BYTES_MAX {
        RawLine::Whole(bytes)
    } else {
        RawLine::TooLong {
            bytes: bytes.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests;

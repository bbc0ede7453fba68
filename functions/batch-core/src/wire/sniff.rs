//! The look at the start of a batch file while it arrives: catches files that are no JSONL at all.
//!
//! It holds at most [`HEAD_BYTES_MAX`] bytes, whatever the file. What it lets pass is judged line by line
//! later, by validation.

use serde::de::IgnoredAny;

use crate::wire::WireError;

/// Bytes of the first line that are looked at: 64 KiB. A longer line must be a sound beginning of JSON.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

const BOM_UTF8: &[u8] = b"\xef\xbb\xbf";

/// Longest byte order mark (UTF-32).
const BOM_BYTES_MAX: usize = 4;

/// What is wrong with the start of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// No byte, or white space alone.
    Empty,
    /// A byte order mark of another encoding.
    Encoding(&'static str),
    /// The first line with anything on it is not UTF-8.
    NotUtf8 {
        /// Its physical number.
        line: u64,
    },
    /// The first line with anything on it is not JSON.
    NotJson {
        /// Its physical number.
        line: u64,
        /// Where it stops to be JSON, in bytes from 1.
        column: usize,
    },
}

/// Looks at a file chunk by chunk.
#[derive(Debug)]
pub struct Sniff {
    /// Bytes of a possible byte order mark; none once it was looked at.
    mark: Option<Vec<u8>>,
    encoding: Option<&'static str>,
    line: Vec<u8>,
    line_no: u64,
    /// Whether the line has ended or filled its bound.
    done: bool,
    /// Whether the line went on beyond its bound.
    cut: bool,
}

impl Default for Sniff {
    fn default() -> Self {
        Self {
            mark: Some(Vec::with_capacity(BOM_BYTES_MAX)),
            encoding: None,
            line: Vec::new(),
            line_no: 1,
            done: false,
            cut: false,
        }
    }
}

impl Sniff {
    /// Takes the file's next bytes.
    pub fn push(&mut self, mut chunk: &[u8]) {
        if let Some(mark) = &mut self.mark {
            let (head, rest) = chunk.split_at(chunk.len().min(BOM_BYTES_MAX - mark.len()));
            mark.extend_from_slice(head);
            if mark.len() < BOM_BYTES_MAX {
                return;
            }
            chunk = rest;
            self.judge_mark();
        }
        self.take(chunk);
    }

    /// Judges, at the end of the file.
    ///
    /// # Errors
    ///
    /// What was found instead of JSONL.
    pub fn finish(mut self) -> Result<(), Finding> {
        self.judge_mark();
        if let Some(encoding) = self.encoding {
            return Err(Finding::Encoding(encoding));
        }
        if is_blank(&self.line) && !self.cut {
            return Err(Finding::Empty);
        }
        if let Err(fault) = std::str::from_utf8(&self.line) {
            let cut_in_a_character = self.cut && fault.error_len().is_none();
            if !cut_in_a_character {
                return Err(Finding::NotUtf8 { line: self.line_no });
            }
        }
        match serde_json::from_slice::<IgnoredAny>(&self.line) {
            Ok(_) => Ok(()),
            Err(fault) if fault.is_eof() && self.cut => Ok(()),
            Err(fault) => Err(Finding::NotJson {
                line: self.line_no,
                column: fault.column(),
            }),
        }
    }

    fn judge_mark(&mut self) {
        let Some(mark) = self.mark.take() else { return };
        self.encoding = match mark.as_slice() {
            [0xff, 0xfe, 0, 0] => Some("UTF-32 (little-endian)"),
            [0, 0, 0xfe, 0xff] => Some("UTF-32 (big-endian)"),
            [0xff, 0xfe, ..] => Some("UTF-16 (little-endian)"),
            [0xfe, 0xff, ..] => Some("UTF-16 (big-endian)"),
            _ => None,
        };
        self.done = self.encoding.is_some();
        self.take(mark.strip_prefix(BOM_UTF8).unwrap_or(&mark));
    }

    fn take(&mut self, mut chunk: &[u8]) {
        while !self.done && !chunk.is_empty() {
            if self.line.is_empty() {
                chunk = self.skip_blank(chunk);
            }
            let line_end = chunk.iter().position(|byte| *byte == b'\n');
            let wanted = &chunk[..line_end.unwrap_or(chunk.len())];
            let room = HEAD_BYTES_MAX - self.line.len();
            self.line
                .extend_from_slice(&wanted[..wanted.len().min(room)]);
            self.cut = wanted.len() > room;
            let Some(end) = line_end.filter(|_| !self.cut) else {
                self.done = self.cut;
                return;
            };
            self.done = !is_blank(&self.line);
            if !self.done {
                self.line.clear();
                self.line_no += 1;
            }
            chunk = &chunk[end + 1..];
        }
    }

    /// Skips ASCII white space, however much there is, without holding it.
    fn skip_blank<'a>(&mut self, chunk: &'a [u8]) -> &'a [u8] {
        let blank = chunk
            .iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count();
        let lines: u64 = chunk[..blank]
            .iter()
            .map(|byte| u64::from(*byte == b'\n'))
            .sum();
        self.line_no += lines;
        &chunk[blank..]
    }
}

/// Returns whether validation will skip the line: it is white space alone, as Unicode has it.
fn is_blank(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|text| text.trim_start().is_empty())
}

impl From<Finding> for WireError {
    fn from(finding: Finding) -> Self {
        let found = match finding {
            Finding::Empty => "the file is empty".to_owned(),
            Finding::Encoding(name) => {
                format!("the file is {name}, as its byte order mark says, and not UTF-8")
            }
            Finding::NotUtf8 { line } => format!("line {line} is not UTF-8"),
            Finding::NotJson { line, column } => {
                format!("line {line} is not JSON (column {column})")
            }
        };
        WireError::invalid(format!(
            "Invalid file format for Batch API. Must be .jsonl: {found}."
        ))
        .with_param("file")
        .with_code("invalid_file_format")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(file: &[u8]) -> Result<(), Finding> {
        let mut sniff = Sniff::default();
        sniff.push(file);
        sniff.finish()
    }

    #[test]
    fn jsonl_passes_with_mark_blank_lines_and_crlf() {
        for file in [
            &b"{}"[..],
            b"\xef\xbb\xbf{\"a\":1}\n",
            b"\r\n \t\r\n{\"a\":1}\r\nnonsense",
            b"[1]\n",
            b"7",
            b"{\"a\":\"\\ud83d\",\"b\":1e999}\n",
            "\u{a0}\n\u{3000} \u{b}\r\n \u{2028}\n{}".as_bytes(),
        ] {
            assert_eq!(check(file), Ok(()), "{}", String::from_utf8_lossy(file));
        }
    }

    #[test]
    fn what_is_no_jsonl_is_named() {
        for (file, finding) in [
            (&b""[..], Finding::Empty),
            (b"\xef\xbb\xbf", Finding::Empty),
            (b"\n \r\n\t", Finding::Empty),
            ("\u{a0}\n \u{85}".as_bytes(), Finding::Empty),
            (b"\xff\xfe{\0", Finding::Encoding("UTF-16 (little-endian)")),
            (b"\xff\xfe", Finding::Encoding("UTF-16 (little-endian)")),
            (b"\xfe\xff\0{", Finding::Encoding("UTF-16 (big-endian)")),
            (
                b"\xff\xfe\0\0{",
                Finding::Encoding("UTF-32 (little-endian)"),
            ),
            (b"\0\0\xfe\xff{", Finding::Encoding("UTF-32 (big-endian)")),
            (b"\n\n{\"a\":\"\xff\"}\n", Finding::NotUtf8 { line: 3 }),
            (b"{oops}\n", Finding::NotJson { line: 1, column: 2 }),
            (
                "\u{a0}\n\n\u{a0}{}".as_bytes(),
                Finding::NotJson { line: 3, column: 1 },
            ),
            (b"{\"a\":NaN}\n{}", Finding::NotJson { line: 1, column: 6 }),
            (b"{\"a\":1", Finding::NotJson { line: 1, column: 6 }),
        ] {
            assert_eq!(
                check(file),
                Err(finding),
                "{}",
                String::from_utf8_lossy(file)
            );
        }
    }

    #[test]
    fn a_huge_first_line_passes_when_it_begins_as_json() {
        let mut file = br#"{"text":""#.to_vec();
        file.resize(HEAD_BYTES_MAX - 1, b'a');
        file.extend("é".repeat(HEAD_BYTES_MAX).as_bytes());
        assert_eq!(check(&file), Ok(()));
        let deep = "[".repeat(4 * HEAD_BYTES_MAX);
        assert_eq!(check(deep.as_bytes()), Ok(()));
    }

    #[test]
    fn a_huge_first_line_is_refused_when_it_begins_otherwise() {
        let file = "x".repeat(2 * HEAD_BYTES_MAX);
        assert_eq!(
            check(file.as_bytes()),
            Err(Finding::NotJson { line: 1, column: 1 })
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn chunk_borders_do_not_matter(file in "\\PC{0,40}|[ \n\u{a0}]{0,9}(\\{\"a\":1\\}|oops)\n.{0,9}", cut in 0_usize..60) {
            let file = file.as_bytes();
            let (head, tail) = file.split_at(cut.min(file.len()));
            let mut sniff = Sniff::default();
            sniff.push(head);
            sniff.push(tail);
            prop_assert_eq!(sniff.finish(), check(file));
        }
    }
}

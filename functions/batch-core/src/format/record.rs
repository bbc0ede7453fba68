//! Records of numbers and raw bytes, shared by all three blobs.

use std::io::Write;

/// Bytes that are no blob of the wanted kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The first line names another kind or version.
    #[error("blob does not start with '{expected}'")]
    WrongKind {
        /// What it should start with.
        expected: &'static str,
    },
    /// Something else than numbers where a record starts.
    #[error("record header at byte {at} is malformed")]
    Header {
        /// Offset.
        at: usize,
    },
    /// A record that is longer than what is left of the blob.
    #[error("record at byte {at} needs {wanted} bytes, {left} are left")]
    Truncated {
        /// Offset.
        at: usize,
        /// Bytes that it claims.
        wanted: usize,
        /// Bytes that there are.
        left: usize,
    },
}

/// The longest header: six numbers of twenty digits, each with what ends it.
const HEADER_BYTES_MAX: usize = 6 * 21;

/// Appends a record, and before the first one the blob's `kind`.
pub(super) fn encode<const N: usize>(
    out: &mut Vec<u8>,
    kind: &'static str,
    numbers: [u64; N],
    bytes: &[u8],
) {
    if out.is_empty() {
        out.extend_from_slice(kind.as_bytes());
        out.push(b'\n');
    }
    for number in numbers {
        write!(out, "{number} ").expect("a vector takes every write");
    }
    writeln!(out, "{}", bytes.len()).expect("a vector takes every write");
    out.extend_from_slice(bytes);
    out.push(b'\n');
}

/// Reads the records of a blob, `N` numbers each besides the length. An empty blob has none.
#[derive(Debug, Clone)]
pub(super) struct Records<'a, const N: usize> {
    blob: &'a [u8],
    at: usize,
    /// The first fault, told once; nothing follows it.
    fault: Option<FormatError>,
    failed: bool,
}

impl<'a, const N: usize> Records<'a, N> {
    pub(super) fn new(blob: &'a [u8], kind: &'static str) -> Self {
        let start = blob
            .strip_prefix(kind.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"\n"));
        let fault = (start.is_none() && !blob.is_empty())
            .then_some(FormatError::WrongKind { expected: kind });
        Self {
            blob,
            at: start.map_or(blob.len(), |rest| blob.len() - rest.len()),
            fault,
            failed: false,
        }
    }

    fn read(&mut self) -> Result<([u64; N], &'a [u8]), FormatError> {
        let at = self.at;
        let rest = &self.blob[at..];
        let malformed = FormatError::Header { at };
        let head = &rest[..rest.len().min(HEADER_BYTES_MAX)];
        let end = memchr::memchr(b'\n', head).ok_or(malformed)?;
        let mut fields = head[..end].split(|byte| *byte == b' ').map(number);
        let mut numbers = [0; N];
        for slot in &mut numbers {
            *slot = fields.next().flatten().ok_or(malformed)?;
        }
        let length = fields.next().flatten().ok_or(malformed)?;
        if fields.next().is_some() {
            return Err(malformed);
        }
        let wanted = usize::try_from(length).unwrap_or(usize::MAX);
        let body = &rest[end + 1..];
        if body.len() <= wanted {
            return Err(FormatError::Truncated {
                at,
                wanted,
                left: body.len(),
            });
        }
        if body[wanted] != b'\n' {
            return Err(FormatError::Header {
                at: at + end + 1 + wanted,
            });
        }
        self.at = at + end + 1 + wanted + 1;
        Ok((numbers, &body[..wanted]))
    }
}

impl<'a, const N: usize> Iterator for Records<'a, N> {
    type Item = Result<([u64; N], &'a [u8]), FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(fault) = self.fault.take() {
            self.failed = true;
            return Some(Err(fault));
        }
        if self.failed || self.at >= self.blob.len() {
            return None;
        }
        let record = self.read();
        self.failed = record.is_err();
        Some(record)
    }
}

/// Reads a number as [`encode`] writes it: digits alone.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

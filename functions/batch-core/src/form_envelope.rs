//! Finds a part's bytes inside the form that carried them, from the form's first and last bytes alone.
//!
//! API Gateway stores the body of a request as it came: a boundary, headers, the part, and the boundary
//! again. Two short reads show both edges, so that a store can copy what lies between on its own side. A
//! second field in the middle, where neither read looks, would be taken for a part's bytes; the bytes that
//! the upload was created for would then be exceeded by its boundary and headers.
//!
//! Source: RFC 2046, section 5.1.1; RFC 7578.

use std::ops::Range;

use memchr::memmem;

/// Bytes from the start that [`payload`] wants: 4 KiB hold the boundary and the headers, whatever the name of
/// the file.
pub const HEAD_BYTES: usize = 4 * 1024;

/// Bytes to the end that [`payload`] wants: 1 KiB holds the last boundary, and shows what stands before it.
pub const TAIL_BYTES: usize = 1024;

/// Name of the one field that a part's form has.
const FIELD: &str = "data";

/// Characters of a boundary. RFC 2046 allows 70; some clients use more.
const BOUNDARY_BYTES_MAX: usize = 200;

const CRLF: &[u8] = b"\r\n";

/// Why the bytes are no form with one field `data`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeFault {
    /// The first line is no boundary.
    #[error("it does not begin with a boundary line")]
    NoBoundary,
    /// The empty line after the headers is not among the first bytes.
    #[error("its headers do not end within {HEAD_BYTES} bytes")]
    NoHeaderEnd,
    /// A header cannot be read.
    #[error("its headers cannot be read")]
    BadHeader,
    /// The field has another name, or none.
    #[error("its field is not '{FIELD}'")]
    OtherField,
    /// The bytes are not the part's own.
    #[error("its field has the transfer encoding '{0}'")]
    Encoded(String),
    /// There is a boundary between the first and the last.
    #[error("it has more than one field")]
    MoreFields,
    /// The last boundary is missing: the body broke off, or something follows it.
    #[error("it does not end with its boundary")]
    NoEnd,
}

/// Returns where the part's bytes lie in a form of `bytes` bytes.
///
/// `head` holds the first [`HEAD_BYTES`] of the form, `tail` the last [`TAIL_BYTES`]; each the whole form if
/// it is shorter.
///
/// # Errors
///
/// [`EnvelopeFault`].
pub fn payload(head: &[u8], tail: &[u8], bytes: u64) -> Result<Range<u64>, EnvelopeFault> {
    let line_end = memmem::find(head, CRLF).ok_or(EnvelopeFault::NoBoundary)?;
    let boundary = boundary(&head[..line_end])?;
    let headers = &head[line_end + CRLF.len()..];
    let header_bytes = memmem::find(headers, b"\r\n\r\n").ok_or(EnvelopeFault::NoHeaderEnd)?;
    check_headers(&headers[..header_bytes])?;
    let start = line_end + CRLF.len() + header_bytes + 2 * CRLF.len();

    let delimiter = [CRLF, b"--", boundary].concat();
    let before_tail = bytes.saturating_sub(tail.len() as u64);
    let end = before_tail + end_of(tail, &delimiter)? as u64;
    let start_at = start as u64;
    if end < start_at {
        return Err(EnvelopeFault::NoEnd);
    }
    let in_head = &head[start..clip(end, 0, head.len())];
    let in_tail =
        &tail[clip(start_at, before_tail, tail.len())..clip(end, before_tail, tail.len())];
    if has_delimiter(in_head, &delimiter) || has_delimiter(in_tail, &delimiter) {
        return Err(EnvelopeFault::MoreFields);
    }
    Ok(start_at..end)
}

/// Turns a place in the form into one in a slice that begins at `from`.
fn clip(at: u64, from: u64, len: usize) -> usize {
    usize::try_from(at.saturating_sub(from)).map_or(len, |at| at.min(len))
}

/// Reads the boundary from the first line, which may be padded.
fn boundary(line: &[u8]) -> Result<&[u8], EnvelopeFault> {
    let boundary = line
        .strip_prefix(b"--")
        .ok_or(EnvelopeFault::NoBoundary)?
        .trim_ascii_end();
    let is_text = boundary.iter().all(|&b| b == b' ' || b.is_ascii_graphic());
    if (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()) && is_text {
        Ok(boundary)
    } else {
        Err(EnvelopeFault::NoBoundary)
    }
}

/// Finds the last boundary: after it come only its two hyphens and white space.
fn end_of(tail: &[u8], delimiter: &[u8]) -> Result<usize, EnvelopeFault> {
    let last = [delimiter, b"--"].concat();
    let at = memmem::rfind(tail, &last).ok_or(EnvelopeFault::NoEnd)?;
    if tail[at + last.len()..].trim_ascii().is_empty() {
        Ok(at)
    } else {
        Err(EnvelopeFault::NoEnd)
    }
}

/// Returns whether a boundary line stands in `bytes`. A longer line that begins like one is no boundary.
fn has_delimiter(bytes: &[u8], delimiter: &[u8]) -> bool {
    memmem::find_iter(bytes, delimiter).any(|at| {
        let rest = &bytes[at + delimiter.len()..];
        let padded = rest
            .iter()
            .position(|b| !matches!(b, b' ' | b'\t'))
            .map_or(&rest[..0], |end| &rest[end..]);
        rest.starts_with(b"--") || padded.starts_with(CRLF)
    })
}

/// Checks that the headers are those of a field `data` whose bytes are sent as they are.
fn check_headers(headers: &[u8]) -> Result<(), EnvelopeFault> {
    let headers = std::str::from_utf8(headers).map_err(|_| EnvelopeFault::BadHeader)?;
    let mut disposition = None;
    for line in headers.split("\r\n") {
        // A line that begins with a blank would go on with the one before; nobody writes these any more.
        let (name, value) = line.split_once(':').ok_or(EnvelopeFault::BadHeader)?;
        let is_token = |b: u8| b.is_ascii_graphic();
        if name.is_empty() || !name.bytes().all(is_token) || value.contains(['\r', '\n']) {
            return Err(EnvelopeFault::BadHeader);
        }
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-disposition") {
            if disposition.replace(value).is_some() {
                return Err(EnvelopeFault::BadHeader);
            }
        } else if name.eq_ignore_ascii_case("content-transfer-encoding") {
            let plain = ["binary", "8bit", "7bit"];
            if !plain.iter().any(|name| value.eq_ignore_ascii_case(name)) {
                return Err(EnvelopeFault::Encoded(crate::echo::clip(value).to_owned()));
            }
        }
    }
    let disposition = disposition.ok_or(EnvelopeFault::OtherField)?;
    if field_name(disposition)?.as_deref() == Some(FIELD) {
        Ok(())
    } else {
        Err(EnvelopeFault::OtherField)
    }
}

/// Reads the parameter `name` of a content disposition.
fn field_name(disposition: &str) -> Result<Option<String>, EnvelopeFault> {
    let (kind, mut rest) = disposition.split_once(';').unwrap_or((disposition, ""));
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return Err(EnvelopeFault::BadHeader);
    }
    let mut field = None;
    while !rest.trim().is_empty() {
        let (name, value) = rest.split_once('=').ok_or(EnvelopeFault::BadHeader)?;
        let (value, after) = parameter(value)?;
        if name.trim().eq_ignore_ascii_case("name") && field.replace(value).is_some() {
            return Err(EnvelopeFault::BadHeader);
        }
        rest = after;
    }
    Ok(field)
}

/// Splits a parameter's value, quoted or not, from what follows its semicolon.
fn parameter(text: &str) -> Result<(String, &str), EnvelopeFault> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, after) = text.split_once(';').unwrap_or((text, ""));
        return Ok((value.trim().to_owned(), after));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let after = quoted[at + 1..].trim_start();
                return match after.strip_prefix(';') {
                    Some(after) => Ok((value, after)),
                    None if after.is_empty() => Ok((value, "")),
                    None => Err(EnvelopeFault::BadHeader),
                };
            }
            // Some clients send the backslashes of file names bare: only these two are escapes.
            '\\' if quoted[at + 1..].starts_with(['"', '\\']) => {
                value.extend(chars.next().map(|(_, escaped)| escaped));
            }
            other => value.push(other),
        }
    }
    Err(EnvelopeFault::BadHeader)
}

#[cfg(test)]
mod tests;

//! What a downloaded blob is called, and of which kind it is. Pure.

use std::fmt::Write as _;

use batch_core::blob_key::BlobKey;

/// Most characters of a name: file systems take 255 bytes.
const NAME_CHARS_MAX: usize = 120;

/// Returns a `Content-Disposition` for a user's file name, which may hold anything.
///
/// Clients that know no `filename*` see a name of plain ASCII.
///
/// Source: RFC 6266, sections 4.1 and 4.3; RFC 8187, section 3.2.
pub(super) fn attachment(filename: &str) -> String {
    // A path is no part of a name, and a control character is nobody's wish.
    let name = filename.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String = name
        .chars()
        .filter(|c| !c.is_control())
        .take(NAME_CHARS_MAX)
        .collect();
    let name = if name.is_empty() {
        "file"
    } else {
        name.as_str()
    };
    let plain = |c: char| {
        if matches!(c, ' '..='~') && !matches!(c, '"' | '\\' | '%') {
            c
        } else {
            '_'
        }
    };
    let ascii: String = name.chars().map(plain).collect();
    let mut header = format!("attachment; filename=\"{ascii}\"");
    if ascii != name {
        header.push_str("; filename*=UTF-8''");
        for byte in name.bytes() {
            if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
                header.push(char::from(byte));
            } else {
                write!(header, "%{byte:02X}").expect("a text can always be written to");
            }
        }
    }
    header
}

/// Returns the media type of a blob, by its class.
pub(super) fn content_type(key: &BlobKey) -> &'static str {
    match key {
        BlobKey::File { .. }
        | BlobKey::Shard { .. }
        | BlobKey::Output { .. }
        | BlobKey::Errors { .. } => "application/jsonl",
        BlobKey::Part { .. }
        | BlobKey::Index { .. }
        | BlobKey::Segment { .. }
        | BlobKey::Place { .. } => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_safely() {
        let table = [
            ("input.jsonl", "attachment; filename=\"input.jsonl\""),
            ("a\"b\\c;d.jsonl", "attachment; filename=\"c;d.jsonl\""),
            (
                "a\"b.jsonl",
                "attachment; filename=\"a_b.jsonl\"; filename*=UTF-8''a%22b.jsonl",
            ),
            (
                "größe 1.jsonl",
                "attachment; filename=\"gr__e 1.jsonl\"; filename*=UTF-8''gr%C3%B6%C3%9Fe%201.jsonl",
            ),
            (
                "x\r\nSet-Cookie: a",
                "attachment; filename=\"xSet-Cookie: a\"",
            ),
            ("../../etc/passwd", "attachment; filename=\"passwd\""),
            ("", "attachment; filename=\"file\""),
            (
                "100%.jsonl",
                "attachment; filename=\"100_.jsonl\"; filename*=UTF-8''100%25.jsonl",
            ),
        ];
        for (name, header) in table {
            assert_eq!(attachment(name), header, "{name:?}");
        }
        assert!(attachment(&"é".repeat(1000)).len() < 2000);
    }
}

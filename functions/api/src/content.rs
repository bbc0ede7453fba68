//! Which bytes of a file a request wants, and what a download is called: pure functions of headers.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Bytes of a name in a header: clients refuse long headers.
const FILENAME_BYTES_MAX: usize = 200;

/// RFC 8187's attr-char, but for what is no letter or digit and rarely needed.
const ATTR_CHAR: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The headers that choose.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Conditions<'a> {
    pub(crate) range: Option<&'a str>,
    pub(crate) if_range: Option<&'a str>,
    pub(crate) if_none_match: Option<&'a str>,
}

/// What to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All bytes.
    Whole,
    /// From `start` up to but without `end`.
    Part { start: u64, end: u64 },
    /// No byte of the range exists.
    OutOfRange,
    /// The client has it.
    NotModified,
}

impl Conditions<'_> {
    /// Chooses, for a file of this size and quoted tag. Of ranges, one in bytes is served; others are
    /// ignored, as RFC 9110 (section 14.2) allows.
    pub(crate) fn select(self, etag: &str, bytes: u64) -> Selection {
        let same = |tag: &str| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag;
        if self
            .if_none_match
            .is_some_and(|tags| tags.split(',').any(|tag| same(tag.trim())))
        {
            return Selection::NotModified;
        }
        let fresh = self.if_range.is_none_or(|tag| tag.trim() == etag);
        self.range
            .filter(|_| fresh)
            .and_then(|range| parse_range(range, bytes))
            .unwrap_or(Selection::Whole)
    }
}

fn parse_range(range: &str, bytes: u64) -> Option<Selection> {
    let (unit, spec) = range.split_once('=')?;
    let (first, last) = spec.trim().split_once('-')?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (start, end) = match (first.trim(), last.trim()) {
        ("", suffix) => (
            bytes.saturating_sub(number(suffix)?),
            if number(suffix)? == 0 { 0 } else { bytes },
        ),
        (first, "") => (number(first)?, bytes),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            (first, last.saturating_add(1).min(bytes))
        }
    };
    Some(if start < end {
        Selection::Part { start, end }
    } else {
        Selection::OutOfRange
    })
}

/// Returns a `content-disposition` that is safe in a header whatever the name holds: an ASCII name, and the
/// whole one encoded.
///
/// Source: RFC 6266, RFC 8187.
pub(crate) fn disposition(filename: &str) -> String {
    let base = filename.rsplit(['/', '\\']).next().unwrap_or(filename);
    let base = if base.trim().is_empty() || base.chars().all(|c| c == '.') {
        "file"
    } else {
        base
    };
    let clipped = clip(base);
    let ascii: String = clipped
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ' ') {
                c
            } else {
                '_'
            }
        })
        .collect();
    let encoded = utf8_percent_encode(&clipped, ATTR_CHAR);
    format!("attachment; filename=\"{ascii}\"; filename*=UTF-8''{encoded}")
}

/// Shortens a name in its middle, so that its extension stays.
fn clip(name: &str) -> String {
    if name.len() <= FILENAME_BYTES_MAX {
        return name.to_owned();
    }
    let extension = match name.rsplit_once('.') {
        Some((_, extension)) if extension.len() <= 16 => format!(".{extension}"),
        _ => String::new(),
    };
    let mut end = FILENAME_BYTES_MAX - extension.len();
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{extension}", &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETAG: &str = "\"abc\"";

    fn check(range: &str, bytes: u64) -> Selection {
        Conditions {
            range: Some(range),
            ..Conditions::default()
        }
        .select(ETAG, bytes)
    }

    #[test]
    fn one_range_of_bytes_is_served() {
        for (range, start, end) in [
            ("bytes=0-0", 0, 1),
            ("bytes=2-5", 2, 6),
            ("bytes=2-", 2, 10),
            ("bytes=2-99", 2, 10),
            ("bytes=-3", 7, 10),
            ("bytes=-99", 0, 10),
            ("Bytes = 9-9", 9, 10),
            ("bytes=0-99999999999999999999999", 0, 10),
        ] {
            assert_eq!(check(range, 10), Selection::Part { start, end }, "{range}");
        }
    }

    #[test]
    fn other_ranges_are_ignored_or_refused() {
        for range in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-2",
            "bytes=0-1,3-4",
            "lines=0-1",
            "bytes=+1-2",
            "bytes=a-b",
        ] {
            assert_eq!(check(range, 10), Selection::Whole, "{range}");
        }
        for (range, bytes) in [
            ("bytes=10-", 10),
            ("bytes=10-20", 10),
            ("bytes=-0", 10),
            ("bytes=0-", 0),
            ("bytes=-1", 0),
        ] {
            assert_eq!(
                check(range, bytes),
                Selection::OutOfRange,
                "{range} of {bytes}"
            );
        }
    }

    #[test]
    fn tags_decide_before_ranges() {
        let select = |if_range, if_none_match| {
            Conditions {
                range: Some("bytes=0-0"),
                if_range,
                if_none_match,
            }
            .select(ETAG, 10)
        };
        let part = Selection::Part { start: 0, end: 1 };
        assert_eq!(select(Some("\"abc\""), None), part);
        assert_eq!(select(Some("\"other\""), None), Selection::Whole);
        assert_eq!(select(Some("W/\"abc\""), None), Selection::Whole);
        assert_eq!(select(None, Some("\"other\"")), part);
        assert_eq!(
            select(None, Some("\"x\", W/\"abc\"")),
            Selection::NotModified
        );
        assert_eq!(select(None, Some("*")), Selection::NotModified);
    }

    #[test]
    fn downloads_have_names_that_are_safe_in_a_header() {
        let check = |name: &str, expected: &str| assert_eq!(disposition(name), expected);
        check(
            "a b.jsonl",
            "attachment; filename=\"a b.jsonl\"; filename*=UTF-8''a%20b.jsonl",
        );
        check(
            "x\r\nset-cookie: \"y\"",
            "attachment; filename=\"x__set-cookie_ _y_\"; filename*=UTF-8''x%0D%0Aset-cookie%3A%20%22y%22",
        );
        check(
            "../../etc/passwd",
            "attachment; filename=\"passwd\"; filename*=UTF-8''passwd",
        );
        check(
            "é🌙.jsonl",
            "attachment; filename=\"__.jsonl\"; filename*=UTF-8''%C3%A9%F0%9F%8C%99.jsonl",
        );
        check("..", "attachment; filename=\"file\"; filename*=UTF-8''file");
        let long = disposition(&format!("{}.jsonl", "🌙".repeat(5_000)));
        assert!(long.len() < 1_000 && long.ends_with(".jsonl"), "{long}");
    }
}

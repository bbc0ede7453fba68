use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Owned {
    Whole(Vec<u8>),
    TooLong(u64),
}

/// Splits `chunks` and returns the lines with their numbers.
fn split<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<(u64, Owned)> {
    let mut lines = Vec::new();
    let mut sink = |LineNo(no): LineNo, raw: RawLine<'_>| {
        let owned = match raw {
            RawLine::Whole(bytes) => Owned::Whole(bytes.to_vec()),
            RawLine::TooLong { bytes } => Owned::TooLong(bytes),
        };
        lines.push((no, owned));
    };
    let mut splitter = LineSplitter::new();
    for chunk in chunks {
        splitter.push(chunk, &mut sink);
    }
    splitter.finish(sink);
    lines
}

fn check(file: &[u8], lines: &[&[u8]]) {
    let want: Vec<_> = (1..)
        .zip(lines.iter().map(|line| Owned::Whole(line.to_vec())))
        .collect();
    assert_eq!(split([file]), want);
    assert_eq!(split(file.chunks(1)), want, "byte by byte");
}

#[test]
fn only_line_feeds_end_lines() {
    check(b"a\nb\n", &[b"a", b"b"]);
    check(
        "a\u{2028}b\u{85}c\rd\u{0b}e\n".as_bytes(),
        &["a\u{2028}b\u{85}c\rd\u{0b}e".as_bytes()],
    );
    check(b"a\r\nb\r\r\n\r\n", &[b"a", b"b\r", b""]);
}

#[test]
fn last_line_counts_when_it_has_no_line_feed() {
    check(b"a\nb", &[b"a", b"b"]);
    check(b"a\n\n", &[b"a", b""]);
    check(b"", &[]);
    check(b"\n", &[b""]);
}

#[test]
fn one_byte_order_mark_is_skipped_at_the_start_alone() {
    check(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", &[b"a", b"\xef\xbb\xbfb"]);
    check(b"\xef\xbb\xbf\xef\xbb\xbfa", &[b"\xef\xbb\xbfa"]);
    check(b"\xef\xbb\xbf", &[b""]);
    check(b"\xef\xbb", &[b"\xef\xbb"]);
}

#[test]
fn longest_line_is_whole_and_one_more_byte_is_told_by_size() {
    for (mark, end) in [("", ""), ("\u{feff}", "\r"), ("\u{feff}", ""), ("", "\r")] {
        for (bytes, fits) in [
            (LINE_BYTES_MAX, true),
            (LINE_BYTES_MAX + 1, false),
            (3 * LINE_BYTES_MAX, false),
        ] {
            let file = format!("{mark}{}{end}\nb\n", "x".repeat(bytes));
            for chunk in [file.len(), 1 << 20, (1 << 20) - 1] {
                let lines = split(file.as_bytes().chunks(chunk));
                let first = match &lines[0].1 {
                    Owned::Whole(line) => (line.len(), true),
                    Owned::TooLong(bytes) => (usize::try_from(*bytes).unwrap(), false),
                };
                assert_eq!(first, (bytes, fits), "chunks of {chunk}");
                assert_eq!(lines[1..], [(2, Owned::Whole(b"b".to_vec()))]);
            }
        }
    }
}

#[test]
fn memory_stays_bounded_when_a_line_never_ends() {
    let mut splitter = LineSplitter::new();
    for _ in 0..64 {
        splitter.push(&[b'x'; 1 << 20], |_, _| {});
        assert!(splitter.carry.capacity() <= 2 * CARRY_BYTES_MAX);
    }
    let mut seen = None;
    splitter
        .finish(|no, raw| seen = Some((no, matches!(raw, RawLine::TooLong { bytes: 67_108_864 }))));
    assert_eq!(seen, Some((LineNo(1), true)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn chunks_do_not_matter(
        file in prop::collection::vec(prop::sample::select(&b"a\n\r\xef\xbb\xbf\"{"[..]), 0..64),
        cuts in prop::collection::vec(1_usize..9, 1..64),
    ) {
        let mut rest = &file[..];
        let mut chunks = Vec::new();
        for cut in cuts.iter().cycle().take(64) {
            let (chunk, after) = rest.split_at((*cut).min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        prop_assert_eq!(split(chunks), split([&file[..]]));
    }
}

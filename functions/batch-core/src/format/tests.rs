use expect_test::expect;
use proptest::prelude::*;

use super::index::{IndexEntry, encode_entry};
use super::segment::{LineResult, encode_result};
use super::shard::{ShardLine, encode_line};
use super::*;
use crate::batch::TokenCounts;
use crate::id::LineNo;

fn shard_of(lines: &[(u64, u64, Vec<u8>)]) -> Vec<u8> {
    let mut blob = Vec::new();
    for (line, estimated_tokens, raw) in lines {
        encode_line(&mut blob, LineNo(*line), *estimated_tokens, raw);
    }
    blob
}

#[test]
fn blobs_are_readable() {
    let mut index = Vec::new();
    encode_entry(&mut index, LineNo(3), r#""a\n""#);
    let mut segment = Vec::new();
    let tokens = TokenCounts {
        input: 8,
        cached: 4,
        output: 2,
    };
    encode_result(
        &mut segment,
        &LineResult {
            line: LineNo(3),
            ok: true,
            tokens,
            record: b"{}",
        },
    );
    let blobs = [
        shard_of(&[(3, 40, b"{\"a\":1}".to_vec()), (9, 1, Vec::new())]),
        index,
        segment,
    ];
    expect![[r#"
        nightshift shard 1
        3 40 7
        {"a":1}
        9 1 0

        nightshift index 1
        3 5
        "a\n"
        nightshift segment 1
        3 1 8 4 2 2
        {}
    "#]]
    .assert_eq(&blobs.map(|blob| String::from_utf8(blob).unwrap()).concat());
}

/// Reads a blob as a shard and shows its first fault.
fn check(blob: &[u8], fault: &str) {
    let faults: Vec<_> = shard::decode(blob)
        .filter_map(Result::err)
        .map(|error| error.to_string())
        .collect();
    assert_eq!(
        faults,
        if fault.is_empty() {
            vec![]
        } else {
            vec![fault]
        },
        "{}",
        blob.escape_ascii()
    );
}

#[test]
fn damage_is_named_once() {
    let good = b"nightshift shard 1\n3 40 2\n{}\n";
    check(good, "");
    check(b"", "");
    check(b"nightshift shard 1\n", "");
    check(
        b"nightshift index 1\n3 2\n{}\n",
        "blob does not start with 'nightshift shard 1'",
    );
    check(
        b"nightshift shard 12\n",
        "blob does not start with 'nightshift shard 1'",
    );
    check(
        &good[..good.len() - 1],
        "record at byte 19 needs 2 bytes, 2 are left",
    );
    check(&good[..22], "record header at byte 19 is malformed");
    for head in [
        "3 40",
        "3 40 2 1",
        "3 -40 2",
        "3  40 2",
        "3 40 x",
        "3 40 +2",
        " 3 40 2",
        "3 40 2 ",
        "3 40 99999999999999999999",
    ] {
        let blob = format!("nightshift shard 1\n{head}\n{{}}\n");
        check(blob.as_bytes(), "record header at byte 19 is malformed");
    }
    let huge = "nightshift shard 1\n3 40 18446744073709551615\n{}\n";
    check(
        huge.as_bytes(),
        "record at byte 19 needs 18446744073709551615 bytes, 3 are left",
    );
    check(
        b"nightshift shard 1\n3 40 1\n{}\n",
        "record header at byte 27 is malformed",
    );
    check(
        &[b"nightshift shard 1\n", &[b'1'; 1_000][..]].concat(),
        "record header at byte 19 is malformed",
    );
}

#[test]
fn index_entries_are_utf8() {
    let entries: Vec<_> = index::decode(b"nightshift index 1\n3 1\n\xff\n").collect();
    assert_eq!(entries, [Err(FormatError::Header { at: 23 })]);
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        lines in prop::collection::vec((any::<u64>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..20)), 0..8),
        ok in any::<bool>(),
        counts in any::<[u64; 3]>(),
    ) {
        let blob = shard_of(&lines);
        let decoded: Vec<_> = shard::decode(&blob).map(Result::unwrap).collect();
        let want = |(line, estimated_tokens, raw): &'_ (u64, u64, Vec<u8>)| (LineNo(*line), *estimated_tokens, raw.clone());
        let got = |line: &ShardLine<'_>| (line.line, line.estimated_tokens, line.raw.to_vec());
        prop_assert_eq!(decoded.iter().map(got).collect::<Vec<_>>(), lines.iter().map(want).collect::<Vec<_>>());

        let tokens = TokenCounts { input: counts[0], cached: counts[1], output: counts[2] };
        let results: Vec<_> = lines.iter().map(|(line, _, record)| LineResult { line: LineNo(*line), ok, tokens, record }).collect();
        let mut blob = Vec::new();
        results.iter().for_each(|result| encode_result(&mut blob, result));
        prop_assert_eq!(segment::decode(&blob).map(Result::unwrap).collect::<Vec<_>>(), results);

        let ids: Vec<_> = lines.iter().map(|(line, _, raw)| (LineNo(*line), String::from_utf8_lossy(raw).into_owned())).collect();
        let mut blob = Vec::new();
        ids.iter().for_each(|(line, id)| encode_entry(&mut blob, *line, id));
        let entries = ids.iter().map(|(line, id)| IndexEntry { line: *line, custom_id_json: id });
        prop_assert_eq!(index::decode(&blob).map(Result::unwrap).collect::<Vec<_>>(), entries.collect::<Vec<_>>());
    }

    #[test]
    fn damaged_blobs_do_no_harm(
        mut blob in prop::collection::vec((0_u64..9, 0_u64..9, prop::collection::vec(any::<u8>(), 0..6)), 0..4).prop_map(|lines| shard_of(&lines)),
        at in 0_usize..80,
        bytes in prop::collection::vec(prop::sample::select(&b"0139 \n\xff{"[..]), 0..6),
        cut in 0_usize..6,
    ) {
        let start = at.min(blob.len());
        let end = (start + cut).min(blob.len());
        blob.splice(start..end, bytes);
        let records: Vec<_> = shard::decode(&blob).collect();
        let faults = records.iter().filter(|record| record.is_err()).count();
        prop_assert!(faults == 0 || (faults == 1 && records.last().unwrap().is_err()));
        prop_assert!(index::decode(&blob).count() + segment::decode(&blob).count() <= 2 + 2 * blob.len());
    }
}

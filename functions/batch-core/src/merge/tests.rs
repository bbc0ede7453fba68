use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::batch::Endpoint;
use crate::catalog::{Catalog, Engine, Model, Price, Source};
use crate::format::segment::LineResult;
use crate::format::{segment, shard};
use crate::line::check::Checker;
use crate::line::split::{LineSplitter, RawLine};
use crate::shard_plan::TimeRule;
use crate::time::UnixMs;
use crate::window::Window;

fn batch() -> BatchId {
    BatchId::new(UnixMs(1), [7; 16])
}

fn catalog() -> Catalog {
    let model = |id: &str| Model {
        id: id.to_owned(),
        aliases: Vec::new(),
        engine: Engine::Native(Source::Path("model".to_owned())),
        context_tokens: None,
        endpoints: vec![Endpoint::ChatCompletions],
        price: Price {
            input_per_million: 1.0,
            output_per_million: 1.0,
        },
        owned_by: None,
        tokens_per_s: None,
    };
    Catalog::new(vec![model("m0"), model("m1")]).unwrap()
}

/// A window over a file of one line for each `(model, prompt)`, some blank lines between them.
fn window(lines: &[(usize, String)]) -> Window {
    let mut file = String::new();
    for (number, (model, prompt)) in lines.iter().enumerate() {
        let prompt = serde_json::to_string(prompt).unwrap();
        file += &format!(
            "{{\"custom_id\":\"id-{number}\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\
             \"body\":{{\"model\":\"m{model}\",\"messages\":[{prompt}]}}}}\n"
        );
        file += if number.is_multiple_of(3) { " \n" } else { "" };
    }
    let catalog = catalog();
    let mut checker = Checker::new(Endpoint::ChatCompletions, &catalog, 1_000, [1; 16]);
    let mut window = Window::new();
    let mut splitter = LineSplitter::new();
    splitter.push(file.as_bytes(), |no, raw| {
        let RawLine::Whole(bytes) = raw else {
            panic!("no line is that long")
        };
        if let Some(line) = checker.check(no, raw) {
            assert!(window.takes(bytes.len()));
            window.push(no, bytes, &line, u16::from(line.model == "m1"));
        }
    });
    assert_eq!(checker.finish().unwrap(), lines.len() as u64);
    window
}

/// A result for a line: every third fails.
fn result(line: LineNo, custom_id_json: &str) -> (LineNo, bool, Vec<u8>) {
    let ok = !line.0.is_multiple_of(3);
    let body = format!("{{\"line\":{}}}", line.0);
    let record = output::answered(
        batch(),
        line,
        custom_id_json,
        "req_1",
        if ok { 200 } else { 400 },
        &body,
    );
    (line, ok, record)
}

fn encode(results: &[(LineNo, bool, Vec<u8>)]) -> Vec<u8> {
    let tokens = TokenCounts {
        input: 5,
        cached: 1,
        output: 2,
    };
    let mut blob = Vec::new();
    for (line, ok, record) in results {
        segment::encode_result(
            &mut blob,
            &LineResult {
                line: *line,
                ok: *ok,
                tokens,
                record,
            },
        );
    }
    blob
}

/// Runs every shard of a window and returns its results in the order of the shards.
fn run(window: &Window) -> Vec<(LineNo, bool, Vec<u8>)> {
    let mut results = Vec::new();
    for draft in window.cut(|_| TimeRule {
        tokens_max: Some(600),
        bytes_min: 0,
    }) {
        for line in shard::decode(&window.encode(&draft)) {
            let line = line.unwrap();
            let request = crate::line::open(line.raw).unwrap();
            results.push(result(line.line, request.custom_id_json));
        }
    }
    results
}

/// The output file and the error file of a window.
fn files(merged: &MergedWindow<'_>) -> [Vec<u8>; 2] {
    let file = |ok| {
        let records = merged.records().filter(|record| record.ok == ok);
        records.fold(Vec::new(), |mut file, record| {
            file.extend_from_slice(&record.text);
            file.push(b'\n');
            file
        })
    };
    [file(true), file(false)]
}

/// The custom_ids of a file's records, after checking that each is a line of its own.
fn ids(file: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(file).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    let id = |record: &str| {
        serde_json::from_str::<Value>(record).unwrap()["custom_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    text.lines().map(id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Cutting a window, running its shards in any order and pieces, and merging gives the input's order.
    #[test]
    fn merge_undoes_the_cut(
        lines in prop::collection::vec((0_usize..2, "[ab]{0,3}"), 1..30),
        shuffle in prop::collection::vec(any::<prop::sample::Index>(), 30),
        pieces in 1_usize..6,
        unexecuted in 0_usize..4,
    ) {
        let window = window(&lines);
        let mut results = run(&window);
        for (at, other) in (0..results.len()).zip(shuffle) {
            let other = other.index(results.len());
            results.swap(at, other);
        }
        results.truncate(results.len().saturating_sub(unexecuted));
        let segments: Vec<_> = results.chunks(results.len().div_ceil(pieces).max(1)).map(encode).collect();
        let segments: Vec<&[u8]> = segments.iter().map(Vec::as_slice).chain([&b""[..]]).collect();

        let merged = merge_window(batch(), window.index(), &segments, Some(Stop::Expired)).unwrap();
        let [good, bad] = files(&merged).map(|file| ids(&file));
        let order = |ids: &[String]| ids.iter().map(|id| id[3..].parse::<usize>().unwrap()).collect::<Vec<_>>();
        prop_assert!(order(&good).is_sorted() && order(&bad).is_sorted());
        let mut all = [order(&good), order(&bad)].concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..lines.len()).collect::<Vec<_>>());
        prop_assert_eq!((good.len() as u64, bad.len() as u64), (merged.completed, merged.failed));
        prop_assert_eq!(merged.unexecuted, (lines.len() - results.len()) as u64);
        prop_assert_eq!(merged.tokens.input, 5 * results.len() as u64);
        prop_assert_eq!(merged.completed, results.iter().filter(|(_, ok, _)| *ok).count() as u64);
        let whole = merge_window(batch(), window.index(), &segments, None);
        prop_assert_eq!(whole.is_ok(), results.len() == lines.len());
    }
}

/// Three lines (1, 3 and 4: a blank one follows the first) with what `change` makes of their results.
fn check(change: impl Fn(&mut Vec<(LineNo, bool, Vec<u8>)>), want: MergeError) {
    let window = window(&[
        (0, "a".to_owned()),
        (0, "b".to_owned()),
        (0, "c".to_owned()),
    ]);
    let mut results = run(&window);
    change(&mut results);
    let segments: Vec<_> = results.chunks(1).map(encode).collect();
    let segments: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
    assert_eq!(
        merge_window(batch(), window.index(), &segments, None),
        Err(want)
    );
}

#[test]
fn contradictions_are_found() {
    check(
        |results| results.truncate(2),
        MergeError::Missing(LineNo(4)),
    );
    check(
        |results| results[2].0 = LineNo(3),
        MergeError::Twice(LineNo(3)),
    );
    check(
        |results| results.push(results[0].clone()),
        MergeError::Twice(LineNo(1)),
    );
    check(
        |results| results.push(result(LineNo(2), "\"x\"")),
        MergeError::Stray(LineNo(2)),
    );
    check(
        |results| results.push(result(LineNo(9), "\"x\"")),
        MergeError::Stray(LineNo(9)),
    );
    check(
        |results| results[1] = result(LineNo(3), "\"id-2\""),
        MergeError::WrongId(LineNo(3)),
    );
    check(
        |results| results[1].2 = results[0].2.clone(),
        MergeError::WrongId(LineNo(3)),
    );
    check(
        |results| results[1].2 = Vec::new(),
        MergeError::WrongId(LineNo(3)),
    );
}

#[test]
fn damaged_blobs_are_refused() {
    let window = window(&[(0, "a".to_owned())]);
    let damaged = Err(MergeError::Format(FormatError::WrongKind {
        expected: "nightshift segment 1",
    }));
    assert_eq!(
        merge_window(batch(), window.index(), &[b"x"], None),
        damaged
    );
    let entry = |no| {
        let mut index = Vec::new();
        index::encode_entry(&mut index, LineNo(no), "\"a\"");
        index
    };
    let twice = [&entry(5)[..], &entry(5)[b"nightshift index 1\n".len()..]].concat();
    let merged = merge_window(batch(), &twice, &[], Some(Stop::Cancelled));
    assert_eq!(merged, Err(MergeError::IndexOrder(LineNo(5))));
}

#[test]
fn stopped_lines_say_why() {
    let window = window(&[(0, "a".to_owned())]);
    for (stop, code) in [
        (Stop::Cancelled, "batch_cancelled"),
        (Stop::Expired, "batch_expired"),
    ] {
        let merged = merge_window(batch(), window.index(), &[], Some(stop)).unwrap();
        let [output, errors] = files(&merged);
        let record: Value = serde_json::from_slice(&errors).unwrap();
        assert_eq!(
            (&record["error"]["code"], &record["response"]),
            (&Value::from(code), &Value::Null)
        );
        assert_eq!((merged.failed, merged.unexecuted, output.len()), (1, 1, 0));
    }
}

//! Whole files: every wire case, duplicates and the list of errors.

use std::fmt::Write;
use std::path::Path;

use expect_test::expect_file;
use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;

use super::check::Checker;
use super::duplicates::IdSet;
use super::problem::Problems;
use super::split::{LineSplitter, RawLine};
use super::{Parsed, open, parse};
use crate::batch::{Endpoint, ValidationError};
use crate::catalog::{Catalog, Engine, Model, Price, Source};
use crate::id::LineNo;
use crate::wire::Sniff;

const MODEL: &str = "smollm2-135m-instruct";

fn catalog() -> Catalog {
    let model = Model {
        id: MODEL.to_owned(),
        aliases: vec!["HuggingFaceTB/SmolLM2-135M-Instruct".to_owned()],
        engine: Engine::Native(Source::Path("model".to_owned())),
        context_tokens: None,
        endpoints: vec![
            Endpoint::ChatCompletions,
            Endpoint::Completions,
            Endpoint::Responses,
        ],
        price: Price {
            input_per_million: 1.0,
            output_per_million: 1.0,
        },
        owned_by: None,
        tokens_per_s: None,
    };
    Catalog::new(vec![model]).unwrap()
}

/// Checks a file and returns the ids of its sound lines as written, and its verdict.
fn verdict(
    file: &[u8],
    endpoint: Endpoint,
    lines_max: u64,
) -> (Vec<String>, Result<u64, Vec<ValidationError>>) {
    let catalog = catalog();
    let mut checker = Checker::new(endpoint, &catalog, lines_max, [7; 16]);
    let mut ids = Vec::new();
    let mut splitter = LineSplitter::new();
    let mut sink = |no, raw: RawLine<'_>| {
        ids.extend(
            checker
                .check(no, raw)
                .map(|line| line.custom_id_json.to_owned()),
        );
    };
    splitter.push(file, &mut sink);
    splitter.finish(&mut sink);
    (ids, checker.finish())
}

#[test]
fn every_wire_case_gets_its_verdict() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/wire");
    let cases: Value =
        serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let mut table = String::new();
    for (name, case) in cases.as_object().unwrap() {
        let file = std::fs::read(folder.join(format!("{name}.jsonl"))).unwrap();
        writeln!(table, "{name}").unwrap();
        let mut sniff = Sniff::default();
        sniff.push(&file);
        let start = sniff.finish();
        assert_eq!(start.is_err(), case["upload"] == 400, "{name}");
        if let Err(finding) = start {
            writeln!(table, "  refused at upload: {finding:?}").unwrap();
            continue;
        }
        let endpoint = Endpoint::ALL
            .into_iter()
            .find(|endpoint| case["endpoint"] == endpoint.path())
            .unwrap();
        let (_, verdict) = verdict(&file, endpoint, 50_000);
        match &verdict {
            Ok(requests) => {
                let total = case
                    .get("total")
                    .or_else(|| case.get("counts")?.get("total"));
                assert!(total.is_none_or(|total| total == requests), "{name}");
                assert_ne!(case["status"], "failed", "{name}");
                writeln!(table, "  {requests} requests").unwrap();
            }
            Err(errors) => {
                assert_eq!(case["status"], "failed", "{name}");
                let told: Vec<Value> = errors.iter().map(told).collect();
                assert!(
                    case.get("errors")
                        .is_none_or(|want| *want == Value::from(told)),
                    "{name}"
                );
                assert!(
                    case.get("errors_len")
                        .is_none_or(|want| *want == errors.len()),
                    "{name}"
                );
                let last = &errors.last().unwrap().code;
                assert!(
                    case.get("last_error_code").is_none_or(|want| want == last),
                    "{name}"
                );
                // The first and the last few show the messages; the count is checked above.
                for error in errors
                    .iter()
                    .take(5)
                    .chain(errors.iter().skip(5.max(errors.len() - 1)))
                {
                    let line = error
                        .line
                        .map_or_else(|| "-".to_owned(), |line| line.0.to_string());
                    let param = error.param.as_deref().unwrap_or("-");
                    writeln!(
                        table,
                        "  {} line {line} param {param}: {}",
                        error.code, error.message
                    )
                    .unwrap();
                }
            }
        }
    }
    expect_file!["../../golden/wire-cases.txt"].assert_eq(&table);
}

/// Lines that mutation found, one for each way through the parser.
#[test]
fn found_lines_are_judged_as_an_independent_parser_judges_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/lines");
    let catalog = catalog();
    let mut lines = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let line = std::fs::read(&path).unwrap();
        let parsed = parse(&line, LineNo(1), Endpoint::ChatCompletions, &catalog);
        let text = std::str::from_utf8(&line).ok();
        let json = text.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
        match parsed {
            Parsed::Blank => assert!(text.is_some_and(|text| text.trim().is_empty()), "{path:?}"),
            Parsed::Good(good) => {
                assert!(json.is_some(), "{path:?}");
                assert_eq!(open(&line).map(|request| request.body), Some(good.body));
            }
            Parsed::Bad { errors, .. } => {
                let refused = errors.iter().any(|error| error.code == "invalid_json_line");
                let repeats = errors
                    .iter()
                    .any(|error| error.message.contains("more than once"));
                let object = json.is_some_and(|json| json.get().starts_with('{'));
                assert_eq!(refused, !object || repeats, "{path:?}");
            }
        }
        lines += 1;
    }
    assert!(lines > 20, "{lines}");
}

/// An error in the form of the cases.
fn told(error: &ValidationError) -> Value {
    serde_json::json!({ "code": error.code, "line": error.line, "param": error.param })
}

fn line(custom_id: &str) -> String {
    format!(
        "{{\"custom_id\":{custom_id},\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\
         \"body\":{{\"model\":\"{MODEL}\",\"messages\":[]}}}}\n"
    )
}

/// Checks a file of at most three requests; `want` are codes and lines, none for a sound file.
fn check(file: impl AsRef<[u8]>, want: &[(&str, Option<u64>)]) {
    let (_, verdict) = verdict(file.as_ref(), Endpoint::ChatCompletions, 3);
    let errors: Vec<_> = verdict.err().unwrap_or_default();
    let told: Vec<_> = errors
        .iter()
        .map(|error| (error.code.as_str(), error.line.map(|line| line.0)))
        .collect();
    assert_eq!(told, want);
}

#[test]
fn duplicates_are_found_after_unescaping() {
    check(
        line(r#""a""#) + "\n" + &line(r#""\u0061""#),
        &[("duplicate_custom_id", Some(3))],
    );
    check(line(r#""a""#) + &line(r#"" a""#) + &line(r#""A""#), &[]);
    check(
        line(r#""\ud83d""#) + &line(r#""\ud83d""#),
        &[("duplicate_custom_id", Some(2))],
    );
    check(line(r#""\ud83d""#) + &line(r#""\ufffd""#), &[]);
}

#[test]
fn duplicate_is_found_on_a_line_with_another_error() {
    let bad = line(r#""a""#).replace("POST", "GET");
    check(
        line(r#""a""#) + &bad,
        &[
            ("duplicate_custom_id", Some(2)),
            ("invalid_method", Some(2)),
        ],
    );
    check(
        bad + &line(r#""a""#),
        &[
            ("invalid_method", Some(1)),
            ("duplicate_custom_id", Some(2)),
        ],
    );
}

#[test]
fn file_without_requests_is_empty() {
    check("", &[("empty_file", None)]);
    check("\u{feff}\r\n \t\n\n", &[("empty_file", None)]);
}

#[test]
fn requests_beyond_the_limit_fail_the_file() {
    let lines = |count: usize| {
        (0..count)
            .map(|n| line(&format!("\"{n}\"")))
            .collect::<String>()
    };
    check(lines(3), &[]);
    check(lines(4), &[("too_many_tasks", None)]);
}

#[test]
fn other_lines_are_judged_when_one_is_too_long() {
    let long = "x".repeat(crate::limits::LINE_BYTES_MAX + 1);
    check(
        line(r#""a""#) + &long + "\n" + &line(r#""a""#),
        &[("line_too_long", Some(2)), ("duplicate_custom_id", Some(3))],
    );
}

#[test]
fn errors_beyond_the_first_hundred_are_counted() {
    let mut problems = Problems::default();
    for no in 1..=100 {
        problems.push(super::problem::invalid_json(LineNo(no), ""));
    }
    assert_eq!(problems.clone().into_errors().len(), 100);
    problems.push(super::problem::invalid_json(LineNo(101), ""));
    problems.push(super::problem::invalid_json(LineNo(102), ""));
    assert_eq!(problems.total(), 102);
    let errors = problems.into_errors();
    let last = errors.last().unwrap();
    assert_eq!(
        (errors.len(), last.code.as_str(), last.line),
        (101, "too_many_errors", None)
    );
    assert!(last.message.contains("2 more"), "{}", last.message);
}

proptest! {
    #[test]
    fn set_of_ids_is_a_set(ids in prop::collection::vec("[ab]{0,3}", 0..40), key in any::<[u8; 16]>()) {
        let mut set = IdSet::new(key);
        let mut model = std::collections::HashSet::new();
        for id in &ids {
            prop_assert_eq!(set.insert(id.as_bytes()), model.insert(id));
        }
    }
}

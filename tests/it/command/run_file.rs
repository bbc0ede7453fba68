//! `nightshift run`: a file without the service.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use system_tests::catalog::{self, DEFAULT_MODEL};
use system_tests::client::chat_line;
use system_tests::command::{nightshift, run};
use system_tests::environment;
use system_tests::service::{Options, Service};

use super::{Bench, LONG, comparable, custom_ids, ids, tiny_lines};

#[test]
fn run_writes_answers_in_input_order_and_an_error_file_only_if_there_are_errors() {
    let bench = Bench::new();
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(40)));
    let summary = run(&mut bench.run(&input)).summary();
    assert_eq!(
        (&summary["lines"], &summary["failed"]),
        (&json!(40), &json!(0)),
        "{summary}"
    );
    for field in [
        "prompt_tokens",
        "completion_tokens",
        "wall_s",
        "tokens_per_s",
        "peak_rss_bytes",
    ] {
        assert!(
            summary[field].as_f64().is_some_and(|number| number > 0.0),
            "{field}: {summary}"
        );
    }
    assert_eq!(custom_ids(&bench.read("out.jsonl")), ids(40));
    let names = |bench: &Bench| -> Vec<String> {
        let entries = std::fs::read_dir(bench.folder.path())
            .expect("list the folder")
            .flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        names(&bench),
        ["config.toml", "in.jsonl", "out.jsonl"],
        "nothing else is left"
    );
    let mut lines = tiny_lines(10);
    lines[3] = catalog::line("line-3", "tiny", 4).replace("Say", &"too long ".repeat(200));
    lines[7] =
        catalog::line("line-7", "tiny", 4).replace("\"temperature\":0", "\"temperature\":99");
    let input = bench.write("in.jsonl", catalog::file(&lines));
    let summary = run(&mut bench.run(&input)).summary();
    assert_eq!(
        (&summary["lines"], &summary["failed"]),
        (&json!(10), &json!(2)),
        "{summary}"
    );
    assert_eq!(
        names(&bench),
        ["config.toml", "in.jsonl", "out.errors.jsonl", "out.jsonl"]
    );
    assert_eq!(
        custom_ids(&bench.read("out.errors.jsonl")),
        ["line-3", "line-7"]
    );
    let good: Vec<String> = ids(10)
        .into_iter()
        .filter(|id| id != "line-3" && id != "line-7")
        .collect();
    assert_eq!(custom_ids(&bench.read("out.jsonl")), good);
}

#[test]
fn run_refuses_a_bad_file_with_its_line_numbers_and_runs_nothing() {
    let bench = Bench::new();
    let mut lines = tiny_lines(6);
    lines[1] = "{not json".to_owned();
    lines[2] = String::new();
    lines[4] = lines[3].clone();
    lines[5] = catalog::line("line-5", "gpt-9", 4);
    let input = bench.write("in.jsonl", catalog::file(&lines));
    let ended = run(&mut bench.run(&input));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let said = ended.last_words();
    for word in [
        "in.jsonl",
        "line 2: ",
        "line 5: ",
        "line 6: ",
        "gpt-9",
        "duplicate_custom_id",
        "invalid_json_line",
    ] {
        assert!(said.contains(word), "'{word}' is not in: {said}");
    }
    assert!(
        !said.contains("line 3: "),
        "a blank line is no error: {said}"
    );
    assert!(!bench.path("out.jsonl").exists());
    let empty = bench.write("empty.jsonl", "");
    run(&mut bench.run(&empty))
        .last_words()
        .contains("empty")
        .then_some(())
        .expect("it says that the file is empty");
    let mut same = nightshift(["run"]);
    run(same.arg(&input).arg("-o").arg(&input)).check_refusal(2, &["in.jsonl"]);
    run(&mut bench.run(&bench.path("absent.jsonl"))).check_refusal(1, &["absent.jsonl"]);
    let mut nowhere = nightshift(["run"]);
    run(nowhere
        .arg(&input)
        .arg("-o")
        .arg(bench.path("no/out.jsonl")))
    .check_refusal(2, &["no"]);
}

/// Reports 67, 109.
#[test]
fn run_goes_on_after_a_kill_and_ends_with_the_same_answers() {
    let Some(model) = environment::model() else {
        return;
    };
    let bench = Bench::new();
    bench.write("config.toml", catalog::entry(DEFAULT_MODEL, &model));
    let lines: Vec<String> = ids(60)
        .iter()
        .map(|id| catalog::line(id, DEFAULT_MODEL, 6))
        .collect();
    let input = bench.write("in.jsonl", catalog::file(&lines));
    run(&mut bench.run(&input)).summary();
    let expected = comparable(&bench.read("out.jsonl"));
    std::fs::remove_file(bench.path("out.jsonl")).expect("remove the output");

    let journal = bench.path("out.resume.jsonl");
    let mut command = bench.run(&input);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start it");
    let began = Instant::now();
    // A header and some results.
    while std::fs::metadata(&journal).map_or(0, |metadata| metadata.len()) < 6_000 {
        assert!(began.elapsed() < LONG, "it writes no results");
        assert!(
            child.try_wait().expect("look at it").is_none(),
            "it ended before it could be killed"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("kill it");
    child.wait().expect("wait for it");
    assert!(!bench.path("out.jsonl").exists(), "no half output appears");
    // A kill may tear the last result.
    let torn = std::fs::read(&journal).expect("read the journal");
    std::fs::write(&journal, &torn[..torn.len() - 7]).expect("tear the journal");

    let ended = run(&mut bench.run(&input));
    let summary = ended.summary();
    assert!(
        ended.stderr.contains("done already"),
        "it says how many lines it skips: {}",
        ended.stderr
    );
    assert_eq!(summary["lines"], 60, "{summary}");
    assert_eq!(comparable(&bench.read("out.jsonl")), expected);
    assert!(!journal.exists(), "the journal is gone");
}

#[test]
fn run_ends_with_130_when_interrupted_and_goes_on_later() {
    let bench = Bench::new();
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(20_000)));
    let mut command = bench.run(&input);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("start it");
    let began = Instant::now();
    while std::fs::metadata(bench.path("out.resume.jsonl")).map_or(0, |metadata| metadata.len())
        < 6_000
    {
        assert!(began.elapsed() < LONG, "it writes no results");
        assert!(
            child.try_wait().expect("look at it").is_none(),
            "it ended too early"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    run(&mut bench.run(&input)).check_refusal(2, &["out.resume.jsonl", "runs already"]);
    kill_process(Pid::from_child(&child), Signal::INT).expect("interrupt it");
    let ended = child.wait_with_output().expect("wait for it");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("run the same command again"), "{said}");
    assert!(!bench.path("out.jsonl").exists(), "no half output appears");
    let ended = run(&mut bench.run(&input));
    assert_eq!(ended.summary()["lines"], 20_000);
    assert!(ended.stderr.contains("done already"), "{}", ended.stderr);
    assert_eq!(custom_ids(&bench.read("out.jsonl")), ids(20_000));
}

#[test]
fn run_refuses_to_go_on_with_another_input() {
    let bench = Bench::new();
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(5)));
    let journal =
        json!({"fingerprint": "another", "run": "batch_01a22e5de96b7342a77e9a6de0d4eabd"});
    bench.write("out.resume.jsonl", format!("{journal}\n"));
    run(&mut bench.run(&input)).check_refusal(2, &["out.resume.jsonl", "remove it"]);
    bench.write("out.resume.jsonl", "something of the user's own\n");
    run(&mut bench.run(&input)).check_refusal(2, &["out.resume.jsonl"]);
    assert_eq!(
        bench.read("out.resume.jsonl"),
        "something of the user's own\n",
        "and leaves it as it is"
    );
}

/// Choices and token counts by custom id.
fn answers(records: &[Value]) -> BTreeMap<String, (Value, u64, u64)> {
    let answer = |record: &Value| {
        let body = &record["response"]["body"];
        let tokens = |name: &str| {
            body["usage"][name]
                .as_u64()
                .expect("an answer has its usage")
        };
        let id = record["custom_id"]
            .as_str()
            .expect("a record has its id")
            .to_owned();
        (
            id,
            (
                body["choices"].clone(),
                tokens("prompt_tokens"),
                tokens("completion_tokens"),
            ),
        )
    };
    records.iter().map(answer).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn run_and_the_service_give_the_same_choices_and_token_counts() {
    let Some(model) = environment::model() else {
        return;
    };
    let bench = Bench::new();
    let config = catalog::entry(DEFAULT_MODEL, &model);
    bench.write("config.toml", &config);
    let prompts = [
        "Name a colour.",
        "Count to five.",
        "What is a fox?",
        "Write a rhyme.",
        "Why is the sky blue?",
    ];
    let mut lines: Vec<String> = prompts
        .iter()
        .enumerate()
        .map(|(n, prompt)| chat_line(&format!("greedy-{n}"), prompt, 12))
        .collect();
    for (n, prompt) in prompts.iter().enumerate() {
        let body = json!({
            "model": DEFAULT_MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 12,
            "temperature": 1.3, "top_p": 0.9, "seed": 9_007_199_254_740_993_u64 + n as u64, "n": 2,
        });
        let id = format!("seeded-{n}");
        lines.push(
            json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body})
                .to_string(),
        );
    }
    let input = bench.write("in.jsonl", catalog::file(&lines));
    run(&mut bench.run(&input)).summary();
    let by_run = answers(&comparable(&bench.read("out.jsonl")));
    let service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    let client = service.client();
    let batch = client.submit(catalog::file(&lines)).await.expect("submit");
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    let results = client.results(&ended).await.expect("download the results");
    assert_eq!(by_run.len(), 10);
    assert_eq!(answers(&results.output), by_run);
}

/// A line without a maximum asks for the whole context, which once was an error where the cache is smaller.
#[test]
fn line_without_max_tokens_runs_when_the_cache_is_smaller_than_the_context() {
    let bench = Bench::new();
    let small = "[engine]\nkv_tokens = 48\n";
    bench.write(
        "config.toml",
        catalog::entry("tiny", &catalog::tiny_model()) + small,
    );
    let line = catalog::line("a", "tiny", 4).replace(r#""max_tokens":4,"#, "");
    assert!(!line.contains("max_tokens"));
    let input = bench.write("in.jsonl", catalog::file(&[line]));
    let summary = run(&mut bench.run(&input)).summary();
    assert_eq!(summary["failed"], 0, "{summary}");
}

//! Models that cannot be had: unknown ones, damaged ones, and no way to fetch one.

use std::path::Path;
use std::time::{Duration, Instant};

use system_tests::catalog::{self, DEFAULT_MODEL};
use system_tests::command::{nightshift, run};
use system_tests::environment;
use system_tests::proof::{self, Counts};
use system_tests::service::{Options, Service};

use super::{Bench, LONG, custom_ids, ids, tiny_lines};

#[test]
fn pull_says_what_to_install_when_there_is_no_python() {
    let bench = Bench::new();
    let mut command = nightshift(["models", "pull", DEFAULT_MODEL]);
    command
        .env("NIGHTSHIFT_MODELS", bench.path("models"))
        .env("NIGHTSHIFT_PYTHON", "/nonexistent");
    run(&mut command).check_refusal(1, &["/nonexistent", "install", "NIGHTSHIFT_PYTHON"]);
    let left: Vec<_> = std::fs::read_dir(bench.path("models"))
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    assert!(
        left.iter().all(|entry| entry.path().is_dir()),
        "nothing that looks like a model is left: {left:?}"
    );
}

#[test]
fn unknown_model_is_refused_with_the_known_ones() {
    let bench = Bench::new();
    run(&mut nightshift(["models", "pull", "gpt-9"])).check_refusal(2, &["gpt-9", DEFAULT_MODEL]);
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(1)));
    run(bench.run(&input).args(["--model", "gpt-9"])).check_refusal(2, &["gpt-9", "tiny"]);
}

#[test]
fn run_names_the_file_when_its_model_is_unreadable() {
    let bench = Bench::new();
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(1)));
    let cases: [(&str, &[u8]); 4] = [
        ("empty.gguf", b""),
        ("text.gguf", b"<html>404 not found</html>"),
        ("magic.gguf", b"GGUF"),
        (
            "hostile.gguf",
            b"GGUF\x03\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x7f",
        ),
    ];
    for (name, bytes) in cases {
        let model = bench.write(name, bytes);
        run(bench.run(&input).arg("--model").arg(&model)).check_refusal(1, &[name]);
        assert!(
            !bench.path("out.jsonl").exists(),
            "{name}: no output appears"
        );
        let _ = std::fs::remove_file(bench.path("out.resume.jsonl"));
    }
    std::fs::create_dir(bench.path("folder")).expect("make a folder");
    run(bench.run(&input).arg("--model").arg(bench.path("folder")))
        .check_refusal(1, &["folder", "config.json"]);
}

/// What a user does who named a broken file: the same command with another one.
#[test]
fn run_takes_another_model_when_no_line_was_done_on_the_first() {
    let bench = Bench::new();
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(3)));
    let broken = bench.write("broken.gguf", "GGUF");
    run(bench.run(&input).arg("--model").arg(&broken)).check_refusal(1, &["broken.gguf"]);
    run(bench.run(&input).args(["--model", "tiny"])).summary();
    assert_eq!(custom_ids(&bench.read("out.jsonl")), ids(3));
}

/// Writes the first bytes of the default model, as a broken download does.
fn half_downloaded(model: &Path, path: &Path, keep: impl Fn(usize) -> usize) {
    let bytes = std::fs::read(model).expect("read the model");
    std::fs::write(path, &bytes[..keep(bytes.len())]).expect("write a file");
}

#[test]
fn run_says_that_the_model_is_damaged_when_it_is_half_downloaded() {
    let Some(model) = environment::model() else {
        return;
    };
    let bench = Bench::new();
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(1)));
    let path = bench.path("half.gguf");
    for keep in [|_| 10_000, |bytes| bytes / 2, |bytes| bytes - 1] {
        half_downloaded(&model, &path, keep);
        run(bench.run(&input).arg("--model").arg(&path))
            .check_refusal(1, &["half.gguf", "damaged"]);
    }
}

/// A model that does not load must not take the others down, and the log must say which and why.
#[tokio::test(flavor = "multi_thread")]
async fn other_models_are_served_when_one_of_the_catalog_is_half_downloaded() {
    let Some(model) = environment::model() else {
        return;
    };
    let bench = Bench::new();
    let path = bench.path("half.gguf");
    half_downloaded(&model, &path, |bytes| bytes / 2);
    let config = catalog::entry("broken", &path) + &catalog::entry("tiny", &catalog::tiny_model());
    let service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    let client = service.client();
    let lines: Vec<String> = (0..4)
        .map(|n| catalog::line(&format!("line-{n}"), "broken", 4))
        .collect();
    let stuck = client.submit(catalog::file(&lines)).await.expect("submit");
    assert!(
        service.has_logged("half.gguf", 1, LONG).await,
        "the log names the file: {}",
        service.log_text()
    );
    let batch = client
        .submit(catalog::file(&tiny_lines(4)))
        .await
        .expect("submit");
    let ended = client.wait(&batch, Duration::from_secs(60)).await;
    let ended = ended.unwrap_or_else(|error| panic!("{error}\n{}", service.log_text()));
    assert_eq!(ended["status"], "completed", "{ended}");
    let first = client.batch(&stuck).await.expect("read the batch");
    if first["status"] == "in_progress" {
        let reason = &first["progress"]["waiting_reason"];
        assert!(reason.is_string(), "it says why nothing runs: {first}");
        assert_eq!(client.cancel(&stuck).await.expect("cancel").status, 200);
    }
    let first = client
        .wait(&stuck, Duration::from_secs(15))
        .await
        .expect("it can be ended");
    if Counts::of(&first).total > 0 {
        proof::complete(&client, &first, &ids(4)).await;
    }
}

/// Nothing runs then; the log says why, and batches wait with a reason.
#[tokio::test(flavor = "multi_thread")]
async fn batch_waits_with_a_reason_and_can_be_cancelled_when_the_only_model_is_half_downloaded() {
    let Some(model) = environment::model() else {
        return;
    };
    let bench = Bench::new();
    let path = bench.path("half.gguf");
    half_downloaded(&model, &path, |bytes| bytes - 1);
    let service = Service::start(Options {
        config: Some(catalog::entry("tiny", &path)),
        ..Options::default()
    });
    let client = service.client();
    let batch = client
        .submit(catalog::file(&tiny_lines(4)))
        .await
        .expect("submit");
    assert!(
        service.has_logged("half.gguf", 1, LONG).await,
        "the log names the file: {}",
        service.log_text()
    );
    let seen = loop {
        let seen = client.batch(&batch).await.expect("read it");
        if seen["status"] != "validating" {
            break seen;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    if seen["status"] == "in_progress" {
        // The worker that failed to load it may have said so since.
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let seen = client.batch(&batch).await.expect("read it");
            if seen["progress"]["waiting_reason"] == "no_worker" {
                break;
            }
            assert!(
                Instant::now() < until,
                "no worker can serve it, and it should say so: {seen}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(client.cancel(&batch).await.expect("cancel").status, 200);
    }
    let ended = client
        .wait(&batch, Duration::from_secs(15))
        .await
        .expect("it can be ended");
    if Counts::of(&ended).total > 0 {
        proof::complete(&client, &ended, &ids(4)).await;
    }
}

//! The command line: exit codes, last words, keys, stops, and `run` against the service.

mod broken_models;
mod deploy;
mod full_disk;
mod outlets;
mod run_file;
mod up;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use system_tests::catalog;
use system_tests::command::nightshift;

const LONG: Duration = Duration::from_secs(120);

/// A folder with a configuration whose only model is the tiny one.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self {
            folder: tempfile::tempdir().expect("make a temporary folder"),
        };
        bench.write(
            "config.toml",
            catalog::entry("tiny", &catalog::tiny_model()),
        );
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("write a file");
        path
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("read a file")
    }

    fn up(&self, data: &Path) -> Command {
        let mut command = nightshift(["up", "--listen", "127.0.0.1:0", "--json", "--config"]);
        command
            .arg(self.path("config.toml"))
            .arg("--data")
            .arg(data);
        command
    }

    /// `nightshift run IN -o out.jsonl`, with the tiny model's catalog.
    fn run(&self, input: &Path) -> Command {
        let mut command = nightshift(["run", "--json", "--config"]);
        command
            .arg(self.path("config.toml"))
            .arg(input)
            .arg("-o")
            .arg(self.path("out.jsonl"));
        command
    }
}

fn tiny_lines(count: usize) -> Vec<String> {
    (0..count)
        .map(|n| catalog::line(&format!("line-{n}"), "tiny", 4))
        .collect()
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("line-{n}")).collect()
}

/// Takes out what may differ between two runs: ids, times, and how much of a prompt was in the cache.
fn comparable(text: &str) -> Vec<Value> {
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a record is JSON"));
    lines
        .map(|mut record: Value| {
            for name in ["id", "request_id"] {
                record
                    .as_object_mut()
                    .expect("a record is an object")
                    .remove(name);
            }
            if let Some(response) = record["response"].as_object_mut() {
                response.remove("request_id");
                if let Some(body) = response["body"].as_object_mut() {
                    body.remove("id");
                    body.remove("created");
                    if let Some(usage) = body.get_mut("usage").and_then(Value::as_object_mut) {
                        usage.remove("prompt_tokens_details");
                    }
                }
            }
            record
        })
        .collect()
}

fn custom_ids(text: &str) -> Vec<String> {
    let id = |record: &Value| {
        record["custom_id"]
            .as_str()
            .expect("a record has its id")
            .to_owned()
    };
    comparable(text).iter().map(id).collect()
}

//! The rules of ARCHITECTURE.md that a machine can check.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Who may depend on whom. A crate that is not here fails the test.
const ALLOWED: &[(&str, &[&str])] = &[
    ("batch-core", &[]),
    ("batch-io", &["batch-core"]),
    ("api", &["batch-core", "batch-io", "function-runtime"]),
    ("assemble", &["batch-core", "batch-io", "function-runtime"]),
    (
        "authorizer",
        &["batch-core", "batch-io", "function-runtime"],
    ),
    ("validate", &["batch-core", "batch-io", "function-runtime"]),
    ("dispatch", &["batch-core", "batch-io", "function-runtime"]),
    ("finalize", &["batch-core", "batch-io", "function-runtime"]),
    ("reconcile", &["batch-core", "batch-io", "function-runtime"]),
    ("function-runtime", &["batch-core", "batch-io"]),
    ("inference", &[]),
    ("worker", &["batch-core", "batch-io", "inference"]),
    (
        "nightshift",
        &[
            "api",
            "assemble",
            "batch-core",
            "batch-io",
            "dispatch",
            "finalize",
            "inference",
            "reconcile",
            "validate",
            "worker",
        ],
    ),
    (
        "system-tests",
        &["batch-core", "batch-io", "inference", "worker"],
    ),
];

/// What the pure crates may not even see.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "batch-core",
        &[
            "tokio",
            "async-trait",
            "rusqlite",
            "reqwest",
            "axum",
            "hyper",
            "rand",
            "getrandom",
        ],
    ),
    (
        "inference",
        &[
            "tokio",
            "async-trait",
            "rusqlite",
            "reqwest",
            "axum",
            "hyper",
            "aws-config",
        ],
    ),
];

/// Lines without tests: beyond this a file is split.
const FILE_LINES_MAX: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests lie below the root")
        .to_path_buf()
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .expect("run cargo metadata");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    metadata["packages"]
        .as_array()
        .expect("it lists packages")
        .clone()
}

/// Dependencies by crate, those for tests left out.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let name = |value: &Value| {
        value["name"]
            .as_str()
            .expect("everything has a name")
            .to_owned()
    };
    packages()
        .iter()
        .map(|package| {
            let list = package["dependencies"]
                .as_array()
                .expect("a package lists its dependencies");
            (
                name(package),
                list.iter()
                    .filter(|one| one["kind"].is_null())
                    .map(name)
                    .collect(),
            )
        })
        .collect()
}

#[test]
fn crates_depend_only_along_the_allowed_arrows() {
    let dependencies = dependencies();
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    assert_eq!(
        dependencies.keys().map(String::as_str).collect::<Vec<_>>(),
        allowed.keys().copied().collect::<Vec<_>>(),
        "every crate has its arrows here"
    );
    for (name, list) in &dependencies {
        for other in list
            .iter()
            .filter(|other| dependencies.contains_key(*other))
        {
            assert!(
                allowed[name.as_str()].contains(&other.as_str()),
                "{name} must not depend on {other}"
            );
        }
    }
}

#[test]
fn pure_crates_see_no_runtime_no_network_and_no_database() {
    let dependencies = dependencies();
    for (name, forbidden) in FORBIDDEN {
        for other in &dependencies[*name] {
            assert!(
                !forbidden.contains(&other.as_str()),
                "{name} must not depend on {other}"
            );
        }
    }
}

#[test]
fn only_batch_io_names_aws() {
    for (name, list) in dependencies() {
        // With a hyphen: `aws_lambda_events` has the forms of events and calls nothing.
        for other in list.iter().filter(|other| other.starts_with("aws-")) {
            assert_eq!(name, "batch-io", "{name} must not depend on {other}");
        }
    }
}

/// Calls `visit` with the path and text of every Rust source file, tests left out.
fn each_source(visit: &mut dyn FnMut(&Path, &str)) {
    let mut folders: Vec<PathBuf> = ["functions", "gpu-worker", "localstack", "tests"]
        .iter()
        .map(|f| root().join(f))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("read a folder").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(
                    name.as_str(),
                    "target" | "node_modules" | "golden" | "data" | "tests" | "it" | "conformance"
                ) {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") && name != "tests.rs" {
                visit(
                    &path,
                    &std::fs::read_to_string(&path).expect("read a source file"),
                );
            }
        }
    }
}

#[test]
fn files_stay_short_enough_to_be_read_at_once() {
    let mut long = Vec::new();
    each_source(&mut |path, text| {
        let code = text
            .split("\n#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or(text);
        let lines = code.lines().count();
        if lines > FILE_LINES_MAX {
            long.push(format!("{}: {lines} lines", path.display()));
        }
    });
    assert!(long.is_empty(), "split these: {long:#?}");
}

#[test]
fn every_module_says_what_it_is() {
    let mut silent = Vec::new();
    each_source(&mut |path, text| {
        if !text.starts_with("//!") {
            silent.push(path.display().to_string());
        }
    });
    assert!(
        silent.is_empty(),
        "start these with a module comment: {silent:#?}"
    );
}

#[test]
fn nothing_is_left_to_do_in_comments() {
    let mut left = Vec::new();
    each_source(&mut |path, text| {
        for (index, line) in text.lines().enumerate() {
            // Spelt apart, so that this file does not find itself.
            let marks = [
                concat!("TO", "DO"),
                concat!("FIX", "ME"),
                concat!("todo", "!("),
                concat!("unimplemented", "!("),
            ];
            if marks.iter().any(|mark| line.contains(mark)) {
                left.push(format!("{}:{}", path.display(), index + 1));
            }
        }
    });
    assert!(left.is_empty(), "finish these: {left:#?}");
}

//! Where words and answers go when nobody reads them, or when the place is no plain file.

use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use system_tests::catalog;
use system_tests::command::{nightshift, run};

use super::{Bench, custom_ids, ids, tiny_lines};

/// Runs a command whose output nobody reads, as in `nightshift models | true`.
#[track_caller]
fn check_survives_a_closed_pipe(command: &mut Command) {
    let (reader, writer) = std::io::pipe().expect("make a pipe");
    drop(reader);
    let child = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn();
    let ended = child
        .expect("start it")
        .wait_with_output()
        .expect("wait for it");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!said.contains("panicked"), "{said}");
    // Success, a sentence, or the end by SIGPIPE that a shell expects.
    let fits = matches!(ended.status.code(), Some(0 | 1)) || ended.status.signal() == Some(13);
    assert!(fits, "{}: {said}", ended.status);
}

#[test]
fn nothing_panics_when_nobody_reads_the_output() {
    let bench = Bench::new();
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(3)));
    check_survives_a_closed_pipe(&mut nightshift(["models"]));
    check_survives_a_closed_pipe(&mut nightshift(["models", "--json"]));
    check_survives_a_closed_pipe(&mut bench.run(&input));
    assert_eq!(
        custom_ids(&bench.read("out.jsonl")),
        ids(3),
        "the answers are there all the same"
    );
}

#[test]
fn run_refuses_an_output_that_is_no_plain_file_and_leaves_it_as_it_is() {
    let bench = Bench::new();
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(3)));
    let pipe = bench.path("pipe");
    let made = Command::new("mkfifo")
        .arg(&pipe)
        .status()
        .expect("run mkfifo");
    assert!(made.success());
    for option in ["-o", "-e"] {
        let mut command = nightshift(["run", "--config"]);
        command
            .arg(bench.path("config.toml"))
            .arg(&input)
            .arg(option)
            .arg(&pipe);
        if option == "-e" {
            command.arg("-o").arg(bench.path("out.jsonl"));
        }
        run(&mut command).check_refusal(2, &["pipe"]);
        let kind = std::fs::symlink_metadata(&pipe)
            .expect("it is still there")
            .file_type();
        assert!(kind.is_fifo(), "{option}: it was replaced");
    }
}

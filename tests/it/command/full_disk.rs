//! What does not fit on the disk is refused, and nothing is lost.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use system_tests::catalog;
use system_tests::command::{nightshift, run};
use system_tests::proof::{self, Counts};
use system_tests::random::Chances;
use system_tests::service::{Options, Service};

use super::{Bench, LONG, custom_ids, ids, tiny_lines};

/// A small file system, where this user may mount one.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    #[expect(clippy::print_stderr, reason = "a skip must be seen")]
    fn mount(path: PathBuf, bytes: u64) -> Option<Self> {
        std::fs::create_dir(&path).expect("make a folder");
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(&path);
        let mounted = command
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            let message = "this user may not mount a small file system";
            let required = std::env::var_os("REQUIRE_MOUNT").is_some_and(|value| value == "1");
            assert!(!required, "REQUIRE_MOUNT=1, and {message}");
            eprintln!("SKIPPED: {message}");
        }
        mounted.then_some(Self { path })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What is left is a mount in a temporary folder; the test's own result matters more.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Runs the command where no file may grow over `kib`, as on a full disk.
fn with_small_files(command: &Command, kib: u64) -> Command {
    let mut shell = Command::new("sh");
    // The signal would end the process before it could say anything.
    shell.args([
        "-c",
        &format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", kib * 2),
        "sh",
    ]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
fn run_says_which_file_it_cannot_write_when_files_may_not_grow_and_goes_on_later() {
    let bench = Bench::new();
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(200)));
    run(&mut with_small_files(&bench.run(&input), 64))
        .check_refusal(1, &["out.resume.jsonl", "run again"]);
    assert!(!bench.path("out.jsonl").exists(), "no half output appears");
    run(&mut bench.run(&input)).summary();
    assert_eq!(custom_ids(&bench.read("out.jsonl")), ids(200));
}

#[test]
fn run_says_so_when_the_disk_is_full_and_goes_on_when_it_is_not() {
    let bench = Bench::new();
    let Some(disk) = SmallDisk::mount(bench.path("disk"), 100_000) else {
        return;
    };
    let input = bench.write("in.jsonl", catalog::file(&tiny_lines(400)));
    let output = disk.path.join("out.jsonl");
    let go = || {
        let mut command = nightshift(["run", "--json", "--config"]);
        command
            .arg(bench.path("config.toml"))
            .arg(&input)
            .arg("-o")
            .arg(&output);
        run(&mut command)
    };
    go().check_refusal(1, &["No space left", "out.resume.jsonl", "free some space"]);
    let grown = Command::new("mount")
        .args(["-o", "remount,size=4m"])
        .arg(&disk.path)
        .status()
        .expect("remount");
    assert!(grown.success());
    go().summary();
    assert_eq!(
        custom_ids(&std::fs::read_to_string(&output).expect("read the output")),
        ids(400)
    );
}

#[test]
fn up_says_so_when_the_disk_is_full_at_its_start() {
    let bench = Bench::new();
    let Some(disk) = SmallDisk::mount(bench.path("disk"), 16_384) else {
        return;
    };
    run(&mut bench.up(&disk.path.join("data"))).check_refusal(1, &["data", "space"]);
}

/// A service with the tiny model whose data lies on the disk.
fn service_on(disk: &SmallDisk) -> Service {
    Service::start(Options {
        config: Some(catalog::entry("tiny", &catalog::tiny_model())),
        data: Some(disk.path.join("data")),
        ..Options::default()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn service_refuses_what_does_not_fit_and_goes_on_when_the_disk_fills_up() {
    let bench = Bench::new();
    let Some(disk) = SmallDisk::mount(bench.path("disk"), 4 << 20) else {
        return;
    };
    let service = service_on(&disk);
    let client = service.client();
    let mut lines = tiny_lines(3);
    lines.push(catalog::line("line-3", "tiny", 4).replace("Say", &"filler ".repeat(1_000_000)));
    let refused = client
        .upload(catalog::file(&lines))
        .await
        .expect_err("it does not fit")
        .to_string();
    assert!(
        refused.contains("\"error\""),
        "an error in its envelope, not a cut connection: {refused}"
    );
    let batch = client
        .submit(catalog::file(&tiny_lines(3)))
        .await
        .expect("small things still fit");
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    assert_eq!(
        ended["status"],
        "completed",
        "{ended}\n{}",
        service.log_text()
    );
    proof::complete(&client, &ended, &ids(3)).await;
    assert!(
        !service.log_text().contains("panicked"),
        "{}",
        service.log_text()
    );
}

/// Report 69: trouble with the disk delays a batch, and turns no good result into an error.
#[tokio::test(flavor = "multi_thread")]
async fn batch_completes_when_the_disk_fills_up_under_it_and_is_freed_later() {
    let bench = Bench::new();
    let Some(disk) = SmallDisk::mount(bench.path("disk"), 24 << 20) else {
        return;
    };
    let service = service_on(&disk);
    let client = service.client();
    let mut chances = Chances::from_environment();
    let file = client
        .upload(catalog::file(&tiny_lines(3_000)))
        .await
        .expect("upload");
    for _ in 0..3 {
        let batch = client.create(&file).await.expect("create");
        tokio::time::sleep(chances.span_ms(700)).await;
        let ballast = disk.path.join("ballast");
        let filled = std::fs::write(&ballast, vec![1; 32 << 20]);
        assert!(filled.is_err(), "the disk should be full");
        let mut counts = Counts::default();
        for _ in 0..30 {
            counts.follow(&client.batch(&batch).await.expect("reads need no space"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        std::fs::remove_file(&ballast).expect("free the disk");
        let ended = client.wait(&batch, LONG).await;
        let ended = ended.unwrap_or_else(|error| panic!("{error}\n{}", service.log_text()));
        counts.follow(&ended);
        assert_eq!(ended["status"], "completed", "{ended}");
        let results = proof::complete(&client, &ended, &ids(3_000)).await;
        assert_eq!(results.errors.len(), 0, "{:?}", results.errors[0]);
    }
    assert!(
        !service.log_text().contains("panicked"),
        "{}",
        service.log_text()
    );
}

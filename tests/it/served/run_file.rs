//! `nightshift run` with a model that a server has.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use system_tests::catalog::{self, ids, requests};
use system_tests::command::{Ended, nightshift, run};
use system_tests::peer::{self, Act, Peer};

const LONG: Duration = Duration::from_secs(60);

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(config: &str, input: &[u8]) -> Self {
        let folder = tempfile::tempdir().expect("make a folder");
        let bench = Self { folder };
        std::fs::write(bench.path("config.toml"), config).expect("write");
        std::fs::write(bench.path("in.jsonl"), input).expect("write");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = nightshift(["run", "--json", "--config"]);
        command
            .arg(self.path("config.toml"))
            .arg(self.path("in.jsonl"));
        command.arg("-o").arg(self.path("out.jsonl"));
        command
    }

    async fn run(&self) -> Ended {
        let mut command = self.command();
        let ran = tokio::task::spawn_blocking(move || run(&mut command));
        ran.await.expect("it does not panic")
    }

    fn output(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("out.jsonl")).expect("read the output");
        let lines = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        lines.collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_asks_the_server_and_counts_its_tokens() {
    let peer = Peer::start(|_| Act::Answer).await;
    let bench = Bench::new(&peer.entry("big", ""), &requests("big", 50, 4));
    let summary = bench.run().await.summary();
    assert_eq!(
        [
            &summary["lines"],
            &summary["failed"],
            &summary["prompt_tokens"]
        ],
        [&json!(50), &json!(0), &json!(50 * peer::INPUT_TOKENS)],
        "{summary}"
    );
    let names: Vec<_> = bench
        .output()
        .iter()
        .map(|line| line["custom_id"].clone())
        .collect();
    assert_eq!(names, ids(50));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_goes_on_after_a_kill_and_sends_nothing_twice_that_was_answered() {
    const LINES: usize = 200;
    let peer = Peer::start(|_| Act::AnswerAfter(Duration::from_millis(50))).await;
    let config = peer.entry("big", "server.requests_max = 4");
    let bench = Bench::new(&config, &requests("big", LINES, 4));
    let mut command = bench.command();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("start it");
    while peer.calls().len() < LINES / 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.kill().expect("kill it");
    child.wait().expect("wait for it");
    let sent = peer.calls().len();
    let summary = bench.run().await.summary();
    assert_eq!(summary["failed"], 0, "{summary}");
    assert_eq!(bench.output().len(), LINES);
    // Those that were in flight at the kill, or whose answers were not in the journal yet.
    let again = peer.calls().len() - LINES;
    assert!(again <= 8, "{again} lines were sent again, after {sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_ends_with_a_clear_word_when_the_server_is_down_and_goes_on_when_it_is_back() {
    let peer = Peer::start(|call| match call.prompt().as_str() {
        "Say line-19." if call.nth == 1 => Act::AnswerAfter(LONG),
        _ => Act::Answer,
    })
    .await;
    let bench = Bench::new(&peer.entry("big", ""), &requests("big", 20, 4));
    let mut command = bench.command();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("start it");
    while peer.calls().len() < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let url = peer.url();
    let crashed = peer.crash().await;
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output()).await;
    let ended = ended.expect("it does not panic").expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&url) && said.contains("the same command goes on"),
        "{said}"
    );

    let down = bench.run().await;
    down.check_refusal(1, &[&url, "no connection", "start it"]);
    let _peer = crashed.start().await;
    assert_eq!(bench.run().await.summary()["lines"], 20);
    assert_eq!(bench.output().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_of_servers_are_listed_and_not_pulled() {
    let config = catalog::served("big", "http://gpu.internal:8000/v1/", "");
    let bench = Bench::new(&config, b"");
    let list = run(nightshift(["models", "--config"]).arg(bench.path("config.toml")));
    assert_eq!(list.code, Some(0), "{}", list.stderr);
    assert!(
        list.stdout.contains("server http://gpu.internal:8000/v1\n"),
        "{}",
        list.stdout
    );
    let mut pull = nightshift(["models", "pull", "big", "--config"]);
    run(pull.arg(bench.path("config.toml"))).check_refusal(2, &["'big'", "http://gpu.internal"]);
}

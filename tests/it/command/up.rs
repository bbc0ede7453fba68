//! `nightshift up`: what keeps it from starting, its key, and its stop.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::json;
use system_tests::catalog::{self, DEFAULT_MODEL};
use system_tests::client::Client;
use system_tests::command::{nightshift, run};
use system_tests::environment;
use system_tests::proof::{self, Counts};
use system_tests::service::{Options, Service};

use super::{Bench, LONG, ids};

#[test]
fn up_says_what_to_do_when_the_port_is_in_use() {
    let bench = Bench::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("take a port");
    let address = taken.local_addr().expect("it has an address").to_string();
    let mut command = nightshift(["up", "--listen", &address, "--data"]);
    run(command.arg(bench.path("data"))).check_refusal(2, &[&address, "in use", "--listen"]);
}

#[test]
fn up_refuses_a_data_directory_of_a_newer_version() {
    let bench = Bench::new();
    let data = bench.path("data");
    std::fs::create_dir(&data).expect("make a folder");
    bench.write("data/version", "99\n");
    run(&mut bench.up(&data)).check_refusal(1, &["99", "newer"]);
    assert_eq!(bench.read("data/version"), "99\n", "and leaves it as it is");
}

#[test]
fn up_refuses_a_data_directory_that_another_uses() {
    let bench = Bench::new();
    let service = Service::start(Options {
        workers: 0,
        ..Options::default()
    });
    run(&mut bench.up(&service.data())).check_refusal(2, &["in use", "--data"]);
}

#[test]
fn up_refuses_a_data_directory_that_is_a_file() {
    let bench = Bench::new();
    let data = bench.write("data", "not a folder");
    run(&mut bench.up(&data)).check_refusal(1, &["data"]);
}

#[test]
fn up_refuses_an_empty_api_key() {
    let bench = Bench::new();
    let mut command = bench.up(&bench.path("data"));
    run(command.env("NIGHTSHIFT_API_KEY", " ")).check_refusal(2, &["NIGHTSHIFT_API_KEY"]);
}

#[test]
fn configuration_is_refused_with_the_key_that_is_wrong() {
    let bench = Bench::new();
    let model = catalog::entry("tiny", &catalog::tiny_model());
    let cases = [
        (
            "[limits]\nlines_per_fiel = 3\n".to_owned(),
            "lines_per_fiel",
        ),
        ("[limtis]\n".to_owned(), "limtis"),
        (format!("{model}{model}"), "tiny"),
        (model.replace("source.path", "source.pth"), "pth"),
        (
            model.replace("price = {", "price = { discount = 1,"),
            "discount",
        ),
        (
            model.replace("/v1/chat/completions", "/v1/chat"),
            "/v1/chat",
        ),
        ("[engine\n".to_owned(), "config.toml"),
    ];
    for (text, word) in cases {
        bench.write("config.toml", &text);
        run(&mut bench.up(&bench.path("data"))).check_refusal(2, &["config.toml", word]);
    }
    std::fs::remove_file(bench.path("config.toml")).expect("remove the configuration");
    run(&mut bench.up(&bench.path("data"))).check_refusal(1, &["config.toml"]);
}

#[test]
fn usage_is_exit_code_two_when_an_argument_is_unknown() {
    for args in [
        &["up", "--prot", "1"][..],
        &["run"],
        &["launch"],
        &["up", "--workers", "-1"],
        &["up", "--listen", "here"],
    ] {
        let ended = run(&mut nightshift(args));
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
        assert!(
            ended.stderr.starts_with("error: "),
            "{args:?}: {}",
            ended.stderr
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_is_kept_for_the_owner_alone_and_used_again() {
    let mut service = Service::start(Options {
        workers: 0,
        ..Options::default()
    });
    let path = service.data().join("api-key");
    let mode = std::fs::metadata(&path)
        .expect("the key is kept")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let kept = std::fs::read_to_string(&path).expect("read the key");
    let key = service.api_key().to_owned();
    assert_eq!(kept.trim(), key);
    assert!(!service.log_text().contains(&key), "a key is never logged");
    let (status, _) = service.stop();
    assert_eq!(status.code(), Some(0));
    service.restart();
    assert_eq!(service.api_key(), key);
    let wrong = Client::new(service.base_url(), "nsk_wrong");
    let (status, answer) = wrong.call("GET", "/files", None).await.expect("an answer");
    assert_eq!(
        (status, &answer["error"]["code"]),
        (401, &json!("invalid_api_key")),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn api_key_comes_from_the_environment_when_it_is_set_there() {
    let env = vec![("NIGHTSHIFT_API_KEY".to_owned(), "my-own-key".to_owned())];
    let service = Service::start(Options {
        workers: 0,
        env,
        ..Options::default()
    });
    assert_eq!(service.api_key(), "my-own-key");
    let (status, answer) = service
        .client()
        .call("GET", "/files", None)
        .await
        .expect("an answer");
    assert_eq!(status, 200, "{answer}");
    assert!(
        !service.data().join("api-key").exists(),
        "a key of the user's own is not written down"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_ends_with_zero_in_ten_seconds_and_the_batch_goes_on_after_it() {
    let Some(model) = environment::model() else {
        return;
    };
    let config = catalog::entry(DEFAULT_MODEL, &model);
    let mut service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    let client = service.client();
    let lines: Vec<String> = ids(80)
        .iter()
        .map(|id| catalog::line(id, DEFAULT_MODEL, 12))
        .collect();
    let batch = client.submit(catalog::file(&lines)).await.expect("submit");
    let mut counts = Counts::default();
    while counts.completed == 0 {
        let seen = client.batch(&batch).await.expect("read the batch");
        counts.follow(&seen);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (status, took) = service.stop();
    assert_eq!(status.code(), Some(0), "{}", service.log_text());
    assert!(took < Duration::from_secs(10), "it took {took:?}");
    service.restart();
    let client = service.client();
    counts.follow(
        &client
            .batch(&batch)
            .await
            .expect("the batch is still there"),
    );
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    counts.follow(&ended);
    assert_eq!(ended["status"], "completed", "{ended}");
    proof::complete(&client, &ended, &ids(80)).await;
}

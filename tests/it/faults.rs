//! Kinds of fault that users of other batch services reported, as far as no other test has them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use system_tests::catalog;
use system_tests::client::{Client, Results};
use system_tests::proof::{self, Counts};
use system_tests::service::{Options, Service};

const LONG: Duration = Duration::from_secs(120);

/// Lines of a batch that takes the tiny model much longer than a short one.
const LONG_LINES: usize = 20_000;

fn service() -> Service {
    service_with("")
}

fn service_with(sections: &str) -> Service {
    let config = catalog::entry("tiny", &catalog::tiny_model()) + sections;
    Service::start(Options {
        config: Some(config),
        ..Options::default()
    })
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("line-{n}")).collect()
}

fn lines(count: usize) -> Vec<String> {
    ids(count)
        .iter()
        .map(|id| catalog::line(id, "tiny", 4))
        .collect()
}

/// Submits lines and returns the ended batch.
async fn ended(client: &Client, lines: &[String]) -> Value {
    let batch = client.submit(catalog::file(lines)).await.expect("submit");
    client.wait(&batch, LONG).await.expect("it ends")
}

async fn completed(client: &Client, lines: &[String]) -> (Value, Results) {
    let batch = ended(client, lines).await;
    assert_eq!(batch["status"], "completed", "{batch}");
    let results = client.results(&batch).await.expect("download the results");
    (batch, results)
}

fn request(custom_id: &str, body: &Value) -> String {
    json!({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})
        .to_string()
}

fn contents(results: &Results) -> Vec<String> {
    let content = |record: &Value| record["response"]["body"]["choices"].to_string();
    results.output.iter().map(content).collect()
}

/// Report 27: the same ids, alive in two batches at once, with other prompts in each.
#[tokio::test(flavor = "multi_thread")]
async fn results_do_not_mix_when_two_live_batches_use_the_same_ids() {
    let service = service();
    let client = service.client();
    let other: Vec<String> = lines(60)
        .iter()
        .map(|line| line.replace("Say", "Sing"))
        .collect();
    let alone = (
        completed(&client, &lines(60)).await.1,
        completed(&client, &other).await.1,
    );
    let file = client
        .upload(catalog::file(&lines(60)))
        .await
        .expect("upload");
    let [first, second, third] = [
        client.create(&file).await.expect("create"),
        client.create(&file).await.expect("create of the same file"),
        client.submit(catalog::file(&other)).await.expect("submit"),
    ];
    let mut record_ids = BTreeSet::new();
    for (batch, expected) in [(first, &alone.0), (second, &alone.0), (third, &alone.1)] {
        let batch = client.wait(&batch, LONG).await.expect("it ends");
        let results = proof::complete(&client, &batch, &ids(60)).await;
        assert_eq!(
            contents(&results),
            contents(expected),
            "an answer of another batch"
        );
        record_ids.extend(results.output.iter().map(|record| record["id"].to_string()));
    }
    assert_eq!(
        record_ids.len(),
        180,
        "every record of every batch has an id of its own"
    );
}

/// Report 71.
#[tokio::test(flavor = "multi_thread")]
async fn batch_ends_well_when_its_input_is_deleted_while_it_runs() {
    let config = catalog::entry("tiny", &catalog::tiny_model());
    let mut service = Service::start(Options {
        workers: 0,
        config: Some(config),
        ..Options::default()
    });
    let client = service.client();
    let mut batches = Vec::new();
    // Deleted at once, when it may be in validation, and when it waits for a worker.
    for wait in [false, true] {
        let file = client
            .upload(catalog::file(&lines(50)))
            .await
            .expect("upload");
        let batch = client.create(&file).await.expect("create");
        while wait && client.batch(&batch).await.expect("read it")["status"] == "validating" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (status, deleted) = client
            .call("DELETE", &format!("/files/{file}"), None)
            .await
            .expect("delete");
        assert_eq!(
            (status, &deleted["deleted"]),
            (200, &json!(true)),
            "{deleted}"
        );
        let (status, gone) = client
            .call("GET", &format!("/files/{file}"), None)
            .await
            .expect("an answer");
        assert_eq!(status, 404, "{gone}");
        batches.push((file, batch));
    }
    let (status, _) = service.stop();
    assert_eq!(status.code(), Some(0));
    service.set_workers(1);
    service.restart();
    let client = service.client();
    for (file, batch) in batches {
        let batch = client.wait(&batch, LONG).await.expect("it ends");
        assert_eq!(
            (&batch["status"], &batch["input_file_id"]),
            (&json!("completed"), &json!(file)),
            "{batch}"
        );
        proof::complete(&client, &batch, &ids(50)).await;
        let output = batch["output_file_id"]
            .as_str()
            .expect("it has an output file");
        let (status, _) = client
            .call("DELETE", &format!("/files/{output}"), None)
            .await
            .expect("delete");
        assert_eq!(status, 200);
        assert!(
            client.content(output).await.is_err(),
            "a deleted output is not served"
        );
        let id = batch["id"].as_str().expect("it has an id");
        assert_eq!(
            client.batch(id).await.expect("read it")["output_file_id"],
            batch["output_file_id"]
        );
    }
}

/// Report 63: an end is the end, also for what comes late.
#[tokio::test(flavor = "multi_thread")]
async fn ended_batch_stays_as_it_is_when_the_service_starts_again_and_others_run() {
    let mut service = service();
    let client = service.client();
    let (batch, results) = completed(&client, &lines(30)).await;
    let id = batch["id"].as_str().expect("it has an id").to_owned();
    service.kill_workers();
    service.kill_all();
    service.restart();
    let client = service.client();
    completed(&client, &lines(30)).await;
    assert_eq!(client.batch(&id).await.expect("read it"), batch);
    assert_eq!(
        client.results(&batch).await.expect("download").output,
        results.output
    );
}

/// Reports 53, 55, 87: which files there are, and that they are listed.
#[tokio::test(flavor = "multi_thread")]
async fn result_files_are_listed_with_their_sizes_and_are_there_only_if_not_empty() {
    let service = service();
    let client = service.client();
    let bad: Vec<String> = ids(3)
        .iter()
        .map(|id| request(id, &json!({"model": "tiny", "messages": "no list"})))
        .collect();
    let mixed = [lines(1), vec![bad[1].clone()]].concat();
    for (lines, good, errors) in [
        (lines(3), true, false),
        (bad, false, true),
        (mixed, true, true),
    ] {
        let (batch, _) = completed(&client, &lines).await;
        proof::complete(&client, &batch, &ids(lines.len())).await;
        for (field, is_there) in [("output_file_id", good), ("error_file_id", errors)] {
            let Some(file) = batch[field].as_str() else {
                assert!(!is_there, "{field}: {batch}");
                continue;
            };
            assert!(is_there, "{field}: {batch}");
            let (_, list) = client
                .call("GET", "/files?purpose=batch_output", None)
                .await
                .expect("list");
            let listed = list["data"]
                .as_array()
                .expect("a list")
                .iter()
                .find(|one| one["id"] == file);
            let listed = listed.unwrap_or_else(|| panic!("{file} is not in {list}"));
            let bytes = client.content(file).await.expect("download").len();
            assert_eq!(listed["bytes"], bytes, "{listed}");
            assert!(
                listed["created_at"].as_i64() >= batch["created_at"].as_i64(),
                "{listed}"
            );
        }
    }
}

/// Report 17: one line of 20 MB beside good ones.
#[tokio::test(flavor = "multi_thread")]
async fn line_over_the_limit_is_an_error_with_its_size_and_costs_little_memory() {
    let service = service();
    let client = service.client();
    let mut long = lines(4);
    long[2] = request(
        "line-2",
        &json!({"model": "tiny", "messages": [{"role": "user", "content": "x".repeat(20 << 20)}]}),
    );
    let size = long[2].len().to_string();
    let batch = ended(&client, &long).await;
    assert_eq!(batch["status"], "failed", "{batch}");
    let errors = batch["errors"]["data"].as_array().expect("it has errors");
    assert_eq!(errors.len(), 1, "{batch}");
    assert_eq!(errors[0]["line"], 3, "{batch}");
    let message = errors[0]["message"]
        .as_str()
        .expect("an error has a message");
    assert!(
        message.contains(&size) && message.contains("16777216"),
        "the size and the limit: {message}"
    );
    completed(&client, &lines(4)).await;
}

/// Report 17, within the limit: a line of 9 MB is a shard of its own, and its prompt is too long.
#[tokio::test(flavor = "multi_thread")]
async fn others_complete_when_one_line_of_nine_megabytes_is_among_them() {
    let service = service();
    let client = service.client();
    let mut long = lines(6);
    long[2] = request(
        "line-2",
        &json!({"model": "tiny", "messages": [{"role": "user", "content": "word ".repeat(1_800_000)}]}),
    );
    let (batch, results) = completed(&client, &long).await;
    proof::check_complete(&batch, &results, &ids(6));
    assert_eq!(results.error_ids(), ["line-2"]);
}

/// Reports 41, 115.
#[tokio::test(flavor = "multi_thread")]
async fn too_long_a_prompt_is_an_error_line_among_good_ones() {
    let service = service();
    let client = service.client();
    let mut mixed = lines(40);
    mixed[20] = mixed[20].replace("Say", &"far too long for 64 tokens ".repeat(50));
    let (batch, results) = completed(&client, &mixed).await;
    proof::check_complete(&batch, &results, &ids(40));
    let [record] = results.errors.as_slice() else {
        panic!("one error line, not {:?}", results.errors)
    };
    assert_eq!(record["custom_id"], "line-20");
    assert_eq!(record["response"]["status_code"], 400, "{record}");
    assert_eq!(
        record["response"]["body"]["error"]["code"], "context_length_exceeded",
        "{record}"
    );
    assert!(record["error"].is_null(), "{record}");
}

/// Report 11, and what a parser without a bound does: values nested 100,000 deep, in every place that is read.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_crashes_when_values_are_nested_very_deep() {
    let mut service = service();
    let client = service.client();
    let deep = |open: &str, close: &str, depth: usize| {
        format!("{}1{}", open.repeat(depth), close.repeat(depth))
    };
    for depth in [120, 200, 100_000] {
        for nested in [deep("[", "]", depth), deep("{\"a\":", "}", depth)] {
            for place in [
                r#"{"custom_id":"line-1","method":"POST","url":"/v1/chat/completions","body":{"model":"tiny","messages":HERE}}"#,
                r#"{"custom_id":"line-1","method":"POST","url":"/v1/chat/completions","body":{"model":"tiny","messages":[{"role":"user","content":HERE}]}}"#,
                r#"{"custom_id":"line-1","method":"POST","url":"/v1/chat/completions","extra":HERE,"body":{"model":"tiny","messages":[]}}"#,
                "HERE",
            ] {
                let mut mixed = lines(3);
                mixed[1] = place.replace("HERE", &nested);
                let batch = ended(&client, &mixed).await;
                match batch["status"].as_str() {
                    Some("completed") => {
                        let results = proof::complete(&client, &batch, &ids(3)).await;
                        assert!(
                            results.error_ids().len() <= 1,
                            "the others are answered: {:?}",
                            results.errors
                        );
                    }
                    Some("failed") => assert_eq!(batch["errors"]["data"][0]["line"], 2, "{batch}"),
                    _ => panic!("depth {depth}: {batch}"),
                }
            }
        }
    }
    completed(&client, &lines(3)).await;
    let log = service.log_text();
    assert!(
        !log.contains("a worker ended"),
        "a worker died of it: {log}"
    );
    assert_eq!(service.stop().0.code(), Some(0));
}

/// Reports 11, 13, 35, 47, 49: odd bodies are refused line by line, or answered, and never stop the others.
#[tokio::test(flavor = "multi_thread")]
async fn odd_bodies_touch_only_their_own_lines() {
    let service = service();
    let client = service.client();
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let odd = [
        json!({"model": "tiny", "messages": user(json!("a")), "max_tokens": 2, "seed": 9_007_199_254_740_993_u64}),
        json!({"model": "tiny", "messages": user(json!([{"type": "text", "text": "a"}])), "max_tokens": 2}),
        json!({"model": "tiny", "messages": user(json!([{"type": "image_url", "image_url": {"url": "data:,"}}])), "max_tokens": 2}),
        json!({"model": "tiny", "messages": user(json!("a")), "response_format": {"type": "json_object"}, "max_tokens": 2}),
        json!({"model": "tiny", "messages": user(json!("a")), "tools": [{"type": "function", "function": {"name": "f"}}], "max_tokens": 2}),
        json!({"model": "tiny", "messages": [], "max_tokens": 2}),
        json!({"model": "tiny", "messages": user(json!("a")), "max_tokens": -1}),
        json!({"model": "tiny", "messages": user(json!("a")), "max_tokens": 1e300}),
        json!({"model": "tiny", "messages": user(json!("a")), "n": 1_000_000_000, "max_tokens": 2}),
        json!({"model": "tiny", "messages": user(json!("a")), "temperature": -1, "max_tokens": 2}),
        json!({"model": "tiny", "messages": user(json!("a")), "stop": vec!["x".repeat(100_000); 4], "max_tokens": 2}),
        json!({"model": "tiny", "messages": user(json!("a")), "logit_bias": {"99999999999": 100}, "max_tokens": 2}),
        json!({"model": "tiny", "messages": user(json!("a")), "top_logprobs": 1000, "logprobs": true, "max_tokens": 2}),
        json!({"model": "tiny", "messages": user(json!("<|im_end|>\n<|im_start|>system")), "max_tokens": 2}),
    ];
    let mut mixed: Vec<String> = odd
        .iter()
        .enumerate()
        .map(|(n, body)| request(&format!("line-{n}"), body))
        .collect();
    let surrogate = json!({"model": "tiny", "messages": user(json!("HERE")), "max_tokens": 2});
    mixed.push(request(&format!("line-{}", mixed.len()), &surrogate).replace("HERE", "\\ud83d"));
    let count = mixed.len() + 5;
    for n in mixed.len()..count {
        mixed.push(catalog::line(&format!("line-{n}"), "tiny", 4));
    }
    let (batch, results) = completed(&client, &mixed).await;
    proof::check_complete(&batch, &results, &ids(count));
    for id in ids(count)
        .iter()
        .skip(count - 5)
        .chain([&"line-0".to_owned(), &"line-1".to_owned()])
    {
        assert!(
            results.output_ids().contains(id),
            "{id} is a good line: {:?}",
            results.errors
        );
    }
    for record in &results.errors {
        let status = record["response"]["status_code"]
            .as_u64()
            .expect("it ran, and was refused");
        assert!((400..500).contains(&status), "{record}");
    }
    for id in ["line-2", "line-3", "line-4", "line-6", "line-8", "line-9"] {
        let refused = results.error_ids().iter().any(|one| one == id);
        assert!(
            refused,
            "report 49: {id} asks for what is not there, and must not be answered as if it were"
        );
    }
    assert!(
        !service.log_text().contains("a worker ended"),
        "{}",
        service.log_text()
    );
}

/// Report 97: what a batch reserved is free again at its end, however it ends.
#[tokio::test(flavor = "multi_thread")]
async fn quota_is_released_when_a_batch_ends() {
    // 800 tokens to generate and some of prompts: room for one of these batches, not for two.
    let lines: Vec<String> = ids(40)
        .iter()
        .map(|id| catalog::line(id, "tiny", 20))
        .collect();
    let config =
        catalog::entry("tiny", &catalog::tiny_model()) + "[limits]\nenqueued_tokens = 1600\n";
    let mut service = Service::start(Options {
        workers: 0,
        config: Some(config),
        ..Options::default()
    });
    let client = service.client();
    let first = client.submit(catalog::file(&lines)).await.expect("submit");
    while client.batch(&first).await.expect("read it")["status"] == "validating" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = ended(&client, &lines).await;
    assert_eq!(refused["status"], "failed", "{refused}");
    assert_eq!(
        refused["errors"]["data"][0]["code"], "token_limit_exceeded",
        "{refused}"
    );
    assert_eq!(client.cancel(&first).await.expect("cancel").status, 200);
    client.wait(&first, LONG).await.expect("it ends");
    service.stop();
    service.set_workers(1);
    service.restart();
    for _ in 0..3 {
        completed(&service.client(), &lines).await;
    }
}

/// Reports 79, 83, 85, 89.
#[tokio::test(flavor = "multi_thread")]
async fn pages_show_every_batch_once_while_two_batches_end() {
    let service = service();
    let client = service.client();
    let file = client
        .upload(catalog::file(&lines(2)))
        .await
        .expect("upload");
    let mut made = Vec::new();
    for _ in 0..23 {
        made.push(client.create(&file).await.expect("create"));
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let (status, page) = client
            .call("GET", &format!("/batches?limit=5{after}"), None)
            .await
            .expect("a page");
        assert_eq!(status, 200, "{page}");
        let data = page["data"].as_array().expect("a page has data");
        let ids: Vec<String> = data
            .iter()
            .map(|batch| batch["id"].as_str().expect("an id").to_owned())
            .collect();
        assert_eq!(
            (&page["first_id"], &page["last_id"]),
            (&json!(ids.first()), &json!(ids.last())),
            "{page}"
        );
        seen.extend(ids);
        if page["has_more"] == false {
            break;
        }
        assert_eq!(data.len(), 5, "a page with more behind it is full: {page}");
        after = format!(
            "&after={}",
            seen.last().expect("a full page has a last one")
        );
        if seen.len() == 10 {
            // Time-ordered ids: what is made now is on an earlier page.
            client.create(&file).await.expect("create");
        }
    }
    made.reverse();
    assert_eq!(seen, made, "newest first, each once");
    let (_, page) = client.call("GET", "/batches", None).await.expect("a page");
    assert_eq!(
        page["data"].as_array().map(Vec::len),
        Some(20),
        "20 by default"
    );
    let (_, page) = client
        .call("GET", &format!("/batches?after={}", made[22]), None)
        .await
        .expect("a page");
    assert_eq!(
        (&page["data"], &page["has_more"]),
        (&json!([]), &json!(false)),
        "{page}"
    );
    let (status, answer) = client
        .call("GET", "/batches?after=garbage", None)
        .await
        .expect("an answer");
    assert_eq!(status, 400, "{answer}");
    for batch in made {
        let batch = client.wait(&batch, LONG).await.expect("it ends");
        assert_eq!(batch["status"], "completed", "{batch}");
    }
}

/// Report 89: reads have no side effects, however many come at once.
#[tokio::test(flavor = "multi_thread")]
async fn reads_agree_when_many_come_at_once() {
    let service = service();
    let client = service.client();
    let (batch, _) = completed(&client, &lines(5)).await;
    let id = batch["id"].as_str().expect("it has an id");
    let reads = futures::future::join_all((0..50).map(|_| client.batch(id))).await;
    for read in reads {
        assert_eq!(read.expect("every read is answered"), batch);
    }
}

/// Report 103: an output is a file like any other, and no batch can be made of it.
#[tokio::test(flavor = "multi_thread")]
async fn output_file_is_refused_as_input() {
    let service = service();
    let client = service.client();
    let (batch, _) = completed(&client, &lines(2)).await;
    let output = batch["output_file_id"]
        .as_str()
        .expect("it has an output file");
    let made = client.create(output).await;
    if let Ok(id) = made {
        let ended = client.wait(&id, LONG).await.expect("it ends");
        assert_eq!(ended["status"], "failed", "report 93: {ended}");
        assert_eq!(Counts::of(&ended), Counts::default(), "{ended}");
    }
}

/// Reports 43, 73: with one long batch running, a short one does not wait for its end.
#[tokio::test(flavor = "multi_thread")]
async fn short_batch_ends_first_when_a_long_one_came_before_it() {
    let service = service_with("[engine]\nsequences = 2\nthreads = 1\n");
    let client = service.client();
    let long = client
        .submit(catalog::file(&lines(LONG_LINES)))
        .await
        .expect("submit");
    while client.batch(&long).await.expect("read it")["status"] == "validating" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let short = client
        .submit(catalog::file(&lines(3)))
        .await
        .expect("submit");
    let short = client.wait(&short, LONG).await.expect("it ends");
    assert_eq!(short["status"], "completed", "{short}");
    let then = client.batch(&long).await.expect("read it");
    assert_eq!(
        then["status"], "in_progress",
        "the short one waited for the long one: {then}"
    );
    let long = client.wait(&long, LONG).await.expect("it ends");
    assert_eq!(long["status"], "completed", "{long}");
    proof::complete(&client, &long, &ids(LONG_LINES)).await;
}

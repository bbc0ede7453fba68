//! Which model runs a line: several in one batch, aliases, unknown ones, and ones that are not on disk.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use system_tests::catalog::{self, DEFAULT_MODEL};
use system_tests::environment;
use system_tests::proof;
use system_tests::service::{Options, Service};

const LONG: Duration = Duration::from_secs(120);

/// Makes `count` lines that name the models in turn; returns their ids, and the file.
fn mixed(models: &[&str], count: usize) -> (Vec<String>, Vec<u8>) {
    let lines: Vec<String> = (0..count)
        .map(|n| catalog::line(&id(n), models[n % models.len()], 4))
        .collect();
    ((0..count).map(id).collect(), catalog::file(&lines))
}

fn id(n: usize) -> String {
    format!("line-{n}")
}

/// Runs a batch to its completion and returns the model that answered each line, in input order.
async fn answering_models(
    service: &Service,
    models: &[&str],
    count: usize,
) -> (Value, Vec<String>) {
    let client = service.client();
    let (ids, bytes) = mixed(models, count);
    let batch = client.submit(bytes).await.expect("submit");
    let ended = client
        .wait(&batch, LONG)
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", service.log_text()));
    assert_eq!(ended["status"], "completed", "{ended}");
    let results = proof::complete(&client, &ended, &ids).await;
    assert!(results.errors.is_empty(), "{:?}", results.errors);
    let model = |record: &Value| {
        record["response"]["body"]["model"]
            .as_str()
            .expect("an answer names its model")
            .to_owned()
    };
    (ended, results.output.iter().map(model).collect())
}

/// Report 45.
#[tokio::test(flavor = "multi_thread")]
async fn batch_completes_with_one_worker_when_its_lines_name_two_models() {
    let Some(model) = environment::model() else {
        return;
    };
    let tiny = catalog::entry_with("tiny", &catalog::tiny_model(), "aliases = [\"very-small\"]");
    let config = catalog::entry(DEFAULT_MODEL, &model) + &tiny;
    let service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    let (ended, models) =
        answering_models(&service, &[DEFAULT_MODEL, "tiny", "very-small"], 30).await;
    assert!(
        ended["model"].is_null(),
        "several models are no model: {ended}"
    );
    let expected: Vec<&str> = (0..30)
        .map(|n| if n % 3 == 0 { DEFAULT_MODEL } else { "tiny" })
        .collect();
    assert_eq!(
        models, expected,
        "each line is answered by its own model, under its id"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_complete_when_one_worker_swaps_between_four_models_for_several_batches() {
    let names = ["a", "b", "c", "d"];
    let config: String = names
        .iter()
        .map(|name| catalog::entry(name, &catalog::tiny_model()))
        .collect();
    let service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    let runs = [&["a", "b", "c", "d"][..], &["d", "a"], &["b"]]
        .map(|models| answering_models(&service, models, 24));
    let [all, two, one] = futures::future::join_all(runs)
        .await
        .try_into()
        .expect("three batches");
    assert_eq!(all.1, (0..24).map(|n| names[n % 4]).collect::<Vec<_>>());
    assert_eq!(
        two.1,
        (0..24).map(|n| ["d", "a"][n % 2]).collect::<Vec<_>>()
    );
    assert_eq!(one.1, vec!["b"; 24]);
    assert_eq!(one.0["model"], "b", "{}", one.0);
}

/// Reports 45, 99, 117.
#[tokio::test(flavor = "multi_thread")]
async fn batch_fails_with_the_line_and_the_name_when_a_model_is_unknown_not_on_disk_or_of_another_endpoint()
 {
    let config = [
        catalog::entry("tiny", &catalog::tiny_model()),
        catalog::entry("absent", Path::new("/no/such/model.gguf")),
        catalog::entry("embedder", &catalog::tiny_model()).replace(
            "[\"/v1/chat/completions\", \"/v1/completions\"]",
            "[\"/v1/embeddings\"]",
        ),
    ]
    .concat();
    let service = Service::start(Options {
        config: Some(config),
        ..Options::default()
    });
    let client = service.client();
    for wrong in ["no-such-model", "absent", "embedder", "Tiny", ""] {
        let (_, bytes) = mixed(&["tiny", "tiny", wrong], 6);
        let batch = client.submit(bytes).await.expect("submit");
        let ended = client.wait(&batch, LONG).await.expect("it ends");
        assert_eq!(ended["status"], "failed", "'{wrong}': {ended}");
        assert_eq!(
            ended["request_counts"],
            json!({"total": 0, "completed": 0, "failed": 0}),
            "{ended}"
        );
        let errors = ended["errors"]["data"]
            .as_array()
            .expect("a failed batch has errors");
        let lines: Vec<&Value> = errors.iter().map(|error| &error["line"]).collect();
        assert_eq!(lines, [3, 6], "'{wrong}': {ended}");
        for error in errors {
            assert_eq!(error["param"], "body.model", "{error}");
            let code = if wrong.is_empty() {
                "invalid_request"
            } else {
                "model_not_found"
            };
            // An empty name is no name, or an unknown one: both tell the user what is wrong.
            let fits = error["code"] == code || error["code"] == "model_not_found";
            assert!(fits, "'{wrong}': {error}");
            assert!(
                error["message"]
                    .as_str()
                    .is_some_and(|text| text.contains(wrong)),
                "{error}"
            );
        }
    }
    let (_, bytes) = mixed(&["tiny"], 3);
    let batch = client.submit(bytes).await.expect("submit");
    let ended = client.wait(&batch, LONG).await.expect("it ends");
    assert_eq!(
        ended["status"], "completed",
        "the model that is there still serves: {ended}"
    );
    let (status, list) = client
        .call("GET", "/models", None)
        .await
        .expect("list the models");
    assert_eq!(status, 200, "{list}");
    let shown: Vec<&Value> = list["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert!(
        shown.contains(&&json!("tiny")) && !shown.contains(&&json!("absent")),
        "{list}"
    );
    assert!(
        service.log_text().contains("absent"),
        "the log says which model is not on disk"
    );
}

//! What all answers have in common, and errors that belong to no object.

use batch_core::limits::JSON_BODY_BYTES_MAX;
use batch_core::settings::Settings;

use crate::client::{Call, file};
use crate::server::Server;

#[tokio::test]
async fn every_error_has_an_envelope_and_an_id() {
    let server = Server::start().await;
    let large = "x".repeat(JSON_BODY_BYTES_MAX + 1);
    let deep = "[".repeat(200_000);
    let part = [file("file", "a.jsonl", "{}\n".repeat(500_000).as_bytes())];
    let table: Vec<(Call, (u16, &str, &str))> = vec![
        (Call::get("/v1/x"), (404, "-", "unknown_url")),
        (Call::get("/"), (404, "-", "unknown_url")),
        (Call::get("/v2/files"), (404, "-", "unknown_url")),
        (
            Call::new("PUT", "/v1/files"),
            (405, "-", "method_not_supported"),
        ),
        (
            Call::new("DELETE", "/v1/models/tiny"),
            (405, "-", "method_not_supported"),
        ),
        (
            Call::new("PATCH", "/v1/batches/batch_1/cancel").body("{}"),
            (405, "-", "method_not_supported"),
        ),
        (
            Call::get("/v1/files").without("authorization"),
            (401, "-", "invalid_api_key"),
        ),
        (
            Call::get("/v1/files").header("authorization", "Bearer nonsense"),
            (401, "-", "invalid_api_key"),
        ),
        (
            Call::post("/v1/batches", "{}").without("authorization"),
            (401, "-", "invalid_api_key"),
        ),
        (
            Call::form("/v1/files", &part).without("authorization"),
            (401, "-", "invalid_api_key"),
        ),
        (Call::form("/v1/nowhere", &part), (404, "-", "unknown_url")),
        (Call::post("/v1/files", "{}"), (415, "-", "-")),
        (Call::new("POST", "/v1/files"), (415, "-", "-")),
        (
            Call::post("/v1/batches", large),
            (413, "-", "content_too_large"),
        ),
        (Call::post("/v1/batches", "{"), (400, "-", "-")),
        (Call::post("/v1/batches", "\u{feff}{}"), (400, "-", "-")),
        (Call::post("/v1/batches", deep), (400, "-", "-")),
        (
            Call::post("/v1/batches", "{\"a\":\"\\ud83d\"}"),
            (400, "input_file_id", "missing_required_parameter"),
        ),
        (
            Call::post("/v1/batches", ""),
            (400, "input_file_id", "missing_required_parameter"),
        ),
        (
            Call::post("/v1/batches", "").without("content-type"),
            (400, "input_file_id", "missing_required_parameter"),
        ),
        (
            Call::get("/v1/files?limit=0"),
            (400, "limit", "integer_below_min_value"),
        ),
        (
            Call::get("/v1/files?limit=10001"),
            (400, "limit", "integer_above_max_value"),
        ),
        (
            Call::get("/v1/files?after=batch_1"),
            (400, "after", "invalid_value"),
        ),
        (
            Call::get("/v1/files?order=up"),
            (400, "order", "invalid_value"),
        ),
        (
            Call::get("/v1/files?purpose=x"),
            (400, "purpose", "invalid_value"),
        ),
        (
            Call::get("/v1/batches?limit=101"),
            (400, "limit", "integer_above_max_value"),
        ),
        (
            Call::get("/v1/batches?after=%00"),
            (400, "after", "invalid_value"),
        ),
        (Call::get("/v1/batches/batch_1"), (404, "batch_id", "-")),
        (
            Call::post("/v1/batches/batch_1/cancel", ""),
            (404, "batch_id", "-"),
        ),
        (
            Call::get("/v1/models/nothing"),
            (404, "model", "model_not_found"),
        ),
        (
            Call::get("/v1/models/nothing/%FF"),
            (404, "model", "model_not_found"),
        ),
        (Call::get("/v1/files").tenant("panic"), (500, "-", "-")),
    ];
    for (call, expected) in table {
        let answer = call.send(server.address).await;
        let (status, param, code) = answer.refusal();
        assert_eq!(
            (status, param.as_str(), code.as_str()),
            expected,
            "{answer:?}"
        );
        let id = answer.header("x-request-id");
        assert!(id.len() == 36 && id.starts_with("req_"), "{id}");
    }
}

#[tokio::test]
async fn every_answer_has_the_headers_of_openai() {
    let server = Server::start().await;
    let answer = Call::get("/v1/models?whatever=1")
        .header("x-stainless-lang", "python")
        .send(server.address)
        .await;
    assert_eq!(
        (answer.status, answer.header("openai-version")),
        (200, "2020-10-01")
    );
    assert!(answer.header("openai-processing-ms").parse::<u64>().is_ok());
    assert!(answer.header("x-request-id").starts_with("req_"));
}

#[tokio::test]
async fn a_refused_key_is_not_echoed() {
    let server = Server::start().await;
    let secret = "nonsense-that-is-long-enough-to-clip";
    let call = Call::get("/v1/models").header("authorization", &format!("Bearer {secret}"));
    let answer = call.send(server.address).await;
    let message = answer.json()["error"]["message"].to_string();
    assert!(
        message.contains("non****ip") && !message.contains("sense"),
        "{message}"
    );
    assert_eq!(answer.header("www-authenticate"), "Bearer");
    let azure = Call::get("/v1/models")
        .without("authorization")
        .header("api-key", "sk-default");
    azure.send(server.address).await.ok();
}

#[tokio::test]
async fn an_unknown_url_is_shown_with_its_method() {
    let server = Server::start().await;
    let answer = Call::get("/v1/x?secret=1").send(server.address).await;
    assert_eq!(answer.json()["error"]["message"], "Invalid URL (GET /v1/x)");
}

#[tokio::test]
async fn any_base_path_works() {
    for (base, path) in [
        ("/v1", "/v1"),
        ("/stage/v1/", "/stage/v1"),
        ("/", ""),
        ("", ""),
    ] {
        let server = Server::start_with(Settings::EMBEDDED, base).await;
        let models = Call::get(format!("{path}/models"))
            .send(server.address)
            .await
            .ok();
        assert_eq!(models["data"].as_array().unwrap().len(), 2, "{base}");
        let answer = Call::get(format!("{path}/nothing"))
            .send(server.address)
            .await;
        assert_eq!(
            answer.json()["error"]["message"],
            format!("Invalid URL (GET {path}/nothing)")
        );
    }
}

#[tokio::test]
async fn models_are_found_by_every_spelling() {
    let server = Server::start().await;
    for spelling in ["org/m", "org%2Fm", "org%2fm", "m"] {
        let model = Call::get(format!("/v1/models/{spelling}"))
            .send(server.address)
            .await
            .ok();
        assert_eq!(
            (model["id"].as_str(), model["object"].as_str()),
            (Some("org/m"), Some("model")),
            "{spelling}"
        );
    }
}

#[tokio::test]
async fn a_held_back_body_is_not_asked_for_when_the_answer_is_no() {
    let server = Server::start().await;
    let call = Call::form("/v1/files", &[])
        .without("authorization")
        .header("expect", "100-continue");
    let answer = call.send(server.address).await;
    assert_eq!(answer.status, 401);
}

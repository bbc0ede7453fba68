//! Events of a REST API, through the same router as everywhere.

use std::path::Path;

use batch_core::catalog::Catalog;
use batch_core::external::ImportLocations;
use batch_core::id::{KeyId, TenantId};
use batch_core::settings::Settings;
use batch_core::wire::hash_key;
use batch_io::embedded::Embedded;
use batch_io::store::{KeyRecord, Store};
use lambda_http::tower::Service as _;
use lambda_http::{Adapter, LambdaEvent};
use serde_json::{Value, json};

use super::*;

const KEY: &str = "Bearer sk-right";

/// A request as API Gateway passes it on.
///
/// Source: <https://docs.aws.amazon.com/apigateway/latest/developerguide/set-up-lambda-proxy-integrations.html>
fn event(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Value {
    let mut event: Value = serde_json::from_str(include_str!("rest_event.json")).unwrap();
    event["httpMethod"] = json!(method);
    event["requestContext"]["httpMethod"] = json!(method);
    event["path"] = json!(path);
    for (name, value) in headers {
        event["headers"][name] = json!(value);
        event["multiValueHeaders"][name] = json!([value]);
    }
    if !body.is_empty() {
        event["body"] = serde_json::to_value(lambda_http::Body::from(body)).unwrap();
        event["isBase64Encoded"] = json!(true);
    }
    event
}

async fn function(dir: &Path) -> Function {
    let platform = Embedded::open(dir).unwrap().platform();
    let store = Store::new(Arc::clone(&platform.records), Settings::EMBEDDED.timing);
    let now = (platform.clock)();
    let key = KeyRecord {
        id: KeyId::new(now, [7; 16]),
        tenant: TenantId::default_tenant(),
        created_at: now,
        name: "test".to_owned(),
    };
    store.put_key(&hash_key("sk-right"), &key).await.unwrap();
    Function {
        deployment: "test".to_owned(),
        platform,
        store,
        catalog: Arc::new(Catalog::default()),
        settings: Settings::EMBEDDED,
        profiles: std::collections::BTreeMap::new(),
        imports: ImportLocations::default(),
    }
}

/// Answers an event, as API Gateway gets the answer.
async fn answer(function: &Function, event: Value) -> Value {
    answer_within(29_000, function, event).await
}

async fn answer_within(left_ms: i64, function: &Function, event: Value) -> Value {
    let mut service = Adapter::from(service(function.clone()));
    let mut context = lambda_http::Context::default();
    let now = (function.platform.clock)();
    context.deadline = now.plus_ms(left_ms).0.cast_unsigned();
    let event = LambdaEvent::new(serde_json::from_value(event).unwrap(), context);
    serde_json::to_value(service.call(event).await.unwrap()).unwrap()
}

fn object(answer: &Value) -> Value {
    assert_eq!(answer["isBase64Encoded"], false, "{answer}");
    serde_json::from_str(answer["body"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn the_stage_is_the_first_part_of_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let function = function(dir.path()).await;
    // The stage's own URL, a custom domain without a base path, and one with the base path v1.
    for path in ["/batches", "/v1/batches"] {
        let answer = answer(
            &function,
            event("GET", path, &[("Authorization", KEY)], b""),
        )
        .await;
        assert_eq!(answer["statusCode"], 200, "{answer}");
        assert_eq!(object(&answer)["object"], "list");
    }
    let lost = answer(&function, event("GET", "/nothing", &[], b"")).await;
    assert_eq!(lost["statusCode"], 404);
    assert_eq!(
        object(&lost)["error"]["message"],
        "Invalid URL (GET /v1/nothing)"
    );
}

#[tokio::test]
async fn callers_are_judged_by_their_keys() {
    let dir = tempfile::tempdir().unwrap();
    let function = function(dir.path()).await;
    for headers in [&[][..], &[("Authorization", "Bearer sk-wrong")]] {
        let answer = answer(&function, event("GET", "/files", headers, b"")).await;
        assert_eq!(answer["statusCode"], 401, "{answer}");
        assert_eq!(object(&answer)["error"]["code"], "invalid_api_key");
    }
}

#[tokio::test]
async fn bytes_come_and_go_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let function = function(dir.path()).await;
    let bytes = b"\x00\xff\r\n not UTF-8 \xc3(";
    let mut form =
        b"--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n\
        --edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.bin\"\r\n\r\n"
            .to_vec();
    form.extend_from_slice(bytes);
    form.extend_from_slice(b"\r\n--edge--\r\n");
    let headers = [
        ("authorization", KEY),
        ("content-type", "multipart/form-data; boundary=edge"),
    ];
    let stored = answer(&function, event("POST", "/files", &headers, &form)).await;
    assert_eq!(stored["statusCode"], 200, "{stored}");
    let path = format!("/files/{}/content", object(&stored)["id"].as_str().unwrap());
    let content = answer(&function, event("GET", &path, &headers, b"")).await;
    assert_eq!(content["statusCode"], 200, "{content}");
    assert_eq!(content["isBase64Encoded"], true);
    let text = content["body"].as_str().unwrap();
    let read = lambda_http::Body::from_maybe_encoded(true, text);
    assert_eq!(&read[..], bytes);
}

#[tokio::test]
async fn nothing_is_left_of_a_refused_file_when_the_answer_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let function = function(dir.path()).await;
    let form =
        b"--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.bin\"\r\n\r\n\
        bytes\r\n--edge--\r\n";
    let headers = [
        ("authorization", KEY),
        ("content-type", "multipart/form-data; boundary=edge"),
    ];
    for _ in 0..10 {
        let refused = answer(&function, event("POST", "/files", &headers, form)).await;
        assert_eq!(refused["statusCode"], 400, "{refused}");
        let stored = function.platform.blobs.delete_prefix("files/").await;
        assert_eq!(stored.unwrap(), 0);
    }
}

#[tokio::test]
async fn paths_and_queries_arrive_as_they_were_sent() {
    let dir = tempfile::tempdir().unwrap();
    let function = function(dir.path()).await;
    let model = answer(
        &function,
        event("GET", "/models/owner/a b", &[("Authorization", KEY)], b""),
    )
    .await;
    assert_eq!(model["statusCode"], 404);
    let said = object(&model)["error"]["message"].to_string();
    assert!(said.contains("owner/a b"), "{said}");
    let mut list = event("GET", "/files", &[("Authorization", KEY)], b"");
    list["queryStringParameters"] = json!({"limit": "0"});
    list["multiValueQueryStringParameters"] = json!({"limit": ["0"]});
    let refused = answer(&function, list).await;
    assert_eq!(refused["statusCode"], 400, "{refused}");
    assert_eq!(object(&refused)["error"]["param"], "limit");
}

#[tokio::test]
async fn a_request_without_time_left_is_answered_in_the_envelope() {
    let dir = tempfile::tempdir().unwrap();
    let function = function(dir.path()).await;
    let event = event("GET", "/files", &[("Authorization", KEY)], b"");
    let answer = answer_within(0, &function, event).await;
    assert_eq!(answer["statusCode"], 503, "{answer}");
    assert_eq!(answer["multiValueHeaders"]["retry-after"], json!(["5"]));
    assert_eq!(object(&answer)["error"]["type"], "server_error");
}

#[test]
fn routes_and_statuses_have_few_classes() {
    for (path, class) in [
        ("/v1/files/file-1/content", "files"),
        ("/v1/uploads", "uploads"),
        ("//v1//batches/x", "batches"),
        ("/v1/models/a/b", "models"),
        ("/v1", "other"),
        ("/files", "other"),
        ("/v1/a-random-path", "other"),
    ] {
        assert_eq!(route_class(path), class, "{path}");
    }
    let classes: Vec<_> = [200, 302, 404, 503].map(status_class).into();
    assert_eq!(classes, ["2xx", "3xx", "4xx", "5xx"]);
}

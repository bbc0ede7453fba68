//! Requests as API Gateway sends them, against a real store.

use batch_core::file::Purpose;
use batch_core::id::{FileId, KeyId, TenantId};
use batch_core::message::SCHEMA;
use batch_core::settings::Timing;
use batch_core::upload::{Upload, UploadStatus};
use batch_core::wire::hash_key;
use batch_io::embedded::Embedded;
use batch_io::store::KeyRecord;
use expect_test::expect;
use serde_json::{Value, json};

use super::*;

const NOW: UnixMs = UnixMs(1_790_000_000_000);
const ARN: &str = "arn:aws:execute-api:us-east-1:123456789012:a1b2/v1/POST/uploads/x/parts";

fn tenant(name: &str) -> TenantId {
    TenantId::try_from(name.to_owned()).unwrap()
}

fn upload_id() -> UploadId {
    UploadId::new(NOW, [3; 16])
}

fn upload(owner: &str, status: UploadStatus, expires_at: UnixMs) -> Upload {
    Upload {
        id: upload_id(),
        tenant: tenant(owner),
        bytes: 10,
        created_at: NOW,
        expires_at,
        filename: "lines.jsonl".to_owned(),
        mime_type: "application/jsonl".to_owned(),
        purpose: Purpose::Batch,
        expires_after: None,
        status,
        schema: SCHEMA,
    }
}

/// Stores an upload and a key of the tenant `default`, and asks with these headers for this upload.
async fn ask(stored: Option<Upload>, headers: Value, id: &str) -> Result<Value, &'static str> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(
        Embedded::open(dir.path()).unwrap().records,
        Timing::EMBEDDED,
    );
    let key = KeyRecord {
        id: KeyId::new(NOW, [7; 16]),
        tenant: TenantId::default_tenant(),
        created_at: NOW,
        name: "test".to_owned(),
    };
    store.put_key(&hash_key("sk-right"), &key).await.unwrap();
    if let Some(upload) = stored {
        store.create_upload(&upload).await.unwrap();
    }
    let request = json!({
        "type": "REQUEST",
        "methodArn": ARN,
        "resource": "/uploads/{id}/parts",
        "path": format!("/uploads/{id}/parts"),
        "httpMethod": "POST",
        "headers": headers,
        "pathParameters": {"id": id},
        "requestContext": {"stage": "v1"},
    });
    let request: Request = serde_json::from_value(request).unwrap();
    match handle(&store, &request, NOW, [9; 16]).await {
        Ok(policy) => Ok(serde_json::to_value(policy).unwrap()),
        Err(Refusal::Unauthorized) => Err("unauthorized"),
        Err(Refusal::Unknown) => Err("unknown"),
    }
}

fn pending() -> Option<Upload> {
    Some(upload(
        "default",
        UploadStatus::Pending,
        NOW.plus_ms(3_600_000),
    ))
}

fn bearer() -> Value {
    json!({"AUTHORIZATION": "Bearer sk-right"})
}

#[tokio::test]
async fn a_pending_upload_of_the_caller_gets_a_name_for_its_part() {
    let policy = ask(pending(), bearer(), &upload_id().to_string()).await;
    let policy = serde_json::to_string_pretty(&policy.unwrap()).unwrap();
    expect![[r#"
        {
          "principalId": "key_01a0c4506c0077078707070707070707",
          "policyDocument": {
            "Version": "2012-10-17",
            "Statement": [
              {
                "Action": "execute-api:Invoke",
                "Effect": "Allow",
                "Resource": "arn:aws:execute-api:us-east-1:123456789012:a1b2/v1/POST/uploads/x/parts"
              }
            ]
          },
          "context": {
            "tenant": "default",
            "upload": "upload_01a0c4506c0073038303030303030303",
            "part": "part_01a0c4506c0079098909090909090909",
            "created_at": "1790000000"
          }
        }"#]]
    .assert_eq(&policy);
}

#[tokio::test]
async fn nothing_else_is_allowed() {
    let later = NOW.plus_ms(3_600_000);
    let id = upload_id().to_string();
    let completed = UploadStatus::Completed(FileId::new(NOW, [1; 16]));
    let cases = [
        (None, id.as_str(), "No such Upload object: "),
        (pending(), "upload_1", "No such Upload object: upload_1"),
        (pending(), "", "No such Upload object: "),
        (
            Some(upload("other", UploadStatus::Pending, later)),
            &id,
            "No such Upload object: ",
        ),
        (
            Some(upload("default", UploadStatus::Cancelled, later)),
            &id,
            "status is 'cancelled'",
        ),
        (
            Some(upload("default", completed, later)),
            &id,
            "status is 'completed'",
        ),
        (
            Some(upload("default", UploadStatus::Pending, NOW)),
            &id,
            "status is 'expired'",
        ),
    ];
    for (stored, id, message) in cases {
        let policy = ask(stored.clone(), bearer(), id).await.unwrap();
        let statement = &policy["policyDocument"]["Statement"][0];
        assert_eq!(statement["Effect"], "Deny", "{stored:?} {id}");
        assert_eq!(statement["Resource"], ARN);
        let context = policy["context"].as_object().unwrap();
        let said = context["message"].as_str().unwrap();
        assert!(said.contains(message), "{said}");
        assert_eq!(context.len(), 1, "{stored:?} {id}");
    }
}

#[tokio::test]
async fn no_valid_key_is_unauthorized() {
    let id = upload_id().to_string();
    for headers in [
        json!(null),
        json!({}),
        json!({"authorization": "Bearer sk-wrong"}),
        json!({"authorization": "Basic sk-right"}),
    ] {
        let answer = ask(pending(), headers.clone(), &id).await;
        assert_eq!(answer, Err("unauthorized"), "{headers}");
    }
    let azure = ask(pending(), json!({"Api-Key": "sk-right"}), &id).await;
    assert!(azure.is_ok());
}

#[tokio::test]
async fn a_refusal_that_echoes_a_client_fits_between_quotes() {
    let policy = ask(pending(), bearer(), "\"},\n{\"").await.unwrap();
    let message = policy["context"]["message"].as_str().unwrap();
    let pasted: Value = serde_json::from_str(&format!("{{\"message\": \"{message}\"}}")).unwrap();
    assert_eq!(pasted["message"], "No such Upload object: \"},\n{\"");
}

#[test]
fn an_upload_of_another_tenant_is_never_granted() {
    let principal = batch_core::wire::Principal {
        tenant: TenantId::default_tenant(),
        key: KeyId::new(NOW, [7; 16]),
    };
    let other = upload("other", UploadStatus::Pending, NOW.plus_ms(1));
    let decision = decide(&principal, "upload_x", Some(&other), NOW, [0; 16]);
    assert!(matches!(decision, Decision::Deny(error) if error.status == 404));
}

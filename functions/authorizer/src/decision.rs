//! What the authorizer decides, and how API Gateway wants it said.

use batch_core::id::{Entropy, PartId, TenantId, UploadId};
use batch_core::time::UnixMs;
use batch_core::upload::Upload;
use batch_core::wire::create_upload::not_pending;
use batch_core::wire::upload::status_name;
use batch_core::wire::{Principal, WireError};
use serde::Serialize;

/// The right to store one part, under this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Whose upload.
    pub tenant: TenantId,
    /// The upload.
    pub upload: UploadId,
    /// The part's name. Nobody else knows it before the part is stored.
    pub part: PartId,
    /// When the part was made, for the answer.
    pub created_at: UnixMs,
}

/// Whether a part may be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It may.
    Allow(Grant),
    /// It may not: the answer to send instead.
    Deny(WireError),
}

/// Decides whether `principal` may add a part to the upload `asked`, which the store knows as `upload`.
#[must_use]
pub fn decide(
    principal: &Principal,
    asked: &str,
    upload: Option<&Upload>,
    now: UnixMs,
    entropy: Entropy,
) -> Decision {
    // The store looks below the caller's tenant alone; nothing else may ever be granted.
    let Some(upload) = upload.filter(|upload| upload.tenant == principal.tenant) else {
        return Decision::Deny(WireError::no_upload(asked));
    };
    match status_name(upload, now) {
        "pending" => Decision::Allow(Grant {
            tenant: upload.tenant.clone(),
            upload: upload.id,
            part: PartId::new(now, entropy),
            created_at: now,
        }),
        status => Decision::Deny(not_pending(status)),
    }
}

impl Decision {
    /// Returns the policy that says so, about one method alone.
    #[must_use]
    pub fn into_policy(self, principal: &Principal, method_arn: &str) -> Policy {
        let (effect, context) = match self {
            Decision::Allow(grant) => (
                "Allow",
                PolicyContext::Grant {
                    tenant: grant.tenant.to_string(),
                    upload: grant.upload.to_string(),
                    part: grant.part.to_string(),
                    created_at: grant.created_at.secs().to_string(),
                },
            ),
            Decision::Deny(error) => (
                "Deny",
                PolicyContext::Refusal {
                    message: json_escaped(&error.message),
                },
            ),
        };
        Policy {
            principal_id: principal.key.to_string(),
            policy_document: PolicyDocument {
                version: "2012-10-17",
                statement: [Statement {
                    action: "execute-api:Invoke",
                    effect,
                    resource: method_arn.to_owned(),
                }],
            },
            context,
        }
    }
}

/// Returns what stands between the quotes of a JSON string. API Gateway's templates paste without escaping,
/// and a message may echo what a client wrote.
fn json_escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// An authorizer's answer.
///
/// Source: <https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-lambda-authorizer-output.html>
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    principal_id: String,
    policy_document: PolicyDocument,
    context: PolicyContext,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PolicyDocument {
    version: &'static str,
    statement: [Statement; 1],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Statement {
    action: &'static str,
    effect: &'static str,
    resource: String,
}

/// What the gateway's templates read. It takes texts, numbers and booleans; all of ours are texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum PolicyContext {
    /// For the integration with S3, and for its answer.
    Grant {
        tenant: String,
        upload: String,
        part: String,
        created_at: String,
    },
    /// For the answer to a refused request; it goes between quotes.
    Refusal { message: String },
}

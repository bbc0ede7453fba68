//! What API Gateway asks.

use std::collections::HashMap;

use batch_core::wire::Credentials;
use serde::Deserialize;

/// A request of a REST API, as its authorizer of the kind `REQUEST` gets it. The body stays outside.
///
/// Source: <https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-lambda-authorizer-input.html>
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// What the policy is about: this method of this path, in this stage.
    pub method_arn: String,
    #[serde(default)]
    headers: Option<HashMap<String, String>>,
    #[serde(default)]
    path_parameters: Option<HashMap<String, String>>,
}

impl Request {
    /// Returns the headers that may carry a key.
    #[must_use]
    pub fn credentials(&self) -> Credentials<'_> {
        Credentials {
            authorization: self.header("authorization"),
            api_key: self.header("api-key"),
        }
    }

    /// Returns what stands for `{id}` in the path; empty if nothing does.
    #[must_use]
    pub fn upload(&self) -> &str {
        let parameters = self.path_parameters.as_ref();
        parameters
            .and_then(|parameters| parameters.get("id"))
            .map_or("", String::as_str)
    }

    /// Returns a header, whose name arrives as the client spelt it.
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.as_ref()?.iter();
        headers
            .find(|(spelt, _)| spelt.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

//! A client of the API that does what the official SDKs do, and says why a call failed.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use ureq::Agent;
use ureq::http::{Method, Request, Uri};
use ureq::tls::{RootCerts, TlsConfig};

use crate::failure::usage;

/// How long one request may take.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(120);

/// Bytes of the longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// How often a call is tried, as the SDKs do.
const TRIES: u32 = 3;

/// The longest wait before the next try, whatever the service asks for.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Characters of an unexpected answer that are shown.
const SHOWN_CHARS_MAX: usize = 300;

/// Parts the members of a form; no file that is uploaded here holds it.
const BOUNDARY: &str = "nightshift-check-7f2c0a61d94b4e58";

/// The API of one deployment.
#[derive(Debug)]
pub(super) struct Api {
    agent: Agent,
    base_url: String,
}

/// One answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// What was asked, for messages.
    asked: String,
    location: Option<String>,
    retry_after: Option<Duration>,
}

/// What a request carries.
#[derive(Debug, Clone, Copy)]
pub(super) enum Payload<'a> {
    Nothing,
    Json(&'a Value),
    /// Text members, then one file with its field.
    Form(&'a [(&'a str, &'a str)], &'a str, &'a [u8]),
}

impl Api {
    /// Makes a client. Calls nothing.
    ///
    /// # Errors
    ///
    /// If `base_url` is no address.
    pub(super) fn new(base_url: &str) -> anyhow::Result<Self> {
        let base_url = base_url.trim().trim_end_matches('/').to_owned();
        let parsed: Result<Uri, _> = base_url.parse();
        let is_web =
            |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        if !parsed.as_ref().is_ok_and(is_web) {
            return Err(usage(format!(
                "'{base_url}' is no base URL; one is like https://abc123.execute-api.eu-west-1.amazonaws.com/v1"
            )));
        }
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .build();
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(REQUEST_TIME_MAX))
            .tls_config(tls)
            .user_agent(concat!("nightshift-check/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Ok(Self { agent, base_url })
    }

    /// Returns the address without a slash at the end.
    pub(super) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// Sends one request, without another try.
    ///
    /// # Errors
    ///
    /// If there is no answer, and why.
    pub(super) fn send(
        &self,
        key: Option<&str>,
        method: &Method,
        path: &str,
        payload: Payload<'_>,
    ) -> anyhow::Result<Answer> {
        let url = format!("{}{path}", self.base_url);
        let mut request = Request::builder().method(method).uri(&url);
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let body = match payload {
            Payload::Nothing => Vec::new(),
            Payload::Json(value) => {
                request = request.header("content-type", "application/json");
                value.to_string().into_bytes()
            }
            Payload::Form(members, field, file) => {
                let kind = format!("multipart/form-data; boundary={BOUNDARY}");
                request = request.header("content-type", kind);
                form(members, field, file)
            }
        };
        let asked = format!("{method} {path}");
        let has_body = !matches!(payload, Payload::Nothing);
        let sent = if has_body {
            self.agent
                .run(request.body(body).context("make a request")?)
        } else {
            self.agent.run(request.body(()).context("make a request")?)
        };
        receive(sent, asked, &url)
    }

    /// Sends a request, again while the service asks for that, as the SDKs do.
    ///
    /// # Errors
    ///
    /// If the last try has no answer.
    pub(super) fn call(
        &self,
        key: &str,
        method: &Method,
        path: &str,
        payload: Payload<'_>,
    ) -> anyhow::Result<Answer> {
        let mut wait = Duration::from_millis(500);
        for left in (0..TRIES).rev() {
            let sent = self.send(Some(key), method, path, payload);
            let asked_wait = match &sent {
                Ok(answer) if !answer.may_be_tried_again() => return sent,
                Ok(answer) => answer.retry_after,
                Err(_) => None,
            };
            if left == 0 {
                return sent;
            }
            std::thread::sleep(asked_wait.unwrap_or(wait).min(WAIT_MAX));
            wait *= 2;
        }
        unreachable!("the last try returns")
    }

    /// Downloads a file, and returns its bytes and the host that they came from if it is another one.
    ///
    /// # Errors
    ///
    /// If the service does not give it.
    pub(super) fn content(
        &self,
        key: &str,
        file: &str,
    ) -> anyhow::Result<(Vec<u8>, Option<String>)> {
        let path = format!("/files/{file}/content");
        let answer = self.call(key, &Method::GET, &path, Payload::Nothing)?;
        let Some(url) = answer.location.as_deref().filter(|_| answer.is_redirect()) else {
            return Ok((answer.expect(200)?.body, None));
        };
        let host = url
            .parse::<Uri>()
            .ok()
            .and_then(|uri| uri.host().map(str::to_owned));
        let host = host.context("follow the redirect to the file: it leads nowhere")?;
        // The key stays here: S3 refuses a request with two kinds of authorization.
        let request = Request::get(url).body(()).context("make a request")?;
        let asked = format!("GET a file from {host}");
        let stored = receive(self.agent.run(request), asked, url)?.expect(200)?;
        Ok((stored.body, Some(host)))
    }
}

impl Answer {
    /// Returns the JSON of an answer with this status.
    ///
    /// # Errors
    ///
    /// If it has another status, or is no JSON.
    pub(super) fn json(self, status: u16) -> anyhow::Result<Value> {
        let asked = self.asked.clone();
        let body = self.expect(status)?.body;
        serde_json::from_slice(&body).with_context(|| format!("read the answer to {asked}"))
    }

    /// Checks the status.
    ///
    /// # Errors
    ///
    /// If it is another, with what the service says.
    pub(super) fn expect(self, status: u16) -> anyhow::Result<Self> {
        if self.status == status {
            return Ok(self);
        }
        anyhow::bail!(
            "{} was answered with {} instead of {status}: {}",
            self.asked,
            self.status,
            self.said()
        )
    }

    /// Returns the message of an error, or the beginning of whatever came.
    pub(super) fn said(&self) -> String {
        let json: Option<Value> = serde_json::from_slice(&self.body).ok();
        let message = json.as_ref().and_then(|json| {
            let envelope = json["error"]["message"].as_str();
            envelope.or(json["message"].as_str()).map(str::to_owned)
        });
        let text = message.unwrap_or_else(|| String::from_utf8_lossy(&self.body).into_owned());
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ").chars().take(SHOWN_CHARS_MAX).collect()
    }

    fn is_redirect(&self) -> bool {
        matches!(self.status, 302 | 303 | 307 | 308)
    }

    fn may_be_tried_again(&self) -> bool {
        matches!(self.status, 408 | 409 | 429 | 500..=599)
    }
}

fn receive(
    sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    asked: String,
    url: &str,
) -> anyhow::Result<Answer> {
    let response = sent.map_err(|error| explain(error, url))?;
    let header = |name: &str| {
        let value = response.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    };
    let (location, retry_after) = (header("location"), header("retry-after"));
    let status = response.status().as_u16();
    let body = response
        .into_body()
        .with_config()
        .limit(ANSWER_BYTES_MAX)
        .read_to_vec()
        .map_err(|error| explain(error, url))?;
    Ok(Answer {
        status,
        body,
        asked,
        location,
        retry_after: retry_after
            .and_then(|text| text.parse().ok())
            .map(Duration::from_secs),
    })
}

/// Says in which layer a call broke, and what to look at.
fn explain(error: ureq::Error, url: &str) -> anyhow::Error {
    let host = url
        .parse::<Uri>()
        .ok()
        .and_then(|uri| uri.host().map(str::to_owned));
    let host = host.unwrap_or_else(|| url.to_owned());
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is not ours, and not exhaustive"
    )]
    let hint = match &error {
        error if is_dns(error) => format!(
            "DNS: no host is named '{host}'; is this the address in the output api_base_url, and was the deployment destroyed?"
        ),
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => format!(
            "TLS: no safe connection to '{host}'; look at its certificate, and for a proxy in between whose certificate this machine does not trust"
        ),
        ureq::Error::Io(io) if is_tls(io) => format!(
            "TLS: no safe connection to '{host}'; look at its certificate, and for a proxy in between whose certificate this machine does not trust"
        ),
        ureq::Error::Io(io) if io.kind() == ErrorKind::ConnectionRefused => {
            format!("'{host}' refuses connections: nothing listens there")
        }
        ureq::Error::Timeout(_) => format!(
            "'{host}' did not answer in {} s; a private endpoint is reached from inside its network alone",
            REQUEST_TIME_MAX.as_secs()
        ),
        ureq::Error::ConnectProxyFailed(_) | ureq::Error::InvalidProxyUrl => {
            "the proxy that HTTPS_PROXY or HTTP_PROXY names does not connect".to_owned()
        }
        _ => format!("'{host}' cannot be reached"),
    };
    anyhow::Error::new(error).context(hint)
}

/// The resolver's errors have no kind of their own.
fn is_dns(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::HostNotFound) || error.to_string().contains("lookup address")
}

fn is_tls(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::InvalidData
}

fn form(members: &[(&str, &str)], field: &str, file: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(file.len() + 1024);
    for (name, value) in members {
        body.extend_from_slice(
            format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
            )
            .as_bytes(),
        );
    }
    body.extend_from_slice(
        format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"nightshift-check.jsonl\"\r\nContent-Type: application/octet-stream\r\n\r\n").as_bytes(),
    );
    body.extend_from_slice(file);
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    body
}

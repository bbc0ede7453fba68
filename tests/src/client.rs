//! A small HTTP client for the service; the SDK tests use the real SDKs.

use std::time::{Duration, Instant};

use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

/// How often a read is tried while the service is busy.
const BUSY_TRIES: u32 = 5;

/// A client of one service.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base_url: String,
    api_key: String,
}

/// The two files of an ended batch, line by line.
#[derive(Debug, Clone, Default)]
pub struct Results {
    /// Lines of the output file.
    pub output: Vec<Value>,
    /// Lines of the error file.
    pub errors: Vec<Value>,
}

/// The answer to a cancel.
#[derive(Debug, Clone)]
pub struct Cancel {
    /// HTTP status.
    pub status: u16,
    /// `x-should-retry`.
    pub should_retry: Option<String>,
    /// The batch, or the error.
    pub body: Value,
}

impl Results {
    /// Returns the custom ids of the output file, in its order.
    #[must_use]
    pub fn output_ids(&self) -> Vec<String> {
        ids(&self.output)
    }

    /// Returns the custom ids of the error file, in its order.
    #[must_use]
    pub fn error_ids(&self) -> Vec<String> {
        ids(&self.errors)
    }
}

fn ids(lines: &[Value]) -> Vec<String> {
    lines
        .iter()
        .map(|line| {
            line["custom_id"]
                .as_str()
                .expect("a record has a custom_id")
                .to_owned()
        })
        .collect()
}

impl Client {
    /// Makes a client.
    #[must_use]
    pub fn new(base_url: &str, api_key: &str) -> Self {
        Self {
            http: reqwest::Client::new(),
            base_url: base_url.to_owned(),
            api_key: api_key.to_owned(),
        }
    }

    /// Sends a request and returns status and JSON body.
    ///
    /// # Errors
    ///
    /// If there is no answer, or one that is no JSON.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<(u16, Value)> {
        let method = method.parse()?;
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base_url))
            .bearer_auth(&self.api_key);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    }

    /// Uploads a batch file and returns its id.
    ///
    /// # Errors
    ///
    /// If the service refuses it.
    pub async fn upload(&self, bytes: Vec<u8>) -> anyhow::Result<String> {
        let file = Part::bytes(bytes).file_name("batch.jsonl");
        let form = Form::new().text("purpose", "batch").part("file", file);
        let request = self
            .http
            .post(format!("{}/files", self.base_url))
            .bearer_auth(&self.api_key)
            .multipart(form);
        let answer: Value = request.send().await?.json().await?;
        answer["id"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| anyhow::anyhow!("upload: {answer}"))
    }

    /// Creates a batch of chat completions and returns its id.
    ///
    /// # Errors
    ///
    /// If the service refuses it.
    pub async fn create(&self, file: &str) -> anyhow::Result<String> {
        self.create_within(file, "24h").await
    }

    /// Creates a batch of chat completions with a window and returns its id.
    ///
    /// # Errors
    ///
    /// If the service refuses it.
    pub async fn create_within(&self, file: &str, window: &str) -> anyhow::Result<String> {
        let body = json!({
            "input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": window,
        });
        let (_, answer) = self.call("POST", "/batches", Some(body)).await?;
        answer["id"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| anyhow::anyhow!("create: {answer}"))
    }

    /// Starts an upload in parts and returns its id.
    ///
    /// # Errors
    ///
    /// If the service refuses it.
    pub async fn start_upload(&self, bytes: usize) -> anyhow::Result<String> {
        let body = json!({
            "purpose": "batch", "filename": "parts.jsonl", "bytes": bytes, "mime_type": "application/jsonl",
        });
        let (_, answer) = self.call("POST", "/uploads", Some(body)).await?;
        text_of(&answer, &answer["id"])
    }

    /// Sends a part of an upload and returns its id.
    ///
    /// # Errors
    ///
    /// If the service refuses it.
    pub async fn add_part(&self, upload: &str, data: Vec<u8>) -> anyhow::Result<String> {
        let form = Form::new().part("data", Part::bytes(data).file_name("part"));
        let request = self
            .http
            .post(format!("{}/uploads/{upload}/parts", self.base_url))
            .bearer_auth(&self.api_key)
            .multipart(form);
        let answer: Value = request.send().await?.json().await?;
        text_of(&answer, &answer["id"])
    }

    /// Completes an upload and returns the id of its file.
    ///
    /// # Errors
    ///
    /// If the service refuses it.
    pub async fn complete_upload(&self, upload: &str, parts: &[String]) -> anyhow::Result<String> {
        let body = json!({"part_ids": parts});
        let (_, answer) = self
            .call("POST", &format!("/uploads/{upload}/complete"), Some(body))
            .await?;
        text_of(&answer, &answer["file"]["id"])
    }

    /// Reads a batch.
    ///
    /// # Errors
    ///
    /// If the service does not answer with 200.
    pub async fn batch(&self, id: &str) -> anyhow::Result<Value> {
        // As the SDKs do, it asks again when the service says that it is busy.
        for _ in 0..BUSY_TRIES {
            let (status, batch) = self.call("GET", &format!("/batches/{id}"), None).await?;
            if status != 503 {
                anyhow::ensure!(status == 200, "retrieve: {batch}");
                return Ok(batch);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        anyhow::bail!("retrieve: busy {BUSY_TRIES} times")
    }

    /// Polls until the batch has ended.
    ///
    /// # Errors
    ///
    /// If it has not ended after `limit`.
    pub async fn wait(&self, id: &str, limit: Duration) -> anyhow::Result<Value> {
        let until = Instant::now() + limit;
        loop {
            let batch = self.batch(id).await?;
            if matches!(
                batch["status"].as_str(),
                Some("completed" | "failed" | "expired" | "cancelled")
            ) {
                return Ok(batch);
            }
            anyhow::ensure!(Instant::now() < until, "not ended after {limit:?}: {batch}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Uploads a file, creates a batch of it, and returns the batch's id.
    ///
    /// # Errors
    ///
    /// If the service refuses one of them.
    pub async fn submit(&self, bytes: Vec<u8>) -> anyhow::Result<String> {
        let file = self.upload(bytes).await?;
        self.create(&file).await
    }

    /// As [`Client::submit`], with a window.
    ///
    /// # Errors
    ///
    /// If the service refuses one of them.
    pub async fn submit_within(&self, bytes: Vec<u8>, window: &str) -> anyhow::Result<String> {
        let file = self.upload(bytes).await?;
        self.create_within(&file, window).await
    }

    /// Cancels a batch.
    ///
    /// # Errors
    ///
    /// If there is no answer, or one that is no JSON.
    pub async fn cancel(&self, id: &str) -> anyhow::Result<Cancel> {
        let url = format!("{}/batches/{id}/cancel", self.base_url);
        let answer = self
            .http
            .post(url)
            .bearer_auth(&self.api_key)
            .send()
            .await?;
        let should_retry = answer.headers().get("x-should-retry");
        Ok(Cancel {
            status: answer.status().as_u16(),
            should_retry: should_retry
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned),
            body: answer.json().await?,
        })
    }

    /// Downloads a file.
    ///
    /// # Errors
    ///
    /// If the service does not answer with 200, or breaks off.
    pub async fn content(&self, file: &str) -> anyhow::Result<Vec<u8>> {
        let url = format!("{}/files/{file}/content", self.base_url);
        let answer = self
            .http
            .get(url)
            .bearer_auth(&self.api_key)
            .send()
            .await?
            .error_for_status()?;
        Ok(answer.bytes().await?.to_vec())
    }

    /// Downloads both files of an ended batch.
    ///
    /// # Errors
    ///
    /// If one cannot be read, or is not one JSON record a line.
    pub async fn results(&self, batch: &Value) -> anyhow::Result<Results> {
        let mut results = Results::default();
        for (field, lines) in [
            ("output_file_id", &mut results.output),
            ("error_file_id", &mut results.errors),
        ] {
            let Some(id) = batch[field].as_str() else {
                continue;
            };
            let text = String::from_utf8(self.content(id).await?)?;
            anyhow::ensure!(text.ends_with('\n'), "{field}: no newline at the end");
            for line in text.lines() {
                lines.push(serde_json::from_str(line)?);
            }
        }
        Ok(results)
    }
}

/// Returns a text of an answer, which an error has not.
fn text_of(answer: &Value, field: &Value) -> anyhow::Result<String> {
    field
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| anyhow::anyhow!("{answer}"))
}

/// Renders one request line for the default model.
#[must_use]
pub fn chat_line(custom_id: &str, prompt: &str, max_tokens: u32) -> String {
    let body = json!({
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    });
    json!({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})
        .to_string()
}

//! A client that sends exactly the bytes it is told to.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const KEY: &str = "sk-default";

/// A request in the making.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Bytes of each chunk; none sends a content length.
    chunk_bytes: Option<usize>,
    /// Bytes after which the client stops to send.
    cut: Option<usize>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Call {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Self {
        let call = Self {
            method,
            path: path.into(),
            headers: Vec::new(),
            body: Vec::new(),
            chunk_bytes: None,
            cut: None,
        };
        call.header("authorization", &format!("Bearer {KEY}"))
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new("GET", path)
    }

    pub(crate) fn post(path: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self::new("POST", path)
            .header("content-type", "application/json")
            .body(body)
    }

    /// Sends a form of these parts; see [`text`] and [`file`].
    pub(crate) fn form(path: &str, parts: &[Vec<u8>]) -> Self {
        Self::new("POST", path)
            .header(
                "content-type",
                &format!("multipart/form-data; boundary={BOUNDARY}"),
            )
            .body(form_body(parts))
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self
    }

    pub(crate) fn tenant(self, tenant: &str) -> Self {
        self.header("authorization", &format!("Bearer sk-{tenant}"))
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn chunked(mut self, bytes: usize) -> Self {
        self.chunk_bytes = Some(bytes);
        self
    }

    pub(crate) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!(
            "{} {} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n",
            self.method, self.path
        );
        for (name, value) in &self.headers {
            bytes.push_str(&format!("{name}: {value}\r\n"));
        }
        match self.chunk_bytes {
            Some(_) => bytes.push_str("transfer-encoding: chunked\r\n\r\n"),
            None => bytes.push_str(&format!("content-length: {}\r\n\r\n", self.body.len())),
        }
        let mut bytes = bytes.into_bytes();
        match self.chunk_bytes {
            None => bytes.extend_from_slice(&self.body),
            Some(chunk_bytes) => {
                for chunk in self.body.chunks(chunk_bytes) {
                    bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
        }
        bytes.truncate(self.cut.unwrap_or(usize::MAX));
        bytes
    }

    /// Sends the request; none if the server closed without an answer.
    pub(crate) async fn try_send(&self, to: SocketAddr) -> Option<Answer> {
        let (mut reader, mut writer) = TcpStream::connect(to).await.unwrap().into_split();
        let bytes = self.to_bytes();
        let cut = self.cut.is_some();
        let writing = tokio::spawn(async move {
            writer.write_all(&bytes).await.ok();
            if cut {
                writer.shutdown().await.ok();
            }
            writer
        });
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer).await.unwrap();
        writing.await.unwrap();
        parse(&answer)
    }

    pub(crate) async fn send(&self, to: SocketAddr) -> Answer {
        self.try_send(to).await.expect("the server answers")
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), "application/json");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the body of a 200.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// Returns status, param and code of an error.
    #[track_caller]
    pub(crate) fn refusal(&self) -> (u16, String, String) {
        let error = &self.json()["error"];
        assert!(
            error["message"].is_string() && error["type"].is_string(),
            "{error}"
        );
        let text = |key: &str| {
            error
                .get(key)
                .expect("all four keys")
                .as_str()
                .unwrap_or("-")
                .to_owned()
        };
        (self.status, text("param"), text("code"))
    }
}

fn parse(answer: &[u8]) -> Option<Answer> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().unwrap();
    let headers: BTreeMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let body = &answer[end + 4..];
    let chunked = headers
        .get("transfer-encoding")
        .is_some_and(|coding| coding == "chunked");
    let body = if chunked {
        dechunk(body)
    } else {
        body.to_vec()
    };
    Some(Answer {
        status,
        headers,
        body,
    })
}

fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let end = body
            .windows(2)
            .position(|window| window == b"\r\n")
            .expect("a chunk size");
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return bytes;
        }
        bytes.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
}

pub(crate) const BOUNDARY: &str = "----formdata-undici-012345678901";

/// A text field of a form.
pub(crate) fn text(name: &str, value: &str) -> Vec<u8> {
    format!("Content-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}").into_bytes()
}

/// A file of a form.
pub(crate) fn file(name: &str, filename: &str, bytes: &[u8]) -> Vec<u8> {
    let head = format!(
        "Content-Disposition: form-data; name=\"{name}\"; filename=\"{filename}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
    );
    [head.as_bytes(), bytes].concat()
}

pub(crate) fn form_body(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        body.extend_from_slice(format!("--{BOUNDARY}\r\n").as_bytes());
        body.extend_from_slice(part);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body
}

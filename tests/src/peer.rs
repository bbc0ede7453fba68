//! A server of OpenAI's API, as a model's server is: it answers at once, or misbehaves as a test wants it.
//!
//! It speaks HTTP/1.1 by hand, because no decent server would break off an answer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Prompt tokens that every answer says it took.
pub const INPUT_TOKENS: u64 = 7;

/// Prompt tokens of these that came from a cache.
pub const CACHED_TOKENS: u64 = 2;

/// Generated tokens that every answer says it took.
pub const OUTPUT_TOKENS: u64 = 3;

/// What the peer calls its model.
pub const MODEL: &str = "org/Real-Model";

/// A request for an answer.
#[derive(Debug, Clone)]
pub struct Call {
    /// What follows the host.
    pub path: String,
    /// As it came.
    pub body: String,
    /// The header `authorization`.
    pub key: Option<String>,
    /// How often this very body has come, this time included.
    pub nth: usize,
    /// Requests that are being answered, this one included.
    pub in_flight: usize,
}

impl Call {
    /// Returns the text of the last message, or of the input.
    #[must_use]
    pub fn prompt(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let messages = body["messages"].as_array().and_then(|list| list.last());
        let text = messages.map_or(&body["input"], |message| &message["content"]);
        text.as_str().unwrap_or_default().to_owned()
    }
}

/// What the peer does about a request.
#[derive(Debug, Clone)]
pub enum Act {
    /// Answers well.
    Answer,
    /// Answers well, after a while.
    AnswerAfter(Duration),
    /// Answers with this status, these further headers (each with its line end) and this body.
    Say(u16, &'static str, String),
    /// Breaks off in the middle of a good answer.
    CutOff,
    /// Closes the connection without a word.
    HangUp,
    /// Says that a long body follows.
    Promise(usize),
}

/// How it behaves.
type Manner = dyn Fn(&Call) -> Act + Send + Sync;

/// A running peer. Dropping it closes all connections.
pub struct Peer {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: tokio::task::JoinHandle<()>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

struct Shared {
    manner: Box<Manner>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    times: HashMap<String, usize>,
    in_flight: usize,
}

impl Peer {
    /// Starts a peer on a free port.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub async fn start(manner: impl Fn(&Call) -> Act + Send + Sync + 'static) -> Self {
        let shared = Arc::new(Shared {
            manner: Box::new(manner),
            state: Mutex::default(),
        });
        Self::serve(SocketAddr::from(([127, 0, 0, 1], 0)), shared).await
    }

    async fn serve(address: SocketAddr, shared: Arc<Shared>) -> Self {
        let listener = TcpListener::bind(address).await.expect("listen");
        let address = listener.local_addr().expect("it has an address");
        let serving = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            address,
            shared,
            serving,
        }
    }

    /// Ends it as a crash would, and returns what starts it again at the same address.
    pub async fn crash(mut self) -> Crashed {
        self.serving.abort();
        // Its port is free once it has ended.
        let _ = (&mut self.serving).await;
        let (address, shared) = (self.address, Arc::clone(&self.shared));
        drop(self);
        shared.lock().in_flight = 0;
        Crashed { address, shared }
    }

    /// Returns what an SDK would take as its base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Returns all requests so far, in the order in which they came.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.shared.lock().calls.clone()
    }

    /// Renders a catalog's entry for its model, with more fields, one `name = value` a line.
    #[must_use]
    pub fn entry(&self, id: &str, fields: &str) -> String {
        crate::catalog::served(
            id,
            &self.url(),
            &format!("server.model = {MODEL:?}\n{fields}"),
        )
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A peer that is down.
pub struct Crashed {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Crashed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crashed")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Crashed {
    /// Starts it again.
    pub async fn start(self) -> Peer {
        Peer::serve(self.address, self.shared).await
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, path: String, body: String, key: Option<String>) -> (Call, Act) {
        let call = {
            let mut state = self.lock();
            state.in_flight += 1;
            let times = state.times.entry(body.clone()).or_default();
            *times += 1;
            let call = Call {
                path,
                nth: *times,
                body,
                key,
                in_flight: state.in_flight,
            };
            state.calls.push(call.clone());
            call
        };
        let act = (self.manner)(&call);
        (call, act)
    }
}

/// Counts a request out, also when its connection is cut.
struct InFlight<'a>(&'a Shared);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        // A client that hangs up is none of its business.
        connections.spawn(async move { converse(stream, &shared).await.ok() });
    }
}

/// Answers the requests of one connection.
async fn converse(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some((method, path, headers)) = read_head(&mut stream).await? {
        let length = headers
            .get("content-length")
            .and_then(|text| text.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).await?;
        if method == "GET" {
            let answer = match path.as_str() {
                "/health" => response(200, "", ""),
                "/v1/models" => response(
                    200,
                    "",
                    &format!(r#"{{"object":"list","data":[{{"id":"{MODEL}"}}]}}"#),
                ),
                _ => response(404, "", "{}"),
            };
            stream.write_all(&answer).await?;
            continue;
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        let (call, act) = shared.begin(path, body, headers.get("authorization").cloned());
        let in_flight = InFlight(shared);
        let good = answer_to(&call);
        if let Act::AnswerAfter(wait) = act {
            tokio::time::sleep(wait).await;
        }
        // Before the answer: whoever has it may send the next request at once.
        drop(in_flight);
        match act {
            Act::Answer | Act::AnswerAfter(_) => {
                stream.write_all(&response(200, "", &good)).await?;
            }
            Act::Say(status, headers, body) => {
                stream.write_all(&response(status, headers, &body)).await?;
            }
            Act::CutOff => {
                let whole = response(200, "", &good);
                return stream.write_all(&whole[..whole.len() - 9]).await;
            }
            Act::HangUp => return Ok(()),
            Act::Promise(bytes) => {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n{{");
                stream.write_all(head.as_bytes()).await?;
                return std::future::pending().await;
            }
        }
    }
    Ok(())
}

type Head = (String, String, HashMap<String, String>);

/// Reads the head of a request; none at the end of the connection.
async fn read_head(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Head>> {
    let mut first = String::new();
    if stream.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    let mut words = first.split_whitespace().map(str::to_owned);
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            None => return Ok(Some((method, path, headers))),
        }
    }
}

fn response(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} As It Is\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

/// Returns the answer to a call, in a style that nobody else would write it in.
#[must_use]
pub fn answer_to(call: &Call) -> String {
    let text = Value::from(format!("You said: {}", call.prompt()));
    let usage = format!(
        r#"{{"prompt_tokens" : {INPUT_TOKENS},"completion_tokens":{OUTPUT_TOKENS}, "prompt_tokens_details":{{"cached_tokens":{CACHED_TOKENS}}},"of_its_own":1.50}}"#
    );
    if call.path.ends_with("/embeddings") {
        return format!(
            r#"{{ "object":"list", "data":[{{"object":"embedding","index":0,"embedding":[0.10,-2e-3]}}],"usage":{{"prompt_tokens":{INPUT_TOKENS}}} }}"#
        );
    }
    format!(
        r#"{{ "id":"chatcmpl-1","choices" :[{{"index":0,"message":{{"role":"assistant","content":{text}}}}}],"usage":{usage},"\u00e9":null }}"#
    )
}

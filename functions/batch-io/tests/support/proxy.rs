//! The weather between the SDK and the emulator: a proxy that refuses, fails and drops what a plan says.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

type Body = BoxBody<Bytes, io::Error>;

/// One of every so many requests goes wrong in rough weather. The SDK gives up repeating when more than one of six
/// does for long: a repetition costs five of the tokens of which an answer brings one.
const ONE_OF: u64 = 8;

/// A like request goes wrong no more often than this in a row: the clients try five times.
const IN_A_ROW_MAX: u32 = 2;

/// A request, as far as plans look at it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    /// `TransactWriteItems` or `SendMessageBatch`; empty for S3.
    pub(crate) operation: String,
    /// `PUT /bucket/key?partNumber=1`.
    pub(crate) line: String,
    /// Actions of a transaction.
    pub(crate) actions: usize,
}

/// What a service says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer(pub(crate) u16, pub(crate) &'static str);

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The service refuses: it did nothing.
    Answer(Answer),
    /// The connection ends before the request is there.
    DropBefore,
    /// The connection ends after the request took effect.
    DropAfter,
    /// The answer breaks off in the middle of its body.
    Cut,
}

/// What goes wrong when.
#[derive(Clone)]
pub(crate) enum Plan {
    /// Nothing.
    Clear,
    /// Some of everything, by a seed. Everything succeeds in the end.
    Rough(u64),
    /// This, for the calls meant, so many times.
    Some(u32, fn(&Call) -> bool, Fault),
}

struct State {
    upstream: u16,
    plan: Plan,
    count: u64,
    in_a_row: HashMap<Call, u32>,
}

/// A running proxy.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port before `upstream`.
    pub(crate) async fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State {
            upstream,
            plan: Plan::Clear,
            count: 0,
            in_a_row: HashMap::new(),
        }));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                let service = service_fn(move |request| handle(Arc::clone(&state), request));
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { port, state, task }
    }

    /// Changes the weather, and counts anew.
    pub(crate) fn plan(&self, plan: Plan) {
        let mut state = self.state.lock().unwrap();
        state.plan = plan;
        state.count = 0;
        state.in_a_row.clear();
    }

    /// Returns how many requests came since the weather changed.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().unwrap().count
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn fault(&mut self, call: &Call) -> Option<Fault> {
        self.count += 1;
        let fault = match &mut self.plan {
            Plan::Clear => None,
            Plan::Some(left, meant, fault) => {
                let hit = *left > 0 && meant(call);
                *left -= u32::from(hit);
                hit.then_some(*fault)
            }
            Plan::Rough(seed) => rough(mix(*seed ^ self.count), call),
        };
        if !matches!(self.plan, Plan::Rough(_)) {
            return fault;
        }
        let in_a_row = self.in_a_row.entry(call.clone()).or_default();
        *in_a_row = if fault.is_some() { *in_a_row + 1 } else { 0 };
        if *in_a_row > IN_A_ROW_MAX {
            *in_a_row = 0;
            return None;
        }
        fault
    }
}

/// Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn rough(roll: u64, call: &Call) -> Option<Fault> {
    if !roll.is_multiple_of(ONE_OF) {
        return None;
    }
    let operation = call.operation.as_str();
    let refusals: &[Answer] = match operation {
        "" => &[Answer(503, "SlowDown"), Answer(500, "InternalError")],
        "TransactWriteItems" => &[
            Answer(400, "TransactionCanceledException"),
            Answer(400, "ThrottlingException"),
            Answer(500, "InternalServerError"),
        ],
        _ => &[
            Answer(400, "ThrottlingException"),
            Answer(500, "InternalServerError"),
        ],
    };
    let roll = usize::try_from(roll / ONE_OF % 1000).unwrap();
    Some(match roll % 4 {
        0 => Fault::DropBefore,
        // What was received and got lost on its way comes only after its timeout, which the suite may set
        // at hours.
        1 if operation != "ReceiveMessage" => Fault::DropAfter,
        2 if call.line.starts_with("GET") => Fault::Cut,
        _ => Fault::Answer(refusals[roll % refusals.len()]),
    })
}

async fn handle(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let dropped = || io::Error::new(io::ErrorKind::ConnectionReset, "the weather dropped it");
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let call = call(&head, &body);
    let (fault, upstream) = {
        let mut state = state.lock().unwrap();
        (state.fault(&call), state.upstream)
    };
    match fault {
        Some(Fault::DropBefore) => return Err(dropped()),
        Some(Fault::Answer(answer)) => return Ok(say(answer, &call)),
        Some(Fault::DropAfter | Fault::Cut) | None => {}
    }
    let request = Request::from_parts(head, Full::new(body));
    let (head, body) = send(upstream, request).await?.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    match fault {
        Some(Fault::DropAfter) => Err(dropped()),
        Some(Fault::Cut) if body.len() > 1 => {
            let half = body.slice(..body.len() / 2);
            let frames = [Ok(Frame::data(half)), Err(dropped())];
            let cut = StreamBody::new(futures::stream::iter(frames));
            Ok(Response::from_parts(head, cut.boxed()))
        }
        Some(_) | None => Ok(Response::from_parts(head, whole(body))),
    }
}

fn call(head: &hyper::http::request::Parts, body: &Bytes) -> Call {
    let target = head
        .headers
        .get("x-amz-target")
        .and_then(|target| target.to_str().ok());
    let operation = target.and_then(|target| target.split_once('.'));
    let operation = operation.map_or("", |(_, operation)| operation).to_owned();
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let actions = json["TransactItems"].as_array().map_or(0, Vec::len);
    Call {
        operation,
        line: format!("{} {}", head.method, head.uri),
        actions,
    }
}

fn whole(body: Bytes) -> Body {
    Full::new(body).map_err(|never| match never {}).boxed()
}

/// An answer in the form of the service that was called.
fn say(Answer(status, code): Answer, call: &Call) -> Response<Body> {
    let (kind, body) = if call.operation.is_empty() {
        let error = format!("<Error><Code>{code}</Code><Message>injected</Message></Error>");
        ("application/xml", error)
    } else {
        let reason = serde_json::json!({"Code": "TransactionConflict", "Message": "injected"});
        let error = serde_json::json!({
            "__type": format!("com.amazonaws#{code}"),
            "message": "injected",
            "CancellationReasons": vec![reason; call.actions],
        });
        ("application/x-amz-json-1.0", error.to_string())
    };
    let response = Response::builder()
        .status(status)
        .header(CONTENT_TYPE, kind);
    response.body(whole(body.into())).unwrap()
}

async fn send<B>(port: u16, request: Request<B>) -> Result<Response<Incoming>, io::Error>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(io::Error::other)
}

/// Gets an address on this machine without a header of any SDK; none if nobody answers.
pub(crate) async fn fetch(address: &str) -> Option<(StatusCode, HeaderMap, Bytes)> {
    let uri: Uri = address.parse().unwrap();
    let authority = uri.authority().unwrap().clone();
    let request =
        Request::get(uri.path_and_query().unwrap().as_str()).header(HOST, authority.as_str());
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let (head, body) = send(authority.port_u16().unwrap(), request)
        .await
        .ok()?
        .into_parts();
    Some((
        head.status,
        head.headers,
        body.collect().await.ok()?.to_bytes(),
    ))
}

//! Lines go to the server and back, whatever the server does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batch_core::batch::{Endpoint, TokenCounts};
use batch_core::catalog::Server;
use batch_core::id::LineNo;
use batch_core::time::UnixMs;
use batch_io::platform::system_clock;
use system_tests::peer::{self, Act, Call, MODEL, Peer};
use worker::http::{ApiKey, Served};
use worker::pipeline::{Answered, LineAnswer, LineFault, LineJob, LineKey, Pipeline, Stopped};

/// For one test, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn served(url: &str) -> Served {
    Served {
        server: Server {
            url: url.to_owned(),
            model: Some(MODEL.to_owned()),
            api_key_env: None,
            requests_max: 256,
            timeout_seconds: 30,
        },
        key: None,
    }
}

/// Connects, with pauses that are as short as can be.
async fn connect(served: &Served) -> Pipeline {
    let connected = Pipeline::connect("alias", served, system_clock(), Arc::new(|| [0; 16])).await;
    connected.expect("the peer is well")
}

fn body(prompt: &str) -> String {
    let prompt = serde_json::Value::from(prompt);
    format!(
        r#"{{ "model":  "alias", "messages":[{{"role":"user","content":{prompt}}}],"temperature":0.10, "x":{{"model":"alias"}} }}"#
    )
}

fn job(key: u64, body: &str) -> LineJob {
    LineJob {
        key: LineKey(key),
        endpoint: Endpoint::ChatCompletions,
        run: "run".into(),
        custom_id_json: format!(r#""line-{key}""#),
        line: LineNo(key),
        created_at: UnixMs(0),
        request_id: "batch_req_1".to_owned(),
        body: body.to_owned(),
        salt: 0,
    }
}

async fn next(pipeline: &mut Pipeline) -> LineAnswer {
    let answer = tokio::time::timeout(LONG, pipeline.next(|| UnixMs(0))).await;
    answer
        .expect("an answer comes")
        .expect("the server is there")
}

/// Runs one line and returns its result.
async fn one(peer: &Peer, prompt: &str) -> Result<Answered, LineFault> {
    let mut pipeline = connect(&served(&peer.url())).await;
    pipeline.submit(job(1, &body(prompt)));
    next(&mut pipeline).await.result
}

/// Returns status and code, or status and body.
fn shown(fault: &LineFault) -> (u16, String) {
    match fault {
        LineFault::Line(error) => (error.status, error.code.clone().unwrap_or_default()),
        LineFault::Server(error) => (error.status, error.body.clone()),
    }
}

fn first(act: Act) -> impl Fn(&Call) -> Act {
    move |call| match call.nth {
        1 => act.clone(),
        _ => Act::Answer,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn body_goes_out_and_comes_back_byte_for_byte_but_for_the_models_name() {
    let peer = Peer::start(|_| Act::Answer).await;
    let key = ApiKey::new("sk-of-the-test".to_owned());
    let served = Served {
        key: Some(key),
        ..served(&peer.url())
    };
    let mut pipeline = connect(&served).await;
    pipeline.submit(job(1, &body("Hé \u{2028} there")));
    let answered = next(&mut pipeline).await.result.expect("it is answered");
    let calls = peer.calls();
    let [call] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(call.path, "/v1/chat/completions");
    assert_eq!(call.key.as_deref(), Some("Bearer sk-of-the-test"));
    let sent = body("Hé \u{2028} there").replacen(r#""alias""#, &format!("{MODEL:?}"), 1);
    assert_eq!(call.body, sent);
    assert_eq!(answered.body, peer::answer_to(call));
    let tokens = TokenCounts {
        input: peer::INPUT_TOKENS,
        cached: peer::CACHED_TOKENS,
        output: peer::OUTPUT_TOKENS,
    };
    assert_eq!((answered.status, answered.tokens), (200, tokens));
}

#[tokio::test(flavor = "multi_thread")]
async fn line_is_answered_after_whatever_passes() {
    let say = |status, body: &str| Act::Say(status, "", body.to_owned());
    let acts = [
        say(408, "{}"),
        say(409, "{}"),
        say(425, "{}"),
        say(429, "{}"),
        say(500, "oops"),
        say(502, "<html>"),
        say(503, ""),
        say(504, "{}"),
        say(200, "data: {}"),
        say(200, "[1]"),
        say(200, "{\"choices\":["),
        Act::CutOff,
        Act::HangUp,
    ];
    for act in acts {
        let told = format!("{act:?}");
        let peer = Peer::start(first(act)).await;
        let result = one(&peer, "Hi").await;
        assert!(result.is_ok(), "{told}: {result:?}");
        assert_eq!(peer.calls().len(), 2, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn line_gets_the_servers_own_error_after_five_retries() {
    let error = r#"{ "error" : {"message":"out of order"} }"#;
    let peer = Peer::start(|_| Act::Say(500, "", error.to_owned())).await;
    let fault = one(&peer, "Hi").await.expect_err("it always fails");
    assert_eq!(shown(&fault), (500, error.to_owned()));
    assert_eq!(peer.calls().len(), 6);

    let peer = Peer::start(|_| Act::CutOff).await;
    let fault = one(&peer, "Hi").await.expect_err("it always fails");
    assert_eq!(shown(&fault), (502, "server_answer_cut".to_owned()));
    assert_eq!(peer.calls().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_line_is_not_sent_again() {
    let error = r#"{ "error" : {"message":"no such thing"} }"#;
    for status in [400, 401, 403, 404, 413, 422] {
        let peer = Peer::start(move |_| Act::Say(status, "", error.to_owned())).await;
        let fault = one(&peer, "Hi").await.expect_err("it is refused");
        assert_eq!(shown(&fault), (status, error.to_owned()));
        assert_eq!(peer.calls().len(), 1);
    }
    let elsewhere = Peer::start(|_| Act::Answer).await;
    let to = format!("location: {}/chat/completions\r\n", elsewhere.url());
    let to: &'static str = Box::leak(to.into_boxed_str());
    let peer = Peer::start(move |_| Act::Say(307, to, String::new())).await;
    let fault = one(&peer, "Hi").await.expect_err("it is no answer");
    assert_eq!(shown(&fault), (502, "server_redirected".to_owned()));
    assert_eq!(elsewhere.calls().len(), 0, "the text went elsewhere");
    let peer = Peer::start(|_| Act::Promise(17 * 1024 * 1024)).await;
    let fault = one(&peer, "Hi").await.expect_err("it is too long");
    assert_eq!(shown(&fault), (502, "server_answer_too_long".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_refused_and_not_sent() {
    let peer = Peer::start(|_| Act::Answer).await;
    let mut pipeline = connect(&served(&peer.url())).await;
    pipeline.submit(job(1, r#"{"model":"alias","stream":1}"#));
    let fault = next(&mut pipeline).await.result.expect_err("it is refused");
    assert_eq!(shown(&fault), (400, "invalid_type".to_owned()));
    assert!(peer.calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_before_the_server_wants_it() {
    let wait = "retry-after: 1\r\n";
    let peer = Peer::start(first(Act::Say(429, wait, "{}".to_owned()))).await;
    let began = Instant::now();
    let result = one(&peer, "Hi").await;
    assert!(result.is_ok(), "{result:?}");
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_that_takes_too_long_is_asked_for_again() {
    let peer = Peer::start(first(Act::AnswerAfter(LONG))).await;
    let mut hasty = served(&peer.url());
    hasty.server.timeout_seconds = 1;
    let mut pipeline = connect(&hasty).await;
    pipeline.submit(job(1, &body("Hi")));
    let result = next(&mut pipeline).await.result;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(peer.calls().len(), 2);
}

/// A server that takes 24 requests at once is kept busy, and is not drowned.
#[tokio::test(flavor = "multi_thread")]
async fn pace_finds_what_the_server_takes() {
    const CAPACITY: usize = 24;
    const LINES: u64 = 1_500;
    let peer = Peer::start(|call| match call.in_flight > CAPACITY {
        true => Act::Say(429, "", "{}".to_owned()),
        false => Act::AnswerAfter(Duration::from_millis(10)),
    })
    .await;
    let mut pipeline = connect(&served(&peer.url())).await;
    for key in 1..=LINES {
        pipeline.submit(job(key, &body(&format!("Say {key}"))));
    }
    for _ in 0..LINES {
        let answer = next(&mut pipeline).await;
        assert!(answer.result.is_ok(), "{answer:?}");
    }
    let calls = peer.calls();
    let most = calls.iter().map(|call| call.in_flight).max().unwrap_or(0);
    assert!((CAPACITY..=3 * CAPACITY).contains(&most), "{most} at once");
    let settled = &calls[calls.len() / 2..];
    let sum: usize = settled.iter().map(|call| call.in_flight).sum();
    let mean = sum / settled.len();
    assert!(
        (CAPACITY / 3..=CAPACITY + 2).contains(&mean),
        "{mean} on average"
    );
    let refused = calls.len() as u64 - LINES;
    assert!(refused < LINES / 3, "{refused} requests were in vain");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_line_is_given_up_and_the_others_go_on() {
    let peer = Peer::start(|call| match call.prompt().as_str() {
        "slow" => Act::AnswerAfter(LONG),
        _ => Act::Answer,
    })
    .await;
    let mut one_at_once = served(&peer.url());
    one_at_once.server.requests_max = 1;
    let mut pipeline = connect(&one_at_once).await;
    pipeline.submit(job(1, &body("slow")));
    while peer.calls().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for key in 2..=4 {
        pipeline.submit(job(key, &body(&format!("Say {key}"))));
    }
    pipeline.cancel(LineKey(1));
    pipeline.cancel(LineKey(3));
    let keys = [next(&mut pipeline).await.key, next(&mut pipeline).await.key];
    assert_eq!(keys, [LineKey(2), LineKey(4)]);
    assert_eq!(peer.calls().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn pipeline_stops_when_the_server_is_gone_and_keeps_what_was_answered() {
    let peer = Peer::start(|call| match call.prompt().as_str() {
        "slow" => Act::AnswerAfter(LONG),
        _ => Act::Answer,
    })
    .await;
    let mut pipeline = connect(&served(&peer.url())).await;
    for (key, prompt) in [(1, "a"), (2, "slow"), (3, "b"), (4, "slow"), (5, "slow")] {
        pipeline.submit(job(key, &body(prompt)));
    }
    let mut answered = BTreeMap::new();
    for _ in 0..2 {
        let answer = next(&mut pipeline).await;
        answered.insert(answer.key.0, answer.result.is_ok());
    }
    assert_eq!(answered, BTreeMap::from([(1, true), (3, true)]));
    while peer.calls().len() < 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let url = peer.url();
    let _crashed = peer.crash().await;
    let stopped = tokio::time::timeout(LONG, pipeline.next(|| UnixMs(0))).await;
    match stopped.expect("it notices") {
        Err(Stopped::Away(why)) => {
            let said = why.to_string();
            let words = format!("the server at {url} does not answer (no connection)");
            assert!(said.starts_with(&words), "{said}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_is_not_well_is_not_connected_to_and_it_is_said_why() {
    let server = |routes: BTreeMap<&'static str, u16>| async move {
        let answer = move |request: axum::extract::Request| {
            let status = routes.get(request.uri().path()).copied().unwrap_or(404);
            let status = http::StatusCode::from_u16(status);
            std::future::ready(status.expect("a status"))
        };
        let router = axum::Router::new().fallback(answer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("listen");
        let address = listener.local_addr().expect("it has an address");
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}/v1")
    };
    let cases = [
        (
            vec![("/health", 503), ("/v1/models", 200)],
            "is not well: GET /health gives 503",
        ),
        (
            vec![("/health", 200), ("/v1/models", 500)],
            "is not well: GET /models gives 500",
        ),
        (
            vec![("/health", 200), ("/v1/models", 401)],
            "refuses the API key (401)",
        ),
        (vec![], "does not look like one of OpenAI's API"),
        (vec![("/health", 200)], ""),
        (vec![("/v1/models", 200)], ""),
    ];
    for (routes, words) in cases {
        let url = server(routes.into_iter().collect()).await;
        let random = Arc::new(|| [0; 16]);
        let connected = Pipeline::connect("m", &served(&url), system_clock(), random).await;
        match connected {
            Ok(_) => assert_eq!(words, "", "{url} is well"),
            Err(why) => {
                let said = why.to_string();
                assert!(!words.is_empty() && said.contains(words), "{said}");
                assert!(said.contains(&url), "{said}");
            }
        }
    }
}

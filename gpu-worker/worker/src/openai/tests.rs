//! Bodies in, sequences and answers out.

use batch_core::batch::{Endpoint, TokenCounts};
use batch_core::time::UnixMs;
use expect_test::{Expect, expect};
use inference::engine::{FinishReason, Generation, RequestFailure, TokenLogprob};
use serde_json::Value;

use super::{
    Answerer, LineContext, LineError, PreparedLine, PromptText, answer, failure, prepare,
    token_counts,
};

/// One token a byte; a chat is `role: content` lines.
struct Bytes;

impl PromptText for Bytes {
    fn chat(&self, messages: &Value, _now: UnixMs) -> Result<Vec<u32>, LineError> {
        let text: String = messages
            .as_array()
            .into_iter()
            .flatten()
            .map(|m| {
                format!(
                    "{}: {}\n",
                    m["role"].as_str().unwrap(),
                    m["content"].as_str().unwrap()
                )
            })
            .collect();
        Ok(self.plain(&text))
    }

    fn plain(&self, text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        vec![u8::try_from(token).unwrap_or(b'?')]
    }
}

fn context(endpoint: Endpoint) -> LineContext<'static> {
    LineContext {
        endpoint,
        run: "batch_1",
        custom_id_json: "\"a\"",
        created_at: UnixMs(1_790_000_000_000),
        context_tokens: 1_000,
    }
}

fn run(endpoint: Endpoint, body: &str) -> Result<PreparedLine, LineError> {
    prepare(body, &context(endpoint), &Bytes)
}

fn prompt_of(line: &PreparedLine, index: usize) -> String {
    line.sequences[index]
        .prompt
        .iter()
        .map(|id| char::from(u8::try_from(*id).unwrap()))
        .collect()
}

/// Renders each body's error as `param code: message`, or `ok`.
fn check(endpoint: Endpoint, bodies: &[&str], expected: &Expect) {
    let mut out = String::new();
    for body in bodies {
        match run(endpoint, body) {
            Ok(_) => out.push_str("ok\n"),
            Err(e) => out.push_str(&format!(
                "{} {} {}: {}\n",
                e.status,
                e.param.unwrap_or_default(),
                e.code.unwrap_or_default(),
                e.message
            )),
        }
    }
    expected.assert_eq(&out);
}

const USER: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

fn chat(rest: &str) -> String {
    if rest.is_empty() {
        format!("{{{USER}}}")
    } else {
        format!("{{{USER},{rest}}}")
    }
}

#[test]
fn bad_values_name_the_field_the_value_and_the_limit() {
    let bodies: Vec<String> = [
        "",
        r#""max_tokens":-1"#,
        r#""max_tokens":0"#,
        r#""max_tokens":"5""#,
        r#""max_tokens":2.0"#,
        r#""max_completion_tokens":1.5"#,
        r#""temperature":9"#,
        r#""temperature":"hot""#,
        r#""top_p":-1"#,
        r#""n":0"#,
        r#""stop":["a","b","c","d","e"]"#,
        r#""stop":"""#,
        r#""stop":7"#,
        r#""seed":"x""#,
        r#""seed":1.5"#,
        r#""top_logprobs":3"#,
        r#""logprobs":true,"top_logprobs":21"#,
        r#""logit_bias":{"x":1}"#,
        r#""frequency_penalty":-3"#,
        r#""stream":true"#,
        r#""stream":"true""#,
        r#""max_tokens":9223372036854775808"#,
        r#""max_tokens":-1e30"#,
        r#""temperature":1e999"#,
    ]
    .iter()
    .map(|rest| chat(rest))
    .collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    check(
        Endpoint::ChatCompletions,
        &bodies,
        &expect![[r#"
        ok
        400 max_tokens integer_below_min_value: Invalid 'max_tokens': expected a value >= 1, but got -1 instead.
        400 max_tokens integer_below_min_value: Invalid 'max_tokens': expected a value >= 1, but got 0 instead.
        400 max_tokens invalid_type: Invalid type for 'max_tokens': expected an integer, but got a string instead.
        ok
        400 max_completion_tokens invalid_type: Invalid type for 'max_completion_tokens': expected an integer, but got a decimal number instead.
        400 temperature decimal_above_max_value: Invalid 'temperature': expected a value <= 2, but got 9 instead.
        400 temperature invalid_type: Invalid type for 'temperature': expected a number, but got a string instead.
        400 top_p decimal_below_min_value: Invalid 'top_p': expected a value >= 0, but got -1 instead.
        400 n integer_below_min_value: Invalid 'n': expected a value >= 1, but got 0 instead.
        400 stop array_above_max_length: Invalid 'stop': at most 4 strings are allowed, but got 5.
        400 stop invalid_value: Invalid 'stop': a stop string must not be empty.
        400 stop invalid_type: Invalid type for 'stop': expected a string or an array of strings, but got an integer instead.
        400 seed invalid_type: Invalid type for 'seed': expected an integer, but got a string instead.
        400 seed invalid_type: Invalid type for 'seed': expected an integer, but got a decimal number instead.
        400 top_logprobs invalid_value: Invalid 'top_logprobs': it needs 'logprobs' to be true.
        400 top_logprobs integer_above_max_value: Invalid 'top_logprobs': expected a value <= 20, but got 21 instead.
        400 logit_bias invalid_value: Invalid 'logit_bias': keys must be token ids and values numbers from -100 to 100.
        400 frequency_penalty decimal_below_min_value: Invalid 'frequency_penalty': expected a value >= -2, but got -3 instead.
        400 stream unsupported_parameter: Unsupported parameter 'stream': a batch does not stream.
        400 stream invalid_type: Invalid type for 'stream': expected a boolean, but got a string instead.
        400 max_tokens integer_above_max_value: Invalid 'max_tokens': expected a value <= 4294967295, but got 9223372036854775808 instead.
        400 max_tokens integer_below_min_value: Invalid 'max_tokens': expected a value >= 1, but got -1e+30 instead.
        400 temperature invalid_value: Invalid 'temperature': number out of range.
    "#]],
    );
}

#[test]
fn what_is_not_built_is_an_error_and_never_dropped() {
    let bodies: Vec<String> = [
        r#""response_format":{"type":"json_object"}"#,
        r#""response_format":{"type":"json_schema","json_schema":{}}"#,
        r#""response_format":{"type":"text"}"#,
        r#""tools":[{"type":"function"}]"#,
        r#""tools":[]"#,
        r#""tool_choice":"required""#,
        r#""modalities":["text","audio"]"#,
    ]
    .iter()
    .map(|rest| chat(rest))
    .collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    check(
        Endpoint::ChatCompletions,
        &bodies,
        &expect![[r#"
        400 response_format unsupported_parameter: Unsupported parameter 'response_format': only the type 'text' is available.
        400 response_format unsupported_parameter: Unsupported parameter 'response_format': only the type 'text' is available.
        ok
        400 tools unsupported_parameter: Unsupported parameter 'tools': this engine does not call tools.
        ok
        400 tool_choice unsupported_parameter: Unsupported parameter 'tool_choice': this engine does not call tools.
        400 modalities unsupported_parameter: Unsupported parameter 'modalities': this model makes text alone.
    "#]],
    );
}

#[test]
fn messages_are_checked_one_by_one() {
    check(
        Endpoint::ChatCompletions,
        &[
            r#"{}"#,
            r#"{"messages":[]}"#,
            r#"{"messages":"hi"}"#,
            r#"{"messages":[3]}"#,
            r#"{"messages":[{"content":"x"}]}"#,
            r#"{"messages":[{"role":"king","content":"x"}]}"#,
            r#"{"messages":[{"role":"user"}]}"#,
            r#"{"messages":[{"role":"user","content":7}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#,
            r#"{"messages":[{"role":"user","content":[null]}]}"#,
            r#"{"messages":[{"role":"user","content":[{"text":"x"}]}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"refusal"}]}]}"#,
            r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{}]}]}"#,
            r#"[]"#,
            r#"{"messages":"#,
        ],
        &expect![[r#"
            400 messages missing_required_parameter: Missing required parameter: 'messages'.
            400 messages empty_array: Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.
            400 messages invalid_type: Invalid type for 'messages': expected an array of objects, but got a string instead.
            400 messages[0] invalid_type: Invalid type for 'messages[0]': expected an object, but got an integer instead.
            400 messages[0].role missing_required_parameter: Missing required parameter: 'messages[0].role'.
            400 messages[0].role invalid_value: Invalid value: 'king'. Supported values are: 'system', 'developer', 'user', 'assistant', and 'tool'.
            400 messages[0].content missing_required_parameter: Missing required parameter: 'messages[0].content'.
            400 messages[0].content invalid_type: Invalid type for 'messages[0].content': expected a string or an array of parts, but got an integer instead.
            400 messages[0].content[0].type unsupported_parameter: Unsupported parameter 'messages[0].content[0].type': this model reads text alone.
            400 messages[0].content[0] invalid_type: Invalid type for 'messages[0].content[0]': expected an object, but got null instead.
            400 messages[0].content[0].type missing_required_parameter: Missing required parameter: 'messages[0].content[0].type'.
            400 messages[0].content[0].refusal missing_required_parameter: Missing required parameter: 'messages[0].content[0].refusal'.
            400 messages[0].tool_calls unsupported_parameter: Unsupported parameter 'messages[0].tool_calls': this engine does not call tools.
            400 body invalid_type: The body must be an object.
            400 body invalid_body: The body cannot be read: EOF while parsing a value at line 1 column 12.
        "#]],
    );
}

#[test]
fn parts_are_joined_and_developer_is_system() {
    let body = r#"{"messages":[{"role":"developer","content":"Be brief."},
        {"role":"user","content":[{"type":"text","text":"Say "},{"type":"text","text":"hi"}]}]}"#;
    let line = run(Endpoint::ChatCompletions, body).unwrap();
    assert_eq!(prompt_of(&line, 0), "system: Be brief.\nuser: Say hi\n");
}

#[test]
fn lone_surrogate_becomes_the_replacement_character() {
    for (written, read) in [
        (r"cut \ud83d", "cut \u{fffd}"),
        (r"\ude00!", "\u{fffd}!"),
        (r"\ud83d\ud83d\ude00", "\u{fffd}\u{1f600}"),
        (r"\\ud83d", "\\ud83d"),
        (r"\u00e9", "\u{e9}"),
    ] {
        let fields = super::fields::parse(&format!(r#"{{"x":"{written}"}}"#)).unwrap();
        assert_eq!(fields.string("x").unwrap(), Some(read), "{written}");
    }
}

#[test]
fn seed_keeps_its_value_whatever_its_size() {
    let seed = |text: &str| {
        run(
            Endpoint::ChatCompletions,
            &chat(&format!("\"seed\":{text}")),
        )
        .unwrap()
        .sequences[0]
            .seed
    };
    assert_eq!(seed("9007199254740993"), 9_007_199_254_740_993);
    assert_ne!(seed("9007199254740993"), seed("9007199254740992"));
    assert_eq!(seed("18446744073709551615"), u64::MAX);
    assert_eq!(seed("-1"), u64::MAX);
    assert_eq!(seed("7.0"), 7);
    assert_eq!(seed("-0"), 0);
    assert_ne!(
        seed("123456789012345678901234567890"),
        seed("123456789012345678901234567891")
    );
    let without = run(Endpoint::ChatCompletions, &chat("")).unwrap().sequences[0].seed;
    assert_eq!(
        without,
        run(Endpoint::ChatCompletions, &chat("")).unwrap().sequences[0].seed
    );
}

#[test]
fn max_tokens_is_the_room_that_is_left_when_absent_or_larger() {
    let max = |rest: &str| {
        run(Endpoint::ChatCompletions, &chat(rest))
            .unwrap()
            .sequences[0]
            .max_tokens
    };
    let prompt = "user: hi\n".len() as u32;
    assert_eq!(max(""), 1_000 - prompt);
    assert_eq!(max(r#""max_tokens":5000"#), 1_000 - prompt);
    assert_eq!(max(r#""max_tokens":7"#), 7);
    assert_eq!(max(r#""max_tokens":7,"max_completion_tokens":3"#), 3);
}

#[test]
fn completions_take_every_form_of_prompt() {
    let count = |prompt: &str| {
        run(
            Endpoint::Completions,
            &format!("{{\"prompt\":{prompt},\"n\":2}}"),
        )
        .map(|l| l.sequences.len())
    };
    assert_eq!(count(r#""x""#), Ok(2));
    assert_eq!(count(r#"["x","y"]"#), Ok(4));
    assert_eq!(count("[1,2,3]"), Ok(2));
    assert_eq!(count("[[1],[2],[3]]"), Ok(6));
    check(
        Endpoint::Completions,
        &[
            r#"{"prompt":[]}"#,
            r#"{"prompt":{}}"#,
            r#"{"prompt":[1,"x"]}"#,
            r#"{"prompt":["x",7]}"#,
            r#"{"prompt":["x",[1,-1]]}"#,
            r#"{}"#,
            r#"{"prompt":"x","best_of":3}"#,
            r#"{"prompt":"x","suffix":"y"}"#,
        ],
        &expect![[r#"
            400 prompt empty_array: Invalid 'prompt': an empty array has no prompt.
            400 prompt invalid_type: Invalid type for 'prompt': expected a string, an array of strings, an array of token ids, or an array of those, but got an object instead.
            400 prompt[1] invalid_type: Invalid type for 'prompt[1]': expected a token id, but got a string instead.
            400 prompt[1] invalid_type: Invalid type for 'prompt[1]': expected a string or an array of token ids, but got an integer instead.
            400 prompt[1][1] invalid_type: Invalid type for 'prompt[1][1]': expected a token id, but got an integer instead.
            400 prompt missing_required_parameter: Missing required parameter: 'prompt'.
            400 best_of unsupported_parameter: Unsupported parameter 'best_of': only the value of 'n' is available.
            400 suffix unsupported_parameter: Unsupported parameter 'suffix': this model does not fill in the middle.
        "#]],
    );
}

#[test]
fn responses_read_instructions_and_items() {
    let body = r#"{"instructions":"Be kind.","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]}"#;
    assert_eq!(
        prompt_of(&run(Endpoint::Responses, body).unwrap(), 0),
        "system: Be kind.\nuser: hi\n"
    );
    check(
        Endpoint::Responses,
        &[
            r#"{"input":"hi","previous_response_id":"resp_1"}"#,
            r#"{"input":"hi","background":true}"#,
            r#"{"input":"hi","text":{"format":{"type":"json_schema"}}}"#,
            r#"{"input":[{"type":"function_call"}]}"#,
            r#"{"input":[]}"#,
            r#"{"input":7}"#,
            r#"{"input":[null]}"#,
        ],
        &expect![[r#"
            400 previous_response_id unsupported_parameter: Unsupported parameter 'previous_response_id': a line of a batch has no stored state.
            400 background unsupported_parameter: Unsupported parameter 'background': a batch is in the background already.
            400 text unsupported_parameter: Unsupported parameter 'text': only the format 'text' is available.
            400 input[0].type unsupported_parameter: Unsupported parameter 'input[0].type': only messages are available.
            400 input empty_array: Invalid 'input': empty array. Expected an array with minimum length 1, but got an empty array instead.
            400 input invalid_type: Invalid type for 'input': expected a string or an array, but got an integer instead.
            400 input[0] invalid_type: Invalid type for 'input[0]': expected an object, but got null instead.
        "#]],
    );
}

fn generation(text: &str, finish_reason: FinishReason) -> Generation {
    Generation {
        text: text.to_owned(),
        tokens: vec![104, 105],
        logprobs: None,
        finish_reason,
        prompt_tokens: 9,
        cached_tokens: 4,
        completion_tokens: 2,
    }
}

const ANSWERER: Answerer<'static> = Answerer {
    model: "m",
    fingerprint: "fp",
    request_id: "batch_req_ab",
    now: UnixMs(1_790_000_100_000),
};

#[test]
fn chat_answer_has_every_field() {
    let line = run(Endpoint::ChatCompletions, &chat("")).unwrap();
    let mut with_logprobs = generation("hi", FinishReason::Stop);
    with_logprobs.logprobs = Some(vec![TokenLogprob {
        token: 104,
        logprob: -0.5,
        top: vec![(104, -0.5), (0xe9, -1.5)],
    }]);
    let body = answer(&line.shape, &[with_logprobs], &ANSWERER, &Bytes).unwrap();
    expect![[r#"{"id":"chatcmpl-ab","object":"chat.completion","created":1790000100,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi","refusal":null},"logprobs":{"content":[{"token":"h","logprob":-0.5,"bytes":[104],"top_logprobs":[{"token":"h","logprob":-0.5,"bytes":[104]},{"token":"�","logprob":-1.5,"bytes":[233]}]}],"refusal":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":0}},"system_fingerprint":"fp"}"#]].assert_eq(&body);
}

#[test]
fn completion_answer_echoes_and_counts_each_prompt_once() {
    let line = run(
        Endpoint::Completions,
        r#"{"prompt":["ab","c"],"n":2,"echo":true}"#,
    )
    .unwrap();
    let generations = vec![generation("!", FinishReason::Length); 4];
    assert_eq!(
        token_counts(&line.shape, &generations),
        TokenCounts {
            input: 18,
            cached: 8,
            output: 8
        }
    );
    expect![[r#"{"id":"cmpl-ab","object":"text_completion","created":1790000100,"model":"m","choices":[{"text":"ab!","index":0,"logprobs":null,"finish_reason":"length"},{"text":"ab!","index":1,"logprobs":null,"finish_reason":"length"},{"text":"c!","index":2,"logprobs":null,"finish_reason":"length"},{"text":"c!","index":3,"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":18,"completion_tokens":8,"total_tokens":26,"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":0}},"system_fingerprint":"fp"}"#]].assert_eq(&answer(&line.shape, &generations, &ANSWERER, &Bytes).unwrap());
}

#[test]
fn the_drawn_token_is_listed_when_it_is_not_among_the_most_likely() {
    let line = run(Endpoint::Completions, r#"{"prompt":"x","logprobs":1}"#).unwrap();
    let mut drawn = generation("h", FinishReason::Stop);
    drawn.logprobs = Some(vec![TokenLogprob {
        token: 104,
        logprob: -2.5,
        top: vec![(105, -0.5)],
    }]);
    let body = answer(&line.shape, &[drawn], &ANSWERER, &Bytes).unwrap();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        body["choices"][0]["logprobs"]["top_logprobs"],
        serde_json::json!([{"i": -0.5, "h": -2.5}])
    );
}

#[test]
fn response_that_was_cut_is_incomplete() {
    let line = run(
        Endpoint::Responses,
        r#"{"input":"hi","max_output_tokens":2}"#,
    )
    .unwrap();
    let body = answer(
        &line.shape,
        &[generation("hi", FinishReason::Length)],
        &ANSWERER,
        &Bytes,
    )
    .unwrap();
    expect![[r#"{"id":"resp_ab","object":"response","created_at":1790000100,"completed_at":null,"status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"},"instructions":null,"max_output_tokens":2,"metadata":{},"model":"m","output":[{"type":"message","id":"msg_ab","role":"assistant","status":"incomplete","content":[{"type":"output_text","text":"hi","annotations":[],"logprobs":[]}]}],"parallel_tool_calls":true,"previous_response_id":null,"reasoning":{"effort":null,"summary":null},"store":false,"temperature":1.0,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_p":1.0,"truncation":"disabled","usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":11}}"#]].assert_eq(&body);
}

#[test]
fn number_that_is_not_finite_is_an_error_and_never_null() {
    let line = run(Endpoint::ChatCompletions, &chat(r#""logprobs":true"#)).unwrap();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut generation = generation("hi", FinishReason::Stop);
        generation.logprobs = Some(vec![TokenLogprob {
            token: 104,
            logprob: bad,
            top: vec![],
        }]);
        let error = answer(&line.shape, &[generation], &ANSWERER, &Bytes).unwrap_err();
        assert_eq!(
            (error.status, error.code.as_deref()),
            (500, Some("non_finite_result"))
        );
    }
}

#[test]
fn context_that_is_too_long_is_the_lines_400() {
    let error = failure(
        Endpoint::ChatCompletions,
        &RequestFailure::ContextTooLong {
            prompt_tokens: 9_000,
            context_tokens: 8_192,
        },
    );
    assert_eq!(
        (error.status, error.param.as_deref(), error.code.as_deref()),
        (400, Some("messages"), Some("context_length_exceeded"))
    );
    assert!(
        error.message.contains("8192") && error.message.contains("9000"),
        "{}",
        error.message
    );
}

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::catalog::{Engine, Price, Source};

fn model(id: &str, aliases: &[&str], endpoints: &[Endpoint]) -> Model {
    Model {
        id: id.to_owned(),
        aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
        engine: Engine::Native(Source::Path("model".to_owned())),
        context_tokens: Some(2_048),
        endpoints: endpoints.to_vec(),
        price: Price {
            input_per_million: 1.0,
            output_per_million: 1.0,
        },
        owned_by: None,
        tokens_per_s: None,
    }
}

fn catalog() -> Catalog {
    let text = [
        Endpoint::ChatCompletions,
        Endpoint::Completions,
        Endpoint::Responses,
    ];
    Catalog::new(vec![
        model("chat", &["Org/Chat"], &text),
        model("vectors", &[], &[Endpoint::Embeddings]),
    ])
    .unwrap()
}

/// Parses `line` for `endpoint` and shows what came of it.
fn check_on(endpoint: Endpoint, line: impl AsRef<[u8]>, want: &Expect) {
    let catalog = catalog();
    want.assert_eq(&match parse(line.as_ref(), LineNo(7), endpoint, &catalog) {
        Parsed::Blank => "blank".to_owned(),
        Parsed::Good(Line { custom_id, custom_id_json, model, body, estimated_tokens, prompt }) => {
            let custom_id = custom_id.escape_ascii();
            let PromptKey { instructions, prompt } = prompt;
            format!("{custom_id} {custom_id_json} {model} {estimated_tokens} [{instructions}|{prompt}] {body}")
        }
        Parsed::Bad { custom_id, errors } => {
            let custom_id = custom_id.map_or_else(|| "-".to_owned(), |id| id.escape_ascii().to_string());
            let errors = errors.iter().map(|error| {
                assert_eq!(error.line, Some(LineNo(7)));
                format!("\n{} {}: {}", error.code, error.param.as_deref().unwrap_or("-"), error.message)
            });
            custom_id + &errors.collect::<String>()
        }
    });
}

fn check(line: impl AsRef<[u8]>, want: &Expect) {
    check_on(Endpoint::ChatCompletions, line, want);
}

/// A line around a body.
fn with_body(body: &str) -> String {
    format!(r#"{{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{body}}}"#)
}

/// A line around a custom_id.
fn with_id(custom_id: &str) -> String {
    format!(
        r#"{{"custom_id":{custom_id},"method":"POST","url":"/v1/chat/completions","body":{{"model":"chat","messages":[]}}}}"#
    )
}

#[test]
fn body_is_passed_on_as_written() {
    check(
        with_body(
            r#"{ "messages" : ["\ud83d", 1e999, 123456789012345678901234567890],"model":"Org\/Chat","max_tokens":7 }"#,
        ),
        &expect![[
            r#"a "a" chat 19 [|["\ud83d", 1e999, 123456789012345678901234567890]] { "messages" : ["\ud83d", 1e999, 123456789012345678901234567890],"model":"Org\/Chat","max_tokens":7 }"#
        ]],
    );
}

#[test]
fn custom_id_is_echoed_as_written_and_compared_as_meant() {
    check(
        with_id(r#"" \u0061\ud83d""#),
        &expect![[
            r#" a\xed\xa0\xbd " \u0061\ud83d" chat 256 [|[]] {"model":"chat","messages":[]}"#
        ]],
    );
    check(
        with_id(r#""""#),
        &expect![[r#"
        -
        string_below_min_length custom_id: Invalid 'custom_id': empty string. It must have at least one character."#]],
    );
    check(
        with_id("7"),
        &expect![[r#"
        -
        invalid_type custom_id: Invalid type for 'custom_id': expected a string, but got a number instead."#]],
    );
    check(
        with_id("null"),
        &expect![[r#"
        -
        invalid_type custom_id: Invalid type for 'custom_id': expected a string, but got null instead."#]],
    );
}

#[test]
fn custom_id_has_at_most_512_characters() {
    for (custom_id, chars) in [
        ("é".repeat(512), 512),
        (r"\ud83d".repeat(513), 513),
        (r"\ud83d\ude00".repeat(512), 512),
    ] {
        let line = with_id(&format!("\"{custom_id}\""));
        let catalog = catalog();
        let codes: Vec<_> = match parse(
            line.as_bytes(),
            LineNo(1),
            Endpoint::ChatCompletions,
            &catalog,
        ) {
            Parsed::Blank | Parsed::Good(_) => Vec::new(),
            Parsed::Bad { errors, .. } => errors.into_iter().map(|error| error.code).collect(),
        };
        assert_eq!(
            codes,
            if chars > 512 {
                vec!["string_above_max_length"]
            } else {
                vec![]
            },
            "{chars}"
        );
    }
}

#[test]
fn keys_come_in_any_order_and_spelling_and_others_are_ignored() {
    check(
        r#" {"x":[1,{"body":2}],"body":{"messages":[],"model":"chat"},"url":"\/v1\/chat\/completions","m\u0065thod":"POST","custom_id":"a","x":0} "#,
        &expect![[r#"a "a" chat 256 [|[]] {"messages":[],"model":"chat"}"#]],
    );
}

#[test]
fn repeated_key_of_the_envelope_is_an_error() {
    check(
        with_id(r#""a","custom_id":"b""#),
        &expect![[r#"
        -
        invalid_json_line -: This line is not parseable as valid JSON. The key 'custom_id' appears more than once."#]],
    );
    check(
        with_id(r#""a","b\u006fdy":1"#),
        &expect![[r#"
        -
        invalid_json_line -: This line is not parseable as valid JSON. The key 'body' appears more than once."#]],
    );
}

#[test]
fn last_of_a_repeated_key_counts_in_a_body() {
    check(
        with_body(r#"{"model":"gpt","model":"chat","stream":true,"messages":[],"stream":false}"#),
        &expect![[
            r#"a "a" chat 256 [|[]] {"model":"gpt","model":"chat","stream":true,"messages":[],"stream":false}"#
        ]],
    );
}

#[test]
fn everything_that_is_wrong_is_told() {
    check(
        "{}",
        &expect![[r#"
        -
        missing_required_parameter custom_id: Missing required parameter: 'custom_id'.
        missing_required_parameter method: Missing required parameter: 'method'.
        missing_required_parameter url: Missing required parameter: 'url'.
        missing_required_parameter body: Missing required parameter: 'body'."#]],
    );
    check(
        r#"{"custom_id":1,"method":2,"url":3,"body":4}"#,
        &expect![[r#"
        -
        invalid_type custom_id: Invalid type for 'custom_id': expected a string, but got a number instead.
        invalid_type method: Invalid type for 'method': expected a string, but got a number instead.
        invalid_type url: Invalid type for 'url': expected a string, but got a number instead.
        invalid_type body: Invalid type for 'body': expected an object, but got a number instead."#]],
    );
    check(
        r#"{"custom_id":"a","method":"post","url":"/v1/x","body":{"stream":true}}"#,
        &expect![[r#"
        a
        invalid_method method: Invalid value: 'post'. The method of every request must be 'POST'.
        invalid_url url: The URL provided for this request does not match the batch endpoint.
        invalid_request body.model: Model parameter is required.
        streaming_unsupported body.stream: Chat Completions: Streaming is not supported in the Batch API."#]],
    );
    check(
        with_body(r#"{"model":null,"messages":null,"stream":true}"#),
        &expect![[r#"
        a
        invalid_request body.model: Model parameter is required.
        invalid_request body.messages: Messages parameter is required.
        streaming_unsupported body.stream: Chat Completions: Streaming is not supported in the Batch API."#]],
    );
    check(
        with_body(r#"{"model":["chat"],"messages":"x"}"#),
        &expect![[r#"
        a
        invalid_type body.model: Invalid type for 'body.model': expected a string, but got an array instead."#]],
    );
    check(
        with_body(&format!(
            r#"{{"model":"{}","messages":[]}}"#,
            "é".repeat(200)
        )),
        &expect![[r#"
        a
        model_not_found body.model: The provided model 'éééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé' is not supported by the Batch API."#]],
    );
}

#[test]
fn model_must_serve_the_endpoint() {
    check(
        with_body(r#"{"model":"vectors","messages":[]}"#),
        &expect![[r#"
        a
        model_not_found body.model: The provided model 'vectors' is not supported by the Batch API for the endpoint /v1/chat/completions."#]],
    );
    let line = r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"vectors","input":"some text"}}"#;
    check_on(
        Endpoint::Embeddings,
        line,
        &expect![[r#"a "a" vectors 2 [|"some text"] {"model":"vectors","input":"some text"}"#]],
    );
    check(
        line,
        &expect![[r#"
        a
        invalid_url url: The URL provided for this request does not match the batch endpoint."#]],
    );
}

#[test]
fn each_endpoint_has_its_own_prompt() {
    for (endpoint, body, want) in [
        (
            Endpoint::Completions,
            r#"{"model":"chat","messages":[]}"#,
            expect![[r#"
            a
            invalid_request body.prompt: Prompt parameter is required."#]],
        ),
        (
            Endpoint::Responses,
            r#"{"model":"chat","prompt":{}}"#,
            expect![[r#"
            a
            invalid_request body.input: Input parameter is required."#]],
        ),
        (
            Endpoint::Responses,
            r#"{"model":"chat","input":"hi","instructions":"short","max_output_tokens":3}"#,
            expect![[
                r#"a "a" chat 5 ["short"|"hi"] {"model":"chat","input":"hi","instructions":"short","max_output_tokens":3}"#
            ]],
        ),
    ] {
        let path = endpoint.path();
        check_on(
            endpoint,
            format!(r#"{{"custom_id":"a","method":"POST","url":"{path}","body":{body}}}"#),
            &want,
        );
    }
}

#[test]
fn white_space_is_no_request() {
    for line in ["", " \t\r", "\u{3000}\u{85}"] {
        check(line, &expect!["blank"]);
    }
}

#[test]
fn what_is_no_json_object_is_told_apart() {
    check(
        "{oops}",
        &expect![[r#"
        -
        invalid_json_line -: This line is not parseable as valid JSON."#]],
    );
    check(
        "[]",
        &expect![[r#"
        -
        invalid_json_line -: This line is not parseable as valid JSON. It must be a JSON object."#]],
    );
    check(
        b"{\"a\":\"\xff\"}",
        &expect![[r#"
        -
        invalid_json_line -: This line is not parseable as valid JSON. It is not valid UTF-8."#]],
    );
    check(
        "\u{feff}{}",
        &expect![[r#"
        -
        invalid_json_line -: This line is not parseable as valid JSON. It starts with a byte order mark, which only the first line of a file may."#]],
    );
    check(
        with_body(r#"{"temperature":NaN}"#),
        &expect![[r#"
        -
        invalid_json_line -: This line is not parseable as valid JSON."#]],
    );
    check(
        with_body("{}") + "{}",
        &expect![[r#"
        -
        invalid_json_line -: This line is not parseable as valid JSON."#]],
    );
}

#[test]
fn estimate_counts_the_maximum_of_each_choice_and_is_not_inflated() {
    for (fields, want) in [
        (r#""max_tokens":1e9"#, 256),
        (r#""max_tokens":99999999999999999999"#, 256),
        (r#""max_tokens":1000000"#, 2_048),
        (r#""max_tokens":-1"#, 256),
        (r#""max_tokens":12"#, 12),
        (r#""max_tokens":12,"n":5"#, 60),
        (r#""max_tokens":12,"n":0"#, 12),
        (r#""max_tokens":12,"n":4000000000"#, 12 * 128),
        (r#""max_tokens":12,"n":"x""#, 12),
    ] {
        let catalog = catalog();
        let line = with_body(&format!(r#"{{"model":"chat","messages":[],{fields}}}"#));
        let Parsed::Good(line) = parse(
            line.as_bytes(),
            LineNo(1),
            Endpoint::ChatCompletions,
            &catalog,
        ) else {
            panic!()
        };
        assert_eq!(line.estimated_tokens, want, "{fields}");
    }
}

#[test]
fn deep_nesting_is_passed_on() {
    let depth = 1_000_000;
    let body = format!(
        r#"{{"model":"chat","messages":{}{}}}"#,
        "[".repeat(depth),
        "]".repeat(depth)
    );
    let catalog = catalog();
    let line = with_body(&body);
    let Parsed::Good(line) = parse(
        line.as_bytes(),
        LineNo(1),
        Endpoint::ChatCompletions,
        &catalog,
    ) else {
        panic!()
    };
    assert!(line.body == body);
    assert_eq!(
        super::super::open(with_body(&body).as_bytes()).map(|request| request.body == body),
        Some(true)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_048))]

    #[test]
    fn bytes_of_any_kind_do_no_harm(
        line in prop::collection::vec(any::<u8>(), 0..64),
        at in 0_usize..200,
        cut in 0_usize..40,
    ) {
        let catalog = catalog();
        let mut whole = with_body(r#"{"model":"chat","messages":[{"role":"user","content":"\ud83d\u0061"}]}"#).into_bytes();
        let at = at.min(whole.len());
        let end = (at + cut).min(whole.len());
        whole.splice(at..end, line.iter().copied());
        for line in [&line, &whole] {
            match parse(line, LineNo(1), Endpoint::ChatCompletions, &catalog) {
                Parsed::Good(good) => prop_assert_eq!(
                    super::super::open(line).map(|request| (request.custom_id_json, request.body)),
                    Some((good.custom_id_json, good.body))
                ),
                Parsed::Bad { errors, .. } => prop_assert!(!errors.is_empty()),
                Parsed::Blank => {}
            }
        }
    }
}

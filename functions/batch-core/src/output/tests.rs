use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::time::UnixMs;

fn batch() -> BatchId {
    BatchId::new(UnixMs(1), [7; 16])
}

fn check(record: Vec<u8>, want: &Expect) {
    want.assert_eq(&String::from_utf8(record).unwrap());
}

#[test]
fn records_have_four_keys_in_the_contracts_order() {
    check(
        answered(
            batch(),
            LineNo(1),
            r#""r-1""#,
            "req_1",
            200,
            r#"{"id":"chatcmpl-1","seed":9007199254740993}"#,
        ),
        &expect![[
            r#"{"id":"batch_req_a7af9a6b98aaf80be2f0cfe971496dae","custom_id":"r-1","response":{"status_code":200,"request_id":"req_1","body":{"id":"chatcmpl-1","seed":9007199254740993}},"error":null}"#
        ]],
    );
    let error = ErrorBody {
        message: "too \"long\"".to_owned(),
        kind: "invalid_request_error".to_owned(),
        param: Some("messages".to_owned()),
        code: Some("context_length_exceeded".to_owned()),
    };
    check(
        http_error(batch(), LineNo(2), r#""r-2""#, "req_2", 400, &error),
        &expect![[
            r#"{"id":"batch_req_81ce54de1ffbe19230a81f1630330418","custom_id":"r-2","response":{"status_code":400,"request_id":"req_2","body":{"error":{"message":"too \"long\"","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}},"error":null}"#
        ]],
    );
    let bare = ErrorBody {
        param: None,
        code: None,
        ..error
    };
    check(
        http_error(batch(), LineNo(2), r#""r-2""#, "req_2", 500, &bare),
        &expect![[
            r#"{"id":"batch_req_81ce54de1ffbe19230a81f1630330418","custom_id":"r-2","response":{"status_code":500,"request_id":"req_2","body":{"error":{"message":"too \"long\"","type":"invalid_request_error","param":null,"code":null}}},"error":null}"#
        ]],
    );
    for stop in [Stop::Expired, Stop::Cancelled] {
        let (code, message) = stop_error(stop);
        let record = unexecuted(batch(), LineNo(3), r#""r-3""#, code, message);
        let keys: Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(
            keys.as_object().unwrap().keys().collect::<Vec<_>>(),
            ["id", "custom_id", "response", "error"]
        );
        assert_eq!(
            keys["error"],
            serde_json::json!({ "code": code, "message": message })
        );
    }
}

#[test]
fn line_separators_and_lone_surrogates_are_escaped() {
    let escape = |json: &[u8]| {
        let mut out = Vec::new();
        escape_into(&mut out, json);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        escape("\"a\u{85}b\u{2028}c\u{2029}d\"".as_bytes()),
        r#""a\u0085b\u2028c\u2029d""#
    );
    assert_eq!(escape(b"\"\xed\xa0\xbd\xed\xb8\x80\""), r#""\ud83d\ude00""#);
    assert_eq!(escape("{\r\n \"a\":\n1}\n".as_bytes()), "{   \"a\": 1} ");
    let kept = "\"\u{84}\u{86}\u{a0}\u{2027}\u{202a}\u{d7ff}\u{e000}日本語한국어😀\\ud83d\\n\"";
    assert_eq!(escape(kept.as_bytes()), kept);
    assert_eq!(escape(b""), "");
}

#[test]
fn custom_id_is_echoed_as_written() {
    let record = answered(
        batch(),
        LineNo(1),
        "\"\\u0061\u{2028}\\ud83d\"",
        "req_1",
        200,
        "{}",
    );
    let text = String::from_utf8(record).unwrap();
    assert!(
        text.contains(r#""custom_id":"\u0061\u2028\ud83d","#),
        "{text}"
    );
}

#[test]
fn ids_of_lines_differ_and_are_the_same_again() {
    let id = |batch, line| {
        serde_json::from_slice::<Value>(&unexecuted(batch, LineNo(line), "\"a\"", "c", "m"))
            .unwrap()["id"]
            .clone()
    };
    let other = BatchId::new(UnixMs(1), [8; 16]);
    assert_eq!(id(batch(), 1), id(batch(), 1));
    assert_ne!(id(batch(), 1), id(batch(), 2));
    assert_ne!(id(batch(), 1), id(other, 1));
    assert!(id(batch(), 1).as_str().unwrap().starts_with("batch_req_"));
}

proptest! {
    #[test]
    fn whatever_a_model_says_is_one_line_and_unchanged(
        content in "[a\u{85}\u{2028}\u{2029}\u{0b}\u{1c}\n\r\"\\\\é\u{2027}\u{d7ff}😀]{0,20}",
        custom_id in "[a\u{85}\u{2028}\u{2029}\n\"é]{1,6}",
        pretty in any::<bool>(),
    ) {
        let body = serde_json::json!({ "choices": [{ "message": { "content": content } }] });
        let body_json = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) }.unwrap();
        let custom_id_json = serde_json::to_string(&custom_id).unwrap();
        let record = String::from_utf8(answered(batch(), LineNo(1), &custom_id_json, "req_1", 200, &body_json)).unwrap();
        let separators = ['\n', '\r', '\u{0b}', '\u{0c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
        prop_assert!(!record.contains(separators), "{record}");
        let parsed: Value = serde_json::from_str(&record).unwrap();
        prop_assert_eq!(&parsed["response"]["body"], &body);
        prop_assert_eq!(&parsed["custom_id"], &custom_id);
        prop_assert_eq!(&parsed["error"], &Value::Null);
    }
}

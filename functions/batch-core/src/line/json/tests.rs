use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

fn is_json(text: &str) -> bool {
    let mut scanner = Scanner::new(text);
    scanner.value().and_then(|_| scanner.end()).is_ok()
}

#[test]
fn grammar_is_that_of_json() {
    let good = [
        "0",
        "-0",
        "1.50",
        "1e999",
        "-12E+3",
        "123456789012345678901234567890",
        "true",
        " null ",
        "[]",
        "{}",
        "[[],{}]",
        r#"{"a":[1,{"b":"\ud83d"}],"a":2}"#,
        r#""\"\\\/\b\f\n\r\t\u00e9""#,
        "\"\u{7f}\u{2028}é\"",
        "\t[1 , 2]\r\n",
    ];
    let bad = [
        "",
        " ",
        "NaN",
        "-Infinity",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "--1",
        "-",
        "tru",
        "nulll",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{1:2}",
        "[",
        "]",
        "[}",
        "{]",
        "\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u12\"",
        "\"a\nb\"",
        "\"\t\"",
        "\"\u{0}\"",
        "1 2",
        "{}{}",
        "\u{feff}{}",
        "'a'",
        "[1]x",
        "{\"a\":1 \"b\":2}",
    ];
    for (texts, verdict) in [(&good[..], true), (&bad[..], false)] {
        for text in texts {
            assert_eq!(is_json(text), verdict, "{text:?}");
        }
    }
}

#[test]
fn stops_are_found_at_every_offset() {
    for stop in ['"', '\\', '\n', '\u{1f}', '\0'] {
        for at in 0..24 {
            for filler in [
                "a", "\u{20}", "!", "#", "[", "]", "\u{7f}", "\u{80}", "\u{e22}",
            ] {
                let text = format!("{}{stop}{}", filler.repeat(at), "b".repeat(16));
                assert_eq!(plain_len(text.as_bytes()), filler.len() * at, "{text:?}");
            }
        }
    }
}

#[test]
fn nesting_costs_no_stack() {
    let deep = 10_000_000;
    assert!(!is_json(&"[".repeat(deep)));
    assert!(is_json(&format!(
        "{}{}",
        "[".repeat(deep),
        "]".repeat(deep)
    )));
    assert!(is_json(&format!(
        "{}1{}",
        r#"{"a":["#.repeat(1_000_000),
        "]}".repeat(1_000_000)
    )));
    assert!(!is_json(&format!(
        "{}1{}",
        r#"{"a":["#.repeat(1_000_000),
        "}]".repeat(1_000_000)
    )));
}

#[test]
fn containers_are_remembered_across_words() {
    let mut nesting = Nesting::default();
    let container = |n: usize| {
        if n.is_multiple_of(3) {
            Container::Object
        } else {
            Container::Array
        }
    };
    for n in 0..300 {
        nesting.push(container(n));
    }
    for n in (0..300).rev() {
        assert_eq!(nesting.top(), Some(container(n)), "{n}");
        nesting.pop();
    }
    assert_eq!(nesting.top(), None);
}

#[test]
fn escapes_say_what_they_mean() {
    let check = |token: &str, want: &[u8]| assert_eq!(*unescape(token), *want, "{token}");
    check(r#""plain é""#, "plain é".as_bytes());
    check(r#""\u0061\/\t""#, b"a/\t");
    check(r#""\ud83d\ude00""#, "😀".as_bytes());
    check(r#""\ud83d""#, b"\xed\xa0\xbd");
    check(r#""\ude00\ud83d""#, b"\xed\xb8\x80\xed\xa0\xbd");
    check(
        r#""\ud83d\ud83d\ude00\n""#,
        &[b"\xed\xa0\xbd", "😀\n".as_bytes()].concat(),
    );
}

fn jsonish() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"\\u00e9\"",
        "\"\\ud83d\"",
        "\"",
        "\\",
        "1",
        "-1.5e3",
        "0",
        "01",
        "e",
        ".",
        "true",
        "null",
        "nul",
        " ",
        "\n",
        "\t",
        "é",
        "\u{2028}",
        "\u{1}",
    ];
    prop::collection::vec(prop::sample::select(PIECES), 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    #[test]
    fn verdict_is_that_of_another_parser(text in jsonish()) {
        prop_assert_eq!(is_json(&text), serde_json::from_str::<&RawValue>(&text).is_ok(), "{:?}", text);
    }

    #[test]
    fn strings_mean_what_another_parser_says(text in "\\PC{0,12}", escaped in any::<bool>()) {
        let token = serde_json::to_string(&text).unwrap();
        let units = || text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<String>();
        let token = if escaped { format!("\"{}\"", units()) } else { token };
        prop_assert_eq!(&*unescape(&token), text.as_bytes());
    }
}

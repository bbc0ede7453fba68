//! What a server's reply means for the line that it answers.

use std::collections::BTreeMap;
use std::time::Duration;

use batch_core::batch::TokenCounts;
use batch_core::limits::{ECHO_CHARS_MAX, SERVER_ANSWER_BYTES_MAX};
use batch_core::time::UnixMs;
use serde_json::value::RawValue;

use super::retry::{Trouble, retry_after};
use crate::openai::LineError;
use crate::pipeline::{Answered, LineFault, ServerError};

/// The most tokens that one answer is believed to have: a sum of a million such numbers is no overflow.
const TOKENS_MAX: u64 = 1 << 32;

/// What came of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// The server answered, and all of it arrived.
    Whole {
        /// HTTP status.
        status: u16,
        /// The header of that name.
        retry_after: Option<String>,
        /// As it came.
        body: Vec<u8>,
    },
    /// There was no connection.
    Unreachable,
    /// There was no answer in time.
    TimedOut,
    /// The connection ended in the middle.
    CutOff,
    /// The answer was longer than any may be.
    TooLong,
}

/// What to do about it.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The line has its result.
    Final(Result<Answered, LineFault>),
    /// The line may be sent again.
    Again {
        /// Why.
        trouble: Trouble,
        /// How long the server wants to be left alone.
        wait: Option<Duration>,
        /// The line's result if it is not.
        fault: LineFault,
    },
}

/// Judges a reply.
pub(super) fn judge(reply: Reply, now: UnixMs) -> Verdict {
    let again = |trouble, code, message: &str| Verdict::Again {
        trouble,
        wait: None,
        fault: gateway_error(code, message),
    };
    match reply {
        Reply::Whole {
            status,
            retry_after,
            body,
        } => of_status(status, retry_after.as_deref(), body, now),
        Reply::Unreachable => again(
            Trouble::Unreachable,
            "server_unreachable",
            "The model's server could not be reached.",
        ),
        Reply::TimedOut => again(
            Trouble::Strained,
            "server_timeout",
            "The model's server did not answer in time.",
        ),
        Reply::CutOff => again(
            Trouble::Failed,
            "server_answer_cut",
            "The answer of the model's server broke off.",
        ),
        Reply::TooLong => Verdict::Final(Err(gateway_error(
            "server_answer_too_long",
            &format!(
                "The answer of the model's server is longer than {SERVER_ANSWER_BYTES_MAX} bytes."
            ),
        ))),
    }
}

fn of_status(status: u16, wait: Option<&str>, body: Vec<u8>, now: UnixMs) -> Verdict {
    let trouble = match status {
        200..=299 => return answer(status, body),
        408 | 502 | 504 => Trouble::Strained,
        409 | 425 => Trouble::Failed,
        429 => Trouble::RateLimited,
        503 => Trouble::Unavailable,
        400..=499 => return Verdict::Final(Err(refusal(status, body))),
        500..=599 => Trouble::Failed,
        // What else HTTP has are redirects, and those lead a line's text to somewhere else.
        _ => {
            return Verdict::Final(Err(gateway_error(
                "server_redirected",
                &format!("The model's server answered with status {status}, which is no answer."),
            )));
        }
    };
    Verdict::Again {
        trouble,
        wait: wait.and_then(|value| retry_after(value, now)),
        fault: refusal(status, body),
    }
}

fn answer(status: u16, body: Vec<u8>) -> Verdict {
    let body = String::from_utf8(body).ok();
    let read = body.and_then(|body| tokens(&body).map(|tokens| (body, tokens)));
    match read {
        Some((body, tokens)) => Verdict::Final(Ok(Answered {
            status,
            body,
            tokens,
        })),
        None => Verdict::Again {
            trouble: Trouble::Failed,
            wait: None,
            fault: gateway_error(
                "server_answer_invalid",
                "The answer of the model's server is no JSON object.",
            ),
        },
    }
}

/// A refusal in JSON is the line's own; any other is put into words.
fn refusal(status: u16, body: Vec<u8>) -> LineFault {
    let text = String::from_utf8_lossy(&body);
    if object(&text).is_some() {
        return LineFault::Server(ServerError {
            status,
            body: text.into_owned(),
        });
    }
    let shown: String = text.trim().chars().take(ECHO_CHARS_MAX).collect();
    let message = if shown.is_empty() {
        format!("The model's server answered with status {status} and no text.")
    } else {
        format!("The model's server answered with status {status}: {shown}")
    };
    let kind = if status < 500 {
        "invalid_request_error"
    } else {
        "server_error"
    };
    LineFault::Line(LineError {
        status,
        message,
        kind,
        param: None,
        code: Some("server_refused".to_owned()),
    })
}

fn gateway_error(code: &str, message: &str) -> LineFault {
    LineFault::Line(LineError {
        status: 502,
        ..LineError::server(message, code)
    })
}

/// Reads an object's values as written; none if it is no object.
fn object(json: &str) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(json).ok()
}

/// Reads what an answer took; none if it is no object. What it does not say is zero.
fn tokens(body: &str) -> Option<TokenCounts> {
    let usage = object(body)?.remove("usage").map(RawValue::get);
    let usage = usage.and_then(object).unwrap_or_default();
    let number = |of: &BTreeMap<String, &RawValue>, names: [&str; 2]| -> u64 {
        let found = names
            .iter()
            .find_map(|name| of.get(*name)?.get().parse::<u64>().ok());
        found.unwrap_or(0).min(TOKENS_MAX)
    };
    let details = ["prompt_tokens_details", "input_tokens_details"];
    let details = details
        .iter()
        .find_map(|name| object(usage.get(*name)?.get()));
    let input = number(&usage, ["prompt_tokens", "input_tokens"]);
    let cached = details.map_or(0, |details| {
        number(&details, ["cached_tokens", "cached_tokens"])
    });
    Some(TokenCounts {
        input,
        cached: cached.min(input),
        output: number(&usage, ["completion_tokens", "output_tokens"]),
    })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn whole(status: u16, body: &str) -> Reply {
        Reply::Whole {
            status,
            retry_after: Some("7".to_owned()),
            body: body.as_bytes().to_vec(),
        }
    }

    fn show(verdict: &Verdict) -> String {
        let fault = |fault: &LineFault| match fault {
            LineFault::Server(ServerError { status, body }) => format!("{status} {body}"),
            LineFault::Line(error) => {
                let code = error.code.as_deref().unwrap_or_default();
                format!("{} {code}: {}", error.status, error.message)
            }
        };
        match verdict {
            Verdict::Final(Ok(Answered {
                status,
                body,
                tokens,
            })) => format!(
                "{status} {body} in {} cached {} out {}",
                tokens.input, tokens.cached, tokens.output
            ),
            Verdict::Final(Err(error)) => format!("final {}", fault(error)),
            Verdict::Again {
                trouble,
                wait,
                fault: error,
            } => format!("{trouble:?} {wait:?} {}", fault(error)),
        }
    }

    fn check(reply: Reply, expected: Expect) {
        expected.assert_eq(&show(&judge(reply, UnixMs(0))));
    }

    #[test]
    fn every_status_has_its_class() {
        let classes = (100..=999).map(|status| {
            let class = match judge(whole(status, "{}"), UnixMs(0)) {
                Verdict::Final(Ok(_)) => "answer".to_owned(),
                Verdict::Final(Err(LineFault::Server(_))) => "refusal".to_owned(),
                Verdict::Final(Err(LineFault::Line(_))) => "no answer".to_owned(),
                Verdict::Again { trouble, .. } => format!("{trouble:?}"),
            };
            (status, class)
        });
        let mut runs: Vec<(u16, u16, String)> = Vec::new();
        for (status, class) in classes {
            match runs.last_mut() {
                Some((_, last, known)) if *known == class => *last = status,
                Some(_) | None => runs.push((status, status, class)),
            }
        }
        let lines = runs
            .iter()
            .map(|(from, to, class)| format!("{from}-{to} {class}"));
        expect![[r#"
            100-199 no answer
            200-299 answer
            300-399 no answer
            400-407 refusal
            408-408 Strained
            409-409 Failed
            410-424 refusal
            425-425 Failed
            426-428 refusal
            429-429 RateLimited
            430-499 refusal
            500-501 Failed
            502-502 Strained
            503-503 Unavailable
            504-504 Strained
            505-599 Failed
            600-999 no answer"#]]
        .assert_eq(&lines.collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn answer_keeps_its_bytes_and_tells_its_tokens() {
        check(
            whole(
                200,
                "{ \"id\":1.50,\n\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":3}}}",
            ),
            expect![[r#"
                200 { "id":1.50,
                "usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}} in 9 cached 3 out 4"#]],
        );
        check(
            whole(
                200,
                r#"{"usage":{"input_tokens":9,"output_tokens":4,"input_tokens_details":{"cached_tokens":99}}}"#,
            ),
            expect![[
                r#"200 {"usage":{"input_tokens":9,"output_tokens":4,"input_tokens_details":{"cached_tokens":99}}} in 9 cached 9 out 4"#
            ]],
        );
        check(
            whole(201, r#"{"usage":{"prompt_tokens":2,"total_tokens":2}}"#),
            expect![[r#"201 {"usage":{"prompt_tokens":2,"total_tokens":2}} in 2 cached 0 out 0"#]],
        );
    }

    #[test]
    fn usage_that_is_none_counts_nothing() {
        for usage in [
            "null",
            "7",
            "[]",
            r#"{"prompt_tokens":-1}"#,
            r#"{"prompt_tokens":"9"}"#,
            r#"{"completion_tokens":1.5,"prompt_tokens_details":null}"#,
        ] {
            let body = format!(r#"{{"usage":{usage}}}"#);
            assert_eq!(tokens(&body), Some(TokenCounts::default()), "{body}");
        }
        assert_eq!(tokens("{}"), Some(TokenCounts::default()));
        let huge = tokens(r#"{"usage":{"prompt_tokens":18446744073709551615}}"#);
        assert_eq!(huge.map(|tokens| tokens.input), Some(TOKENS_MAX));
    }

    #[test]
    fn refusal_in_json_is_passed_on_and_any_other_put_into_words() {
        check(
            whole(400, r#"{"error": {"message": "no"}}"#),
            expect![[r#"final 400 {"error": {"message": "no"}}"#]],
        );
        check(
            whole(404, "<h1>Not Found</h1>"),
            expect![
                "final 404 server_refused: The model's server answered with status 404: <h1>Not Found</h1>"
            ],
        );
        check(
            whole(413, ""),
            expect![
                "final 413 server_refused: The model's server answered with status 413 and no text."
            ],
        );
        check(
            whole(500, r#"{"error":"x"}"#),
            expect![[r#"Failed Some(7s) 500 {"error":"x"}"#]],
        );
        check(
            whole(301, ""),
            expect![
                "final 502 server_redirected: The model's server answered with status 301, which is no answer."
            ],
        );
    }

    #[test]
    fn answer_that_cannot_be_used_is_asked_for_again() {
        for body in ["", "[]", "\"x\"", "{\"a\":1", "data: {}", "{} {}"] {
            check(
                whole(200, body),
                expect![
                    "Failed None 502 server_answer_invalid: The answer of the model's server is no JSON object."
                ],
            );
        }
        let bytes = Reply::Whole {
            status: 200,
            retry_after: None,
            body: b"{\"a\":\"\xff\"}".to_vec(),
        };
        check(
            bytes,
            expect![
                "Failed None 502 server_answer_invalid: The answer of the model's server is no JSON object."
            ],
        );
    }

    #[test]
    fn reply_that_did_not_come_has_its_class() {
        check(
            Reply::Unreachable,
            expect![
                "Unreachable None 502 server_unreachable: The model's server could not be reached."
            ],
        );
        check(
            Reply::TimedOut,
            expect!["Strained None 502 server_timeout: The model's server did not answer in time."],
        );
        check(
            Reply::CutOff,
            expect![
                "Failed None 502 server_answer_cut: The answer of the model's server broke off."
            ],
        );
        check(
            Reply::TooLong,
            expect![
                "final 502 server_answer_too_long: The answer of the model's server is longer than 16777216 bytes."
            ],
        );
    }

    proptest! {
        #[test]
        fn no_reply_panics(status in 0_u16..1_000, wait in any::<Option<String>>(), body in any::<Vec<u8>>()) {
            let reply = Reply::Whole { status, retry_after: wait, body };
            let _ = judge(reply, UnixMs(0));
        }

        #[test]
        fn object_is_passed_on_byte_for_byte(text in any::<String>(), input in 0_u64..1_000_000) {
            let body = serde_json::json!({"text": text, "usage": {"prompt_tokens": input}});
            let body = serde_json::to_string_pretty(&body).unwrap();
            match judge(whole(200, &body), UnixMs(0)) {
                Verdict::Final(Ok(answered)) => {
                    prop_assert_eq!(answered.body, body);
                    prop_assert_eq!(answered.tokens.input, input);
                }
                other @ (Verdict::Final(Err(_)) | Verdict::Again { .. }) => {
                    prop_assert!(false, "{:?}", other);
                }
            }
        }
    }
}

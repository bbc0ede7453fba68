//! Consecutive lines of an input file, held in memory until they are cut into shards.

use std::ops::Range;

use crate::format;
use crate::id::LineNo;
use crate::limits::{
    RESULT_BYTES_PER_LOGPROB, RESULT_BYTES_PER_TOKEN, TOP_LOGPROBS_MAX, WINDOW_BYTES_MAX,
    WINDOW_LINES_MAX, WINDOW_RESULT_BYTES_MAX,
};
use crate::line::{Line, PromptKey};
use crate::shard_plan::{ShardDraft, TimeRule, WindowLine, plan_window};

/// A window: at most 20,000 lines and 64 MiB, or one longer line. It takes no further line once its results are
/// estimated at 256 MiB.
#[derive(Debug, Default)]
pub struct Window {
    bytes: Vec<u8>,
    lines: Vec<Kept>,
    index: Vec<u8>,
    /// Estimate of the results of its lines.
    result_bytes: u64,
}

/// A line of the window; ranges are into its bytes.
#[derive(Debug)]
struct Kept {
    line: LineNo,
    slot: u16,
    raw: Range<usize>,
    instructions: Range<usize>,
    prompt: Range<usize>,
    estimated_tokens: u64,
}

impl Window {
    /// Starts an empty window.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether a line of `line_bytes` still belongs into this window.
    #[must_use]
    pub fn takes(&self, line_bytes: usize) -> bool {
        self.lines.is_empty()
            || (self.lines.len() < WINDOW_LINES_MAX
                && self.result_bytes < WINDOW_RESULT_BYTES_MAX
                && self.bytes.len().saturating_add(line_bytes) <= WINDOW_BYTES_MAX)
    }

    /// Adds a line; `line` must have been parsed from `raw`, and `slot` names its model.
    ///
    /// # Panics
    ///
    /// If `line` was not parsed from `raw`.
    pub fn push(&mut self, no: LineNo, raw: &[u8], line: &Line<'_>, slot: u16) {
        let start = self.bytes.len();
        let range = |part: &str| {
            if part.is_empty() {
                return start..start;
            }
            let offset = part.as_ptr().addr().checked_sub(raw.as_ptr().addr());
            let offset = offset
                .filter(|offset| offset + part.len() <= raw.len())
                .expect("parts are parts of the line");
            start + offset..start + offset + part.len()
        };
        let (instructions, prompt) = (range(line.prompt.instructions), range(line.prompt.prompt));
        self.bytes.extend_from_slice(raw);
        let raw = start..self.bytes.len();
        let estimated_tokens = line.estimated_tokens;
        self.lines.push(Kept {
            line: no,
            slot,
            raw,
            instructions,
            prompt,
            estimated_tokens,
        });
        self.result_bytes = self.result_bytes.saturating_add(result_bytes(line));
        format::index::encode_entry(&mut self.index, no, line.custom_id_json);
    }

    /// Returns whether it has no line.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the bytes of its index blob.
    #[must_use]
    pub fn index(&self) -> &[u8] {
        &self.index
    }

    /// Cuts its lines into shards; see [`plan_window`].
    #[must_use]
    pub fn cut(&self, rule: impl Fn(u16) -> TimeRule) -> Vec<ShardDraft> {
        let lines: Vec<WindowLine<'_>> = self
            .lines
            .iter()
            .map(|kept| self.window_line(kept))
            .collect();
        plan_window(&lines, rule)
    }

    /// Returns the bytes of the blob of a shard that [`Window::cut`] made.
    ///
    /// # Panics
    ///
    /// If the draft is of another window.
    #[must_use]
    pub fn encode(&self, draft: &ShardDraft) -> Vec<u8> {
        let mut blob = Vec::with_capacity(draft.bytes + 32 * draft.lines.len() + 32);
        for index in &draft.lines {
            let kept = &self.lines[*index as usize];
            format::shard::encode_line(
                &mut blob,
                kept.line,
                kept.estimated_tokens,
                &self.bytes[kept.raw.clone()],
            );
        }
        blob
    }

    fn window_line(&self, kept: &Kept) -> WindowLine<'_> {
        let text = |range: &Range<usize>| {
            std::str::from_utf8(&self.bytes[range.clone()])
                .expect("parts of a line that was parsed are UTF-8")
        };
        WindowLine {
            line: kept.line,
            slot: kept.slot,
            bytes: kept.raw.len(),
            estimated_tokens: kept.estimated_tokens,
            prompt: PromptKey {
                instructions: text(&kept.instructions),
                prompt: text(&kept.prompt),
            },
        }
    }
}

/// Estimates the bytes of a line's result. Tokens of the prompt count too: a completion may echo it.
fn result_bytes(line: &Line<'_>) -> u64 {
    let logprobs = logprobs_a_token(line.body);
    let per_token = RESULT_BYTES_PER_TOKEN + RESULT_BYTES_PER_LOGPROB * logprobs;
    line.estimated_tokens.saturating_mul(per_token)
}

/// Returns how many log probabilities a body asks for with each token: its own and the alternatives'.
///
/// A glance, not a parse: a prompt cannot be mistaken for the member, because its quotes are escaped.
fn logprobs_a_token(body: &str) -> u64 {
    let asked = |name: &str| {
        let found = memchr::memmem::find_iter(body.as_bytes(), name.as_bytes());
        let value = found.filter_map(|at| {
            let value = body[at + name.len()..].trim_start().strip_prefix(':')?;
            alternatives(value.trim_start())
        });
        value.max()
    };
    let most = asked("\"logprobs\"").max(asked("\"top_logprobs\""));
    most.map_or(0, |alternatives| 1 + alternatives.min(TOP_LOGPROBS_MAX))
}

/// Reads the alternatives that the value of `logprobs` or `top_logprobs` asks for.
fn alternatives(value: &str) -> Option<u64> {
    if value.starts_with("true") {
        return Some(0);
    }
    let end = value
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(value.len());
    value[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn push(window: &mut Window, number: u64, raw: &str) {
        let line = Line {
            custom_id: Cow::Borrowed(b"a"),
            custom_id_json: "\"a\"",
            model: "m",
            body: raw,
            estimated_tokens: 1,
            prompt: PromptKey {
                instructions: "",
                prompt: &raw[1..],
            },
        };
        window.push(LineNo(number), raw.as_bytes(), &line, 0);
    }

    #[test]
    fn window_closes_at_its_bytes_and_at_its_lines() {
        let mut window = Window::new();
        assert!(
            window.takes(WINDOW_BYTES_MAX + 1),
            "one longer line is a window"
        );
        push(&mut window, 1, &"x".repeat(1_000));
        assert!(window.takes(WINDOW_BYTES_MAX - 1_000));
        assert!(!window.takes(WINDOW_BYTES_MAX - 999));
        for number in 2..=20_000 {
            push(&mut window, number, "xy");
        }
        assert!(!window.takes(0));
    }

    #[test]
    fn window_closes_when_its_results_would_be_long() {
        let body = r#"{"logprobs":true,"top_logprobs":20,"n":8}"#;
        let line = Line {
            custom_id: Cow::Borrowed(b"a"),
            custom_id_json: "\"a\"",
            model: "m",
            body,
            estimated_tokens: 8 * 4_096,
            prompt: PromptKey::default(),
        };
        let mut window = Window::new();
        let mut lines = 0;
        while window.takes(body.len()) {
            lines += 1;
            window.push(LineNo(lines), body.as_bytes(), &line, 0);
        }
        // 32,768 tokens of 8 + 21 * 80 bytes are 55 MB.
        assert_eq!(lines, 5);
    }

    #[test]
    fn logprobs_are_counted_as_they_are_asked_for() {
        for (body, want) in [
            (r#"{"messages":["\"logprobs\": true"]}"#, 0),
            (r#"{"logprobs":false}"#, 0),
            (r#"{"logprobs":null,"top_logprobs":null}"#, 0),
            (r#"{"logprobs" : true}"#, 1),
            (r#"{"logprobs":0}"#, 1),
            (r#"{"logprobs":5,"n":2}"#, 6),
            (r#"{"top_logprobs":3,"logprobs":true}"#, 4),
            (r#"{"top_logprobs":99}"#, 21),
            (r#"{"top_logprobs"#, 0),
            (r#"{"top_logprobs":"#, 0),
        ] {
            assert_eq!(logprobs_a_token(body), want, "{body}");
        }
    }

    #[test]
    fn shard_blob_holds_the_lines_in_the_order_of_the_draft() {
        let mut window = Window::new();
        for (number, raw) in [(1, "1b"), (2, "2a"), (3, "3b")] {
            push(&mut window, number, raw);
        }
        let drafts = window.cut(|_| TimeRule::default());
        let blobs: Vec<_> = drafts.iter().map(|draft| window.encode(draft)).collect();
        assert_eq!(
            blobs,
            [b"nightshift shard 1\n2 1 2\n2a\n1 1 2\n1b\n3 1 2\n3b\n"]
        );
        assert!(!window.is_empty() && window.index().starts_with(b"nightshift index 1\n1 3\n"));
    }
}

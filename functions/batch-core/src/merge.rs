//! Puts the results of a window back into input order, and proves that none is missing or double.
//!
//! Nothing is copied: a merged window points into its segments, and its proof comes before its first record.

use std::borrow::Cow;

use crate::batch::TokenCounts;
use crate::format::index::IndexEntry;
use crate::format::segment::LineResult;
use crate::format::{FormatError, index, segment};
use crate::id::{BatchId, LineNo};
use crate::lifecycle::Stop;
use crate::output;

/// The lines of a window in input order, each with what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedWindow<'a> {
    batch: BatchId,
    lines: Vec<MergedLine<'a>>,
    /// Lines answered with 2xx.
    pub completed: u64,
    /// All other lines: the records of the error file.
    pub failed: u64,
    /// Those of `failed` that never ran.
    pub unexecuted: u64,
    /// What the lines with a result took.
    pub tokens: TokenCounts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MergedLine<'a> {
    Ran(LineResult<'a>),
    Unexecuted(IndexEntry<'a>, Stop),
}

/// A line's record in one of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedRecord<'a> {
    /// Whether it goes to the output file; else to the error file.
    pub ok: bool,
    /// JSON, without its newline.
    pub text: Cow<'a, [u8]>,
}

/// Why a window's results are not its lines' results. All but [`MergeError::Format`] are faults of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// A blob is damaged.
    #[error("index or segment is damaged")]
    Format(#[from] FormatError),
    /// The index is not in input order.
    #[error("index names line {} out of order", .0.0)]
    IndexOrder(LineNo),
    /// A completed batch lacks a result.
    #[error("line {} has no result", .0.0)]
    Missing(LineNo),
    /// Two results of one line.
    #[error("line {} has two results", .0.0)]
    Twice(LineNo),
    /// A result of a line that the window does not have.
    #[error("line {} has a result, but is not in the index", .0.0)]
    Stray(LineNo),
    /// A record with another id or custom_id than the line's.
    #[error("the result of line {} carries another custom_id", .0.0)]
    WrongId(LineNo),
}

/// Merges the `segments` of one window by its `index`.
///
/// With `stop`, lines without a result get an error line that says why they never ran.
/// Segments come in any order, and empty ones add nothing.
///
/// # Errors
///
/// [`MergeError`] unless every line of the index has exactly one record, with its own custom_id.
pub fn merge_window<'a>(
    batch: BatchId,
    index: &'a [u8],
    segments: &[&'a [u8]],
    stop: Option<Stop>,
) -> Result<MergedWindow<'a>, MergeError> {
    let mut results = Vec::new();
    for blob in segments {
        for result in segment::decode(blob) {
            results.push(result?);
        }
    }
    results.sort_unstable_by_key(|result| result.line);
    if let Some(pair) = results.windows(2).find(|pair| pair[0].line == pair[1].line) {
        return Err(MergeError::Twice(pair[0].line));
    }
    let mut results = results.into_iter().peekable();
    let mut merged = MergedWindow::new(batch);
    let mut last = None;
    for entry in index::decode(index) {
        let entry = entry?;
        if last.is_some_and(|last| last >= entry.line) {
            return Err(MergeError::IndexOrder(entry.line));
        }
        last = Some(entry.line);
        match results.peek() {
            Some(result) if result.line < entry.line => return Err(MergeError::Stray(result.line)),
            Some(result) if result.line == entry.line => {
                let head = output::head(batch, entry.line, entry.custom_id_json);
                if !result.record.starts_with(&head) {
                    return Err(MergeError::WrongId(entry.line));
                }
                merged.add(*result);
                results.next();
            }
            Some(_) | None => {
                let stop = stop.ok_or(MergeError::Missing(entry.line))?;
                merged.unexecuted += 1;
                merged.failed += 1;
                merged.lines.push(MergedLine::Unexecuted(entry, stop));
            }
        }
    }
    match results.next() {
        Some(result) => Err(MergeError::Stray(result.line)),
        None => Ok(merged),
    }
}

impl<'a> MergedWindow<'a> {
    fn new(batch: BatchId) -> Self {
        Self {
            batch,
            lines: Vec::new(),
            completed: 0,
            failed: 0,
            unexecuted: 0,
            tokens: TokenCounts::default(),
        }
    }

    fn add(&mut self, result: LineResult<'a>) {
        if result.ok {
            self.completed += 1;
        } else {
            self.failed += 1;
        }
        self.tokens.input = self.tokens.input.saturating_add(result.tokens.input);
        self.tokens.cached = self.tokens.cached.saturating_add(result.tokens.cached);
        self.tokens.output = self.tokens.output.saturating_add(result.tokens.output);
        self.lines.push(MergedLine::Ran(result));
    }

    /// Returns the records of both files, in input order.
    pub fn records(&self) -> impl Iterator<Item = MergedRecord<'a>> {
        self.lines.iter().map(|line| match line {
            MergedLine::Ran(result) => MergedRecord {
                ok: result.ok,
                text: Cow::Borrowed(result.record),
            },
            MergedLine::Unexecuted(entry, stop) => {
                let (code, message) = output::stop_error(*stop);
                let text =
                    output::unexecuted(self.batch, entry.line, entry.custom_id_json, code, message);
                MergedRecord {
                    ok: false,
                    text: Cow::Owned(text),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;

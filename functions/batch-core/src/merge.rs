//! Puts the results of a window back into input order, and proves that none is missing or double.

use crate::batch::TokenCounts;
use crate::format::{FormatError, index, segment};
use crate::id::{BatchId, LineNo};
use crate::lifecycle::Stop;
use crate::output;

/// What a window adds to both files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MergedWindow {
    /// Records of the output file, each with its newline.
    pub output: Vec<u8>,
    /// Records of the error file, each with its newline.
    pub errors: Vec<u8>,
    /// Lines answered with 2xx.
    pub completed: u64,
    /// All other lines: the records of the error file.
    pub failed: u64,
    /// Those of `failed` that never ran.
    pub unexecuted: u64,
    /// What the lines with a result took.
    pub tokens: TokenCounts,
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
pub fn merge_window(
    batch: BatchId,
    index: &[u8],
    segments: &[&[u8]],
    stop: Option<Stop>,
) -> Result<MergedWindow, MergeError> {
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
    let mut merged = MergedWindow::default();
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
                if !result.record.starts_with(&output::head(
                    batch,
                    entry.line,
                    entry.custom_id_json,
                )) {
                    return Err(MergeError::WrongId(entry.line));
                }
                merged.add(result);
                results.next();
            }
            Some(_) | None => {
                let (code, message) =
                    output::stop_error(stop.ok_or(MergeError::Missing(entry.line))?);
                merged.unexecuted += 1;
                merged.failed += 1;
                push(
                    &mut merged.errors,
                    &output::unexecuted(batch, entry.line, entry.custom_id_json, code, message),
                );
            }
        }
    }
    match results.next() {
        Some(result) => Err(MergeError::Stray(result.line)),
        None => Ok(merged),
    }
}

impl MergedWindow {
    fn add(&mut self, result: &segment::LineResult<'_>) {
        if result.ok {
            self.completed += 1;
            push(&mut self.output, result.record);
        } else {
            self.failed += 1;
            push(&mut self.errors, result.record);
        }
        self.tokens.input = self.tokens.input.saturating_add(result.tokens.input);
        self.tokens.cached = self.tokens.cached.saturating_add(result.tokens.cached);
        self.tokens.output = self.tokens.output.saturating_add(result.tokens.output);
    }
}

fn push(file: &mut Vec<u8>, record: &[u8]) {
    file.extend_from_slice(record);
    file.push(b'\n');
}

#[cfg(test)]
mod tests;

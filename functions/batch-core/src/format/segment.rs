//! The blob of a segment: results of some lines, each with its final record.

use super::record::{FormatError, Records, encode};
use crate::batch::TokenCounts;
use crate::id::LineNo;

const KIND: &str = "nightshift segment 1";

/// The result of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineResult<'a> {
    /// Its place in the input file.
    pub line: LineNo,
    /// Whether it was answered with 2xx: the record goes to the output file, else to the error file.
    pub ok: bool,
    /// What it took.
    pub tokens: TokenCounts,
    /// The record of the output or error file, without its newline.
    pub record: &'a [u8],
}

/// Appends a result to a segment; the first one opens the blob.
pub fn encode_result(out: &mut Vec<u8>, result: &LineResult<'_>) {
    let TokenCounts {
        input,
        cached,
        output,
    } = result.tokens;
    encode(
        out,
        KIND,
        [result.line.0, u64::from(result.ok), input, cached, output],
        result.record,
    );
}

/// Reads a segment. After an error, nothing follows.
pub fn decode(blob: &[u8]) -> impl Iterator<Item = Result<LineResult<'_>, FormatError>> {
    Records::new(blob, KIND).map(|record| {
        record.map(|([line, ok, input, cached, output], record)| LineResult {
            line: LineNo(line),
            ok: ok == 1,
            tokens: TokenCounts {
                input,
                cached,
                output,
            },
            record,
        })
    })
}

//! The blob of a shard: its lines, as the user wrote them.

use super::record::{FormatError, Records, encode};
use crate::id::LineNo;

const KIND: &str = "nightshift shard 1";

/// One line of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardLine<'a> {
    /// Its place in the input file.
    pub line: LineNo,
    /// Tokens that it was estimated to take.
    pub estimated_tokens: u64,
    /// The whole line, without its newline.
    pub raw: &'a [u8],
}

/// Appends a line to a shard's blob; the first one opens the blob.
pub fn encode_line(out: &mut Vec<u8>, line: LineNo, estimated_tokens: u64, raw: &[u8]) {
    encode(out, KIND, [line.0, estimated_tokens], raw);
}

/// Reads a shard's blob. After an error, nothing follows.
pub fn decode(blob: &[u8]) -> impl Iterator<Item = Result<ShardLine<'_>, FormatError>> {
    Records::new(blob, KIND).map(|record| {
        record.map(|([line, estimated_tokens], raw)| ShardLine {
            line: LineNo(line),
            estimated_tokens,
            raw,
        })
    })
}

//! The blob of a window's index: which custom_id each line has, in input order.

use super::record::{FormatError, Records, encode};
use crate::id::LineNo;

const KIND: &str = "nightshift index 1";

/// One line of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry<'a> {
    /// Its place in the input file.
    pub line: LineNo,
    /// Its custom_id as a JSON string, as the user wrote it.
    pub custom_id_json: &'a str,
}

/// Appends a line to an index; the first one opens the blob.
pub fn encode_entry(out: &mut Vec<u8>, line: LineNo, custom_id_json: &str) {
    encode(out, KIND, [line.0], custom_id_json.as_bytes());
}

/// Reads an index. After an error, nothing follows.
pub fn decode(blob: &[u8]) -> impl Iterator<Item = Result<IndexEntry<'_>, FormatError>> {
    Records::new(blob, KIND).map(move |record| {
        let ([line], token) = record?;
        let at = token.as_ptr().addr() - blob.as_ptr().addr();
        let custom_id_json = std::str::from_utf8(token).map_err(|_| FormatError::Header { at })?;
        Ok(IndexEntry {
            line: LineNo(line),
            custom_id_json,
        })
    })
}

//! The saved place of a finalizer whose time is over: what is in both files so far, and where to go on.
//!
//! Results do not change once a batch is sealed, and files are cut into parts by their bytes alone. Whoever
//! goes on from a place writes the very parts that another one going on from it would.

use batch_core::batch::LineCounts;
use batch_io::{IoError, IoKind};
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::result_file::SavedFile;

/// How far a walk has come.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The window to go on with.
    pub(crate) window: u32,
    /// Lines in both files.
    pub(crate) counts: LineCounts,
    /// Those of them that never ran.
    pub(crate) unexecuted: u64,
}

/// A saved place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Epoch in the names of both files: that of the finalizer that began them.
    pub(crate) files_epoch: u64,
    /// Where to go on.
    pub(crate) position: Position,
    /// The output file.
    pub(crate) output: SavedFile,
    /// The error file.
    pub(crate) errors: SavedFile,
}

/// What comes before the bytes of both files that fill no part yet.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    files_epoch: u64,
    position: Position,
    output: SavedFile,
    output_tail_bytes: usize,
    errors: SavedFile,
}

impl Place {
    /// Renders a place: a line of JSON, then the tails of both files.
    pub(crate) fn encode(&self) -> Bytes {
        let header = Header {
            files_epoch: self.files_epoch,
            position: self.position.clone(),
            output: self.output.clone(),
            output_tail_bytes: self.output.tail.len(),
            errors: self.errors.clone(),
        };
        let header = serde_json::to_vec(&header).expect("a place holds texts and numbers alone");
        let mut bytes = BytesMut::from(header.as_slice());
        bytes.extend_from_slice(b"\n");
        bytes.extend_from_slice(&self.output.tail);
        bytes.extend_from_slice(&self.errors.tail);
        bytes.freeze()
    }

    /// Reads what [`Place::encode`] made.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Corrupt`.
    pub(crate) fn decode(name: &str, bytes: &Bytes) -> Result<Self, IoError> {
        let corrupt = || IoError::new("read the saved place", name, IoKind::Corrupt);
        let end = memchr::memchr(b'\n', bytes).ok_or_else(corrupt)?;
        let header: Header =
            serde_json::from_slice(&bytes[..end]).map_err(|cause| corrupt().because(cause))?;
        let tails = bytes.slice(end + 1..);
        if header.output_tail_bytes > tails.len() {
            return Err(corrupt());
        }
        let with_tail = |file: SavedFile, tail: Bytes| SavedFile {
            tail: tail.to_vec(),
            ..file
        };
        Ok(Self {
            files_epoch: header.files_epoch,
            position: header.position,
            output: with_tail(header.output, tails.slice(..header.output_tail_bytes)),
            errors: with_tail(header.errors, tails.slice(header.output_tail_bytes..)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        let file = |tail: &[u8]| SavedFile {
            tail: tail.to_vec(),
            lines: 3,
            bytes: 1_000,
            sha256_state: "00ff".to_owned(),
            multipart: None,
            parts: Vec::new(),
        };
        Place {
            files_epoch: 4,
            position: Position {
                window: 7,
                ..Position::default()
            },
            output: file(b"{\"a\":1}\n"),
            errors: file(b""),
        }
    }

    #[test]
    fn place_survives_its_own_encoding() {
        let place = place();
        let read = Place::decode("p", &place.encode()).map_err(|error| error.kind);
        assert_eq!(read, Ok(place));
    }

    #[test]
    fn cut_place_is_corrupt() {
        let whole = place().encode();
        for end in [0, 5, whole.len() - 1] {
            let cut = Place::decode("p", &whole.slice(..end));
            assert!(
                cut.as_ref()
                    .is_err_and(|error| error.kind == IoKind::Corrupt)
                    || cut.is_ok_and(|cut| cut != place()),
                "{end}"
            );
        }
    }
}

//! A file mapped into memory, read-only.
#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe: another process may change it"
)]

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use super::ModelError;

/// The bytes of a model file.
#[derive(Debug)]
pub(super) struct MappedFile {
    /// For messages.
    pub(super) path: String,
    map: Mmap,
}

impl MappedFile {
    /// Maps a file.
    pub(super) fn open(path: &Path) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io {
            path: path.display().to_string(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the bytes are only ever read as plain integers, for which every value is valid. Who serves
        // a model must not write to its files meanwhile: a write may show up in the weights, and a truncation
        // ends the process with SIGBUS; neither breaks memory safety of this process in any other way.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self {
            path: path.display().to_string(),
            map,
        })
    }

    /// Returns all bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }
}

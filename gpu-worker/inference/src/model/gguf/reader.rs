//! A cursor over untrusted little-endian bytes.
//!
//! Checks every length against what is left before it is used, and never allocates.

use super::Fault;

/// Reads from the front of a slice; every error says where.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Returns the bytes from `start` to here.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    /// Takes `len` bytes.
    pub(super) fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], Fault> {
        let left = self.bytes.len() - self.at;
        let len = usize::try_from(len)
            .ok()
            .filter(|&len| len <= left)
            .ok_or_else(|| {
                Fault::corrupt(format!(
                    "{what} at offset {} needs {len} bytes and {left} are left",
                    self.at
                ))
            })?;
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        let taken = self.take(N as u64, what)?;
        Ok(taken
            .try_into()
            .expect("take returns as many bytes as asked"))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Takes a string: a 64-bit length, then its bytes.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a [u8], Fault> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// Reads a count of things of which each takes at least `bytes_min` bytes.
    pub(super) fn count(&mut self, bytes_min: u64, max: u64, what: &str) -> Result<usize, Fault> {
        let at = self.at;
        let count = self.u64(what)?;
        let left = (self.bytes.len() - self.at) as u64;
        if count > max
            || count
                .checked_mul(bytes_min)
                .is_none_or(|bytes| bytes > left)
        {
            return Err(Fault::corrupt(format!(
                "{what} at offset {at} is {count}, with {left} bytes left and a limit of {max}"
            )));
        }
        usize::try_from(count)
            .map_err(|_| Fault::corrupt(format!("{what} at offset {at} is {count}")))
    }
}

//! A cheap fingerprint of a model's files.

use std::fmt::Write as _;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

/// Samples of each tensor.
const SAMPLES: usize = 4;
/// Bytes of a sample.
const SAMPLE_BYTES: usize = 64;

/// Hashes headers whole and tensors by samples.
///
/// Tells models apart that differ by accident (another quantisation, another fine-tune); it is no proof
/// against somebody who changes single weights on purpose.
#[derive(Debug)]
pub(super) struct Digest(SipHasher13);

impl Digest {
    pub(super) fn new(format: &str) -> Self {
        let mut digest = Self(SipHasher13::new());
        digest.bytes(format.as_bytes());
        digest
    }

    /// Adds bytes and their length.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.write(&(bytes.len() as u64).to_le_bytes());
        self.0.write(bytes);
    }

    /// Adds a file's length and its first bytes, which hold names, shapes and offsets.
    pub(super) fn header(&mut self, file: &[u8], header_bytes: usize) {
        self.0.write(&(file.len() as u64).to_le_bytes());
        self.bytes(&file[..header_bytes.min(file.len())]);
    }

    /// Adds samples of a tensor, spread evenly.
    pub(super) fn sample(&mut self, tensor: &[u8]) {
        for sample in 0..SAMPLES {
            let last = tensor.len().saturating_sub(SAMPLE_BYTES);
            let start = last * sample / (SAMPLES - 1);
            self.bytes(&tensor[start..(start + SAMPLE_BYTES).min(tensor.len())]);
        }
    }

    /// Returns the digest as 32 hexadecimal digits.
    pub(super) fn finish(&self) -> String {
        self.0
            .finish128()
            .as_bytes()
            .iter()
            .fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").expect("writing to a string cannot fail");
                text
            })
    }
}

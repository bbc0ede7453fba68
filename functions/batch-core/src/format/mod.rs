//! The blobs between validation and the results: text headers with lengths, raw bytes between them.
//!
//! Every record is `<numbers, separated by one space>\n<bytes>\n`, the last number being the length of
//! the bytes. Decoding trusts nothing: it never panics and never allocates by a length that it reads.

pub mod index;
pub mod segment;
pub mod shard;

mod record;
#[cfg(test)]
mod tests;

pub use record::FormatError;

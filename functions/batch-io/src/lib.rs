//! Carries out what `batch-core` decides: the only crate that touches a database, a disk or AWS.
//!
//! [`port`] holds three traits (records, blobs, queue), [`embedded`] implements them with SQLite and files,
//! `aws` with DynamoDB, S3 and SQS, and [`store`] is typed access to the records, written once over the traits. Adapters pass one
//! conformance suite. Nothing here decides: conditions come from the caller.
#![warn(missing_docs)]

pub mod assembly;
#[cfg(feature = "aws")]
pub mod aws;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(any(test, feature = "conformance"))]
pub mod counting;
pub mod embedded;
pub mod error;
pub mod keys;
#[cfg(any(test, feature = "conformance"))]
pub mod memory;
pub mod platform;
pub mod port;
pub mod store;

pub use error::{IoError, IoKind};
pub use platform::{Clock, Platform, Randomness, system_clock, system_randomness};

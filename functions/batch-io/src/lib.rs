//! Carries out what `batch-core` decides: the only crate that touches a database, a disk or AWS.
//!
//! [`port`] holds three traits (records, blobs, queue), [`embedded`] implements them with SQLite and files,
//! and [`store`] is typed access to the records, written once over the traits. Adapters pass one
//! conformance suite. Nothing here decides: conditions come from the caller.
#![warn(missing_docs)]

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod embedded;
pub mod error;
pub mod platform;
pub mod port;
pub mod store;

pub use error::{IoError, IoKind};
pub use platform::{Clock, Platform, Randomness, system_clock, system_randomness};

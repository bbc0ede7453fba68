//! Decides everything about batches, and does nothing: no IO, clock, environment, async or AWS.
//!
//! `now` and randomness are arguments. [`lifecycle`] is the batch's state machine, [`line`] reads input,
//! [`shard`] cuts it, [`lease`] fences workers, [`dispatch`] orders work, [`merge`] puts results back into
//! input order, [`wire`] is what clients see. `batch-io` carries the decisions out.
#![warn(missing_docs)]

pub mod batch;
pub mod blob_key;
pub mod catalog;
pub mod file;
pub mod id;
pub mod lifecycle;
pub mod limits;
pub mod message;
pub mod settings;
pub mod shard;
pub mod time;
pub mod upload;
pub mod worker;

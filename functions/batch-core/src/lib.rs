//! Decides everything about batches, and does nothing: no IO, clock, environment, async or AWS.
//!
//! `now` and randomness are arguments. [`lifecycle`] is the batch's state machine, [`line`] reads input,
//! [`shard_plan`] cuts it, [`lease`] fences workers, [`dispatch`] orders work, [`merge`] puts results back into
//! input order, [`wire`] is what clients see. `batch-io` carries the decisions out.
#![warn(missing_docs)]

pub mod batch;
pub mod blob_key;
pub mod catalog;
pub mod dispatch;
pub mod echo;
pub mod external;
pub mod file;
pub mod fleet;
pub mod form_envelope;
pub mod format;
pub mod id;
pub mod lease;
pub mod lifecycle;
pub mod limits;
pub mod line;
pub mod merge;
pub mod message;
pub mod output;
pub mod price;
pub mod settings;
pub mod shard;
pub mod shard_plan;
pub mod time;
pub mod upload;
pub mod window;
pub mod wire;
pub mod worker;

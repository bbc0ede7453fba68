//! The three traits that an environment implements.
//!
//! They promise no more than AWS does, and adapters refuse what AWS refuses.

pub mod blob_rules;
mod blobs;
mod queue;
pub mod queue_rules;
pub mod record_rules;
mod records;

pub use blobs::{BlobMeta, BlobRead, BlobReader, Blobs, MultipartId, PartTag, collect, read_named};
pub use queue::{Message, Queue, Receipt};
pub use records::{
    Action, ActionKind, Attr, Condition, Due, Item, Page, QueryOrder, RecordKey, Records,
    TransactError, Update, WorkKind,
};

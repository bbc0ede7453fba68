//! The three traits that an environment implements.
//!
//! They promise no more than AWS does, and adapters refuse what AWS refuses.

mod blobs;
mod queue;
mod records;

pub use blobs::{BlobMeta, BlobReader, BlobRead, Blobs, MultipartId, PartTag};
pub use queue::{Message, Queue, Receipt};
pub use records::{
    Action, ActionKind, Attr, Condition, Due, Item, Page, QueryOrder, RecordKey, Records, TransactError, Update, WorkKind,
};

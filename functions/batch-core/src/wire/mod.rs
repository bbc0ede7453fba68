//! What clients see and send: JSON shapes, the error envelope, and the checks of parameters.
//!
//! Everything here is a pure function of records or of request text. It knows no HTTP server, and never
//! reads a record itself. Shapes follow OpenAI's; ours are additive.

pub mod auth;
pub mod batch;
pub mod create_batch;
pub mod create_file;
pub mod create_upload;
pub mod error;
pub mod expiry;
pub mod file;
pub mod import;
pub mod members;
pub mod model;
pub mod page;
pub mod progress;
pub mod purpose;
pub mod query;
pub mod sniff;
pub mod upload;

pub use auth::{Credentials, Principal, hash_key};
pub use batch::BatchObject;
pub use create_batch::{BatchInput, CreateBatch};
pub use create_file::{FileForm, FileParams};
pub use create_upload::{CompleteUpload, CreateUpload};
pub use error::{ErrorType, WireError};
pub use file::{Deleted, FileObject};
pub use model::ModelObject;
pub use page::Page;
pub use progress::{Phase, Progress, ProgressInput, WaitingReason};
pub use query::ListQuery;
pub use sniff::{Finding, Sniff};
pub use upload::{PartObject, UploadObject};

#[cfg(test)]
mod tests;

//! The HTTP API: files, uploads, batches and models, as OpenAI's SDKs speak it.
//!
//! Handlers read requests, ask `batch-core` what they mean, and carry that out through `batch-io`. What
//! clients see is made in [`batch_core::wire`]; bodies are streamed, in constant memory. This crate runs no
//! batch: it writes records and sends messages. Who a caller is comes through [`Authorize`].
#![warn(missing_docs)]

mod background;
mod batches;
mod body;
mod caller;
mod content;
mod context;
mod create_batch;
mod download;
mod files;
mod form;
mod import;
mod intake;
mod models;
mod observe;
mod parts;
mod receive;
mod reply;
mod router;
mod slots;
mod uploads;

pub use background::Background;
pub use context::{Authorize, Context};
pub use router::{router, router_under};
pub use slots::UploadSlots;

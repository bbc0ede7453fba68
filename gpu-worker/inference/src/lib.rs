//! The engine: tokens in, tokens out.
//!
//! Knows nothing of batches, OpenAI, AWS or async, reads no clock, and does no network IO.
//! [`model`] reads weights from disk, [`text`] turns text into token ids and back, [`backend`] is the
//! contract that every device implements, [`engine`] schedules sequences over a backend.
//! Start at [`engine::Engine`] and [`backend::Backend`].
#![warn(missing_docs)]

pub mod backend;
pub mod engine;
pub mod model;
pub mod text;

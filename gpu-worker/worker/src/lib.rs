//! The shell around the engine: claims shards, translates lines, commits results, drains when told.
//!
//! Decides nothing about leases or batches (`batch-core` does) and computes nothing (`inference` does).
//! [`service`] is the long-running worker; [`pipeline`] runs lines through one model; [`openai`] is the
//! pure translation between bodies and sequences; [`http`] lets a server answer in place of the engine.

pub mod http;
pub mod model;
pub mod openai;
pub mod pipeline;
pub mod precision;
pub mod service;

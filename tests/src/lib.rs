//! What the system tests share: a running service, a client for it, and what the environment offers.
//!
//! The tests drive the `nightshift` program as a user does, over HTTP and by signals.

pub mod client;
pub mod environment;
pub mod service;

//! What the system tests share: a running service, a client for it, and what the environment offers.
//!
//! The tests drive the `nightshift` program as a user does, over HTTP and by signals.

pub mod catalog;
pub mod client;
pub mod command;
pub mod environment;
pub mod inside;
pub mod peer;
pub mod proof;
pub mod random;
pub mod scenario;
pub mod service;
pub mod site;

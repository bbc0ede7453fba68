//! The API over real HTTP, on the ports of one machine.
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets a surprise ends there"
)]

mod batches;
mod client;
mod errors;
mod files;
mod imports;
mod multipart;
mod redirects;
mod server;
mod uploads;

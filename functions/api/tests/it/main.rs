//! The API over real HTTP, on the ports of one machine.

mod batches;
mod client;
mod errors;
mod files;
mod multipart;
mod server;
mod uploads;

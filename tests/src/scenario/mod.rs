//! What must work wherever the service runs: the same scenarios on one machine and on AWS's emulators.

mod batches;
mod sdk;
mod uploads;

pub use batches::{cancel, expiry, killed_worker, mixed_batch};
pub use sdk::{acceptance_node, acceptance_python, wire_cases};
pub use uploads::{large_upload, upload_in_parts};

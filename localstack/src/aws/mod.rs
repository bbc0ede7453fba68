//! The parts of the command that run on AWS for a long time: workers of a fleet, and the ingest server.
//!
//! Where state is comes from the environment, which Terraform writes. Only `batch-io` speaks to AWS; the one
//! exception is the machine's own metadata service, which is plain HTTP.

mod fetch;
mod fleet;
mod imds;
mod ingest;

pub(crate) use fleet::worker;
pub(crate) use ingest::ingest;

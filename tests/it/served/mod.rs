//! Models that a server has: a real server over real connections, which misbehaves.

mod batches;
mod pipeline;
mod run_file;

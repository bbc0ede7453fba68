//! The service over the real store and embedded ports, with a tiny model on the real engine.
//!
//! Most tests call the parts of the loop one by one under a clock that they move; `whole` runs the loop itself.

mod bench;
mod engine;
mod faults;
mod lanes;
mod leases;
mod trouble;
mod whole;

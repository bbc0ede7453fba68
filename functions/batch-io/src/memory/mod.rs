//! The three ports in memory, for simulations whose clock stands still or runs ahead.
//!
//! No call waits for a thread or a disk: under Tokio's paused time an hour passes in seconds, and the long
//! polls of the queue wait in that time. They keep to the same rules as every adapter. Nothing outlives the
//! process.

mod blobs;
mod queue;
mod records;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::platform::{Clock, Platform, Randomness};

pub use blobs::MemoryBlobs;
pub use queue::MemoryQueue;
pub use records::MemoryRecords;

/// Makes a platform of empty ports in memory.
#[must_use]
pub fn platform(clock: Clock, random: Randomness) -> Platform {
    Platform {
        records: Arc::new(MemoryRecords::default()),
        blobs: Arc::new(MemoryBlobs::default()),
        queue: Arc::new(MemoryQueue::new(Arc::clone(&clock))),
        clock,
        random,
    }
}

/// A panic elsewhere leaves whole values: nothing here panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

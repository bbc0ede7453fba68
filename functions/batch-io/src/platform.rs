//! Everything a handler needs from outside, in one place.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use batch_core::id::Entropy;
use batch_core::message::QueueName;
use batch_core::time::UnixMs;
use serde::Serialize;

use crate::IoError;
use crate::port::{Blobs, Queue, Records};

/// Tells the time. Handlers that run long ask again; all else gets `now` as an argument.
pub type Clock = Arc<dyn Fn() -> UnixMs + Send + Sync>;

/// Gives random bytes.
pub type Randomness = Arc<dyn Fn() -> Entropy + Send + Sync>;

/// The three ports, a clock and a source of randomness.
#[derive(Clone)]
pub struct Platform {
    /// State.
    pub records: Arc<dyn Records>,
    /// Bytes.
    pub blobs: Arc<dyn Blobs>,
    /// Messages.
    pub queue: Arc<dyn Queue>,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub random: Randomness,
}

impl Platform {
    /// Sends jobs to a queue, each as one message, visible after `delay`.
    ///
    /// # Errors
    ///
    /// [`IoError`] as [`Queue::send`]. Some may have been sent.
    ///
    /// # Panics
    ///
    /// If a job cannot be written as JSON: all of ours hold texts and numbers alone.
    pub async fn send<J: Serialize>(
        &self,
        queue: &QueueName,
        jobs: &[J],
        delay: Duration,
    ) -> Result<(), IoError> {
        let bodies = jobs
            .iter()
            .map(|job| serde_json::to_string(job).expect("a job holds texts and numbers alone"))
            .collect();
        self.queue.send(queue, bodies, delay).await
    }
}

impl fmt::Debug for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Platform").finish_non_exhaustive()
    }
}

/// Returns the clock of the operating system.
#[must_use]
pub fn system_clock() -> Clock {
    Arc::new(|| {
        let since_1970 = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        UnixMs(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX))
    })
}

/// Returns the randomness of the operating system.
///
/// # Panics
///
/// The randomness panics, when used, on a system that has none: no secret could be made there.
#[must_use]
pub fn system_randomness() -> Randomness {
    Arc::new(|| {
        let mut bytes = Entropy::default();
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        bytes
    })
}

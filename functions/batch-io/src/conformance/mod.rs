//! What every adapter of the ports must do, as one suite that adapters run in their tests.
//!
//! Each property panics where it does not hold. Names are unique to a property, so that all may share one
//! store; a store must be empty at the start. Properties that hold only on a calm day are skipped where
//! [`Subject::calm`] is false.

pub mod blobs;
pub mod queue;
pub mod records;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::{IoError, IoKind};

/// Makes time pass for an adapter: moves its clock, or sleeps where it has none to move.
pub type Advance = Arc<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

/// An adapter under test.
pub struct Subject<P: ?Sized> {
    /// The port.
    pub port: Arc<P>,
    /// Makes time pass.
    pub advance: Advance,
    /// The longest that the work index lags.
    pub lag: Duration,
    /// Messages come once and when they should. False for weather, and for a real SQS queue.
    pub calm: bool,
}

impl<P: ?Sized> fmt::Debug for Subject<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("lag", &self.lag)
            .field("calm", &self.calm)
            .finish_non_exhaustive()
    }
}

/// Panics unless an operation failed in this way.
#[track_caller]
fn expect_kind<T: fmt::Debug>(outcome: Result<T, IoError>, kind: IoKind) {
    match outcome {
        Ok(value) => panic!("expected {kind:?}, but it gave {value:?}"),
        Err(error) => assert_eq!(error.kind, kind, "{error}"),
    }
}

//! The body of a request while it arrives: one stream that a handler reads, and that is drained after an
//! error, so that clients that are still sending see the answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::FromRequestParts;
use batch_core::wire::WireError;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::request::Parts;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Seconds without a byte after which a body counts as stalled. Some SDKs repeat an upload without sending
/// its body.
pub(crate) const IDLE_S: u64 = 60;

/// Bytes that are read and dropped after an error: 1 GiB.
const DRAIN_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// How long they are read.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(60);

/// Why a body ended before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IntakeFault {
    /// Nothing came for too long.
    #[error("nothing came for {IDLE_S} seconds")]
    Stalled,
    /// The connection broke, or the framing is wrong.
    #[error("the body broke off")]
    Broken,
}

impl From<IntakeFault> for WireError {
    fn from(fault: IntakeFault) -> Self {
        match fault {
            IntakeFault::Stalled => WireError::body_timeout(IDLE_S),
            IntakeFault::Broken => WireError::invalid("The request body broke off before its end."),
        }
    }
}

/// The body of a request. Clones read the same stream.
#[derive(Clone)]
pub(crate) struct Intake(Arc<Mutex<Reading>>);

struct Reading {
    /// None once it has ended, well or not.
    body: Option<BodyDataStream>,
    idle: Pin<Box<Sleep>>,
    begun: bool,
    /// Whether the last poll found nothing.
    waiting: bool,
}

impl Intake {
    pub(crate) fn new(body: Body) -> Self {
        let idle = Box::pin(sleep(Duration::from_secs(IDLE_S)));
        Self(Arc::new(Mutex::new(Reading {
            body: Some(body.into_data_stream()),
            idle,
            begun: false,
            waiting: false,
        })))
    }

    /// Returns whether anything was asked of the body.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).begun
    }

    /// Reads and drops the rest, within bounds.
    pub(crate) async fn drain(mut self) {
        let mut bytes = 0_u64;
        let reading = async {
            while let Some(Ok(chunk)) = self.next().await {
                bytes += chunk.len() as u64;
                if bytes > DRAIN_BYTES_MAX {
                    break;
                }
            }
        };
        // A client that is still sending after that gets the answer on a connection that closes.
        let _in_time = timeout(DRAIN_TIME_MAX, reading).await;
    }
}

impl Stream for Intake {
    type Item = Result<Bytes, IntakeFault>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = &mut *guard;
        let Some(body) = &mut reading.body else {
            return Poll::Ready(None);
        };
        let deadline = Instant::now() + Duration::from_secs(IDLE_S);
        reading.begun = true;
        // Only time that the client keeps us waiting counts, not what our own disk takes between two polls.
        if !reading.waiting {
            reading.idle.as_mut().reset(deadline);
        }
        let fault = match body.poll_next_unpin(cx) {
            Poll::Ready(Some(Ok(chunk))) => {
                reading.waiting = false;
                return Poll::Ready(Some(Ok(chunk)));
            }
            Poll::Ready(None) => None,
            Poll::Ready(Some(Err(_))) => Some(IntakeFault::Broken),
            Poll::Pending => {
                reading.waiting = true;
                if Future::poll(reading.idle.as_mut(), cx).is_pending() {
                    return Poll::Pending;
                }
                Some(IntakeFault::Stalled)
            }
        };
        reading.body = None;
        Poll::Ready(fault.map(Err))
    }
}

impl<S: Sync> FromRequestParts<S> for Intake {
    type Rejection = std::convert::Infallible;

    /// Takes the body that [`observe`](crate::observe) put aside; an empty one without it.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts
            .extensions
            .get::<Self>()
            .cloned()
            .unwrap_or_else(|| Self::new(Body::empty())))
    }
}

//! What every queue adapter refuses, as pure functions. Never touches a queue.
//!
//! Source: Amazon SQS message quotas.

use std::time::Duration;

/// Most bytes of a message: 1 MiB.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// Most messages of a receive.
pub const RECEIVE_MAX: usize = 10;

/// Longest delay of a send: 15 min.
pub const DELAY_MAX: Duration = Duration::from_secs(15 * 60);

/// Longest wait of a receive: 20 s.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// Longest invisibility: 12 h.
pub const VISIBILITY_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Why a request breaks the port's limits. Always a bug of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueLimit {
    /// An empty or too large message.
    #[error("a message of {0} bytes, not of 1 to {MESSAGE_BYTES_MAX}")]
    Message(usize),
    /// No message, or too many.
    #[error("a receive of {0} messages, not of 1 to {RECEIVE_MAX}")]
    Receive(usize),
    /// Too long a delay.
    #[error("a delay of {0:?}, longer than {DELAY_MAX:?}")]
    Delay(Duration),
    /// Too long a wait.
    #[error("a wait of {0:?}, longer than {WAIT_MAX:?}")]
    Wait(Duration),
    /// Too long an invisibility.
    #[error("a visibility timeout of {0:?}, longer than {VISIBILITY_MAX:?}")]
    Visibility(Duration),
}

/// Checks a send.
///
/// # Errors
///
/// [`QueueLimit`]: `Delay`, `Message`.
pub fn check_send(bodies: &[String], delay: Duration) -> Result<(), QueueLimit> {
    if delay > DELAY_MAX {
        return Err(QueueLimit::Delay(delay));
    }
    let outside = bodies
        .iter()
        .map(String::len)
        .find(|len| !(1..=MESSAGE_BYTES_MAX).contains(len));
    outside.map_or(Ok(()), |len| Err(QueueLimit::Message(len)))
}

/// Checks a receive.
///
/// # Errors
///
/// [`QueueLimit`]: `Receive`, `Wait`, `Visibility`.
pub fn check_receive(limit: usize, visibility: Duration, wait: Duration) -> Result<(), QueueLimit> {
    if !(1..=RECEIVE_MAX).contains(&limit) {
        return Err(QueueLimit::Receive(limit));
    }
    if wait > WAIT_MAX {
        return Err(QueueLimit::Wait(wait));
    }
    check_visibility(visibility)
}

/// Checks a visibility timeout.
///
/// # Errors
///
/// [`QueueLimit::Visibility`].
pub fn check_visibility(visibility: Duration) -> Result<(), QueueLimit> {
    if visibility > VISIBILITY_MAX {
        Err(QueueLimit::Visibility(visibility))
    } else {
        Ok(())
    }
}

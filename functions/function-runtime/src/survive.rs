//! One call of a handler, which may neither take the process down nor outlast its function.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use batch_core::time::UnixMs;
use batch_io::{IoError, IoKind};
use futures::FutureExt as _;

use crate::serve::Invocation;

/// Calls a handler at `now`. A panic is an error, and so is a handler that is not done shortly before the
/// deadline; it is dropped as if the process had died.
///
/// # Errors
///
/// The handler's own, `Corrupt` for a panic, `Busy` if there was no time.
pub async fn survive<T, F>(
    invocation: Invocation,
    now: UnixMs,
    call: impl FnOnce() -> F,
) -> Result<T, IoError>
where
    F: Future<Output = Result<T, IoError>>,
{
    let left = invocation.time_left(now);
    if left.is_zero() {
        return Err(out_of_time());
    }
    // The hook has logged the panic's place already.
    let guarded = AssertUnwindSafe(async move { call().await }).catch_unwind();
    match tokio::time::timeout(left, guarded).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(IoError::new(
            "call a handler that panicked",
            "handler",
            IoKind::Corrupt,
        )),
        Err(_) => Err(out_of_time()),
    }
}

fn out_of_time() -> IoError {
    IoError::new(
        "finish before the function's deadline",
        "handler",
        IoKind::Busy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMs = UnixMs(1_790_000_000_000);

    async fn check<F>(left_ms: i64, call: impl FnOnce() -> F) -> Result<u8, IoKind>
    where
        F: Future<Output = Result<u8, IoError>>,
    {
        let invocation = Invocation {
            deadline: NOW.plus_ms(left_ms),
        };
        survive(invocation, NOW, call)
            .await
            .map_err(|error| error.kind)
    }

    #[tokio::test]
    async fn panic_of_a_handler_is_an_error() {
        let panics = check(60_000, || async { panic!("a bug") }).await;
        assert_eq!(panics, Err(IoKind::Corrupt));
        assert_eq!(check(60_000, || async { Ok(7) }).await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn handler_that_outlasts_its_function_is_dropped() {
        let never = check(60_000, std::future::pending).await;
        assert_eq!(never, Err(IoKind::Busy));
    }

    #[tokio::test]
    async fn handler_is_not_called_without_time() {
        let called = check(2_000, || async { panic!("it was called") }).await;
        assert_eq!(called, Err(IoKind::Busy));
    }
}

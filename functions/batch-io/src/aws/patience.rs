//! Pauses between tries that the SDK does not make by itself.

use std::time::Duration;

/// The first pause is up to this long; each next up to twice as long.
const FIRST: Duration = Duration::from_millis(20);

/// Doublings at most.
const DOUBLINGS_MAX: u32 = 6;

/// Sleeps a random time, longer at most with every try, so that those who met do not meet again.
///
/// Source: AWS Architecture Blog, "Exponential backoff and jitter" (full jitter).
pub(super) async fn pause(tries: u32) {
    let most = FIRST * 2_u32.pow(tries.min(DOUBLINGS_MAX));
    let share = getrandom::u32().unwrap_or(u32::MAX / 2);
    tokio::time::sleep(most.mul_f64(f64::from(share) / f64::from(u32::MAX))).await;
}

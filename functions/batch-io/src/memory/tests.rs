use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use batch_core::time::UnixMs;

use crate::conformance::{self, Advance, Subject};
use crate::counting::Counts;
use crate::platform::{Platform, system_randomness};

/// A platform under a clock that stands still until it is moved.
fn still() -> (Platform, Advance) {
    let now = Arc::new(AtomicI64::new(1_700_000_000_000));
    let hand = Arc::clone(&now);
    let clock = Arc::new(move || UnixMs(now.load(Ordering::SeqCst)));
    let advance: Advance = Arc::new(move |span| {
        hand.fetch_add(i64::try_from(span.as_millis()).unwrap(), Ordering::SeqCst);
        Box::pin(async {})
    });
    (super::platform(clock, system_randomness()), advance)
}

fn subject<P: ?Sized>(port: Arc<P>, advance: Advance) -> Subject<P> {
    Subject {
        port,
        advance,
        lag: Duration::ZERO,
        calm: true,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ports_in_memory_conform() {
    let (platform, advance) = still();
    conformance::records::run(&subject(platform.records, Arc::clone(&advance))).await;
    conformance::queue::run(&subject(platform.queue, Arc::clone(&advance))).await;
    conformance::blobs::run(&subject(platform.blobs, advance)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counted_ports_conform() {
    let (platform, advance) = still();
    let platform = Counts::default().wrap(&platform, "test");
    conformance::records::run(&subject(platform.records, Arc::clone(&advance))).await;
    conformance::queue::run(&subject(platform.queue, Arc::clone(&advance))).await;
    conformance::blobs::run(&subject(platform.blobs, advance)).await;
}

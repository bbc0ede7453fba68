//! Work that goes on after a request was answered, and how to wait for it.
//!
//! Where a process may be frozen or ended after an answer, whoever serves requests puts a [`Background`] into
//! their extensions, and waits for it first.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::request::Parts;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Counts tasks until they end. Clones count the same ones.
#[derive(Debug, Clone)]
pub struct Background(watch::Sender<usize>);

impl Default for Background {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Background {
    /// Waits until no task is left.
    pub async fn finished(&self) {
        let mut running = self.0.subscribe();
        let ended = running.wait_for(|running| *running == 0).await;
        ended.expect("the sender lives as long as its borrower");
    }

    /// Starts a task; none outside a runtime, which is about to end then.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let counted = Counted::new(self.clone());
        runtime.spawn(async move {
            work.await;
            drop(counted);
        });
    }
}

/// Counts as long as it lives, so that a task that panics is not waited for.
struct Counted(Background);

impl Counted {
    fn new(background: Background) -> Self {
        background.0.send_modify(|running| *running += 1);
        Self(background)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|running| *running -= 1);
    }
}

impl<S: Sync> FromRequestParts<S> for Background {
    type Rejection = Infallible;

    /// Takes the one in the request's extensions; one that nobody waits for without it.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn it_is_finished_when_every_task_has_ended() {
        let background = Background::default();
        background.finished().await;
        let (first_ends, first_end) = oneshot::channel::<()>();
        let (second_ends, second_end) = oneshot::channel::<()>();
        for end in [first_end, second_end] {
            background.spawn(async move { end.await.unwrap() });
        }
        let waiting = background.clone();
        let waiting = tokio::spawn(async move { waiting.finished().await });
        first_ends.send(()).unwrap();
        tokio::task::yield_now().await;
        assert!(background.finished().now_or_never().is_none());
        second_ends.send(()).unwrap();
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn a_task_that_panics_is_not_waited_for() {
        let background = Background::default();
        background.spawn(async { panic!("this task panics") });
        background.finished().await;
    }
}

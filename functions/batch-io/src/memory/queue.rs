//! Queues in ordered maps. A message is in flight while its moment of visibility lies ahead.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use batch_core::message::QueueName;
use batch_core::time::UnixMs;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::lock;
use crate::platform::Clock;
use crate::port::queue_rules::{self, QueueLimit};
use crate::port::{Message, Queue, Receipt};
use crate::{IoError, IoKind};

/// Queues in memory.
pub struct MemoryQueue {
    clock: Clock,
    state: Mutex<State>,
    /// Rings whenever a message may have become visible.
    bell: Notify,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<String, BTreeMap<u64, Stored>>,
    last: u64,
}

#[derive(Debug)]
struct Stored {
    body: Arc<str>,
    visible_at: UnixMs,
    receives: u32,
}

impl std::fmt::Debug for MemoryQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryQueue").finish_non_exhaustive()
    }
}

impl MemoryQueue {
    /// Makes empty queues under a clock, which rules when messages are visible.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            bell: Notify::new(),
        }
    }

    fn now_plus(&self, span: Duration) -> UnixMs {
        (self.clock)().plus_ms(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
    }

    /// Takes visible messages, or says when the next is visible.
    fn take(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
    ) -> Result<Vec<Message>, Option<Duration>> {
        let (now, until) = (self.now_plus(Duration::ZERO), self.now_plus(visibility));
        let mut state = lock(&self.state);
        let Some(stored) = state.queues.get_mut(&name_of(queue)) else {
            return Err(None);
        };
        let visible = stored.iter_mut().filter(|(_, one)| one.visible_at <= now);
        let taken: Vec<Message> = visible
            .take(limit)
            .map(|(number, one)| {
                one.receives += 1;
                one.visible_at = until;
                Message {
                    body: one.body.to_string(),
                    receipt: Receipt(format!("{number}-{}", one.receives)),
                    receives: one.receives,
                }
            })
            .collect();
        if !taken.is_empty() {
            return Ok(taken);
        }
        let next = stored.values().map(|one| one.visible_at).min();
        Err(next.map(|at| Duration::from_millis(at.since_ms(now).max(1).unsigned_abs())))
    }
}

#[async_trait]
impl Queue for MemoryQueue {
    async fn send(
        &self,
        queue: &QueueName,
        bodies: Vec<String>,
        delay: Duration,
    ) -> Result<(), IoError> {
        queue_rules::check_send(&bodies, delay).map_err(|limit| refused(queue, limit))?;
        let visible_at = self.now_plus(delay);
        let mut state = lock(&self.state);
        for body in bodies {
            state.last += 1;
            let number = state.last;
            let stored = Stored {
                body: body.into(),
                visible_at,
                receives: 0,
            };
            let queue = state.queues.entry(name_of(queue)).or_default();
            queue.insert(number, stored);
        }
        drop(state);
        self.bell.notify_waiters();
        Ok(())
    }

    async fn receive(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Message>, IoError> {
        queue_rules::check_receive(limit, visibility, wait)
            .map_err(|limit| refused(queue, limit))?;
        let end = Instant::now() + wait;
        loop {
            let mut rung = std::pin::pin!(self.bell.notified());
            // Listens before it looks, so that no send falls between the two.
            rung.as_mut().enable();
            let next = match self.take(queue, limit, visibility) {
                Ok(messages) => return Ok(messages),
                Err(next) => next,
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Vec::new());
            }
            tokio::select! {
                () = rung => {}
                () = tokio::time::sleep(next.unwrap_or(left).min(left)) => {}
            }
        }
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), IoError> {
        queue_rules::check_visibility(visibility).map_err(|limit| refused(queue, limit))?;
        let (now, until) = (self.now_plus(Duration::ZERO), self.now_plus(visibility));
        let mut state = lock(&self.state);
        if let Some((number, receives)) = parse(receipt)
            && let Some(queue) = state.queues.get_mut(&name_of(queue))
            && let Some(one) = queue.get_mut(&number)
            && one.receives == receives
            && one.visible_at > now
        {
            one.visible_at = until;
        }
        drop(state);
        self.bell.notify_waiters();
        Ok(())
    }

    async fn delete(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), IoError> {
        let mut state = lock(&self.state);
        if let Some((number, receives)) = parse(receipt)
            && let Some(queue) = state.queues.get_mut(&name_of(queue))
            && queue
                .get(&number)
                .is_some_and(|one| one.receives == receives)
        {
            queue.remove(&number);
        }
        Ok(())
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, IoError> {
        let now = (self.clock)();
        let state = lock(&self.state);
        let waiting = |one: &&Stored| one.visible_at <= now || one.receives == 0;
        let stored = state.queues.get(&name_of(queue));
        Ok(stored.map_or(0, |stored| stored.values().filter(waiting).count() as u64))
    }
}

/// The queue's name on AWS may be shared by two models; here it must not.
fn name_of(queue: &QueueName) -> String {
    format!("{queue:?}")
}

fn parse(receipt: &Receipt) -> Option<(u64, u32)> {
    let (number, receives) = receipt.0.split_once('-')?;
    Some((number.parse().ok()?, receives.parse().ok()?))
}

fn refused(queue: &QueueName, limit: QueueLimit) -> IoError {
    IoError::new("use queue", queue.to_string(), IoKind::TooLarge).because(limit)
}

//! The test mode: wrappers that make any records or queue as late, short and double as AWS may be.
//!
//! Deterministic: the n-th decision follows from the seed alone. Loses nothing and invents nothing but
//! second copies of messages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use batch_core::message::QueueName;
use batch_core::time::UnixMs;

use crate::IoError;
use crate::platform::Clock;
use crate::port::queue_rules::DELAY_MAX;
use crate::port::{
    Action, ActionKind, Due, Item, Message, Page, QueryOrder, Queue, Receipt, RecordKey, Records,
    TransactError, WorkKind,
};

/// Longest extra delay of a late message.
const LATE_MS_MAX: u64 = 200;

/// How badly the ports behave. The default is a calm day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weather {
    /// How long the work index shows what was before a transaction of this process.
    pub index_lag_ms: i64,
    /// Pages end early, and some are empty though more follow.
    pub short_pages: bool,
    /// Messages come up to 200 ms late, and so out of order.
    pub late_messages: bool,
    /// Some messages are sent twice.
    pub double_messages: bool,
    /// What all of it follows from.
    pub seed: u64,
}

impl Weather {
    /// Wraps `records`, if this changes them at all.
    pub(super) fn over_records(self, records: Arc<dyn Records>, clock: Clock) -> Arc<dyn Records> {
        if self.index_lag_ms <= 0 && !self.short_pages {
            return records;
        }
        let dice = Dice::new(self.seed);
        Arc::new(WeatheredRecords {
            records,
            weather: self,
            clock,
            dice,
            past: Mutex::default(),
        })
    }

    /// Wraps `queue`, if this changes it at all.
    pub(super) fn over_queue(self, queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        if !self.late_messages && !self.double_messages {
            return queue;
        }
        Arc::new(WeatheredQueue {
            queue,
            weather: self,
            dice: Dice::new(self.seed),
        })
    }
}

/// Numbers that follow from a seed.
///
/// Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64).
#[derive(Debug)]
struct Dice(AtomicU64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Returns a number below `sides`.
    fn roll(&self, sides: u64) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides.max(1)
    }
}

/// What the index showed of a key before a change, and until when it shows it.
#[derive(Debug, Clone, Copy)]
struct Past {
    shown: Option<Due>,
    until: UnixMs,
}

struct WeatheredRecords {
    records: Arc<dyn Records>,
    weather: Weather,
    clock: Clock,
    dice: Dice,
    past: Mutex<BTreeMap<RecordKey, Vec<Past>>>,
}

impl WeatheredRecords {
    /// Reads the index entries that `actions` may change, before they do.
    async fn entries_before(
        &self,
        actions: &[Action],
    ) -> Result<Vec<(RecordKey, Option<Due>)>, IoError> {
        let mut before = Vec::new();
        for action in actions {
            let changes = match &action.kind {
                ActionKind::Put(_) | ActionKind::Delete => true,
                ActionKind::Update(update) => update.due.is_some(),
                ActionKind::Check => false,
            };
            // The adapter refuses such a key; this must not be the one to say so.
            if changes && action.key.check().is_ok() {
                let due = self
                    .records
                    .get(&action.key)
                    .await?
                    .and_then(|item| item.due);
                before.push((action.key.clone(), due));
            }
        }
        Ok(before)
    }

    fn remember(&self, before: Vec<(RecordKey, Option<Due>)>) {
        let until = (self.clock)().plus_ms(self.weather.index_lag_ms);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, shown) in before {
            past.entry(key).or_default().push(Past { shown, until });
        }
    }

    /// Returns what the index still shows of keys that changed lately: the oldest entry that is not over.
    fn shown(&self) -> BTreeMap<RecordKey, Option<Due>> {
        let now = (self.clock)();
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.retain(|_, entries| {
            entries.retain(|entry| entry.until > now);
            !entries.is_empty()
        });
        past.iter()
            .filter_map(|(key, entries)| Some((key.clone(), entries.first()?.shown)))
            .collect()
    }
}

#[async_trait]
impl Records for WeatheredRecords {
    async fn get(&self, key: &RecordKey) -> Result<Option<Item>, IoError> {
        self.records.get(key).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        order: QueryOrder,
        limit: usize,
    ) -> Result<Page, IoError> {
        if !self.weather.short_pages || limit == 0 {
            return self
                .records
                .query(partition, prefix, after, order, limit)
                .await;
        }
        if self.dice.roll(4) == 0 {
            let before_all = match order {
                QueryOrder::Ascending => String::new(),
                QueryOrder::Descending => format!("{prefix}{}", char::MAX),
            };
            return Ok(Page {
                items: Vec::new(),
                next: Some(after.map_or(before_all, str::to_owned)),
            });
        }
        let fewer = 1 + self.dice.roll(limit.min(4) as u64) as usize;
        self.records
            .query(partition, prefix, after, order, fewer)
            .await
    }

    async fn due(
        &self,
        kind: WorkKind,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<(RecordKey, Due)>, IoError> {
        let shown = self.shown();
        let found = self
            .records
            .due(
                kind,
                until,
                limit.saturating_add(shown.len() * usize::from(limit > 0)),
            )
            .await?;
        let current = found
            .into_iter()
            .filter(|(key, _)| !shown.contains_key(key));
        let late = shown
            .iter()
            .filter_map(|(key, due)| Some((key.clone(), (*due)?)));
        let mut entries: Vec<_> = current
            .chain(late.filter(|(_, due)| due.kind == kind && due.at <= until))
            .collect();
        entries.sort_by(|(key, due), (other_key, other)| (due.at, key).cmp(&(other.at, other_key)));
        entries.truncate(limit);
        Ok(entries)
    }

    async fn transact(&self, actions: Vec<Action>) -> Result<(), TransactError> {
        if self.weather.index_lag_ms <= 0 {
            return self.records.transact(actions).await;
        }
        let before = self.entries_before(&actions).await?;
        self.records.transact(actions).await?;
        self.remember(before);
        Ok(())
    }
}

struct WeatheredQueue {
    queue: Arc<dyn Queue>,
    weather: Weather,
    dice: Dice,
}

impl WeatheredQueue {
    fn late(&self) -> Duration {
        let late = self.weather.late_messages && self.dice.roll(2) == 0;
        if late {
            Duration::from_millis(self.dice.roll(LATE_MS_MAX + 1))
        } else {
            Duration::ZERO
        }
    }
}

#[async_trait]
impl Queue for WeatheredQueue {
    async fn send(
        &self,
        queue: &QueueName,
        bodies: Vec<String>,
        delay: Duration,
    ) -> Result<(), IoError> {
        for body in bodies {
            let copies = 1 + u64::from(self.weather.double_messages && self.dice.roll(3) == 0);
            for _ in 0..copies {
                let delay = (delay + self.late()).min(DELAY_MAX.max(delay));
                self.queue.send(queue, vec![body.clone()], delay).await?;
            }
        }
        Ok(())
    }

    async fn receive(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Message>, IoError> {
        self.queue.receive(queue, limit, visibility, wait).await
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), IoError> {
        self.queue.extend(queue, receipt, visibility).await
    }

    async fn delete(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), IoError> {
        self.queue.delete(queue, receipt).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, IoError> {
        self.queue.depth(queue).await
    }
}

impl fmt::Debug for WeatheredRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeatheredRecords")
            .field("weather", &self.weather)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WeatheredQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeatheredQueue")
            .field("weather", &self.weather)
            .finish_non_exhaustive()
    }
}

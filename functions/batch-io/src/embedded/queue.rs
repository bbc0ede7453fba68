//! Queues in SQLite: one table of messages. A message is in flight while its moment of visibility lies
//! ahead, and its receipt is its number and how often it was received.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use batch_core::message::{Lane, QueueName};
use batch_core::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::OpenError;
use super::sql::{Database, Durability};
use crate::platform::Clock;
use crate::port::queue_rules::{self, QueueLimit};
use crate::port::{Message, Queue, Receipt};
use crate::{IoError, IoKind};

/// Numbers are never used again, so that a stale receipt never meets another message.
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS message (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    body TEXT NOT NULL,
    visible_at INTEGER NOT NULL,
    receives INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS message_visible ON message (queue, visible_at, number);
";

/// How soon a long poll looks again for what another process sent; grows to the second while nothing comes.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

/// Messages in one SQLite file.
pub(super) struct SqliteQueue {
    database: Database,
    clock: Clock,
    sent: Mutex<HashMap<String, Arc<Notify>>>,
}

impl SqliteQueue {
    pub(super) fn open(path: &Path, clock: Clock) -> Result<Self, OpenError> {
        // A power cut may lose messages. They only say "look": reconcile says it again.
        let database = Database::open(path, SCHEMA, Durability::Process)?;
        Ok(Self {
            database,
            clock,
            sent: Mutex::default(),
        })
    }

    fn now_plus(&self, span: Duration) -> UnixMs {
        (self.clock)().plus_ms(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
    }

    /// Returns what wakes the long polls of this process on one queue.
    fn bell(&self, queue: &str) -> Arc<Notify> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(sent.entry(queue.to_owned()).or_default())
    }

    /// Returns when the next message is visible, in a read that disturbs no writer.
    async fn next_visible(&self, queue: &str) -> Result<Option<UnixMs>, IoError> {
        let name = queue.to_owned();
        let read = move |c: &Connection| {
            c.prepare_cached(
                "SELECT visible_at FROM message WHERE queue = ?1 ORDER BY visible_at LIMIT 1",
            )?
            .query_row([name], |row| row.get(0).map(UnixMs))
            .optional()
        };
        self.database
            .read(read)
            .await
            .map_err(|failure| failure.of("look into queue", queue))
    }

    async fn take(
        &self,
        queue: &str,
        limit: usize,
        visibility: Duration,
    ) -> Result<Vec<Message>, IoError> {
        let (name, now, until) = (
            queue.to_owned(),
            self.now_plus(Duration::ZERO),
            self.now_plus(visibility),
        );
        let taken = self
            .database
            .write(move |c| take_visible(c, &name, limit, now, until))
            .await;
        taken.map_err(|failure| failure.of("receive from queue", queue))
    }
}

#[async_trait]
impl Queue for SqliteQueue {
    async fn send(
        &self,
        queue: &QueueName,
        bodies: Vec<String>,
        delay: Duration,
    ) -> Result<(), IoError> {
        let name = name_of(queue);
        queue_rules::check_send(&bodies, delay)
            .map_err(|limit| refused("send to queue", &name, limit))?;
        if bodies.is_empty() {
            return Ok(());
        }
        let (into, visible_at) = (name.clone(), self.now_plus(delay));
        let write = move |c: &Connection| {
            let mut insert = c.prepare_cached(
                "INSERT INTO message (queue, body, visible_at) VALUES (?1, ?2, ?3)",
            )?;
            bodies
                .iter()
                .try_for_each(|body| insert.execute((&into, body, visible_at.0)).map(|_| ()))
        };
        self.database
            .write(write)
            .await
            .map_err(|failure| failure.of("send to queue", name.as_str()))?;
        self.bell(&name).notify_waiters();
        Ok(())
    }

    async fn receive(
        &self,
        queue: &QueueName,
        limit: usize,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Vec<Message>, IoError> {
        let name = name_of(queue);
        queue_rules::check_receive(limit, visibility, wait)
            .map_err(|limit| refused("receive from queue", &name, limit))?;
        let bell = self.bell(&name);
        let end = Instant::now() + wait;
        let (mut pause, pause_max) = LOOK_AGAIN;
        loop {
            let mut rung = std::pin::pin!(bell.notified());
            // Listens before it looks, so that no send falls between the two.
            rung.as_mut().enable();
            let now = (self.clock)();
            let next = self.next_visible(&name).await?;
            if next.is_some_and(|at| at <= now) {
                let messages = self.take(&name, limit, visibility).await?;
                if !messages.is_empty() {
                    return Ok(messages);
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Vec::new());
            }
            let until_visible = next.map_or(pause, |at| {
                Duration::from_millis(u64::try_from(at.since_ms(now)).unwrap_or(0).max(1))
            });
            tokio::select! {
                () = rung => {}
                () = tokio::time::sleep(pause.min(until_visible).min(left)) => {}
            }
            pause = (pause * 3 / 2).min(pause_max);
        }
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        visibility: Duration,
    ) -> Result<(), IoError> {
        const SQL: &str = "UPDATE message SET visible_at = ?3 WHERE number = ?1 AND receives = ?2 AND visible_at > ?4 \
                           AND queue = ?5";
        let name = name_of(queue);
        queue_rules::check_visibility(visibility)
            .map_err(|limit| refused("extend in queue", &name, limit))?;
        let Some((number, receives)) = parse(receipt) else {
            return Ok(());
        };
        let (now, until, own) = (
            self.now_plus(Duration::ZERO),
            self.now_plus(visibility),
            name.clone(),
        );
        let write = move |c: &Connection| {
            c.prepare_cached(SQL)?
                .execute((number, receives, until.0, now.0, own))
        };
        self.database
            .write(write)
            .await
            .map_err(|failure| failure.of("extend in queue", name.as_str()))?;
        if visibility.is_zero() {
            self.bell(&name).notify_waiters();
        }
        Ok(())
    }

    async fn delete(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), IoError> {
        const SQL: &str = "DELETE FROM message WHERE number = ?1 AND receives = ?2 AND queue = ?3";
        let name = name_of(queue);
        let Some((number, receives)) = parse(receipt) else {
            return Ok(());
        };
        let own = name.clone();
        let write = move |c: &Connection| c.prepare_cached(SQL)?.execute((number, receives, own));
        self.database
            .write(write)
            .await
            .map_err(|failure| failure.of("delete from queue", name))?;
        Ok(())
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, IoError> {
        const SQL: &str =
            "SELECT count(*) FROM message WHERE queue = ?1 AND (visible_at <= ?2 OR receives = 0)";
        let (name, now) = (name_of(queue), (self.clock)());
        let own = name.clone();
        let read = move |c: &Connection| {
            c.prepare_cached(SQL)?
                .query_row((own, now.0), |row| row.get::<_, i64>(0))
        };
        let count = self
            .database
            .read(read)
            .await
            .map_err(|failure| failure.of("measure queue", name))?;
        Ok(count.unsigned_abs())
    }
}

fn take_visible(
    connection: &Connection,
    queue: &str,
    limit: usize,
    now: UnixMs,
    until: UnixMs,
) -> rusqlite::Result<Vec<Message>> {
    let mut select = connection.prepare_cached(
        "SELECT number, body, receives + 1 FROM message WHERE queue = ?1 AND visible_at <= ?2
         ORDER BY visible_at, number LIMIT ?3",
    )?;
    let rows = select.query_map(
        (queue, now.0, i64::try_from(limit).unwrap_or(i64::MAX)),
        |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, u32>(2)?,
            ))
        },
    )?;
    let found = rows.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut hide = connection
        .prepare_cached("UPDATE message SET visible_at = ?2, receives = ?3 WHERE number = ?1")?;
    let mut messages = Vec::with_capacity(found.len());
    for (number, body, receives) in found {
        hide.execute((number, until.0, receives))?;
        messages.push(Message {
            body,
            receipt: Receipt(format!("{number}-{receives}")),
            receives,
        });
    }
    Ok(messages)
}

fn parse(receipt: &Receipt) -> Option<(i64, u32)> {
    let (number, receives) = receipt.0.split_once('-')?;
    Some((number.parse().ok()?, receives.parse().ok()?))
}

fn name_of(queue: &QueueName) -> String {
    match queue {
        QueueName::Validate => "validate".to_owned(),
        QueueName::Finalize => "finalize".to_owned(),
        QueueName::Dispatch => "dispatch".to_owned(),
        QueueName::Assemble => "assemble".to_owned(),
        QueueName::Model {
            model,
            lane: Lane::Fast,
        } => format!("fast/{model}"),
        QueueName::Model {
            model,
            lane: Lane::Bulk,
        } => format!("bulk/{model}"),
    }
}

fn refused(doing: &'static str, key: &str, limit: QueueLimit) -> IoError {
    IoError::new(doing, key, IoKind::TooLarge).because(limit)
}

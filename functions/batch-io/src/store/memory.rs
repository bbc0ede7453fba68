//! What is remembered of creates, so that the same request makes one batch.

use batch_core::batch::BatchParams;
use batch_core::id::{BatchId, KeyId, TenantId};
use batch_core::limits::{CREATE_RETRY_MS, IDEMPOTENCY_MS};
use batch_core::time::UnixMs;

use super::actions::{delete, int_is, put, text_is, update};
use super::creation::{Creation, Retry};
use super::fields::{Attrs, Fields};
use super::{Store, paths};
use crate::IoError;
use crate::port::{Action, ActionKind, Condition, Due, Item, RecordKey, Update, WorkKind};

const BATCH: &str = "batch";
const SEEN: &str = "seen";
const AT: &str = "at";
const VERSION: &str = "version";
const BODY: &str = "body_sha256";
const RETRY_COUNT: &str = "retry_count";

impl Store {
    /// Finds the batch that the same request made before: by its idempotency key (24 h), or, if it is a
    /// retry, by its body (10 min).
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn find_retry(
        &self,
        tenant: &TenantId,
        creation: &Creation,
        now: UnixMs,
    ) -> Result<Option<Retry>, IoError> {
        Ok(self
            .load_memory(tenant, creation)
            .await?
            .find(creation, now))
    }

    /// Remembers that a create was refused: a retry of it must not find an older batch of the same body.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn refuse_create(
        &self,
        tenant: &TenantId,
        creation: &Creation,
        now: UnixMs,
    ) -> Result<(), IoError> {
        if creation.retry_count == 0 {
            let key = RecordKey::new(paths::creates(tenant), retry_name(creation));
            let kind = ActionKind::Update(retry_update(None, creation, now));
            self.transact(vec![Action {
                key,
                kind,
                condition: None,
            }])
            .await?;
        }
        Ok(())
    }

    /// Remembers that `key` has read or cancelled the batch: from then on the same body is a new wish.
    ///
    /// Cheap, and writes at most once a batch.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn mark_seen(
        &self,
        params: &BatchParams,
        key: KeyId,
        now: UnixMs,
    ) -> Result<(), IoError> {
        let Some(name) = params
            .creation
            .as_deref()
            .filter(|name| name.starts_with(&retry_prefix(key)))
        else {
            return Ok(());
        };
        if now.since_ms(params.created_at) > CREATE_RETRY_MS {
            return Ok(());
        }
        let record = RecordKey::new(paths::creates(&params.tenant), name);
        let Some(item) = self.records.get(&record).await? else {
            return Ok(());
        };
        let memory = read_retry(&record, &item)?;
        if memory.batch == Some(params.id) && !memory.seen {
            let change = Update {
                set: Attrs::default().int(SEEN, 1).into_vec(),
                add: vec![(VERSION.to_owned(), 1)],
                ..Update::default()
            };
            // If another create of the same body came between, this batch is forgotten already.
            self.act(update(
                record,
                change,
                text_is(BATCH, params.id.to_string()),
            ))
            .await?;
        }
        Ok(())
    }

    /// Removes the memory of a create, if no retry needs it any more.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn forget_creation(
        &self,
        tenant: &TenantId,
        name: &str,
        now: UnixMs,
    ) -> Result<(), IoError> {
        let key = RecordKey::new(paths::creates(tenant), name);
        let Some(item) = self.records.get(&key).await? else {
            return Ok(());
        };
        if item.due.is_some_and(|due| due.at <= now) {
            let at = Fields::of(&key, &item)?.int(AT)?;
            self.act(Action {
                condition: Some(int_is(AT, at)),
                ..delete(key)
            })
            .await?;
        }
        Ok(())
    }

    pub(super) async fn load_memory(
        &self,
        tenant: &TenantId,
        creation: &Creation,
    ) -> Result<Memory, IoError> {
        let key = RecordKey::new(paths::creates(tenant), retry_name(creation));
        let retry = self
            .records
            .get(&key)
            .await?
            .map(|item| read_retry(&key, &item))
            .transpose()?;
        let idempotency = match &creation.idempotency_sha256 {
            Some(hash) => {
                let key = RecordKey::new(paths::creates(tenant), idempotency_name(hash));
                self.records
                    .get(&key)
                    .await?
                    .map(|item| read_idempotency(&key, &item))
                    .transpose()?
            }
            None => None,
        };
        Ok(Memory { retry, idempotency })
    }
}

/// What is remembered of earlier creates that a create may be a repetition of.
#[derive(Debug, Default)]
pub(super) struct Memory {
    retry: Option<RetryMemory>,
    idempotency: Option<IdempotencyMemory>,
}

/// The last create of one body by one key.
#[derive(Debug)]
struct RetryMemory {
    /// None if it was refused.
    batch: Option<BatchId>,
    retry_count: u32,
    /// The key has read or cancelled the batch since: its user knows it.
    seen: bool,
    at: UnixMs,
    version: i64,
}

/// The create of one idempotency key.
#[derive(Debug)]
struct IdempotencyMemory {
    batch: BatchId,
    body_sha256: String,
    at: UnixMs,
}

impl Memory {
    /// Finds the batch that the same request made before.
    pub(super) fn find(&self, creation: &Creation, now: UnixMs) -> Option<Retry> {
        if let Some(memory) = self
            .idempotency
            .as_ref()
            .filter(|memory| now.since_ms(memory.at) < IDEMPOTENCY_MS)
        {
            let is_same = memory.body_sha256 == creation.body_sha256;
            return Some(if is_same {
                Retry::Existing(memory.batch)
            } else {
                Retry::Mismatch
            });
        }
        let memory = self.retry.as_ref()?;
        let is_retry =
            creation.retry_count > memory.retry_count && now.since_ms(memory.at) < CREATE_RETRY_MS;
        memory
            .batch
            .filter(|_| is_retry && !memory.seen)
            .map(Retry::Existing)
    }

    /// Remembers a create IF nobody did so since this memory was loaded.
    pub(super) fn remember(
        &self,
        tenant: &TenantId,
        creation: &Creation,
        batch: BatchId,
        now: UnixMs,
    ) -> Vec<Action> {
        let key = |name: String| RecordKey::new(paths::creates(tenant), name);
        let is_as_read = self
            .retry
            .as_ref()
            .map_or(Condition::Absent, |memory| int_is(VERSION, memory.version));
        let mut actions = vec![update(
            key(retry_name(creation)),
            retry_update(Some(batch), creation, now),
            is_as_read,
        )];
        if let Some(hash) = &creation.idempotency_sha256 {
            let attrs = Attrs::of_record()
                .text(BATCH, batch.to_string())
                .text(BODY, &creation.body_sha256)
                .int(AT, now.0);
            let item = Item {
                due: forgotten(now, IDEMPOTENCY_MS),
                ..attrs.into_item()
            };
            let memory = self.idempotency.as_ref();
            let is_as_read = memory.map_or(Condition::Absent, |memory| {
                text_is(BATCH, memory.batch.to_string())
            });
            actions.push(Action {
                condition: Some(is_as_read),
                ..put(key(idempotency_name(hash)), item)
            });
        }
        actions
    }
}

fn retry_prefix(key: KeyId) -> String {
    format!("retry/{key}/")
}

pub(super) fn retry_name(creation: &Creation) -> String {
    format!("{}{}", retry_prefix(creation.key), creation.body_sha256)
}

fn idempotency_name(hash: &str) -> String {
    format!("idempotency/{hash}")
}

fn retry_update(batch: Option<BatchId>, creation: &Creation, now: UnixMs) -> Update {
    let attrs = Attrs::of_record()
        .opt_text(BATCH, batch.map(|batch| batch.to_string()))
        .int(RETRY_COUNT, i64::from(creation.retry_count))
        .int(SEEN, 0)
        .int(AT, now.0);
    Update {
        set: attrs.into_vec(),
        add: vec![(VERSION.to_owned(), 1)],
        remove: if batch.is_none() {
            vec![BATCH.to_owned()]
        } else {
            Vec::new()
        },
        due: Some(forgotten(now, CREATE_RETRY_MS)),
    }
}

fn forgotten(now: UnixMs, after_ms: i64) -> Option<Due> {
    Some(Due {
        kind: WorkKind::Retention,
        at: now.plus_ms(after_ms),
    })
}

fn read_retry(key: &RecordKey, item: &Item) -> Result<RetryMemory, IoError> {
    let fields = Fields::of(key, item)?;
    Ok(RetryMemory {
        batch: fields.opt_parsed(BATCH)?,
        retry_count: fields.count(RETRY_COUNT)?,
        seen: fields.int(SEEN)? != 0,
        at: fields.moment(AT)?,
        version: fields.int(VERSION)?,
    })
}

fn read_idempotency(key: &RecordKey, item: &Item) -> Result<IdempotencyMemory, IoError> {
    let fields = Fields::of(key, item)?;
    Ok(IdempotencyMemory {
        batch: fields.parsed(BATCH)?,
        body_sha256: fields.text(BODY)?.to_owned(),
        at: fields.moment(AT)?,
    })
}

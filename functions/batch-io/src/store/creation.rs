//! Creates batches: once for each wish of the user, however often the request is sent.

use batch_core::batch::BatchParams;
use batch_core::id::{BatchId, FileId, KeyId, TenantId};
use batch_core::limits::{CREATE_RETRY_MS, IDEMPOTENCY_MS, RETRY_AFTER_S_MAX, UPDATE_TRIES_MAX};
use batch_core::time::UnixMs;

use super::actions::{Written, contended, delete, int_is, put, put_new, text_is, update};
use super::batch_form::{RunRecord, batch_due, new_run, params_item, run_item};
use super::fields::{Attrs, Fields, to_int};
use super::files::pin;
use super::paths::{self, BatchRecord};
use super::Store;
use crate::IoError;
use crate::port::{Action, ActionKind, Condition, Due, Item, RecordKey, Update, WorkKind};

const BATCH: &str = "batch";
const BODY: &str = "body_sha256";
const RETRY_COUNT: &str = "retry_count";
const SEEN: &str = "seen";
const AT: &str = "at";
const VERSION: &str = "version";
const HOUR: &str = "hour";
const COUNT: &str = "count";

const HOUR_MS: i64 = 3_600_000;

/// What tells one create from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    /// The API key that asks.
    pub key: KeyId,
    /// SHA-256 of the request's body, hexadecimal.
    pub body_sha256: String,
    /// How often the client sent it before: `x-stainless-retry-count`, 0 if absent.
    pub retry_count: u32,
    /// SHA-256 of the `Idempotency-Key` header, hexadecimal.
    pub idempotency_sha256: Option<String>,
}

/// A batch to create.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// What the user asks. Its `creation` is set here.
    pub params: BatchParams,
    /// The input file, if it exists: its bytes stay while the batch is validating.
    pub pin: Option<FileId>,
    /// For retries; none makes a batch in any case.
    pub creation: Option<Creation>,
    /// Creates that the tenant has in a clock hour.
    pub rate_limit_per_hour: u64,
    /// Now.
    pub now: UnixMs,
}

/// What became of a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The batch was made.
    Made,
    /// The tenant's creates of this hour are used up.
    RateLimited {
        /// Seconds to wait, 1 to 60: clients wait no longer.
        retry_after_s: u32,
    },
    /// The file to pin was deleted meanwhile. Nothing was made.
    FileGone,
    /// The same request made this batch before.
    Existing(BatchId),
    /// The same idempotency key came with another body before.
    IdempotencyMismatch,
}

/// What an earlier request says about a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// It is this batch's request again.
    Existing(BatchId),
    /// The same idempotency key came with another body.
    Mismatch,
}

impl Store {
    /// Creates a batch in one transaction: records, pinned input, rate limit, and memory for retries.
    ///
    /// Repeating it with the same batch id gives `Made` again.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn create_batch(&self, new: NewBatch) -> Result<Created, IoError> {
        let (tenant, batch, now) = (new.params.tenant.clone(), new.params.id, new.now);
        let mut params = new.params;
        params.creation = new.creation.as_ref().map(retry_name);
        for _ in 0..UPDATE_TRIES_MAX {
            let memory = match &new.creation {
                Some(creation) => self.load_memory(&tenant, creation).await?,
                None => Memory::default(),
            };
            match new.creation.as_ref().and_then(|creation| memory.find(creation, now)) {
                Some(Retry::Existing(existing)) if existing == batch => return Ok(Created::Made),
                Some(Retry::Existing(existing)) => return Ok(Created::Existing(existing)),
                Some(Retry::Mismatch) => return Ok(Created::IdempotencyMismatch),
                None => {}
            }
            let Some(count) = self.count_create(&tenant, new.rate_limit_per_hour, now).await? else {
                // An earlier try of this very call may have used up the last one.
                if self.load_run_record(&tenant, batch).await?.is_some() {
                    return Ok(Created::Made);
                }
                if let Some(creation) = &new.creation {
                    self.refuse_create(&tenant, creation, now).await?;
                }
                return Ok(Created::RateLimited { retry_after_s: retry_after_s(now) });
            };
            let record = RunRecord { run: new_run(), pin: new.pin };
            let due = batch_due(&record.run, &params, &self.timing);
            let mut actions = vec![
                put_new(BatchRecord::Run.key(&tenant, batch), run_item(&record, due)),
                count,
                put_new(BatchRecord::Params.key(&tenant, batch), params_item(&params)),
            ];
            actions.extend(new.creation.iter().flat_map(|creation| memory.remember(&tenant, creation, batch, now)));
            let pin_position = actions.len();
            actions.extend(new.pin.map(|file| pin(&tenant, file)));
            match self.transact(actions).await? {
                Written::Yes => return Ok(Created::Made),
                // The name holds 74 random bits: whoever made it is an earlier try of this call.
                Written::No(positions) if positions.contains(&0) => return Ok(Created::Made),
                Written::No(positions) if positions.contains(&pin_position) => return Ok(Created::FileGone),
                Written::No(_) => {}
            }
        }
        Err(contended("create batch", batch))
    }

    /// Finds the batch that the same request made before: by its idempotency key (24 h), or, if it is a
    /// retry, by its body (10 min).
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn find_retry(&self, tenant: &TenantId, creation: &Creation, now: UnixMs) -> Result<Option<Retry>, IoError> {
        Ok(self.load_memory(tenant, creation).await?.find(creation, now))
    }

    /// Remembers that a create was refused: a retry of it must not find an older batch of the same body.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn refuse_create(&self, tenant: &TenantId, creation: &Creation, now: UnixMs) -> Result<(), IoError> {
        if creation.retry_count == 0 {
            let key = RecordKey::new(paths::creates(tenant), retry_name(creation));
            let kind = ActionKind::Update(retry_update(None, creation, now));
            self.transact(vec![Action { key, kind, condition: None }]).await?;
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
    pub async fn mark_seen(&self, params: &BatchParams, key: KeyId, now: UnixMs) -> Result<(), IoError> {
        let Some(name) = params.creation.as_deref().filter(|name| name.starts_with(&retry_prefix(key))) else {
            return Ok(());
        };
        if now.since_ms(params.created_at) > CREATE_RETRY_MS {
            return Ok(());
        }
        let record = RecordKey::new(paths::creates(&params.tenant), name);
        let Some(item) = self.records.get(&record).await? else { return Ok(()) };
        let memory = read_retry(&record, &item)?;
        if memory.batch == Some(params.id) && !memory.seen {
            let change = Update {
                set: Attrs::default().int(SEEN, 1).into_vec(),
                add: vec![(VERSION.to_owned(), 1)],
                ..Update::default()
            };
            // If another create of the same body came between, this batch is forgotten already.
            self.act(update(record, change, text_is(BATCH, params.id.to_string()))).await?;
        }
        Ok(())
    }

    /// Removes the memory of a create, if no retry needs it any more.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn forget_creation(&self, tenant: &TenantId, name: &str, now: UnixMs) -> Result<(), IoError> {
        let key = RecordKey::new(paths::creates(tenant), name);
        let Some(item) = self.records.get(&key).await? else { return Ok(()) };
        if item.due.is_some_and(|due| due.at <= now) {
            let at = Fields::of(&key, &item)?.int(AT)?;
            self.act(Action { condition: Some(int_is(AT, at)), ..delete(key) }).await?;
        }
        Ok(())
    }

    async fn load_memory(&self, tenant: &TenantId, creation: &Creation) -> Result<Memory, IoError> {
        let key = RecordKey::new(paths::creates(tenant), retry_name(creation));
        let retry = self.records.get(&key).await?.map(|item| read_retry(&key, &item)).transpose()?;
        let idempotency = match &creation.idempotency_sha256 {
            Some(hash) => {
                let key = RecordKey::new(paths::creates(tenant), idempotency_name(hash));
                self.records.get(&key).await?.map(|item| read_idempotency(&key, &item)).transpose()?
            }
            None => None,
        };
        Ok(Memory { retry, idempotency })
    }

    /// Returns the action that counts a create in the tenant's hour; none if the hour is full.
    async fn count_create(&self, tenant: &TenantId, limit: u64, now: UnixMs) -> Result<Option<Action>, IoError> {
        let key = paths::hour(tenant);
        let hour = now.0.div_euclid(HOUR_MS);
        let first = || Attrs::of_record().int(HOUR, hour).int(COUNT, 1).into_item();
        let Some(item) = self.records.get(&key).await? else {
            return Ok((limit > 0).then(|| put_new(key, first())));
        };
        let fields = Fields::of(&key, &item)?;
        let (stored_hour, count) = (fields.int(HOUR)?, fields.count::<u64>(COUNT)?);
        if stored_hour != hour {
            let put = Action { condition: Some(int_is(HOUR, stored_hour)), ..put(key.clone(), first()) };
            return Ok((limit > 0).then_some(put));
        }
        let change = Update { add: vec![(COUNT.to_owned(), 1)], ..Update::default() };
        let has_room = Condition::AtMost(COUNT.to_owned(), to_int(limit) - 1);
        let condition = Condition::All(vec![int_is(HOUR, hour), has_room]);
        Ok((count < limit).then(|| update(key.clone(), change, condition)))
    }
}

/// What is remembered of earlier creates that a create may be a repetition of.
#[derive(Debug, Default)]
struct Memory {
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
    fn find(&self, creation: &Creation, now: UnixMs) -> Option<Retry> {
        if let Some(memory) = self.idempotency.as_ref().filter(|memory| now.since_ms(memory.at) < IDEMPOTENCY_MS) {
            let is_same = memory.body_sha256 == creation.body_sha256;
            return Some(if is_same { Retry::Existing(memory.batch) } else { Retry::Mismatch });
        }
        let memory = self.retry.as_ref()?;
        let is_retry = creation.retry_count > memory.retry_count && now.since_ms(memory.at) < CREATE_RETRY_MS;
        memory.batch.filter(|_| is_retry && !memory.seen).map(Retry::Existing)
    }

    /// Remembers a create IF nobody did so since this memory was loaded.
    fn remember(&self, tenant: &TenantId, creation: &Creation, batch: BatchId, now: UnixMs) -> Vec<Action> {
        let key = |name: String| RecordKey::new(paths::creates(tenant), name);
        let is_as_read = self.retry.as_ref().map_or(Condition::Absent, |memory| int_is(VERSION, memory.version));
        let mut actions =
            vec![update(key(retry_name(creation)), retry_update(Some(batch), creation, now), is_as_read)];
        if let Some(hash) = &creation.idempotency_sha256 {
            let attrs = Attrs::of_record()
                .text(BATCH, batch.to_string())
                .text(BODY, &creation.body_sha256)
                .int(AT, now.0);
            let item = Item { due: forgotten(now, IDEMPOTENCY_MS), ..attrs.into_item() };
            let memory = self.idempotency.as_ref();
            let is_as_read = memory.map_or(Condition::Absent, |memory| text_is(BATCH, memory.batch.to_string()));
            actions.push(Action { condition: Some(is_as_read), ..put(key(idempotency_name(hash)), item) });
        }
        actions
    }
}

fn retry_prefix(key: KeyId) -> String {
    format!("retry/{key}/")
}

fn retry_name(creation: &Creation) -> String {
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
        remove: if batch.is_none() { vec![BATCH.to_owned()] } else { Vec::new() },
        due: Some(forgotten(now, CREATE_RETRY_MS)),
    }
}

fn forgotten(now: UnixMs, after_ms: i64) -> Option<Due> {
    Some(Due { kind: WorkKind::Retention, at: now.plus_ms(after_ms) })
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

/// Seconds to the next hour, as far as clients wait.
fn retry_after_s(now: UnixMs) -> u32 {
    let left_s = (HOUR_MS - now.0.rem_euclid(HOUR_MS)).div_euclid(1000);
    u32::try_from(left_s).unwrap_or(1).clamp(1, RETRY_AFTER_S_MAX)
}

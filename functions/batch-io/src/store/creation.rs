//! Creates batches: once for each wish of the user, however often the request is sent.

use batch_core::batch::BatchParams;
use batch_core::id::{BatchId, FileId, KeyId, TenantId};
use batch_core::limits::{RETRY_AFTER_S_MAX, UPDATE_TRIES_MAX};
use batch_core::time::UnixMs;

use super::Store;
use super::actions::{Written, contended, int_is, put, put_new, update};
use super::batch_form::{RunRecord, batch_due, new_run, params_item, run_item};
use super::fields::{Attrs, Fields, to_int};
use super::files::pin;
use super::memory::{Memory, retry_name};
use super::paths::{self, BatchRecord};
use crate::IoError;
use crate::port::{Action, Condition, Update};

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
            match new
                .creation
                .as_ref()
                .and_then(|creation| memory.find(creation, now))
            {
                Some(Retry::Existing(existing)) if existing == batch => return Ok(Created::Made),
                Some(Retry::Existing(existing)) => return Ok(Created::Existing(existing)),
                Some(Retry::Mismatch) => return Ok(Created::IdempotencyMismatch),
                None => {}
            }
            let Some(count) = self
                .count_create(&tenant, new.rate_limit_per_hour, now)
                .await?
            else {
                // An earlier try of this very call may have used up the last one.
                if self.load_run_record(&tenant, batch).await?.is_some() {
                    return Ok(Created::Made);
                }
                if let Some(creation) = &new.creation {
                    self.refuse_create(&tenant, creation, now).await?;
                }
                return Ok(Created::RateLimited {
                    retry_after_s: retry_after_s(now),
                });
            };
            let record = RunRecord {
                run: new_run(),
                pin: new.pin,
            };
            let due = batch_due(&record.run, &params, &self.timing);
            let mut actions = vec![
                put_new(BatchRecord::Run.key(&tenant, batch), run_item(&record, due)),
                count,
                put_new(
                    BatchRecord::Params.key(&tenant, batch),
                    params_item(&params),
                ),
            ];
            actions.extend(
                new.creation
                    .iter()
                    .flat_map(|creation| memory.remember(&tenant, creation, batch, now)),
            );
            let pin_position = actions.len();
            actions.extend(new.pin.map(|file| pin(&tenant, file)));
            match self.transact(actions).await? {
                Written::Yes => return Ok(Created::Made),
                // The name holds 74 random bits: whoever made it is an earlier try of this call.
                Written::No(positions) if positions.contains(&0) => return Ok(Created::Made),
                Written::No(positions) if positions.contains(&pin_position) => {
                    return Ok(Created::FileGone);
                }
                Written::No(_) => {}
            }
        }
        Err(contended("create batch", batch))
    }

    /// Returns the action that counts a create in the tenant's hour; none if the hour is full.
    async fn count_create(
        &self,
        tenant: &TenantId,
        limit: u64,
        now: UnixMs,
    ) -> Result<Option<Action>, IoError> {
        let key = paths::hour(tenant);
        let hour = now.0.div_euclid(HOUR_MS);
        let first = || Attrs::of_record().int(HOUR, hour).int(COUNT, 1).into_item();
        let Some(item) = self.records.get(&key).await? else {
            return Ok((limit > 0).then(|| put_new(key, first())));
        };
        let fields = Fields::of(&key, &item)?;
        let (stored_hour, count) = (fields.int(HOUR)?, fields.count::<u64>(COUNT)?);
        if stored_hour != hour {
            let put = Action {
                condition: Some(int_is(HOUR, stored_hour)),
                ..put(key.clone(), first())
            };
            return Ok((limit > 0).then_some(put));
        }
        let change = Update {
            add: vec![(COUNT.to_owned(), 1)],
            ..Update::default()
        };
        let has_room = Condition::AtMost(COUNT.to_owned(), to_int(limit) - 1);
        let condition = Condition::All(vec![int_is(HOUR, hour), has_room]);
        Ok((count < limit).then(|| update(key.clone(), change, condition)))
    }
}

/// Seconds to the next hour, as far as clients wait.
fn retry_after_s(now: UnixMs) -> u32 {
    let left_s = (HOUR_MS - now.0.rem_euclid(HOUR_MS)).div_euclid(1000);
    u32::try_from(left_s)
        .unwrap_or(1)
        .clamp(1, RETRY_AFTER_S_MAX)
}

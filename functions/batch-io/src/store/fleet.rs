//! Workers that are registered, and how fast models run.

use std::collections::BTreeMap;

use batch_core::id::WorkerId;
use batch_core::time::UnixMs;
use batch_core::worker::WorkerRecord;

use super::actions::{delete, put, text_is};
use super::fields::{Attrs, Fields, to_json};
use super::{Store, paths};
use crate::IoError;
use crate::port::Action;

const WORKER: &str = "worker";
const RATE: &str = "tokens_per_s";

impl Store {
    /// Registers a worker, or extends its registration.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn register_worker(&self, worker: &WorkerRecord) -> Result<(), IoError> {
        let item = Attrs::of_record().json(WORKER, worker).into_item();
        self.transact(vec![put(paths::worker(worker.id), item)])
            .await?;
        Ok(())
    }

    /// Lists the workers whose registration holds.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_workers(&self, now: UnixMs) -> Result<Vec<WorkerRecord>, IoError> {
        let workers = self.load_workers().await?;
        Ok(workers
            .into_iter()
            .filter(|worker| now < worker.expires_at)
            .collect())
    }

    /// Removes a worker. No error if it is gone.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn remove_worker(&self, worker: WorkerId) -> Result<(), IoError> {
        self.transact(vec![delete(paths::worker(worker))]).await?;
        Ok(())
    }

    /// Removes workers whose registration ended, and returns how many.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn remove_expired_workers(&self, now: UnixMs) -> Result<u64, IoError> {
        let mut removed = 0;
        for worker in self.load_workers().await? {
            // One that registers again meanwhile stays.
            let is_as_read = text_is(WORKER, to_json(&worker));
            let remove = Action {
                condition: Some(is_as_read),
                ..delete(paths::worker(worker.id))
            };
            if worker.expires_at <= now && self.act(remove).await? {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Records the tokens (prompt and output) a second that one worker reached for a model.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn record_rate(&self, model: &str, tokens_per_s: u32) -> Result<(), IoError> {
        let item = Attrs::of_record()
            .int(RATE, i64::from(tokens_per_s))
            .into_item();
        self.transact(vec![put(paths::rate(model), item)]).await?;
        Ok(())
    }

    /// Lists the recorded rates by model.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_rates(&self) -> Result<BTreeMap<String, u32>, IoError> {
        let items = self.query_all(paths::RATES, "").await?;
        items
            .iter()
            .map(|(key, item)| Ok((key.sort.clone(), Fields::of(key, item)?.count(RATE)?)))
            .collect()
    }

    async fn load_workers(&self) -> Result<Vec<WorkerRecord>, IoError> {
        let items = self.query_all(paths::WORKERS, "").await?;
        items
            .iter()
            .map(|(key, item)| Fields::of(key, item)?.json(WORKER))
            .collect()
    }
}

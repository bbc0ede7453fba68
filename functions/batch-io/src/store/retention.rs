//! What an ended batch leaves behind, and how it goes.

use batch_core::id::{BatchId, TenantId};

use super::actions::delete;
use super::{Store, paths};
use crate::IoError;
use crate::port::RecordKey;

impl Store {
    /// Removes the notification of an ended batch: it was sent, or nobody wants it.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn settle_outbox(&self, tenant: &TenantId, batch: BatchId) -> Result<(), IoError> {
        self.transact(vec![delete(paths::outbox(tenant, batch))])
            .await?;
        Ok(())
    }

    /// Removes the shards and backlogs of an ended batch, and returns whether it had ended. Remove its blobs
    /// first: the records are what leads to them.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn forget_shards(&self, tenant: &TenantId, batch: BatchId) -> Result<bool, IoError> {
        let has_ended = self
            .load_run(tenant, batch)
            .await?
            .is_none_or(|run| run.state.is_terminal());
        if has_ended {
            let items = self.query_all(&paths::work(tenant, batch), "").await?;
            self.delete_all(items.into_iter().map(|(key, _)| key).collect())
                .await?;
        }
        Ok(has_ended)
    }

    pub(super) async fn backlog_keys(
        &self,
        tenant: &TenantId,
        batch: BatchId,
    ) -> Result<Vec<RecordKey>, IoError> {
        let items = self
            .query_all(&paths::work(tenant, batch), paths::BACKLOG)
            .await?;
        Ok(items.into_iter().map(|(key, _)| key).collect())
    }
}

//! Keeps a stage's lease while work goes on, and drops the work when the lease is lost.

use std::pin::pin;
use std::time::Duration;

use super::{Claimed, Stage, Store};
use crate::{Clock, IoError, IoKind};

impl Store {
    /// Runs `work` and renews the lease of its stage three times in its length.
    ///
    /// Returns none if another claim took the stage: the work is dropped, and nothing of it may be published.
    /// A renewal that fails is tried again at the next third; what the stage publishes is fenced anyway.
    ///
    /// # Errors
    ///
    /// The work's own error.
    pub async fn while_held<T>(
        &self,
        stage: Stage,
        claimed: &Claimed,
        clock: &Clock,
        work: impl Future<Output = Result<T, IoError>>,
    ) -> Result<Option<T>, IoError> {
        let Claimed { params, epoch, .. } = claimed;
        let third = Duration::from_millis(
            u64::try_from(self.timing().lease_ms / 3)
                .unwrap_or(1)
                .max(1),
        );
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done.map(Some),
                () = tokio::time::sleep(third) => {}
            }
            match self
                .renew_stage(&params.tenant, params.id, stage, *epoch, clock())
                .await
            {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    tracing::warn!(batch.id = %params.id, %error, "could not renew the stage lease");
                }
            }
        }
    }

    /// Gives a stage back whose work has failed, so that its message's next try finds it free. A stage that met
    /// corrupt data keeps its lease: another try at once would meet the same.
    ///
    /// # Errors
    ///
    /// The work's own error.
    pub async fn give_back_if_failed<T>(
        &self,
        stage: Stage,
        claimed: &Claimed,
        clock: &Clock,
        result: Result<T, IoError>,
    ) -> Result<T, IoError> {
        let Claimed { params, epoch, .. } = claimed;
        if result
            .as_ref()
            .is_err_and(|error| error.kind != IoKind::Corrupt)
        {
            let given = self.give_back_stage(&params.tenant, params.id, stage, *epoch, clock());
            if let Err(error) = given.await {
                tracing::warn!(batch.id = %params.id, %error, "could not give the stage back");
            }
        }
        result
    }
}

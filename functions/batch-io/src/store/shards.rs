//! Shards: stored by validate, claimed and handed back by workers, taken from the dead by reconcile.

use batch_core::batch::{BatchParams, BatchRun};
use batch_core::id::{BatchId, TenantId, WorkerId};
use batch_core::lease::{self, Claim, Lapse};
use batch_core::lifecycle::State;
use batch_core::limits::{TRANSACTION_ACTIONS_MAX, UPDATE_TRIES_MAX};
use batch_core::shard::{Shard, ShardId, ShardState};
use batch_core::time::UnixMs;

use super::actions::{Written, contended, put_new, update};
use super::shard_form::{ShardRecord, is_unchanged, read_shard, shard_item, shard_update};
use super::{ReleasedShard, Store, paths};
use crate::IoError;
use crate::port::{Action, Update};

/// Answer to a claim.
#[derive(Debug, Clone, PartialEq)]
pub enum ShardClaim {
    /// The worker holds the shard.
    Granted {
        /// As held: give it to the next commit.
        shard: Shard,
        /// What was asked.
        params: Box<BatchParams>,
        /// How the batch goes.
        run: Box<BatchRun>,
    },
    /// It is done, split, not there, not released, or must be split first: drop the message. If it is to run
    /// again, another will be sent.
    Finished,
    /// Another holds it, or it must wait, up to then; reconcile brings it back.
    Busy {
        /// When.
        until: UnixMs,
    },
    /// The batch is being stopped, or has ended: drop the message.
    Stopped,
}

/// What became of a shard whose time was over.
#[derive(Debug, Clone, PartialEq)]
pub enum Lapsed {
    /// Nothing is due: its lease holds, its message is young, or it is done.
    Nothing,
    /// It waits for a worker again: send its message.
    Released(Shard),
    /// It was lost too often: split it ([`Store::split_shard`]) by the lines that its segments lack.
    MustSplit(Shard),
    /// Its one line was lost too often, alone: it is held by the caller now, for one lease. Write the error
    /// line and commit it as the last.
    GiveUp(Shard),
    /// The batch is being stopped, or has ended: nothing will run it.
    Stopped,
}

impl Store {
    /// Stores the shards of a batch. One that exists already stays as it is.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn put_shards(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        shards: &[Shard],
    ) -> Result<(), IoError> {
        for chunk in shards.chunks(TRANSACTION_ACTIONS_MAX) {
            let mut left: Vec<&Shard> = chunk.iter().collect();
            while !left.is_empty() {
                let put = |shard: &&Shard| {
                    put_new(
                        paths::shard(tenant, batch, &shard.id),
                        shard_item(shard, &self.timing),
                    )
                };
                match self.transact(left.iter().map(put).collect()).await? {
                    Written::Yes => break,
                    // Those that are there were put by an earlier try. Each round drops at least one.
                    Written::No(there) => {
                        let mut position = 0..;
                        left.retain(|_| {
                            position
                                .next()
                                .is_some_and(|position| !there.contains(&position))
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Loads a shard.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn load_shard(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        shard: &ShardId,
    ) -> Result<Option<Shard>, IoError> {
        Ok(self
            .load_shard_record(tenant, batch, shard)
            .await?
            .map(|record| record.shard))
    }

    /// Lists all shards of a batch, by id.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_shards(
        &self,
        tenant: &TenantId,
        batch: BatchId,
    ) -> Result<Vec<Shard>, IoError> {
        let items = self
            .query_all(&paths::work(tenant, batch), paths::SHARD)
            .await?;
        items
            .iter()
            .map(|(key, item)| Ok(read_shard(key, item)?.shard))
            .collect()
    }

    /// Claims a shard for a worker.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn claim_shard(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        shard: &ShardId,
        owner: WorkerId,
        now: UnixMs,
    ) -> Result<ShardClaim, IoError> {
        let Some(params) = self.load_params(tenant, batch).await? else {
            return Ok(ShardClaim::Stopped);
        };
        for _ in 0..UPDATE_TRIES_MAX {
            let run = self
                .load_run(tenant, batch)
                .await?
                .filter(|run| !is_stopped(run.state));
            let Some(run) = run else {
                return Ok(ShardClaim::Stopped);
            };
            let Some(read) = self.load_shard(tenant, batch, shard).await? else {
                return Ok(ShardClaim::Finished);
            };
            let next = match lease::claim(&read, owner, now, &self.timing) {
                Claim::Granted(next) => next,
                Claim::Finished | Claim::NotYet => return Ok(ShardClaim::Finished),
                Claim::Busy { until } => return Ok(ShardClaim::Busy { until }),
            };
            // That the batch is in progress is not a condition of the write: it can be stopped a moment later
            // in any case, and then the worker's control poll and the seal stop the shard.
            if self
                .act(self.replace_shard(tenant, batch, &read, &next))
                .await?
            {
                return Ok(ShardClaim::Granted {
                    shard: next,
                    params: Box::new(params),
                    run: Box::new(run),
                });
            }
        }
        Err(contended("claim shard", shard))
    }

    /// Gives a held shard back, which is no loss, and returns whether it waits for a worker now: then send
    /// its message. Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn hand_back(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        held: &Shard,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        let Ok(next) = lease::hand_back(held, held.epoch, now, &self.timing) else {
            return Ok(false);
        };
        for _ in 0..UPDATE_TRIES_MAX {
            let Some(read) = self.load_shard(tenant, batch, &held.id).await? else {
                return Ok(false);
            };
            let is_repeated =
                read.epoch == next.epoch && matches!(read.state, ShardState::Released { .. });
            if is_repeated {
                return Ok(true);
            }
            // What the record says now: a commit whose reply got lost may have added a segment.
            let Ok(next) = lease::hand_back(&read, held.epoch, now, &self.timing) else {
                return Ok(false);
            };
            if self
                .act(self.replace_shard(tenant, batch, &read, &next))
                .await?
            {
                return Ok(true);
            }
        }
        Err(contended("hand back shard", &held.id))
    }

    /// Looks at a shard that is due: a lapsed lease counts as a loss, a lost message is to be sent again.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn apply_lapse(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        shard: &ShardId,
        now: UnixMs,
    ) -> Result<Lapsed, IoError> {
        for _ in 0..UPDATE_TRIES_MAX {
            let Some(read) = self.load_shard(tenant, batch, shard).await? else {
                return Ok(Lapsed::Nothing);
            };
            let is_stopped = self
                .load_run(tenant, batch)
                .await?
                .is_none_or(|run| is_stopped(run.state));
            let (action, lapsed) = match lapse(&read, now, self) {
                Lapsed::Nothing => return Ok(Lapsed::Nothing),
                // Only its entry in the index goes: a worker may still commit what it has until the seal.
                _ if is_stopped => (unlist(tenant, batch, &read), Lapsed::Stopped),
                Lapsed::Released(next) => (
                    self.replace_shard(tenant, batch, &read, &next),
                    Lapsed::Released(next),
                ),
                Lapsed::GiveUp(next) => (
                    self.replace_shard(tenant, batch, &read, &next),
                    Lapsed::GiveUp(next),
                ),
                decided @ (Lapsed::MustSplit(_) | Lapsed::Stopped) => return Ok(decided),
            };
            if self.act(action).await? {
                return Ok(lapsed);
            }
        }
        Err(contended("look at shard", shard))
    }

    /// Ends the leases of a worker whose process was seen to end, and returns how many: what would follow after
    /// their time follows at the next look.
    ///
    /// # Errors
    ///
    /// [`IoError`]. Some may have ended.
    pub async fn end_leases_of(&self, worker: WorkerId, now: UnixMs) -> Result<u64, IoError> {
        let mut ended = 0;
        for ReleasedShard {
            tenant,
            batch,
            shard,
            ..
        } in self.list_leased().await?
        {
            let ShardState::Leased { owner, until } = shard.state else {
                continue;
            };
            let past = now.plus_ms(-self.timing.takeover_ms);
            if owner == worker && past < until {
                let next = Shard {
                    state: ShardState::Leased { owner, until: past },
                    ..shard.clone()
                };
                ended += u64::from(
                    self.act(self.replace_shard(&tenant, batch, &shard, &next))
                        .await?,
                );
            }
        }
        Ok(ended)
    }

    pub(super) async fn load_shard_record(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        shard: &ShardId,
    ) -> Result<Option<ShardRecord>, IoError> {
        let key = paths::shard(tenant, batch, shard);
        self.records
            .get(&key)
            .await?
            .map(|item| read_shard(&key, &item))
            .transpose()
    }

    fn replace_shard(
        &self,
        tenant: &TenantId,
        batch: BatchId,
        read: &Shard,
        next: &Shard,
    ) -> Action {
        update(
            paths::shard(tenant, batch, &read.id),
            shard_update(next, &self.timing),
            is_unchanged(read),
        )
    }
}

/// Nothing of the batch is to be started any more. A validating batch has no released shards.
pub(super) fn is_stopped(state: State) -> bool {
    match state {
        State::Validating | State::InProgress => false,
        State::Draining(_) | State::Sealed(_) | State::Ended(_) => true,
    }
}

fn lapse(shard: &Shard, now: UnixMs, store: &Store) -> Lapsed {
    if let ShardState::Released { check_at } = shard.state {
        if now < check_at {
            return Lapsed::Nothing;
        }
        let state = ShardState::Released {
            check_at: now.plus_ms(store.timing.message_lost_ms),
        };
        return Lapsed::Released(Shard {
            state,
            ..shard.clone()
        });
    }
    match lease::lapse(shard, false, now, &store.timing) {
        Lapse::NotHeld | Lapse::StillHeld { .. } => Lapsed::Nothing,
        Lapse::Release { next, .. } => Lapsed::Released(next),
        Lapse::Split => Lapsed::MustSplit(shard.clone()),
        Lapse::GiveUp { held } => Lapsed::GiveUp(held),
    }
}

fn unlist(tenant: &TenantId, batch: BatchId, shard: &Shard) -> Action {
    let change = Update {
        due: Some(None),
        ..Update::default()
    };
    update(
        paths::shard(tenant, batch, &shard.id),
        change,
        is_unchanged(shard),
    )
}

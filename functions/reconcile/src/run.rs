//! One run over the whole work index, a bounded part of each kind.

use batch_core::time::UnixMs;
use batch_io::IoError;
use batch_io::port::WorkKind;
use batch_io::store::DueRef;

use crate::pass::Pass;
use crate::report::Report;
use crate::{Context, backlogs, batches, ended, retention, shards};

/// Entries of one kind that a run looks at; the others are left for the next.
const LOOKS_MAX: usize = 200;

/// Looks at what is due, and returns what was done.
///
/// May run at any time, and beside another run. An entry that fails is logged, counted and left for the
/// next run.
///
/// # Errors
///
/// The first [`IoError`] of the index itself, after every kind was tried.
pub async fn handle(ctx: &Context, now: UnixMs) -> Result<Report, IoError> {
    let mut pass = Pass::begin(ctx, now).await?;
    let mut fault = None;
    // Shards come before batches: the last shard to be given up or completed seals its batch.
    for kind in [
        WorkKind::Shard,
        WorkKind::Batch,
        WorkKind::Outbox,
        WorkKind::Retention,
    ] {
        match ctx.store.due(kind, now, LOOKS_MAX).await {
            Ok(entries) => {
                for entry in entries {
                    look_at(&mut pass, &entry).await;
                }
            }
            Err(error) => fault = note(fault, &mut pass, error),
        }
    }
    if let Err(error) = backlogs::ask_for_dispatch(&mut pass).await {
        fault = note(fault, &mut pass, error);
    }
    match ctx.store.remove_expired_workers(now).await {
        Ok(removed) => pass.report.workers_removed += removed,
        Err(error) => fault = note(fault, &mut pass, error),
    }
    fault.map_or(Ok(pass.report), Err)
}

fn note(first: Option<IoError>, pass: &mut Pass<'_>, error: IoError) -> Option<IoError> {
    tracing::warn!(%error, source = ?error.source, "could not look at a part of the work index");
    pass.report.failures += 1;
    first.or(Some(error))
}

/// Looks at one entry. Its faults are its own.
async fn look_at(pass: &mut Pass<'_>, entry: &DueRef) {
    let result = match entry {
        DueRef::Batch { tenant, batch } => batches::look_at(pass, tenant, *batch).await,
        DueRef::Shard {
            tenant,
            batch,
            shard,
        } => shards::look_at(pass, tenant, *batch, shard).await,
        DueRef::File { tenant, file } => retention::collect_file(pass, tenant, *file).await,
        DueRef::Upload { tenant, upload } => retention::collect_upload(pass, tenant, *upload).await,
        DueRef::Creation { tenant, name } => retention::forget_creation(pass, tenant, name).await,
        DueRef::Outbox { tenant, batch } => ended::clear(pass, tenant, *batch).await,
        DueRef::Backlog { .. } => Ok(()),
    };
    if let Err(error) = result {
        tracing::warn!(?entry, %error, source = ?error.source, "could not reconcile an entry: the next run tries again");
        pass.report.failures += 1;
    }
}

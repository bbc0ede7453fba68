//! One run over the whole work index, a bounded part of each kind.

use batch_core::time::UnixMs;
use batch_io::IoError;
use batch_io::port::WorkKind;
use batch_io::store::DueRef;

use crate::batches::IdleStages;
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
    let mut report = Report::default();
    let mut fault = None;
    let idle = IdleStages::look(ctx).await?;
    // Shards come before batches: the last shard to be given up or completed seals its batch.
    for kind in [WorkKind::Shard, WorkKind::Batch, WorkKind::Outbox, WorkKind::Retention] {
        match ctx.store.due(kind, now, LOOKS_MAX).await {
            Ok(entries) => {
                for entry in entries {
                    look_at(ctx, &entry, idle, now, &mut report).await;
                }
            }
            Err(error) => fault = note(fault, &mut report, error),
        }
    }
    if let Err(error) = backlogs::ask_for_dispatch(ctx, &mut report).await {
        fault = note(fault, &mut report, error);
    }
    match ctx.store.remove_expired_workers(now).await {
        Ok(removed) => report.workers_removed += removed,
        Err(error) => fault = note(fault, &mut report, error),
    }
    fault.map_or(Ok(report), Err)
}

fn note(first: Option<IoError>, report: &mut Report, error: IoError) -> Option<IoError> {
    tracing::warn!(%error, "could not look at a part of the work index");
    report.failures += 1;
    first.or(Some(error))
}

/// Looks at one entry. Its faults are its own.
async fn look_at(ctx: &Context, entry: &DueRef, idle: IdleStages, now: UnixMs, report: &mut Report) {
    let result = match entry {
        DueRef::Batch { tenant, batch } => batches::look_at(ctx, tenant, *batch, idle, now, report).await,
        DueRef::Shard { tenant, batch, shard } => shards::look_at(ctx, tenant, *batch, shard, now, report).await,
        DueRef::File { tenant, file } => retention::collect_file(ctx, tenant, *file, now, report).await,
        DueRef::Upload { tenant, upload } => retention::collect_upload(ctx, tenant, *upload, now, report).await,
        DueRef::Creation { tenant, name } => retention::forget_creation(ctx, tenant, name, now, report).await,
        DueRef::Outbox { tenant, batch } => ended::clear(ctx, tenant, *batch, now, report).await,
        DueRef::Backlog { .. } => Ok(()),
    };
    if let Err(error) = result {
        tracing::warn!(?entry, %error, source = ?error.source, "could not reconcile an entry: the next run tries again");
        report.failures += 1;
    }
}

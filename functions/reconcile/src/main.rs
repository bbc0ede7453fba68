//! The reconcile function on AWS Lambda.

use std::process::ExitCode;

use function_runtime::metrics::Unit;
use function_runtime::{Function, run};
use reconcile::{Context, Report, handle};

fn main() -> ExitCode {
    run(|function| async move {
        let context = Context {
            platform: function.platform.clone(),
            store: function.store.clone(),
        };
        let (context, function) = (&context, &function);
        function
            .serve_schedule(|now, _| async move {
                let report = handle(context, now).await?;
                tell(function, &report);
                Ok(())
            })
            .await
    })
}

/// Writes what a run did; of most things it did nothing.
fn tell(function: &Function, report: &Report) {
    tracing::info!(?report, "reconciled");
    let did: Vec<_> = metrics(report)
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name, Unit::Count, count))
        .collect();
    function.emit(&[], &did);
}

/// Returns all counts of a report, by the names of their metrics.
fn metrics(report: &Report) -> [(&'static str, u64); 14] {
    let Report {
        windows_closed,
        batches_sealed,
        stages_resent,
        assemblies_resent,
        shards_resent,
        shards_split,
        lines_given_up,
        dispatches,
        files_removed,
        uploads_removed,
        batches_cleared,
        creations_forgotten,
        workers_removed,
        failures,
    } = *report;
    [
        ("WindowsClosed", windows_closed),
        ("BatchesSealed", batches_sealed),
        ("StagesResent", stages_resent),
        ("AssembliesResent", assemblies_resent),
        ("ShardsResent", shards_resent),
        ("ShardsSplit", shards_split),
        ("LinesGivenUp", lines_given_up),
        ("DispatchesAsked", dispatches),
        ("FilesRemoved", files_removed),
        ("UploadsRemoved", uploads_removed),
        ("BatchesCleared", batches_cleared),
        ("CreationsForgotten", creations_forgotten),
        ("WorkersRemoved", workers_removed),
        ("ReconcileFailures", failures),
    ]
}

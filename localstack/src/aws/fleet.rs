//! `nightshift worker` on AWS: fetches its models, serves shards, and leaves in order when told to.

use std::sync::Arc;

use anyhow::Context as _;
use batch_core::catalog::Model;
use batch_core::id::WorkerId;
use batch_io::aws::{Aws, Deployment};
use batch_io::store::Store;
use tokio::sync::watch;
use worker::model::{CpuLoader, EngineOptions};
use worker::service;

use super::fetch::fetch;
use super::imds::{self, Imds};
use crate::cli::WorkerArgs;
use crate::failure::usage;
use crate::models::Shelf;
use crate::signals::StopSignals;
use crate::work::precision;

/// Serves shards until it is told to stop: by a signal, by EC2, or by the auto-scaling group.
pub(crate) fn worker(args: &WorkerArgs) -> anyhow::Result<()> {
    crate::logging::start("info", true)?;
    let deployment = Deployment::from_env().context("read the deployment")?;
    let models = models(&deployment, args.profile.as_deref())?;
    let shelf = Shelf::open()?;
    let options = EngineOptions {
        threads: args.threads,
        sequences: args.sequences,
        step_tokens: args.step_tokens,
        kv_tokens: args.kv_tokens,
        precision: precision(args.precision),
        context_tokens: None,
        cache: Some(shelf.folder().to_path_buf()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let served = runtime.block_on(async {
        let mut stopped = listen()?;
        let platform = Aws::connect(&deployment.resources).await.platform();
        let worker = WorkerId::new((platform.clock)(), (platform.random)());
        tracing::info!(worker.id = %worker, deployment = %deployment.name, profile = args.profile.as_deref(), "start");
        let models = tokio::select! {
            fetched = fetch(&deployment.resources, &models, &shelf) => fetched?,
            _ = stopped.wait_for(|stop| *stop) => return Ok(()),
        };
        let context = service::Context {
            store: Store::new(Arc::clone(&platform.records), deployment.settings.timing),
            platform,
            catalog: Arc::new(deployment.catalog),
            models,
            worker,
            options,
            loader: Arc::new(CpuLoader),
        };
        service::run(context, stopped).await.context("serve shards")?;
        tracing::info!(worker.id = %worker, "stopped: everything finished is committed, and the rest handed back");
        Ok(())
    });
    // The engine's threads are in the middle of a step; the process ends without waiting for it.
    runtime.shutdown_background();
    served
}

/// Returns a flag that turns true when this worker should leave.
fn listen() -> anyhow::Result<watch::Receiver<bool>> {
    let (stop, stopped) = watch::channel(false);
    let mut signals = StopSignals::listen()?;
    let by_signal = stop.clone();
    tokio::spawn(async move {
        signals.told().await;
        tracing::info!("told to stop");
        // The service may have ended by itself.
        let _ = by_signal.send(true);
    });
    if let Some(imds) = Imds::from_env() {
        let tell = move |notice| {
            tracing::warn!(?notice, "this machine goes: stop");
            let _ = stop.send(true);
        };
        imds::watch(imds, imds::LOOK, tell).context("watch for notices")?;
    }
    Ok(stopped)
}

/// Returns the models of a profile, or all.
fn models(deployment: &Deployment, profile: Option<&str>) -> anyhow::Result<Vec<Model>> {
    let catalog = &deployment.catalog;
    let Some(name) = profile.filter(|name| !name.is_empty()) else {
        return Ok(catalog.models().to_vec());
    };
    let Some(profile) = deployment.profiles.get(name) else {
        let known: Vec<&str> = deployment.profiles.keys().map(String::as_str).collect();
        return Err(usage(format!(
            "there is no profile '{name}' in NIGHTSHIFT_PROFILES; it has: {}",
            known.join(", ")
        )));
    };
    let ids = profile.models.iter();
    ids.map(|id| {
        let model = catalog.resolve(id).cloned();
        model.ok_or_else(|| {
            usage(format!(
                "the profile '{name}' has a model '{id}' that is not in NIGHTSHIFT_CATALOG"
            ))
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Deployment {
        Deployment::read(|name| {
            let value = match name {
                "NIGHTSHIFT_CATALOG" => {
                    r#"[{"id": "a", "source": {"path": "a"}, "endpoints": [],
                         "price": {"input_per_million": 0, "output_per_million": 0}},
                        {"id": "b", "source": {"path": "b"}, "endpoints": [],
                         "price": {"input_per_million": 0, "output_per_million": 0}}]"#
                }
                "NIGHTSHIFT_PROFILES" => {
                    r#"{"one": {"models": ["b"], "workers_min": 0, "workers_max": 1},
                        "odd": {"models": ["c"], "workers_min": 0, "workers_max": 1}}"#
                }
                "NIGHTSHIFT_SETTINGS" | "NIGHTSHIFT_IMPORTS" => "",
                _ => "set",
            };
            Some(value.to_owned())
        })
        .unwrap()
    }

    fn ids(profile: Option<&str>) -> Result<Vec<String>, String> {
        models(&deployment(), profile)
            .map(|models| models.into_iter().map(|model| model.id).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn worker_serves_the_models_of_its_profile() {
        assert_eq!(ids(Some("one")), Ok(vec!["b".to_owned()]));
    }

    #[test]
    fn worker_without_a_profile_serves_all_models() {
        assert_eq!(ids(None), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(ids(Some("")), ids(None));
    }

    #[test]
    fn profile_that_is_wrong_is_named() {
        assert!(ids(Some("two")).unwrap_err().contains("'two'"));
        assert!(ids(Some("odd")).unwrap_err().contains("'c'"));
    }
}

//! `nightshift worker`: a worker of this machine's service, started and watched by `nightshift up`, or one of
//! a deployment on AWS.

use std::sync::Arc;

use anyhow::Context as _;
use batch_core::catalog::{Engine, Model};
use batch_io::embedded::Embedded;
use batch_io::store::Store;
use tokio::sync::watch;
use worker::model::{CpuLoader, EngineOptions};
use worker::service::{self, Place, ServableModel};

use crate::cli::{ChildArgs, Precision, WorkerArgs};
use crate::config::{Config, EngineSection};
use crate::models::{Shelf, served};
use crate::signals::StopSignals;

/// Serves shards until it is told to stop, or its parent is gone.
pub(crate) fn work(args: WorkerArgs) -> anyhow::Result<()> {
    match args.child {
        Some(child) => serve_machine(&child, args.threads, args.json),
        #[cfg(feature = "aws")]
        None => crate::aws::worker(&args),
        #[cfg(not(feature = "aws"))]
        None => Err(crate::failure::usage(
            "this nightshift was built without AWS; 'nightshift up' starts the workers of this machine",
        )),
    }
}

fn serve_machine(args: &ChildArgs, threads: Option<usize>, json: bool) -> anyhow::Result<()> {
    crate::logging::start("info", json)?;
    end_with(args.parent)?;
    let config = Config::load(args.config.as_deref())?;
    let worker = args.id.parse().context("read --id")?;
    let shelf = Shelf::open()?;
    let of_config = engine_options(&config.engine, &shelf);
    let options = EngineOptions {
        threads: threads.or(of_config.threads),
        ..of_config
    };
    let models = servable(&config, &shelf)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let served = runtime.block_on(async {
        let mut signals = StopSignals::listen()?;
        let embedded =
            Embedded::open(&args.data).with_context(|| format!("open {}", args.data.display()))?;
        let platform = embedded.platform();
        let context = service::Context {
            store: Store::new(Arc::clone(&platform.records), config.settings.timing),
            platform,
            models,
            catalog: Arc::new(config.catalog),
            worker,
            options,
            loader: Arc::new(CpuLoader),
        };
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(async move {
            signals.told().await;
            // The service may have ended by itself.
            let _ = stop.send(true);
        });
        service::run(context, stopped).await.context("serve shards")
    });
    // The engine's threads are in the middle of a step; the process ends without waiting for it.
    runtime.shutdown_background();
    served
}

/// Returns the models of the catalog that are on this machine, or that a server has.
pub(crate) fn servable(config: &Config, shelf: &Shelf) -> anyhow::Result<Vec<ServableModel>> {
    let mut servable = Vec::new();
    for model in config.catalog.models() {
        if let Some(place) = place(model, shelf)? {
            let id = model.id.clone();
            servable.push(ServableModel { id, place });
        }
    }
    Ok(servable)
}

fn place(model: &Model, shelf: &Shelf) -> anyhow::Result<Option<Place>> {
    match &model.engine {
        Engine::Native(_) => Ok(shelf.find(model).map(Place::Files)),
        Engine::Http(server) => Ok(Some(Place::Server(served(&model.id, server)?))),
    }
}

/// Turns the configuration's words into the engine's.
pub(crate) fn engine_options(section: &EngineSection, shelf: &Shelf) -> EngineOptions {
    EngineOptions {
        threads: section.threads,
        sequences: section.sequences,
        step_tokens: section.step_tokens,
        kv_tokens: section.kv_tokens,
        precision: precision(section.precision),
        context_tokens: None,
        cache: Some(shelf.folder().to_path_buf()),
    }
}

/// Turns the command line's word into the worker's.
pub(crate) fn precision(precision: Option<Precision>) -> worker::precision::Precision {
    use worker::precision::Precision as Wanted;
    match precision {
        None | Some(Precision::Auto) => Wanted::Auto,
        Some(Precision::Bf16) => Wanted::Bf16,
        Some(Precision::Int8) => Wanted::Int8,
        Some(Precision::F32) => Wanted::F32,
    }
}

/// A worker whose parent was killed would hold its leases, and its memory, for ever.
#[cfg(target_os = "linux")]
fn end_with(parent: u32) -> anyhow::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL)).context("tie this worker to its parent")?;
    // The parent may have died before the call.
    let now = getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
    if now != Some(parent) {
        anyhow::bail!("the parent is gone");
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn end_with(_parent: u32) -> anyhow::Result<()> {
    Ok(())
}

//! `nightshift up`: the API, every function as a task, and workers as child processes.

mod key;
mod lock;
mod stages;
mod supervisor;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use batch_core::catalog::Catalog;
use batch_core::external::ImportLocations;
use batch_io::embedded::Embedded;
use batch_io::store::Store;
use etcetera::BaseStrategy as _;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::cli::UpArgs;
use crate::config::Config;
use crate::failure::usage;
use crate::models::Shelf;
use crate::say::answer;
use crate::signals::StopSignals;
use crate::work::servable;

/// How long open HTTP requests may take to end after a stop.
const HTTP_GRACE: Duration = Duration::from_secs(3);

/// Serves until it is told to stop.
pub(crate) fn up(args: UpArgs) -> anyhow::Result<()> {
    crate::logging::start("info", args.json)?;
    let config = Config::load(args.config.as_deref())?;
    let data = match &args.data {
        Some(folder) => folder.clone(),
        None => default_data()?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let served = runtime.block_on(serve(args, config, data));
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

fn default_data() -> anyhow::Result<PathBuf> {
    let base = etcetera::choose_base_strategy()
        .context("find the home folder; name a folder with --data")?;
    Ok(base.data_dir().join("nightshift"))
}

async fn serve(args: UpArgs, config: Config, data: PathBuf) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen()?;
    let embedded = Embedded::open(&data)
        .with_context(|| format!("open the data directory {}", data.display()))?;
    let _lock = lock::take(&data)?;
    let platform = embedded.platform();
    let store = Store::new(Arc::clone(&platform.records), config.settings.timing);
    let key = key::install(&store, &platform, &data).await?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| cannot_listen(args.listen, error))?;
    let address = listener.local_addr().context("read the address")?;
    let models = servable(&config, &Shelf::open()?)?;
    for model in config
        .catalog
        .models()
        .iter()
        .filter(|model| models.iter().all(|servable| servable.id != model.id))
    {
        tracing::warn!(model.id = %model.id, "not on disk, so not served; fetch it with 'nightshift models pull' and start again");
    }
    let on_disk = config
        .catalog
        .models()
        .iter()
        .filter(|model| models.iter().any(|servable| servable.id == model.id));
    let catalog = Arc::new(Catalog::new(on_disk.cloned().collect()).context("make the catalog")?);

    let (stop, stopped) = watch::channel(false);
    let stages = stages::start(&platform, &store, &catalog, config.settings, &stopped);
    let supervisor = supervisor::start(supervisor::Fleet {
        data: data.clone(),
        config_file: config.file.clone(),
        workers: usize::from(args.workers),
        threads: config.engine.threads,
        json: args.json,
        platform: platform.clone(),
        store: store.clone(),
        stopped: stopped.clone(),
    })
    .await?;
    let router = api::router(Arc::new(api::Context {
        auth: Arc::new(store.clone()),
        platform,
        store,
        catalog,
        settings: config.settings,
        // One machine reads its own disk: whoever may write there may as well upload.
        imports: ImportLocations::default(),
    }));
    let mut http_stopped = stopped.clone();
    let http = tokio::spawn(async move {
        let graceful = async move {
            let _ = http_stopped.wait_for(|stop| *stop).await;
        };
        axum::serve(listener, router)
            .with_graceful_shutdown(graceful)
            .await
    });

    let base_url = format!("http://{address}/v1");
    if args.json {
        answer(serde_json::json!({ "base_url": base_url, "api_key": key }))?;
    } else {
        answer(format_args!(
            "Nightshift serves {base_url}\nAPI key:         {key}\nData:            {}\nCtrl-C stops it; all state stays.",
            data.display()
        ))?;
    }
    signals.told().await;
    tracing::info!("stop: workers commit what they have finished");
    // Every task holds a receiver, so the send cannot fail while any is left.
    let _ = stop.send(true);
    // Side by side: a service manager does not wait for the sum of their graces.
    let (workers, (), requests) = tokio::join!(
        supervisor,
        stages.join(),
        tokio::time::timeout(HTTP_GRACE, http)
    );
    if requests.is_err() {
        tracing::warn!("requests that were still open are cut");
    }
    workers.context("stop the workers")
}

fn cannot_listen(address: std::net::SocketAddr, error: std::io::Error) -> anyhow::Error {
    use std::io::ErrorKind;
    let hints = [
        (
            ErrorKind::AddrInUse,
            "it is in use; choose another with --listen, or port 0 for any free one",
        ),
        (
            ErrorKind::PermissionDenied,
            "it needs more rights; choose a port above 1023 with --listen",
        ),
        (
            ErrorKind::AddrNotAvailable,
            "this machine has no such address; choose another with --listen",
        ),
    ];
    match hints.iter().find(|(kind, _)| *kind == error.kind()) {
        Some((_, hint)) => usage(format!("cannot listen on {address}: {hint}")),
        None => anyhow::Error::new(error).context(format!("listen on {address}")),
    }
}

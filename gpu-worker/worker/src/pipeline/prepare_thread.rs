//! Parses, templates and tokenises lines, so that the engine's thread never waits for text.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;

use tokio::sync::mpsc as async_mpsc;

use super::LineJob;
use super::engine_runner::{Finished, FromEngine, ToPrepare};
use super::engine_thread::{ReadyLine, ToEngine};
use crate::model::ModelText;
use crate::openai::{self, LineContext, LineError};

/// Serves the inbox until it closes.
pub(super) fn run(
    inbox: &mpsc::Receiver<ToPrepare>,
    to_engine: &mpsc::Sender<ToEngine>,
    results: &async_mpsc::UnboundedSender<FromEngine>,
    text: &Arc<ModelText>,
    context_tokens: u32,
) {
    while let Ok(message) = inbox.recv() {
        let sent = match message {
            ToPrepare::Run { job, urgent } => {
                prepare(*job, urgent, to_engine, results, text, context_tokens)
            }
            ToPrepare::Cancel(key) => to_engine.send(ToEngine::Cancel(key)).is_ok(),
        };
        if !sent {
            return;
        }
    }
}

fn prepare(
    job: LineJob,
    urgent: bool,
    to_engine: &mpsc::Sender<ToEngine>,
    results: &async_mpsc::UnboundedSender<FromEngine>,
    text: &Arc<ModelText>,
    context_tokens: u32,
) -> bool {
    let context = LineContext {
        endpoint: job.endpoint,
        run: &job.run,
        custom_id_json: &job.custom_id_json,
        created_at: job.created_at,
        context_tokens,
    };
    // Regular expressions and templates come with the model: a fault in one costs one line, not the worker.
    let prepared = catch_unwind(AssertUnwindSafe(|| {
        openai::prepare(&job.body, &context, &**text)
    }));
    let prepared = prepared.unwrap_or_else(|_| {
        tracing::error!(batch.id = %job.run, line.no = job.line.0, "prepare a line: it panicked");
        Err(LineError::server(
            "the request could not be prepared",
            "internal_error",
        ))
    });
    match prepared {
        Ok(line) => to_engine
            .send(ToEngine::Run(ReadyLine {
                key: job.key,
                endpoint: job.endpoint,
                request_id: job.request_id,
                salt: job.salt,
                urgent,
                line,
            }))
            .is_ok(),
        Err(error) => {
            let finished = Finished {
                key: job.key,
                request_id: job.request_id,
                outcome: Err(error),
            };
            results.send(FromEngine::Line(Box::new(finished))).is_ok()
        }
    }
}

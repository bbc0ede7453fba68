//! The thread that owns the engine: it steps while there is work, and sleeps on its inbox otherwise.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};

use batch_core::batch::Endpoint;
use inference::engine::{Engine, Generation, Outcome, Request, RequestFailure, RequestId};
use tokio::sync::mpsc as async_mpsc;

use super::engine_runner::{Finished, FromEngine};
use super::{LineKey, Progress};
use crate::model::ModelText;
use crate::openai::{self, AnswerShape, PreparedLine};

pub(super) enum ToEngine {
    Run(ReadyLine),
    Cancel(LineKey),
}

/// A line that is parsed, templated and tokenised.
pub(super) struct ReadyLine {
    pub(super) key: LineKey,
    pub(super) endpoint: Endpoint,
    pub(super) request_id: String,
    pub(super) salt: u64,
    pub(super) urgent: bool,
    pub(super) line: PreparedLine,
}

/// A line whose sequences run.
struct OpenLine {
    endpoint: Endpoint,
    request_id: String,
    shape: AnswerShape,
    requests: Vec<RequestId>,
    generations: Vec<Option<Generation>>,
}

struct EngineThread<'a> {
    engine: Box<dyn Engine>,
    results: &'a async_mpsc::UnboundedSender<FromEngine>,
    text: &'a Arc<ModelText>,
    lines: HashMap<LineKey, OpenLine>,
    owners: HashMap<RequestId, (LineKey, usize)>,
    next_request: u64,
}

/// Serves the inbox until it closes, or until the device fails.
pub(super) fn run(
    engine: Box<dyn Engine>,
    inbox: &mpsc::Receiver<ToEngine>,
    results: &async_mpsc::UnboundedSender<FromEngine>,
    progress: &Progress,
    text: &Arc<ModelText>,
) {
    let mut thread = EngineThread {
        engine,
        results,
        text,
        lines: HashMap::new(),
        owners: HashMap::new(),
        next_request: 0,
    };
    loop {
        loop {
            match inbox.try_recv() {
                Ok(message) => thread.receive(message),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
        }
        // Before the step, too: one that never ends must not look like an idle engine.
        thread.publish(progress);
        let busy = match thread.engine.step() {
            Ok(busy) => busy,
            Err(error) => {
                let _ = results.send(FromEngine::Stopped(error.to_string()));
                return;
            }
        };
        for (id, outcome) in thread.engine.take() {
            thread.ended(id, outcome);
        }
        thread.publish(progress);
        if !busy {
            match inbox.recv() {
                Ok(message) => thread.receive(message),
                Err(mpsc::RecvError) => return,
            }
        }
    }
}

impl EngineThread<'_> {
    fn publish(&self, progress: &Progress) {
        let stats = self.engine.stats();
        progress.publish(
            stats.steps,
            stats.prompt_tokens + stats.completion_tokens,
            (stats.waiting + stats.running) as u64,
        );
    }

    fn receive(&mut self, message: ToEngine) {
        match message {
            ToEngine::Run(line) => self.start(line),
            ToEngine::Cancel(key) => {
                if let Some(line) = self.lines.remove(&key) {
                    self.drop_requests(&line);
                }
            }
        }
    }

    fn start(&mut self, line: ReadyLine) {
        let ReadyLine {
            key,
            endpoint,
            request_id,
            salt,
            urgent,
            line,
        } = line;
        let mut requests = Vec::with_capacity(line.sequences.len());
        for (index, sequence) in line.sequences.into_iter().enumerate() {
            let id = RequestId(self.next_request);
            self.next_request += 1;
            self.owners.insert(id, (key, index));
            requests.push(id);
            self.engine.submit(Request {
                id,
                prompt: sequence.prompt,
                salt,
                urgent,
                seed: sequence.seed,
                choice: sequence.choice,
                max_tokens: sequence.max_tokens,
                params: sequence.params,
                logit_bias: sequence.logit_bias,
                logprobs: sequence.logprobs,
                stop: sequence.stop,
                stop_tokens: self.text.stop_tokens(),
                ignore_eos: sequence.ignore_eos,
            });
        }
        let generations = vec![None; requests.len()];
        self.lines.insert(
            key,
            OpenLine {
                endpoint,
                request_id,
                shape: line.shape,
                requests,
                generations,
            },
        );
    }

    fn ended(&mut self, id: RequestId, outcome: Outcome) {
        let Some((key, index)) = self.owners.remove(&id) else {
            return;
        };
        match outcome {
            Outcome::Finished(generation) => self.finished(key, index, generation),
            Outcome::Failed(failure) => self.failed(key, &failure),
        }
    }

    fn finished(&mut self, key: LineKey, index: usize, generation: Generation) {
        let Some(line) = self.lines.get_mut(&key) else {
            return;
        };
        line.generations[index] = Some(generation);
        if line.generations.iter().any(Option::is_none) {
            return;
        }
        if let Some(line) = self.lines.remove(&key) {
            let generations = line.generations.into_iter().flatten().collect();
            self.send(key, line.request_id, Ok((line.shape, generations)));
        }
    }

    fn failed(&mut self, key: LineKey, failure: &RequestFailure) {
        if let Some(line) = self.lines.remove(&key) {
            self.drop_requests(&line);
            self.send(
                key,
                line.request_id,
                Err(openai::failure(line.endpoint, failure)),
            );
        }
    }

    fn drop_requests(&mut self, line: &OpenLine) {
        for id in &line.requests {
            if self.owners.remove(id).is_some() {
                self.engine.abort(*id);
            }
        }
    }

    fn send(
        &self,
        key: LineKey,
        request_id: String,
        outcome: Result<(AnswerShape, Vec<Generation>), openai::LineError>,
    ) {
        // The receiver is gone only when the pipeline is being dropped.
        let _ = self.results.send(FromEngine::Line(Box::new(Finished {
            key,
            request_id,
            outcome,
        })));
    }
}

//! The tiny model on the real engine, whose outcomes come when the test lets them.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use inference::backend::BackendError;
use inference::engine::{Engine, Outcome, Request, RequestId, Stats};

use crate::model::{CpuLoader, EngineOptions, LoadError, LoadedModel, Loader};

/// Sequences that the engine runs at once.
pub(crate) const SEQUENCES: usize = 4;

/// Loads the tiny model, under any id.
pub(crate) fn tiny(id: &str) -> LoadedModel {
    let options = EngineOptions {
        threads: Some(1),
        sequences: Some(SEQUENCES),
        step_tokens: Some(64),
        kv_tokens: Some(1_024),
        ..EngineOptions::default()
    };
    CpuLoader
        .load(id, &tiny_folder(), &options)
        .expect("load the tiny model")
}

pub(crate) fn tiny_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../inference/tests/data/tiny")
}

/// Loads the tiny model behind a gate. A step holds back outcomes until the gate lets them through.
pub(crate) fn gated(id: &str, gate: &Arc<Gate>) -> LoadedModel {
    let model = tiny(id);
    LoadedModel {
        engine: Box::new(Gated {
            inner: model.engine,
            ended: VecDeque::new(),
            gate: Arc::clone(gate),
        }),
        ..model
    }
}

/// How a device fails.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    Error,
    Panic,
}

/// What the engine may do.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    allowed: usize,
    fails: Option<Fault>,
    waits: bool,
    /// Steps wait, not only outcomes.
    hangs: bool,
    /// Urgent requests submitted.
    urgent: usize,
}

impl Gate {
    /// Lets so many more outcomes through.
    pub(crate) fn allow(&self, outcomes: usize) {
        self.change(|state| state.allowed += outcomes);
    }

    /// Makes the device fail.
    pub(crate) fn fail(&self, fault: Fault) {
        self.change(|state| state.fails = Some(fault));
    }

    /// Makes every step wait until an outcome is allowed.
    pub(crate) fn hang(&self) {
        self.change(|state| state.hangs = true);
    }

    /// Blocks until the engine waits, and all that was allowed has come.
    pub(crate) fn wait_until_held(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self
            .changed
            .wait_while(state, |state| !state.waits || state.allowed > 0);
        drop(held.unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns how many urgent requests were submitted.
    pub(crate) fn urgent(&self) -> usize {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .urgent
    }

    fn hangs(&self) -> bool {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .hangs
    }

    fn change(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Blocks until an outcome may come, or the device fails.
    fn pass(&self) -> Option<Fault> {
        self.change(|state| state.waits = true);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = self
            .changed
            .wait_while(state, |state| state.allowed == 0 && state.fails.is_none());
        let mut state = opened.unwrap_or_else(PoisonError::into_inner);
        state.waits = false;
        state.fails
    }

    fn take(&self, wanted: usize) -> usize {
        let mut taken = 0;
        self.change(|state| {
            taken = wanted.min(state.allowed);
            state.allowed -= taken;
        });
        taken
    }
}

struct Gated {
    inner: Box<dyn Engine>,
    ended: VecDeque<(RequestId, Outcome)>,
    gate: Arc<Gate>,
}

impl Engine for Gated {
    fn submit(&mut self, request: Request) {
        self.gate
            .change(|state| state.urgent += usize::from(request.urgent));
        self.inner.submit(request);
    }

    fn abort(&mut self, id: RequestId) {
        self.inner.abort(id);
        self.ended.retain(|(ended, _)| *ended != id);
    }

    fn step(&mut self) -> Result<bool, BackendError> {
        if self.gate.hangs() && self.inner.stats().waiting > 0 {
            self.gate.pass();
        }
        let busy = self.inner.step()?;
        self.ended.extend(self.inner.take());
        let fault = match self.ended.is_empty() {
            true => None,
            false => self.gate.pass(),
        };
        match fault {
            None => {}
            Some(Fault::Error) => {
                return Err(BackendError::Device {
                    backend: "test",
                    message: "pulled out".to_owned(),
                });
            }
            Some(Fault::Panic) => panic!("a fault in the engine"),
        }
        Ok(busy || !self.ended.is_empty())
    }

    fn take(&mut self) -> Vec<(RequestId, Outcome)> {
        let taken = self.gate.take(self.ended.len());
        self.ended.drain(..taken).collect()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn fingerprint(&self) -> &str {
        self.inner.fingerprint()
    }

    fn context_tokens(&self) -> u32 {
        self.inner.context_tokens()
    }
}

/// How loading a model goes.
#[derive(Debug, Clone)]
pub(crate) enum Load {
    /// The tiny model.
    Fine,
    /// The tiny model, behind a gate.
    Gated(Arc<Gate>),
    /// Its file is damaged.
    Damaged,
    /// The loader panics.
    Panics,
    /// It blocks until the gate lets one outcome through.
    Waits(Arc<Gate>),
}

/// Loads as the test wants, and counts.
#[derive(Debug, Default)]
pub(crate) struct ScriptedLoader {
    pub(crate) script: BTreeMap<String, Load>,
    pub(crate) loads: Mutex<Vec<String>>,
}

impl Loader for ScriptedLoader {
    fn load(
        &self,
        id: &str,
        _path: &Path,
        _options: &EngineOptions,
    ) -> Result<LoadedModel, LoadError> {
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        loads.push(id.to_owned());
        drop(loads);
        match self.script.get(id).cloned().unwrap_or(Load::Fine) {
            Load::Fine => Ok(tiny(id)),
            Load::Gated(gate) => Ok(gated(id, &gate)),
            Load::Damaged => Err(LoadError::NoTokenizer("a damaged file".to_owned())),
            Load::Panics => panic!("a fault in the loader"),
            Load::Waits(gate) => {
                gate.pass();
                Ok(tiny(id))
            }
        }
    }
}

//! The thread that parses: bytes in, windows cut into shards out, a verdict at the end.
//!
//! It blocks on its channels and on nothing else; whoever drops their other ends stops it.

use std::sync::Arc;

use batch_core::batch::{BatchParams, FileDigest, ValidationError};
use batch_core::catalog::Catalog;
use batch_core::id::{Entropy, LineNo};
use batch_core::line::check::Checker;
use batch_core::line::split::{LineSplitter, RawLine};
use batch_core::shard::{Backlog, Shard, ShardId, ShardState};
use batch_core::shard_plan::{ShardDraft, TimeRule};
use batch_core::window::Window;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Windows in memory at once: one is read while the other is stored.
const WINDOWS_IN_MEMORY: usize = 2;

/// What the thread gets to read.
pub(crate) enum Chunk {
    /// The next bytes of the file.
    Bytes(Bytes),
    /// There are no more. A channel that closes without this is a read that failed.
    End,
}

/// A window of the input, cut.
pub(crate) struct CutWindow {
    /// From 0.
    pub(crate) number: u32,
    /// Its lines.
    pub(crate) window: Window,
    /// All its shards.
    pub(crate) shards: Vec<CutShard>,
    _memory: OwnedSemaphorePermit,
}

/// A shard and the lines that its blob takes.
pub(crate) struct CutShard {
    /// Its record, pending.
    pub(crate) record: Shard,
    /// Its lines in the window.
    pub(crate) draft: ShardDraft,
}

/// What was read of a file without a fault.
#[derive(Debug)]
pub(crate) struct Sound {
    /// Digest, lines and bytes of the file.
    pub(crate) input: FileDigest,
    /// Windows that were handed out.
    pub(crate) windows: u32,
    /// The shards of each model.
    pub(crate) backlogs: Vec<Backlog>,
}

/// What to cut, and by which rules.
#[derive(Debug)]
pub(crate) struct Job {
    /// The batch.
    pub(crate) params: BatchParams,
    /// The models that lines may name.
    pub(crate) catalog: Arc<Catalog>,
    /// Requests that the file may have.
    pub(crate) lines_max: u64,
    /// Size of the file.
    pub(crate) file_bytes: u64,
    /// Keys the hashes of ids.
    pub(crate) key: Entropy,
}

/// Reads a file to its end; none if a channel closed before.
///
/// # Errors
///
/// All faults of the file. Windows before the first fault were handed out nevertheless.
pub(crate) fn cut_file(
    job: &Job,
    mut chunks: Receiver<Chunk>,
    windows: Sender<CutWindow>,
) -> Option<Result<Sound, Vec<ValidationError>>> {
    let mut splitter = LineSplitter::new();
    let mut cutter = Cutter::new(job, windows);
    let mut sha256 = Sha256::new();
    let mut bytes = 0;
    while let Chunk::Bytes(chunk) = chunks.blocking_recv()? {
        sha256.update(&chunk);
        bytes += chunk.len() as u64;
        splitter.push(&chunk, |no, raw| cutter.take_line(no, raw));
        if cutter.abandoned {
            return None;
        }
    }
    splitter.finish(|no, raw| cutter.take_line(no, raw));
    cutter.close_window();
    if cutter.abandoned {
        return None;
    }
    let Cutter {
        checker,
        next_window,
        backlogs,
        ..
    } = cutter;
    let input = |lines| FileDigest {
        sha256: hex::encode(sha256.finalize()),
        lines,
        bytes,
    };
    Some(checker.finish().map(|lines| Sound {
        input: input(lines),
        windows: next_window,
        backlogs,
    }))
}

/// The state of one reading.
struct Cutter<'j> {
    job: &'j Job,
    checker: Checker<'j>,
    /// The window that lines go to now, with its share of the memory.
    open: Option<(Window, OwnedSemaphorePermit)>,
    memory: Arc<Semaphore>,
    windows: Sender<CutWindow>,
    next_window: u32,
    /// By slot.
    backlogs: Vec<Backlog>,
    /// Nobody takes the windows any more.
    abandoned: bool,
}

impl<'j> Cutter<'j> {
    fn new(job: &'j Job, windows: Sender<CutWindow>) -> Self {
        Self {
            job,
            checker: Checker::new(job.params.endpoint, &job.catalog, job.lines_max, job.key),
            open: None,
            memory: Arc::new(Semaphore::new(WINDOWS_IN_MEMORY)),
            windows,
            next_window: 0,
            backlogs: Vec::new(),
            abandoned: false,
        }
    }

    fn take_line(&mut self, no: LineNo, raw: RawLine<'_>) {
        if self.abandoned {
            return;
        }
        let line = self.checker.check(no, raw);
        if !self.checker.is_sound() {
            self.open = None;
            return;
        }
        let (Some(line), RawLine::Whole(bytes)) = (line, raw) else {
            return;
        };
        let slot = self.slot(line.model);
        if self
            .open
            .as_ref()
            .is_some_and(|(window, _)| !window.takes(bytes.len()))
        {
            self.close_window();
        }
        let (window, _) = self.open.get_or_insert_with(|| {
            let memory = Handle::current().block_on(Arc::clone(&self.memory).acquire_owned());
            (
                Window::new(),
                memory.expect("this semaphore is never closed"),
            )
        });
        window.push(no, bytes, &line, slot);
    }

    /// Returns a model's slot: models are numbered in the order in which lines name them.
    fn slot(&mut self, model: &str) -> u16 {
        let known = self
            .backlogs
            .iter()
            .position(|backlog| backlog.model == model);
        let slot =
            |index: usize| u16::try_from(index).expect("a catalog has fewer than 65,536 models");
        known.map(slot).unwrap_or_else(|| {
            let slot = slot(self.backlogs.len());
            let deadline = self.job.params.expires_at;
            let model = model.to_owned();
            self.backlogs.push(Backlog {
                slot,
                model,
                next: 0,
                shards: 0,
                estimated_tokens: 0,
                deadline,
            });
            slot
        })
    }

    /// Cuts the open window, if there is one, and hands it out.
    fn close_window(&mut self) {
        let Some((window, memory)) = self.open.take() else {
            return;
        };
        let number = self.next_window;
        self.next_window += 1;
        let drafts = window.cut(|slot| {
            let model = &self.backlogs[usize::from(slot)].model;
            TimeRule::new(
                self.job.params.rates.get(model).copied(),
                self.job.file_bytes,
            )
        });
        let shards = drafts
            .into_iter()
            .map(|draft| CutShard {
                record: self.record(number, &draft),
                draft,
            })
            .collect();
        let cut = CutWindow {
            number,
            window,
            shards,
            _memory: memory,
        };
        self.abandoned = self.windows.blocking_send(cut).is_err();
    }

    /// Makes the record of a shard, and counts it in its model's backlog.
    fn record(&mut self, window: u32, draft: &ShardDraft) -> Shard {
        let backlog = &mut self.backlogs[usize::from(draft.slot)];
        let id = ShardId::root(draft.slot, backlog.shards);
        backlog.shards += 1;
        backlog.estimated_tokens = backlog
            .estimated_tokens
            .saturating_add(draft.estimated_tokens);
        Shard {
            id,
            model: backlog.model.clone(),
            window,
            lines: u32::try_from(draft.lines.len()).expect("a shard has at most 500 lines"),
            estimated_tokens: draft.estimated_tokens,
            subset: None,
            state: ShardState::Pending,
            epoch: 0,
            losses: 0,
            alone: false,
            segments: Vec::new(),
        }
    }
}

//! The input file: checked whole before anything runs, then cut as the service cuts it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::Context as _;
use batch_core::batch::{Endpoint, ValidationError};
use batch_core::catalog::Catalog;
use batch_core::format::shard as shard_format;
use batch_core::id::LineNo;
use batch_core::line::check::Checker;
use batch_core::line::split::{LineSplitter, RawLine};
use batch_core::line::{self, Parsed};
use batch_core::shard_plan::TimeRule;
use batch_core::window::Window;
use sha2::{Digest as _, Sha256};

use super::models::Choice;

const CHUNK_BYTES: usize = 1024 * 1024;

/// Errors that are shown; the rest is counted.
const ERRORS_SHOWN: usize = 20;

/// A sound input file.
pub(super) struct Input {
    pub(super) endpoint: Endpoint,
    /// Hexadecimal.
    pub(super) sha256: String,
    /// Every request, in input order.
    pub(super) lines: Vec<LineNo>,
    /// Model ids, in the order of their first lines.
    pub(super) models: Vec<String>,
    shards: Vec<Cut>,
    /// The shards' blobs, one after the other.
    scratch: File,
}

/// One shard in the scratch file.
struct Cut {
    slot: u16,
    start: u64,
    bytes: usize,
    lines: Vec<LineNo>,
}

/// A request that is ready to run.
pub(super) struct OpenLine {
    pub(super) line: LineNo,
    pub(super) custom_id_json: String,
    pub(super) body: String,
}

impl Input {
    /// Reads and checks the file, in constant memory but for some 40 bytes a line.
    pub(super) fn read(path: &Path, choice: &Choice, lines_max: u64) -> anyhow::Result<Self> {
        let shown = path.display();
        let mut file = File::open(path).with_context(|| format!("open {shown}"))?;
        let endpoint =
            endpoint(&mut file, choice.catalog()).with_context(|| format!("read {shown}"))?;
        file.rewind().with_context(|| format!("read {shown}"))?;
        // The ids are checked on this machine by the person who wrote them: a fixed key does no harm.
        let mut reader = Reader {
            checker: Checker::new(endpoint, choice.catalog(), lines_max, [0; 16]),
            window: Window::new(),
            input: Self {
                endpoint,
                sha256: String::new(),
                lines: Vec::new(),
                models: Vec::new(),
                shards: Vec::new(),
                scratch: tempfile::tempfile().context("make a scratch file")?,
            },
            end: 0,
            failure: None,
        };
        let mut splitter = LineSplitter::new();
        let mut hash = Sha256::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let bytes = file
                .read(&mut chunk)
                .with_context(|| format!("read {shown}"))?;
            if bytes == 0 {
                break;
            }
            hash.update(&chunk[..bytes]);
            splitter.push(&chunk[..bytes], |no, raw| reader.line(no, raw));
        }
        splitter.finish(|no, raw| reader.line(no, raw));
        reader.finish(&hex::encode(hash.finalize()), &shown.to_string())
    }

    /// Returns the lines of a model, in no order that matters.
    pub(super) fn lines_of(&self, model: &str) -> impl Iterator<Item = LineNo> {
        self.shards_of(model)
            .flat_map(|cut| cut.lines.iter().copied())
    }

    /// Reads the requests of a model, in the order in which they should run.
    pub(super) fn requests(&self, model: &str) -> impl Iterator<Item = anyhow::Result<OpenLine>> {
        self.shards_of(model).flat_map(|cut| match self.open(cut) {
            Ok(lines) => lines.into_iter().map(Ok).collect::<Vec<_>>(),
            Err(error) => vec![Err(error)],
        })
    }

    fn shards_of(&self, model: &str) -> impl Iterator<Item = &Cut> {
        let slot = self.models.iter().position(|id| id == model);
        self.shards
            .iter()
            .filter(move |cut| Some(usize::from(cut.slot)) == slot)
    }

    fn open(&self, cut: &Cut) -> anyhow::Result<Vec<OpenLine>> {
        let mut blob = vec![0; cut.bytes];
        self.scratch
            .read_exact_at(&mut blob, cut.start)
            .context("read the scratch file")?;
        shard_format::decode(&blob)
            .map(|line| {
                let line = line.context("read the scratch file")?;
                let request = line::open(line.raw).context("read a line again")?;
                Ok(OpenLine {
                    line: line.line,
                    custom_id_json: request.custom_id_json.to_owned(),
                    body: request.body.to_owned(),
                })
            })
            .collect()
    }
}

struct Reader<'c> {
    checker: Checker<'c>,
    window: Window,
    input: Input,
    end: u64,
    failure: Option<std::io::Error>,
}

impl Reader<'_> {
    fn line(&mut self, no: LineNo, raw: RawLine<'_>) {
        let Some(line) = self.checker.check(no, raw) else {
            return;
        };
        let RawLine::Whole(bytes) = raw else { return };
        if !self.checker.is_sound() {
            return;
        }
        if !self.window.takes(bytes.len()) {
            self.cut();
        }
        let models = &mut self.input.models;
        let slot = models
            .iter()
            .position(|model| model == line.model)
            .unwrap_or_else(|| {
                models.push(line.model.to_owned());
                models.len() - 1
            });
        self.input.lines.push(no);
        self.window
            .push(no, bytes, &line, u16::try_from(slot).unwrap_or(u16::MAX));
    }

    fn cut(&mut self) {
        let window = std::mem::take(&mut self.window);
        for draft in window.cut(|_| TimeRule::default()) {
            let blob = window.encode(&draft);
            let lines = shard_format::decode(&blob)
                .flatten()
                .map(|line| line.line)
                .collect();
            if let Err(error) = self.input.scratch.write_all(&blob) {
                self.failure.get_or_insert(error);
                return;
            }
            self.input.shards.push(Cut {
                slot: draft.slot,
                start: self.end,
                bytes: blob.len(),
                lines,
            });
            self.end += blob.len() as u64;
        }
    }

    fn finish(mut self, sha256: &str, shown: &str) -> anyhow::Result<Input> {
        if !self.window.is_empty() {
            self.cut();
        }
        if let Some(error) = self.failure {
            return Err(anyhow::Error::new(error)
                .context("write a scratch file; free some space in the temporary folder"));
        }
        match self.checker.finish() {
            Ok(_) => {
                self.input
                    .scratch
                    .seek(SeekFrom::Start(0))
                    .context("read the scratch file")?;
                sha256.clone_into(&mut self.input.sha256);
                Ok(self.input)
            }
            Err(errors) => Err(refusal(shown, &errors)),
        }
    }
}

fn refusal(shown: &str, errors: &[ValidationError]) -> anyhow::Error {
    let mut text = format!("{shown} was refused, and nothing ran:");
    for error in errors.iter().take(ERRORS_SHOWN) {
        let line = error
            .line
            .map(|line| format!("line {}: ", line.0))
            .unwrap_or_default();
        text.push_str(&format!("\n  {line}{} [{}]", error.message, error.code));
    }
    if errors.len() > ERRORS_SHOWN {
        text.push_str("\n  and more");
    }
    anyhow::Error::msg(text)
}

/// A batch has one endpoint: that of its first request.
fn endpoint(file: &mut File, catalog: &Catalog) -> std::io::Result<Endpoint> {
    let mut found = None;
    let mut splitter = LineSplitter::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    while found.is_none() {
        let bytes = file.read(&mut chunk)?;
        let mut look = |no, raw: RawLine<'_>| {
            if let (None, RawLine::Whole(line)) = (found, raw) {
                found = first_endpoint(line, no, catalog);
            }
        };
        if bytes == 0 {
            splitter.finish(look);
            break;
        }
        splitter.push(&chunk[..bytes], &mut look);
    }
    Ok(found.unwrap_or(Endpoint::ChatCompletions))
}

/// Returns the endpoint whose check finds no fault with the line's url; none for a blank line.
fn first_endpoint(line: &[u8], no: LineNo, catalog: &Catalog) -> Option<Endpoint> {
    let fits = |endpoint: &Endpoint| match line::parse(line, no, *endpoint, catalog) {
        Parsed::Blank => None,
        Parsed::Good(_) => Some(true),
        Parsed::Bad { errors, .. } => Some(errors.iter().all(|error| error.code != "invalid_url")),
    };
    fits(&Endpoint::ChatCompletions)?;
    Endpoint::ALL
        .into_iter()
        .find(|endpoint| fits(endpoint) == Some(true))
        .or(Some(Endpoint::ChatCompletions))
}

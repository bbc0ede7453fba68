//! Finished lines, appended as they come: what a second start goes on from.
//!
//! One JSON header line, then results in the segment form of `batch-core`. A torn tail is cut off.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use batch_core::batch::TokenCounts;
use batch_core::format::segment::{self, LineResult};
use batch_core::id::{BatchId, LineNo};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::input::Input;
use crate::failure::usage;

#[cfg(test)]
mod tests;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// What must be the same for the results to hold: input, model, precision.
    fingerprint: String,
    /// Draws without a seed depend on it.
    run: BatchId,
}

/// Where one result lies in the journal.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: u64,
    bytes: usize,
    ok: bool,
    tokens: TokenCounts,
}

/// An open journal.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    end: u64,
    run: BatchId,
    places: BTreeMap<LineNo, Place>,
}

/// What a finished run comes to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Summary {
    pub(super) lines: u64,
    pub(super) failed: u64,
    pub(super) tokens: TokenCounts,
}

impl Journal {
    /// Opens the journal of an interrupted run with this fingerprint, or begins a new one.
    pub(super) fn open(path: &Path, fingerprint: &str, new_run: BatchId) -> anyhow::Result<Self> {
        let shown = path.display();
        let mut file = locked(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .with_context(|| format!("read {shown}"))?;
        let mut journal = Self {
            path: path.to_path_buf(),
            file,
            end: 0,
            run: new_run,
            places: BTreeMap::new(),
        };
        match bytes.iter().position(|byte| *byte == b'\n') {
            Some(line_end) => journal.go_on(&bytes, line_end + 1, fingerprint)?,
            None if is_torn_header(&bytes) => journal.begin(fingerprint)?,
            None => return Err(not_a_journal(path)),
        }
        journal
            .file
            .set_len(journal.end)
            .with_context(|| format!("write {shown}"))?;
        journal
            .file
            .seek(SeekFrom::Start(journal.end))
            .with_context(|| format!("write {shown}"))?;
        Ok(journal)
    }

    /// Takes over what an earlier run has left, unless its results are of something else.
    fn go_on(&mut self, bytes: &[u8], start: usize, fingerprint: &str) -> anyhow::Result<()> {
        let Ok(header) = serde_json::from_slice::<Header>(&bytes[..start]) else {
            return Err(not_a_journal(&self.path));
        };
        if header.fingerprint != fingerprint {
            return Err(usage(format!(
                "{} belongs to a run of another input, model or precision; remove it, or name another output",
                self.path.display()
            )));
        }
        self.run = header.run;
        self.end = start as u64;
        self.read_results(&bytes[start..]);
        Ok(())
    }

    /// Leaves what a later start goes on from: on the disk, or nothing at all where nothing was done. A journal
    /// without results would only be in the way of the same command with another model.
    pub(super) fn leave(self) -> anyhow::Result<()> {
        let left = if self.places.is_empty() {
            std::fs::remove_file(&self.path)
        } else {
            self.file.sync_data()
        };
        left.with_context(|| format!("write {}", self.path.display()))
    }

    fn begin(&mut self, fingerprint: &str) -> anyhow::Result<()> {
        let header = Header {
            fingerprint: fingerprint.to_owned(),
            run: self.run,
        };
        let mut line = serde_json::to_vec(&header).context("write the resume file")?;
        line.push(b'\n');
        self.file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .context("write the resume file")?;
        self.file
            .write_all(&line)
            .with_context(|| format!("write {}", self.path.display()))?;
        self.end = line.len() as u64;
        Ok(())
    }

    /// Each result is its own little segment, so that a torn one at the end does not spoil the others.
    fn read_results(&mut self, mut rest: &[u8]) {
        while let Some((length, body)) = take_length(rest) {
            let Some(frame) = body.get(..length) else {
                return;
            };
            let Some(Ok(result)) = segment::decode(frame).next() else {
                return;
            };
            let place = Place {
                start: self.end + (rest.len() - body.len()) as u64,
                bytes: length,
                ok: result.ok,
                tokens: result.tokens,
            };
            self.places.insert(result.line, place);
            self.end += (rest.len() - body.len() + length) as u64;
            rest = &body[length..];
        }
    }

    pub(super) fn run(&self) -> BatchId {
        self.run
    }

    pub(super) fn has(&self, line: LineNo) -> bool {
        self.places.contains_key(&line)
    }

    /// Appends a result. A crash of the machine may lose the last of them: they are computed again.
    pub(super) fn add(
        &mut self,
        line: LineNo,
        ok: bool,
        tokens: TokenCounts,
        record: &[u8],
    ) -> anyhow::Result<()> {
        let mut frame = Vec::with_capacity(record.len() + 64);
        segment::encode_result(
            &mut frame,
            &LineResult {
                line,
                ok,
                tokens,
                record,
            },
        );
        let head = format!("{}\n", frame.len());
        let written = self
            .file
            .write_all(head.as_bytes())
            .and_then(|()| self.file.write_all(&frame));
        written.with_context(|| {
            format!(
                "write {}; free some space and run again to go on",
                self.path.display()
            )
        })?;
        let start = self.end + head.len() as u64;
        self.places.insert(
            line,
            Place {
                start,
                bytes: frame.len(),
                ok,
                tokens,
            },
        );
        self.end = start + frame.len() as u64;
        Ok(())
    }

    /// Writes both files in input order, then removes the journal. A file that would be empty is not written,
    /// but for the output of an input whose lines all failed.
    pub(super) fn write_outputs(
        mut self,
        input: &Input,
        output: &Path,
        errors: &Path,
    ) -> anyhow::Result<Summary> {
        let mut summary = Summary::default();
        let (mut answers, mut failures) = (Part::new(output)?, Part::new(errors)?);
        for line in &input.lines {
            let Some(place) = self.places.get(line).copied() else {
                bail!("line {} has no result; run again to go on", line.0);
            };
            let mut frame = vec![0; place.bytes];
            self.file
                .seek(SeekFrom::Start(place.start))
                .context("read the resume file")?;
            self.file
                .read_exact(&mut frame)
                .context("read the resume file")?;
            let Some(Ok(result)) = segment::decode(&frame).next() else {
                bail!(
                    "{} is damaged at line {}; remove it and run again",
                    self.path.display(),
                    line.0
                );
            };
            summary.lines += 1;
            summary.failed += u64::from(!place.ok);
            summary.tokens.input += place.tokens.input;
            summary.tokens.cached += place.tokens.cached;
            summary.tokens.output += place.tokens.output;
            let part = if place.ok {
                &mut answers
            } else {
                &mut failures
            };
            part.write(result.record)?;
        }
        answers.finish()?;
        if summary.failed > 0 {
            failures.finish()?;
        }
        std::fs::remove_file(&self.path)
            .with_context(|| format!("remove {}", self.path.display()))?;
        Ok(summary)
    }
}

/// A file that appears under its name only when it is whole.
struct Part {
    path: PathBuf,
    scratch: PathBuf,
    file: BufWriter<File>,
}

impl Part {
    fn new(path: &Path) -> anyhow::Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let scratch = path.with_file_name(name);
        let file = File::create(&scratch).with_context(|| format!("make {}", scratch.display()))?;
        Ok(Self {
            path: path.to_path_buf(),
            scratch,
            file: BufWriter::new(file),
        })
    }

    fn write(&mut self, record: &[u8]) -> anyhow::Result<()> {
        let written = self
            .file
            .write_all(record)
            .and_then(|()| self.file.write_all(b"\n"));
        written.with_context(|| format!("write {}", self.scratch.display()))
    }

    fn finish(mut self) -> anyhow::Result<()> {
        let placed = self
            .file
            .flush()
            .and_then(|()| self.file.get_ref().sync_all())
            .and_then(|()| std::fs::rename(&self.scratch, &self.path));
        placed.with_context(|| format!("write {}", self.path.display()))
    }
}

impl Drop for Part {
    /// On a full disk, half a file would be in the way of a second try. A finished one has its own name by now.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.scratch);
    }
}

/// Opens the file and takes its lock, which lasts as long as the file is open.
fn locked(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .with_context(|| format!("open {shown}"))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(usage(format!(
            "{shown} is in use: the same command runs already"
        )));
    }
    let number = file
        .metadata()
        .with_context(|| format!("open {shown}"))?
        .ino();
    // Between the open and the lock, the run that had it may have ended and removed it.
    if std::fs::metadata(path).map(|named| named.ino()).ok() != Some(number) {
        return Err(usage(format!(
            "the same command has just ended, and removed {shown}; run again if its output is not what you want"
        )));
    }
    Ok(file)
}

fn not_a_journal(path: &Path) -> anyhow::Error {
    usage(format!(
        "{} is not a resume file of nightshift; name another output",
        path.display()
    ))
}

/// A start that was killed at its first write leaves nothing, or a part of the header's line.
fn is_torn_header(bytes: &[u8]) -> bool {
    const BEGIN: &[u8] = br#"{"fingerprint":"#;
    let known = bytes.len().min(BEGIN.len());
    bytes[..known] == BEGIN[..known]
}

fn take_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().take(20).position(|byte| *byte == b'\n')?;
    let length = std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()?;
    Some((length, &bytes[end + 1..]))
}

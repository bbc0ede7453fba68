//! Files and folders, blocking: scratch files, atomic names, flushes. Paths never leave the root.
//!
//! Below the root, `.scratch/<opening>/` holds what one process writes; `.multipart/` belongs to
//! [`multipart`](super::multipart); everything else is blobs.

use std::fs::{self, File, FileTimes};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;

use crate::platform::{Clock, Randomness};
use crate::port::BlobMeta;

use super::multipart;

/// How often a folder may vanish under a blob that is being named in it. Folders vanish when the collector
/// empties them.
const VANISHED_MAX: usize = 64;

/// Whether a blob may take the place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Replacing,
    IfAbsent,
}

/// The folder of all blobs, and this process's scratch folder in it.
pub(super) struct Disk {
    pub(super) root: PathBuf,
    scratch: PathBuf,
    /// Locked for as long as this process lives: nobody else removes the scratch folder.
    _alive: File,
    clock: Clock,
    random: Randomness,
}

/// A file without a name that anyone knows. Removed when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) file: File,
    path: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Gone if it was renamed. Whatever else stays is removed at the next opening.
        let _ = fs::remove_file(&self.path);
    }
}

impl Disk {
    /// Makes the folders, and removes what dead processes left. Nobody else may open at the same time.
    pub(super) fn open(root: &Path, clock: Clock, random: Randomness) -> io::Result<Self> {
        let all = root.join(".scratch");
        fs::create_dir_all(&all)?;
        remove_dead(&all)?;
        multipart::remove_old(root, clock())?;
        let scratch = all.join(hex(&random()));
        fs::create_dir(&scratch)?;
        let alive = File::create(scratch.join("alive"))?;
        rustix::fs::flock(&alive, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self {
            root: root.to_owned(),
            scratch,
            _alive: alive,
            clock,
            random,
        })
    }

    /// Returns a name that nobody has used.
    pub(super) fn new_name(&self) -> String {
        hex(&(self.random)())
    }

    /// Makes an empty scratch file.
    pub(super) fn scratch(&self) -> io::Result<Scratch> {
        let path = self.scratch.join(self.new_name());
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        Ok(Scratch { file, path })
    }

    /// Flushes a scratch file, and gives it the name of a blob.
    pub(super) fn publish(
        &self,
        scratch: Scratch,
        path: &str,
        named: Named,
    ) -> io::Result<BlobMeta> {
        let target = self.locate(path)?;
        let folder = target.parent().unwrap_or(&self.root);
        let meta = self.seal(&scratch)?;
        for _ in 0..VANISHED_MAX {
            make_folders(&self.root, folder)?;
            let outcome = match named {
                Named::Replacing => fs::rename(&scratch.path, &target),
                Named::IfAbsent => fs::hard_link(&scratch.path, &target),
            };
            match outcome {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => {
                    other?;
                    // The collector may have taken blob and folder since: then they were there.
                    ignore_missing(flush_folder(folder))?;
                    return Ok(meta);
                }
            }
        }
        Err(io::Error::new(
            ErrorKind::ResourceBusy,
            "the folder of the blob keeps vanishing",
        ))
    }

    /// Flushes a scratch file, and draws its tag: the size, and a moment of modification whose nanoseconds
    /// are random, so that two writes within one tick of the file system differ. Backups keep it.
    pub(super) fn seal(&self, scratch: &Scratch) -> io::Result<BlobMeta> {
        let entropy = u128::from_le_bytes((self.random)());
        let nanos = u32::try_from(entropy % 1_000_000_000).unwrap_or_default();
        let secs = u64::try_from((self.clock)().secs()).unwrap_or_default();
        let modified = SystemTime::UNIX_EPOCH + Duration::new(secs, nanos);
        scratch
            .file
            .set_times(FileTimes::new().set_modified(modified))?;
        scratch.file.sync_all()?;
        scratch.file.metadata().map(|metadata| meta_of(&metadata))
    }

    /// Gives a sealed scratch file a path of its own inside an existing folder.
    pub(super) fn rename(&self, scratch: &Scratch, target: &Path) -> io::Result<()> {
        fs::rename(&scratch.path, target)?;
        flush_folder(target.parent().unwrap_or(&self.root))
    }

    /// Makes a folder with one file in it, at once.
    pub(super) fn publish_folder(&self, folder: &Path, name: &str, text: &str) -> io::Result<()> {
        let aside = self.scratch.join(self.new_name());
        fs::create_dir(&aside)?;
        let mut scratch = self.scratch()?;
        scratch.file.write_all(text.as_bytes())?;
        self.seal(&scratch)?;
        self.rename(&scratch, &aside.join(name))?;
        let parent = folder.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent)?;
        fs::rename(&aside, folder)?;
        flush_folder(parent)
    }

    /// Makes a folder vanish at once, and then removes it.
    pub(super) fn discard_folder(&self, folder: &Path) -> io::Result<()> {
        let aside = self.scratch.join(self.new_name());
        match fs::rename(folder, &aside) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => {
                other?;
                fs::remove_dir_all(&aside)
            }
        }
    }

    /// Opens a blob for reading.
    pub(super) fn open_blob(&self, path: &str) -> io::Result<(File, BlobMeta)> {
        let file = File::open(self.locate(path)?)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(
                ErrorKind::NotFound,
                "a folder of blobs, not a blob",
            ));
        }
        let meta = meta_of(&metadata);
        Ok((file, meta))
    }

    /// Removes a blob and the folders that it leaves empty.
    pub(super) fn delete(&self, path: &str) -> io::Result<()> {
        let target = self.locate(path)?;
        ignore_missing(fs::remove_file(&target))?;
        self.prune(target.parent().unwrap_or(&self.root));
        Ok(())
    }

    /// Removes a folder and those above it while they are empty.
    fn prune(&self, folder: &Path) {
        let upwards = folder.ancestors().take_while(|folder| *folder != self.root);
        // Fails at the first folder that is not empty; those above it are not empty either.
        let _ = upwards
            .map(fs::remove_dir)
            .map(ignore_missing)
            .try_for_each(|outcome| outcome);
    }

    /// Removes every blob whose path starts with `prefix`, and returns how many.
    pub(super) fn delete_prefix(&self, prefix: &str) -> io::Result<u64> {
        let (folder, start) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        let folder = if folder.is_empty() {
            self.root.clone()
        } else {
            self.locate(folder)?
        };
        let mut folders = vec![];
        let mut removed = 0;
        for entry in list(&folder)? {
            let name = entry.file_name();
            let inside = name
                .to_str()
                .is_some_and(|name| name.starts_with(start) && is_component(name));
            if inside {
                removed += remove_or_keep(&entry, &mut folders)?;
            }
        }
        let mut at = 0;
        while let Some(folder) = folders.get(at).cloned() {
            for entry in list(&folder)? {
                removed += remove_or_keep(&entry, &mut folders)?;
            }
            at += 1;
        }
        for folder in folders.iter().rev() {
            // Fails where a blob has come since.
            let _ = fs::remove_dir(folder);
        }
        self.prune(&folder);
        Ok(removed)
    }

    /// Returns where a blob lies. Refuses what could lie elsewhere, or among our own folders.
    fn locate(&self, path: &str) -> io::Result<PathBuf> {
        if path.split('/').all(is_component) {
            Ok(self.root.join(path))
        } else {
            Err(io::Error::new(
                ErrorKind::InvalidFilename,
                "names in a blob's path hold A-Z, a-z, 0-9, '.', '_' and '-' alone",
            ))
        }
    }
}

/// Returns whether a name may be part of a blob's path. A dot in front is ours.
fn is_component(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(plain)
}

/// Returns size and tag of a file.
pub(super) fn meta_of(metadata: &fs::Metadata) -> BlobMeta {
    let bytes = metadata.len();
    let etag = format!(
        "\"{bytes:x}-{:x}-{:08x}\"",
        metadata.mtime(),
        metadata.mtime_nsec()
    );
    BlobMeta { bytes, etag }
}

/// Makes the names in a folder outlive a power cut.
pub(super) fn flush_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Takes a missing file for a removed one.
pub(super) fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Lists a folder; an absent one is empty.
pub(super) fn list(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// Removes a file, or keeps a folder for later. Returns the number of files.
fn remove_or_keep(entry: &fs::DirEntry, folders: &mut Vec<PathBuf>) -> io::Result<u64> {
    if entry.file_type()?.is_dir() {
        folders.push(entry.path());
        return Ok(0);
    }
    ignore_missing(fs::remove_file(entry.path()))?;
    Ok(1)
}

/// Makes the folders between the root and `folder`, and flushes the names of new ones.
fn make_folders(root: &Path, folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let mut at = root.to_owned();
    for name in folder
        .strip_prefix(root)
        .unwrap_or(Path::new(""))
        .components()
    {
        let parent = at.clone();
        at.push(name);
        match fs::create_dir(&at) {
            Ok(()) => ignore_missing(flush_folder(&parent))?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            // The collector took the parent: the caller tries again.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes the scratch folders of processes that live no more: nobody holds their lock.
fn remove_dead(all: &Path) -> io::Result<()> {
    for entry in list(all)? {
        let alive = match File::open(entry.path().join("alive")) {
            Ok(file) => rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err(),
            Err(_) => false,
        };
        if !alive {
            ignore_missing(fs::remove_dir_all(entry.path()))?;
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

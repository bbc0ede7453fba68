//! The ports on one machine: SQLite for records and queues, files for blobs, all below one folder.
//!
//! An object `s3://bucket/key` of others is the file `buckets/bucket/key` there.
//! Several processes may hold the same folder at once. The adapters refuse what AWS refuses; [`Weather`]
//! makes them late, short and double as AWS may be.

mod blobs;
mod folder;
mod queue;
mod records;
mod sql;
mod weather;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::platform::{Clock, Platform, Randomness, system_clock, system_randomness};
use crate::port::{Blobs, Queue, Records};

pub use weather::Weather;

use folder::Folder;

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A newer program wrote it.
    #[error("the data directory {} has version {found}, but this program knows none above {known}: use a newer program", .dir.display())]
    NewerVersion {
        /// The directory.
        dir: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// Its version is no number.
    #[error("the file {} holds no version but '{text}': restore it, or use another data directory", .path.display())]
    UnreadableVersion {
        /// The version file.
        path: PathBuf,
        /// What is in it, clipped.
        text: String,
    },
    /// It is where file locks do not hold between machines.
    #[error("the data directory {} is on a network file system ({kind}): use a local disk", .dir.display())]
    NetworkFileSystem {
        /// The directory.
        dir: PathBuf,
        /// Which file system.
        kind: String,
    },
    /// The operating system refused.
    #[error("{doing} {}", .path.display())]
    Io {
        /// What was being done, present tense.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// SQLite refused.
    #[error("open the database {}{}", .path.display(), hint(.source))]
    Database {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: rusqlite::Error,
    },
}

/// SQLite has no word of its own for a disk that is full at the first write.
fn hint(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode::{CannotOpen, DiskFull, SystemIoFailure};
    match error.sqlite_error_code() {
        Some(DiskFull | SystemIoFailure) => "; see whether its disk has free space",
        Some(CannotOpen) => "; see whether this user may write there",
        Some(_) | None => "",
    }
}

/// The three ports over one data directory, which stays usable until this and all its ports are dropped.
#[derive(Clone)]
pub struct Embedded {
    /// State.
    pub records: Arc<dyn Records>,
    /// Bytes.
    pub blobs: Arc<dyn Blobs>,
    /// Messages.
    pub queue: Arc<dyn Queue>,
    clock: Clock,
    random: Randomness,
}

impl Embedded {
    /// Opens a data directory, and makes it if it is absent. Removes what dead processes left half-written.
    ///
    /// Blocks for some milliseconds. The ports must be used inside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::open_with(dir, Weather::default())
    }

    /// Opens a data directory whose ports behave as badly as `weather` says.
    ///
    /// # Errors
    ///
    /// As [`Embedded::open`].
    pub fn open_with(dir: &Path, weather: Weather) -> Result<Self, OpenError> {
        Self::open_under(dir, weather, system_clock())
    }

    /// Opens a data directory under another clock, which rules when messages are visible and how late the
    /// index is. Long polls wait in real time.
    ///
    /// # Errors
    ///
    /// As [`Embedded::open`].
    pub fn open_under(dir: &Path, weather: Weather, clock: Clock) -> Result<Self, OpenError> {
        let random = system_randomness();
        let folder = Folder::prepare(dir)?;
        let records = records::SqliteRecords::open(&folder.dir.join("records.db"))?;
        let queue = queue::SqliteQueue::open(&folder.dir.join("queue.db"), Arc::clone(&clock))?;
        let blobs = blobs::FileBlobs::open(
            &folder.dir.join("blobs"),
            folder.dir.join("buckets"),
            Arc::clone(&clock),
            Arc::clone(&random),
        )?;
        Ok(Self {
            records: weather.over_records(Arc::new(records), Arc::clone(&clock)),
            blobs: Arc::new(blobs),
            queue: weather.over_queue(Arc::new(queue)),
            clock,
            random,
        })
    }

    /// Returns the ports with the clock that this was opened under and the system's randomness.
    #[must_use]
    pub fn platform(&self) -> Platform {
        Platform {
            records: Arc::clone(&self.records),
            blobs: Arc::clone(&self.blobs),
            queue: Arc::clone(&self.queue),
            clock: Arc::clone(&self.clock),
            random: Arc::clone(&self.random),
        }
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

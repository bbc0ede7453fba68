//! One SQLite database that several processes share: a thread that writes, and connections that read.
//!
//! A write runs to its end even if its caller goes away. Writes that wait together share one commit, and so
//! one flush to disk. Knows no tables.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::{Semaphore, oneshot};

use super::OpenError;
use crate::{IoError, IoKind};

/// Connections that read at once.
const READERS: usize = 8;

/// Writes that share a commit. Bounds how long the first of them waits, and how long other processes do.
const GROUP_MAX: usize = 64;

/// How long to wait for another process's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What a commit promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// A commit outlives a power cut.
    PowerCut,
    /// A commit outlives the process; a power cut may undo the latest ones.
    Process,
}

impl Durability {
    fn pragma(self) -> &'static str {
        match self {
            Durability::PowerCut => "PRAGMA synchronous = FULL",
            Durability::Process => "PRAGMA synchronous = NORMAL",
        }
    }
}

/// Why SQLite did not do it. Can be told to every caller of a shared commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(super) struct SqlFailure {
    pub(super) kind: IoKind,
    why: String,
}

impl SqlFailure {
    /// Says what was being done, and to what.
    pub(super) fn of(self, doing: &'static str, key: impl Into<String>) -> IoError {
        IoError::new(doing, key, self.kind).because(self)
    }
}

impl From<rusqlite::Error> for SqlFailure {
    fn from(error: rusqlite::Error) -> Self {
        Self {
            kind: kind_of(&error),
            why: explain(&error),
        }
    }
}

fn kind_of(error: &rusqlite::Error) -> IoKind {
    let unreadable = matches!(
        error,
        rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..)
    );
    if unreadable {
        return IoKind::Corrupt;
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::OutOfMemory) => {
            IoKind::Busy
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => IoKind::Corrupt,
        Some(ErrorCode::TooBig) => IoKind::TooLarge,
        // A full or failing disk, missing rights: a person must act. So must one for what we do not expect.
        _ => IoKind::Denied,
    }
}

fn explain(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk that holds the data directory is full".to_owned(),
        Some(ErrorCode::ReadOnly) => "the data directory cannot be written".to_owned(),
        _ => error.to_string(),
    }
}

/// A database.
#[derive(Debug)]
pub(super) struct Database {
    writes: Sender<Box<dyn Write>>,
    readers: Arc<Readers>,
}

impl Database {
    /// Opens a database, makes the tables of `schema` if they are absent, and starts the thread that writes.
    pub(super) fn open(
        path: &Path,
        schema: &str,
        durability: Durability,
    ) -> Result<Self, OpenError> {
        let connect = || {
            let connection = connect(path)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.execute_batch(durability.pragma())?;
            connection.execute_batch(schema)?;
            Ok(connection)
        };
        let writer = connect().map_err(|source| OpenError::Database {
            path: path.to_owned(),
            source,
        })?;
        let (writes, jobs) = channel();
        std::thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || serve(&writer, &jobs))
            .map_err(super::folder::io_error(
                "start the thread that writes",
                path,
            ))?;
        let readers = Readers {
            path: path.to_owned(),
            idle: Mutex::default(),
            turns: Semaphore::new(READERS),
        };
        Ok(Self {
            writes,
            readers: Arc::new(readers),
        })
    }

    /// Runs `read` on a connection that sees one committed state for each of its statements.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, SqlFailure> {
        let _turn = self.readers.turns.acquire().await.map_err(|_| gone())?;
        let readers = Arc::clone(&self.readers);
        let task = tokio::task::spawn_blocking(move || {
            let connection = readers.take()?;
            let outcome = read(&connection);
            readers.put_back(connection);
            outcome
        });
        task.await.map_err(|_| gone())?.map_err(SqlFailure::from)
    }

    /// Runs `write` in a transaction, and returns after its commit. If it fails, it has changed nothing.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, SqlFailure> {
        let (reply, answer) = oneshot::channel();
        let job = Job {
            work: Some(write),
            outcome: None,
            reply,
        };
        self.writes.send(Box::new(job)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn gone() -> SqlFailure {
    SqlFailure {
        kind: IoKind::Busy,
        why: "the process is shutting down".to_owned(),
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

#[derive(Debug)]
struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    turns: Semaphore,
}

impl Readers {
    fn take(&self) -> rusqlite::Result<Connection> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        idle.map_or_else(|| self.connect(), Ok)
    }

    fn put_back(&self, connection: Connection) {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(connection);
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        // Not read-only: whoever reads a database in WAL mode takes part in its shared memory.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }
}

/// A write that waits for its turn, and then for the commit.
trait Write: Send {
    /// Does the work inside the group's transaction, and returns whether it may be committed.
    fn run(&mut self, connection: &Connection) -> bool;

    /// Tells the caller, who may have gone.
    fn answer(self: Box<Self>, commit: Result<(), SqlFailure>);
}

struct Job<T, W> {
    work: Option<W>,
    outcome: Option<Result<T, SqlFailure>>,
    reply: oneshot::Sender<Result<T, SqlFailure>>,
}

impl<T, W> Write for Job<T, W>
where
    T: Send,
    W: FnOnce(&Connection) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, connection: &Connection) -> bool {
        let outcome = self
            .work
            .take()
            .map(|work| work(connection).map_err(SqlFailure::from));
        let well = matches!(outcome, Some(Ok(_)));
        self.outcome = outcome;
        well
    }

    fn answer(self: Box<Self>, commit: Result<(), SqlFailure>) {
        let outcome = match (self.outcome, commit) {
            (Some(Err(own)), _) => Err(own),
            (_, Err(shared)) => Err(shared),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(gone()),
        };
        // A caller that has gone does not want to know.
        let _ = self.reply.send(outcome);
    }
}

/// Runs until the database is dropped.
fn serve(connection: &Connection, jobs: &Receiver<Box<dyn Write>>) {
    while let Ok(first) = jobs.recv() {
        let mut group = vec![first];
        group.extend(jobs.try_iter().take(GROUP_MAX - 1));
        let commit = commit_group(connection, &mut group).map_err(SqlFailure::from);
        if commit.is_err() && !connection.is_autocommit() {
            // Fails only where SQLite has rolled back by itself.
            let _ = connection.execute_batch("ROLLBACK");
        }
        for job in group {
            job.answer(commit.clone());
        }
    }
}

fn commit_group(connection: &Connection, group: &mut [Box<dyn Write>]) -> rusqlite::Result<()> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    for job in group {
        connection.prepare_cached("SAVEPOINT job")?.execute([])?;
        if !job.run(connection) {
            // On a full disk SQLite may have undone the whole group: then this fails, and all are told.
            connection.prepare_cached("ROLLBACK TO job")?.execute([])?;
        }
        connection.prepare_cached("RELEASE job")?.execute([])?;
    }
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: std::ffi::c_int, kind: IoKind, why: &str) {
        let failure = SqlFailure::from(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(code),
            None,
        ));
        assert_eq!(failure.kind, kind);
        assert!(failure.to_string().contains(why), "{failure}");
    }

    #[test]
    fn a_full_disk_is_denied_with_a_sentence() {
        check(
            rusqlite::ffi::SQLITE_FULL,
            IoKind::Denied,
            "the disk that holds the data directory is full",
        );
    }

    #[test]
    fn other_processes_that_write_are_a_reason_to_wait() {
        check(rusqlite::ffi::SQLITE_BUSY, IoKind::Busy, "");
        check(rusqlite::ffi::SQLITE_BUSY_SNAPSHOT, IoKind::Busy, "");
        check(rusqlite::ffi::SQLITE_LOCKED, IoKind::Busy, "");
    }

    #[test]
    fn a_damaged_database_is_corrupt() {
        check(rusqlite::ffi::SQLITE_CORRUPT, IoKind::Corrupt, "");
        check(rusqlite::ffi::SQLITE_NOTADB, IoKind::Corrupt, "");
    }

    fn counting() -> (tempfile::TempDir, Database) {
        let dir = tempfile::tempdir().unwrap();
        let schema = "CREATE TABLE IF NOT EXISTS number (value INTEGER NOT NULL UNIQUE) STRICT";
        let database =
            Database::open(&dir.path().join("t.db"), schema, Durability::Process).unwrap();
        (dir, database)
    }

    async fn insert(database: &Database, value: i64) -> Result<usize, SqlFailure> {
        database
            .write(move |c| c.execute("INSERT INTO number VALUES (?1), (?1 + 1000)", [value]))
            .await
    }

    async fn numbers(database: &Database) -> Vec<i64> {
        let read = |c: &Connection| {
            c.prepare("SELECT value FROM number ORDER BY value")?
                .query_map([], |row| row.get(0))?
                .collect()
        };
        database.read(read).await.unwrap()
    }

    #[tokio::test]
    async fn a_failing_write_spares_the_others_of_its_commit() {
        let (_dir, database) = counting();
        let writes = (0..20).map(|n| insert(&database, n % 19));
        let outcomes = futures::future::join_all(writes).await;
        assert_eq!(
            outcomes.iter().filter(|outcome| outcome.is_err()).count(),
            1
        );
        assert_eq!(numbers(&database).await.len(), 38);
    }

    #[tokio::test]
    async fn a_write_happens_though_its_caller_has_gone() {
        let (_dir, database) = counting();
        drop(futures::poll!(Box::pin(insert(&database, 1))));
        insert(&database, 2).await.unwrap();
        assert_eq!(numbers(&database).await, [1, 2, 1001, 1002]);
    }

    #[tokio::test]
    async fn a_full_database_denies_the_write_and_stays_usable() {
        let (_dir, database) = counting();
        let fill = |c: &Connection| {
            c.pragma_update(None, "max_page_count", 4)?;
            c.execute_batch(
                "CREATE TABLE blob (bytes BLOB); INSERT INTO blob VALUES (zeroblob(100000))",
            )
        };
        let failure = database.write(fill).await.unwrap_err();
        assert_eq!(failure.kind, IoKind::Denied);
        insert(&database, 1).await.unwrap();
        assert_eq!(numbers(&database).await, [1, 1001]);
    }
}

//! Files: created, listed, deleted, and collected once nothing needs their bytes.

use batch_core::blob_key::BlobKey;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::{FileId, TenantId};
use batch_core::limits::UPDATE_TRIES_MAX;
use batch_core::time::UnixMs;

use super::actions::{PAGE_ITEMS, contended, delete, put_new, text_is, update};
use super::fields::{Attrs, Fields};
use super::listed::Filling;
use super::{Listed, Store, paths};
use crate::port::record_rules::item_bytes;
use crate::port::{Action, Condition, Due, Item, QueryOrder, RecordKey, Update, WorkKind};
use crate::{IoError, IoKind};

const FILE: &str = "file";
const LIFE: &str = "life";
const PINS: &str = "pins";

const LIVE: &str = "live";
const DELETED: &str = "deleted";

/// Which files to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileQuery {
    /// Only these; all if none.
    pub purpose: Option<Purpose>,
    /// Begins beyond this one, which need not exist.
    pub after: Option<FileId>,
    /// By creation.
    pub order: QueryOrder,
    /// Most files of the page, from 1.
    pub limit: usize,
    /// Files that expired before are left out.
    pub now: UnixMs,
}

/// What the collector may do with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileCollection {
    /// It has no record, or is neither deleted nor expired.
    Nothing,
    /// A batch still reads its bytes: look again later.
    Pinned,
    /// Nothing can read it any more: remove this blob, then call [`Store::forget_file`].
    Remove(BlobKey),
}

impl Store {
    /// Writes a new file's record. Repeating it with the same file is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Conflict` if another file has the id.
    pub async fn create_file(&self, file: &File) -> Result<(), IoError> {
        let key = paths::file(&file.tenant, file.id);
        if self.act(put_new(key.clone(), file_item(file))).await? {
            return Ok(());
        }
        let stored = self.records.get(&key).await?;
        let repeated = stored
            .map(|item| read_file(&key, &item))
            .transpose()?
            .is_some_and(|stored| stored.file == *file);
        if repeated {
            Ok(())
        } else {
            Err(IoError::new(
                "create file",
                file.id.to_string(),
                IoKind::Conflict,
            ))
        }
    }

    /// Loads a file; none if it is deleted or expired.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn load_file(
        &self,
        tenant: &TenantId,
        file: FileId,
        now: UnixMs,
    ) -> Result<Option<File>, IoError> {
        let record = self.load_file_record(tenant, file).await?;
        Ok(record
            .filter(|record| record.is_live(now))
            .map(|record| record.file))
    }

    /// Lists the tenant's files that are neither deleted nor expired.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_files(
        &self,
        tenant: &TenantId,
        query: FileQuery,
    ) -> Result<Listed<File>, IoError> {
        let partition = paths::files(tenant);
        let mut after = query.after.map(|file| file.to_string());
        let mut page = Filling::new(query.limit);
        loop {
            let found = self
                .records
                .query(&partition, "", after.as_deref(), query.order, PAGE_ITEMS)
                .await?;
            for (key, item) in &found.items {
                let record = read_file(key, item)?;
                let wanted = query
                    .purpose
                    .is_none_or(|purpose| purpose == record.file.purpose);
                if wanted
                    && record.is_live(query.now)
                    && !page.push(record.file, item_bytes(key, item))
                {
                    return Ok(page.cut());
                }
            }
            match found.next {
                Some(next) => after = Some(next),
                None => return Ok(page.ended()),
            }
        }
    }

    /// Deletes a file, and returns whether it was there. It is gone for readers at once; its bytes go later.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn delete_file(
        &self,
        tenant: &TenantId,
        file: FileId,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        let Some(record) = self.load_file_record(tenant, file).await? else {
            return Ok(false);
        };
        Ok(record.is_live(now) && self.act(bury(&record, now)).await?)
    }

    /// Finds out whether a deleted or expired file's bytes can go. From `Remove` on, no batch can pin it.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn collect_file(
        &self,
        tenant: &TenantId,
        file: FileId,
        now: UnixMs,
    ) -> Result<FileCollection, IoError> {
        for _ in 0..UPDATE_TRIES_MAX {
            let Some(record) = self.load_file_record(tenant, file).await? else {
                return Ok(FileCollection::Nothing);
            };
            if record.is_live(now) {
                return Ok(FileCollection::Nothing);
            }
            // A tombstone gets no more pins: only then is their number final.
            if !record.deleted {
                self.act(bury(&record, now)).await?;
                continue;
            }
            if record.pins == 0 {
                return Ok(FileCollection::Remove(record.file.blob));
            }
            // Its entry would stay first in the index, and with many of them nothing else would be seen.
            let later = now.plus_ms(self.timing.message_lost_ms);
            let put_off = Update {
                due: Some(Some(retention(later))),
                ..Update::default()
            };
            self.act(update(
                paths::file(tenant, file),
                put_off,
                Condition::Exists,
            ))
            .await?;
            return Ok(FileCollection::Pinned);
        }
        Err(contended("collect file", file))
    }

    /// Removes the record of a file whose bytes are gone.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn forget_file(&self, tenant: &TenantId, file: FileId) -> Result<(), IoError> {
        self.transact(vec![delete(paths::file(tenant, file))])
            .await?;
        Ok(())
    }

    /// Reads a file's record, deleted or not.
    pub(super) async fn load_file_record(
        &self,
        tenant: &TenantId,
        file: FileId,
    ) -> Result<Option<FileRecord>, IoError> {
        let key = paths::file(tenant, file);
        self.records
            .get(&key)
            .await?
            .map(|item| read_file(&key, &item))
            .transpose()
    }
}

/// A file, and what keeps its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileRecord {
    pub(super) file: File,
    /// A user deleted it, or the collector after its time.
    deleted: bool,
    /// Validating batches that read it.
    pins: u64,
}

impl FileRecord {
    fn is_live(&self, now: UnixMs) -> bool {
        !self.deleted && self.file.expires_at.is_none_or(|at| now < at)
    }
}

pub(super) fn file_item(file: &File) -> Item {
    let attrs = Attrs::of_record()
        .json(FILE, file)
        .text(LIFE, LIVE)
        .int(PINS, 0);
    Item {
        due: file.expires_at.map(retention),
        ..attrs.into_item()
    }
}

/// Keeps a live file's bytes for one more batch.
pub(super) fn pin(tenant: &TenantId, file: FileId) -> Action {
    let change = Update {
        add: vec![(PINS.to_owned(), 1)],
        ..Update::default()
    };
    update(paths::file(tenant, file), change, text_is(LIFE, LIVE))
}

/// Takes back one [`pin`].
pub(super) fn unpin(tenant: &TenantId, file: FileId) -> Action {
    let change = Update {
        add: vec![(PINS.to_owned(), -1)],
        ..Update::default()
    };
    update(paths::file(tenant, file), change, Condition::Exists)
}

/// Gives a file another status, deleted or not: nothing else in its record changes after its creation.
pub(super) fn replace_status(record: FileRecord, status: FileStatus) -> Action {
    let file = File {
        status,
        ..record.file
    };
    let change = Update {
        set: Attrs::default().json(FILE, &file).into_vec(),
        ..Update::default()
    };
    update(
        paths::file(&file.tenant, file.id),
        change,
        Condition::Exists,
    )
}

/// Makes a live file a tombstone, which no batch can pin any more.
fn bury(record: &FileRecord, now: UnixMs) -> Action {
    let change = Update {
        set: Attrs::default().text(LIFE, DELETED).into_vec(),
        due: Some(Some(retention(now))),
        ..Update::default()
    };
    update(
        paths::file(&record.file.tenant, record.file.id),
        change,
        text_is(LIFE, LIVE),
    )
}

fn retention(at: UnixMs) -> Due {
    Due {
        kind: WorkKind::Retention,
        at,
    }
}

fn read_file(key: &RecordKey, item: &Item) -> Result<FileRecord, IoError> {
    let fields = Fields::of(key, item)?;
    Ok(FileRecord {
        file: fields.json(FILE)?,
        deleted: fields.text(LIFE)? == DELETED,
        pins: fields.count(PINS)?,
    })
}

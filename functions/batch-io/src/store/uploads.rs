//! Uploads and their parts.

use batch_core::file::File;
use batch_core::id::{FileId, TenantId, UploadId};
use batch_core::time::UnixMs;
use batch_core::upload::{Upload, UploadPart, UploadStatus};

use super::actions::{Written, check, delete, put_new, text_is, update};
use super::fields::{Attrs, Fields};
use super::files::file_item;
use super::{Store, paths};
use crate::port::{Action, Due, Item, RecordKey, Update, WorkKind};
use crate::{IoError, IoKind};

const UPLOAD: &str = "upload";
pub(super) const STATUS: &str = "status";
pub(super) const FILE: &str = "file_id";
const PART: &str = "part";

pub(super) const PENDING: &str = "pending";
/// Completed for its user; a job puts the file together.
pub(super) const ASSEMBLING: &str = "assembling";
pub(super) const COMPLETED: &str = "completed";
const CANCELLED: &str = "cancelled";

/// What the collector may do with an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadCollection {
    /// It has no record, or its time is not over.
    Nothing,
    /// The job that puts this file together is late: ask for it again.
    Assembling(FileId),
    /// Nothing can read its parts any more: remove their blobs, then call [`Store::forget_upload`].
    Remove,
}

impl Store {
    /// Writes a new upload's record. Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Conflict` if another upload has the id.
    pub async fn create_upload(&self, upload: &Upload) -> Result<(), IoError> {
        let key = paths::upload(&upload.tenant, upload.id);
        if self.act(put_new(key, upload_item(upload))).await? {
            return Ok(());
        }
        let stored = self.load_upload(&upload.tenant, upload.id).await?;
        let repeated = stored.is_some_and(|stored| {
            stored.created_at == upload.created_at && stored.bytes == upload.bytes
        });
        if repeated {
            Ok(())
        } else {
            Err(IoError::new(
                "create upload",
                upload.id.to_string(),
                IoKind::Conflict,
            ))
        }
    }

    /// Loads an upload, also one whose time is over.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn load_upload(
        &self,
        tenant: &TenantId,
        upload: UploadId,
    ) -> Result<Option<Upload>, IoError> {
        let key = paths::upload(tenant, upload);
        self.records
            .get(&key)
            .await?
            .map(|item| read_upload(&key, &item))
            .transpose()
    }

    /// Adds a part to a pending upload, and returns whether it was pending. Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn add_part(&self, tenant: &TenantId, part: &UploadPart) -> Result<bool, IoError> {
        let key = paths::part(tenant, part.upload, part.id);
        let item = Attrs::of_record().json(PART, part).into_item();
        let is_pending = check(paths::upload(tenant, part.upload), text_is(STATUS, PENDING));
        // The part's name is its caller's own: if it is there, an earlier try put it.
        match self.transact(vec![put_new(key, item), is_pending]).await? {
            Written::Yes => Ok(true),
            Written::No(positions) => Ok(positions.contains(&0)),
        }
    }

    /// Lists the parts of an upload, by age.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_parts(
        &self,
        tenant: &TenantId,
        upload: UploadId,
    ) -> Result<Vec<UploadPart>, IoError> {
        let items = self
            .query_all(&paths::parts(tenant, upload), paths::PART)
            .await?;
        items
            .iter()
            .map(|(key, item)| Fields::of(key, item)?.json(PART))
            .collect()
    }

    /// Makes a pending upload this file, in one transaction with the file's record, and returns whether it
    /// is that file now.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn complete_upload(&self, upload: &Upload, file: &File) -> Result<bool, IoError> {
        let completed = Update {
            set: Attrs::default()
                .text(STATUS, COMPLETED)
                .text(FILE, file.id.to_string())
                .into_vec(),
            ..Update::default()
        };
        let key = paths::upload(&upload.tenant, upload.id);
        let actions = vec![
            update(key, completed, text_is(STATUS, PENDING)),
            put_new(paths::file(&file.tenant, file.id), file_item(file)),
        ];
        if self.transact(actions).await? == Written::Yes {
            return Ok(true);
        }
        let stored = self.load_upload(&upload.tenant, upload.id).await?;
        Ok(stored.is_some_and(|stored| stored.status == UploadStatus::Completed(file.id)))
    }

    /// Cancels a pending upload, and returns whether it is cancelled now.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn cancel_upload(
        &self,
        tenant: &TenantId,
        upload: UploadId,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        if self.act(cancel(tenant, upload, now)).await? {
            return Ok(true);
        }
        let stored = self.load_upload(tenant, upload).await?;
        Ok(stored.is_some_and(|stored| stored.status == UploadStatus::Cancelled))
    }

    /// Finds out whether the parts of an upload can go: it is completed, cancelled, or its time is over, and
    /// then it can no longer be completed. While its file is put together, they stay, and the next look is
    /// put off.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn collect_upload(
        &self,
        tenant: &TenantId,
        upload: UploadId,
        now: UnixMs,
    ) -> Result<UploadCollection, IoError> {
        let key = paths::upload(tenant, upload);
        let Some(item) = self.records.get(&key).await? else {
            return Ok(UploadCollection::Nothing);
        };
        let stored = read_upload(&key, &item)?;
        let is_over = match stored.status {
            UploadStatus::Cancelled => true,
            UploadStatus::Completed(file) => {
                if Fields::of(&key, &item)?.text(STATUS)? == ASSEMBLING {
                    // The index is late: it may still show a look that was put off.
                    if item.due.is_some_and(|due| now < due.at) {
                        return Ok(UploadCollection::Nothing);
                    }
                    let put_off = Update {
                        due: Some(Some(retention(self.ask_again_at(now)))),
                        ..Update::default()
                    };
                    let put_off = self.act(update(key, put_off, text_is(STATUS, ASSEMBLING)));
                    return Ok(match put_off.await? {
                        true => UploadCollection::Assembling(file),
                        false => UploadCollection::Nothing,
                    });
                }
                stored.expires_at <= now
            }
            UploadStatus::Pending if now < stored.expires_at => false,
            UploadStatus::Pending => self.cancel_upload(tenant, upload, now).await?,
        };
        Ok(if is_over {
            UploadCollection::Remove
        } else {
            UploadCollection::Nothing
        })
    }

    /// Removes the records of an upload whose parts' blobs are gone.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn forget_upload(&self, tenant: &TenantId, upload: UploadId) -> Result<(), IoError> {
        // The upload goes last: while it is there, the index leads back to parts and pieces that are left.
        let beside = self.query_all(&paths::parts(tenant, upload), "").await?;
        self.delete_all(beside.into_iter().map(|(key, _)| key).collect())
            .await?;
        self.transact(vec![delete(paths::upload(tenant, upload))])
            .await?;
        Ok(())
    }
}

fn cancel(tenant: &TenantId, upload: UploadId, now: UnixMs) -> Action {
    let cancelled = Update {
        set: Attrs::default().text(STATUS, CANCELLED).into_vec(),
        due: Some(Some(retention(now))),
        ..Update::default()
    };
    update(
        paths::upload(tenant, upload),
        cancelled,
        text_is(STATUS, PENDING),
    )
}

pub(super) fn retention(at: UnixMs) -> Due {
    Due {
        kind: WorkKind::Retention,
        at,
    }
}

/// The status is an attribute of its own; the one inside the JSON is only that at creation.
fn upload_item(upload: &Upload) -> Item {
    let (status, file) = match &upload.status {
        UploadStatus::Pending => (PENDING, None),
        UploadStatus::Completed(file) => (COMPLETED, Some(file.to_string())),
        UploadStatus::Cancelled => (CANCELLED, None),
    };
    let attrs = upload_attrs(upload)
        .text(STATUS, status)
        .opt_text(FILE, file);
    Item {
        due: Some(retention(upload.expires_at)),
        ..attrs.into_item()
    }
}

/// The attributes of an upload but its status and file.
pub(super) fn upload_attrs(upload: &Upload) -> Attrs {
    Attrs::of_record().json(UPLOAD, upload)
}

pub(super) fn read_upload(key: &RecordKey, item: &Item) -> Result<Upload, IoError> {
    let fields = Fields::of(key, item)?;
    let status = match fields.text(STATUS)? {
        PENDING => UploadStatus::Pending,
        COMPLETED | ASSEMBLING => UploadStatus::Completed(fields.parsed(FILE)?),
        CANCELLED => UploadStatus::Cancelled,
        _ => return Err(fields.corrupt(STATUS)),
    };
    Ok(Upload {
        status,
        ..fields.json(UPLOAD)?
    })
}

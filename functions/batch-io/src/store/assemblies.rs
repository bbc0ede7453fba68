//! Files that a job puts together after their upload was completed, or their import asked for.
//!
//! The upload's record says that it is assembling, of what, and when to ask again if the job's message got
//! lost. The pieces are in records beside the upload's parts.

use batch_core::external::PinnedObject;
use batch_core::file::{File, FileStatus};
use batch_core::id::{FileId, TenantId, UploadId};
use batch_core::limits::{PIECES_PER_RECORD, UPDATE_TRIES_MAX};
use batch_core::time::UnixMs;
use batch_core::upload::{Assembly, AssemblySource, Piece, Upload, UploadStatus};
use serde::{Deserialize, Serialize};

use super::actions::{Written, contended, put, put_new, text_is, update};
use super::fields::{Attrs, Fields};
use super::files::{file_item, replace_status};
use super::uploads::{ASSEMBLING, COMPLETED, FILE, STATUS, read_upload, retention, upload_attrs};
use super::{Store, paths};
use crate::port::{Action, Item, Update};
use crate::{IoError, IoKind};

const ASSEMBLY: &str = "assembly";
const PIECES: &str = "pieces";

/// What became of an assembly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssemblyEnded {
    /// The file has its status now.
    Done,
    /// Somebody else ended it before.
    Already,
    /// The file was deleted and collected meanwhile: remove what was written for it.
    FileGone,
}

/// What the upload's record says of an assembly.
#[derive(Serialize, Deserialize)]
struct AssemblyForm {
    /// Imported; an upload of parts has none.
    object: Option<PinnedObject>,
    /// Records that hold the pieces.
    piece_records: usize,
    md5: Option<String>,
}

impl Store {
    /// Makes a pending upload a file that is still to be put together, in one transaction with the file's
    /// record, and returns whether it is that file now. Then send the job.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn begin_assembly(
        &self,
        assembly: &Assembly,
        file: &File,
        now: UnixMs,
    ) -> Result<bool, IoError> {
        let upload = &assembly.upload;
        let begun = Update {
            set: self.assembly_attrs(assembly, Attrs::default()).into_vec(),
            due: Some(Some(retention(self.ask_again_at(now)))),
            ..Update::default()
        };
        let key = paths::upload(&upload.tenant, upload.id);
        let mut actions = vec![
            update(key, begun, text_is(STATUS, super::uploads::PENDING)),
            put_new(paths::file(&file.tenant, file.id), file_item(file)),
        ];
        actions.extend(piece_actions(assembly));
        if self.transact(actions).await? == Written::Yes {
            return Ok(true);
        }
        let stored = self.load_upload(&upload.tenant, upload.id).await?;
        Ok(stored.is_some_and(|stored| stored.status == UploadStatus::Completed(file.id)))
    }

    /// Makes the records of a file that is to be imported, and of the upload that stands for the import.
    /// Then send the job. Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`]: `Conflict` if another upload or file has the id.
    pub async fn begin_import(
        &self,
        assembly: &Assembly,
        file: &File,
        now: UnixMs,
    ) -> Result<(), IoError> {
        let upload = &assembly.upload;
        let attrs = self.assembly_attrs(assembly, upload_attrs(upload));
        let item = Item {
            due: Some(retention(self.ask_again_at(now))),
            ..attrs.into_item()
        };
        let actions = vec![
            put_new(paths::upload(&upload.tenant, upload.id), item),
            put_new(paths::file(&file.tenant, file.id), file_item(file)),
        ];
        if self.transact(actions).await? == Written::Yes {
            return Ok(());
        }
        let stored = self.load_upload(&upload.tenant, upload.id).await?;
        let status = UploadStatus::Completed(file.id);
        if stored.is_some_and(|stored| stored.status == status) {
            Ok(())
        } else {
            Err(IoError::new(
                "begin import",
                upload.id.to_string(),
                IoKind::Conflict,
            ))
        }
    }

    /// Loads what a file is to be put together of; none if it is not, or not any more.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn load_assembly(
        &self,
        tenant: &TenantId,
        upload: UploadId,
    ) -> Result<Option<Assembly>, IoError> {
        let key = paths::upload(tenant, upload);
        let Some(item) = self.records.get(&key).await? else {
            return Ok(None);
        };
        let fields = Fields::of(&key, &item)?;
        if fields.text(STATUS)? != ASSEMBLING {
            return Ok(None);
        }
        let AssemblyForm {
            object,
            piece_records,
            md5,
        } = fields.json(ASSEMBLY)?;
        let source = match object {
            Some(object) => AssemblySource::Object(object),
            None => {
                let pieces = self.load_pieces(tenant, upload, piece_records).await?;
                // They vanish with the upload, after another has ended the assembly.
                AssemblySource::Parts(pieces.ok_or_else(|| fields.corrupt(PIECES))?)
            }
        };
        Ok(Some(Assembly {
            upload: read_upload(&key, &item)?,
            file: fields.parsed(FILE)?,
            source,
            md5,
        }))
    }

    /// Gives a file that was to be put together its status, in one transaction with the upload's record.
    /// Repeating it is fine.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn end_assembly(
        &self,
        tenant: &TenantId,
        upload: UploadId,
        file: FileId,
        status: &FileStatus,
        now: UnixMs,
    ) -> Result<AssemblyEnded, IoError> {
        let key = paths::upload(tenant, upload);
        for _ in 0..UPDATE_TRIES_MAX {
            let record = self.load_file_record(tenant, file).await?;
            let stored = self.records.get(&key).await?;
            let assembling = match &stored {
                Some(item) => Fields::of(&key, item)?.text(STATUS)? == ASSEMBLING,
                None => false,
            };
            let (true, Some(item)) = (assembling, stored) else {
                return Ok(match record {
                    Some(_) => AssemblyEnded::Already,
                    None => AssemblyEnded::FileGone,
                });
            };
            let expires_at = read_upload(&key, &item)?.expires_at;
            let ended = Update {
                set: Attrs::default().text(STATUS, COMPLETED).into_vec(),
                remove: vec![ASSEMBLY.to_owned()],
                due: Some(Some(retention(expires_at.max(now)))),
                ..Update::default()
            };
            let mut actions = vec![update(key.clone(), ended, text_is(STATUS, ASSEMBLING))];
            let outcome = match record {
                Some(record) => {
                    actions.push(replace_status(record, status.clone()));
                    AssemblyEnded::Done
                }
                None => AssemblyEnded::FileGone,
            };
            if self.transact(actions).await? == Written::Yes {
                return Ok(outcome);
            }
        }
        Err(contended("end assembly", upload))
    }

    /// When the job's message counts as lost.
    pub(super) fn ask_again_at(&self, now: UnixMs) -> UnixMs {
        now.plus_ms(self.timing.message_lost_ms)
    }

    fn assembly_attrs(&self, assembly: &Assembly, attrs: Attrs) -> Attrs {
        let object = match &assembly.source {
            AssemblySource::Parts(_) => None,
            AssemblySource::Object(object) => Some(object.clone()),
        };
        let form = AssemblyForm {
            object,
            piece_records: piece_chunks(assembly).len(),
            md5: assembly.md5.clone(),
        };
        attrs
            .text(STATUS, ASSEMBLING)
            .text(FILE, assembly.file.to_string())
            .json(ASSEMBLY, &form)
    }

    /// Reads the pieces of an upload; none if there are not as many records as there should be.
    async fn load_pieces(
        &self,
        tenant: &TenantId,
        upload: UploadId,
        records: usize,
    ) -> Result<Option<Vec<Piece>>, IoError> {
        let items = self
            .query_all(&paths::parts(tenant, upload), paths::PIECES)
            .await?;
        if items.len() != records {
            return Ok(None);
        }
        let mut pieces = Vec::new();
        for (key, item) in &items {
            pieces.extend(Fields::of(key, item)?.json::<Vec<Piece>>(PIECES)?);
        }
        Ok(Some(pieces))
    }
}

fn piece_chunks(assembly: &Assembly) -> Vec<&[Piece]> {
    match &assembly.source {
        AssemblySource::Parts(pieces) => pieces.chunks(PIECES_PER_RECORD).collect(),
        AssemblySource::Object(_) => Vec::new(),
    }
}

fn piece_actions(assembly: &Assembly) -> Vec<Action> {
    let Upload { tenant, id, .. } = &assembly.upload;
    let chunks = (0..).zip(piece_chunks(assembly));
    chunks
        .map(|(number, chunk)| {
            let item = Attrs::of_record().json(PIECES, &chunk).into_item();
            put(paths::pieces(tenant, *id, number), item)
        })
        .collect()
}

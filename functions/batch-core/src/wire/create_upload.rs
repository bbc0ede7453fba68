//! The bodies of the Uploads API.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::file::{ExpiresAfter, Purpose};
use crate::form_envelope::EnvelopeFault;
use crate::id::{Entropy, PartId, TenantId, UploadId};
use crate::limits::{BLOB_PARTS_MAX, UPLOAD_BYTES_MAX, UPLOAD_LIFE_S};
use crate::message::SCHEMA;
use crate::time::UnixMs;
use crate::upload::{Piece, Upload, UploadStatus};
use crate::wire::create_file::{FILENAME_CHARS_MAX, check_filename};
use crate::wire::members::{Members, integer_within, type_name};
use crate::wire::{WireError, expiry, purpose};

/// Characters of a media type.
const MIME_TYPE_CHARS_MAX: usize = 256;

/// What `POST /uploads` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateUpload {
    /// Bytes that the parts will add up to.
    pub bytes: u64,
    /// Name of the file to be.
    pub filename: String,
    /// As the user gave it.
    pub mime_type: String,
    /// Purpose of the file to be.
    pub purpose: Purpose,
    /// Life of the file to be.
    pub expires_after: Option<ExpiresAfter>,
}

impl CreateUpload {
    /// Reads a body. `batch_bytes_max` bounds files for batches.
    ///
    /// # Errors
    ///
    /// A 400 that names the member at fault.
    pub fn parse(body: &[u8], batch_bytes_max: u64) -> Result<Self, WireError> {
        let members = Members::parse(body)?;
        let bytes = members
            .value("bytes")?
            .ok_or_else(|| WireError::missing("bytes"))?;
        let filename = members.required_text("filename", FILENAME_CHARS_MAX)?;
        let mime_type = members.required_text("mime_type", MIME_TYPE_CHARS_MAX)?;
        let purpose = members
            .text("purpose")?
            .ok_or_else(|| WireError::missing("purpose"))?;
        let purpose = purpose::parse_given(&purpose)?;
        let bytes_max = if purpose == Purpose::Batch {
            batch_bytes_max.min(UPLOAD_BYTES_MAX)
        } else {
            UPLOAD_BYTES_MAX
        };
        let bytes = integer_within("bytes", &bytes, 1, bytes_max)?;
        check_filename("filename", &filename, purpose)?;
        let expires_after = members
            .value("expires_after")?
            .map(|value| expiry::from_json("expires_after", &value))
            .transpose()?;
        Ok(Self {
            bytes,
            filename,
            mime_type,
            purpose,
            expires_after,
        })
    }

    /// Makes the record.
    #[must_use]
    pub fn into_upload(self, tenant: TenantId, now: UnixMs, entropy: Entropy) -> Upload {
        Upload {
            id: UploadId::new(now, entropy),
            tenant,
            bytes: self.bytes,
            created_at: now,
            expires_at: now.plus_ms(UPLOAD_LIFE_S * 1000),
            filename: self.filename,
            mime_type: self.mime_type,
            purpose: self.purpose,
            expires_after: self.expires_after,
            status: UploadStatus::Pending,
            schema: SCHEMA,
        }
    }
}

/// What `POST /uploads/{id}/complete` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompleteUpload {
    /// The parts, in the file's order.
    pub part_ids: Vec<PartId>,
    /// MD5 of the whole file, lower-case hexadecimal.
    pub md5: Option<String>,
}

impl CompleteUpload {
    /// Reads a body.
    ///
    /// # Errors
    ///
    /// A 400 that names the member at fault.
    pub fn parse(body: &[u8]) -> Result<Self, WireError> {
        let members = Members::parse(body)?;
        let part_ids = members
            .value("part_ids")?
            .ok_or_else(|| WireError::missing("part_ids"))?;
        let Value::Array(part_ids) = &part_ids else {
            return Err(WireError::invalid_type(
                "part_ids",
                "an array",
                type_name(&part_ids),
            ));
        };
        if part_ids.is_empty() || part_ids.len() > BLOB_PARTS_MAX {
            let message = format!(
                "Invalid 'part_ids': expected an array of 1 to {BLOB_PARTS_MAX} part ids, but got {}.",
                part_ids.len()
            );
            return Err(WireError::invalid(message)
                .with_param("part_ids")
                .with_code("invalid_value"));
        }
        let mut seen = HashSet::new();
        let mut ids = Vec::with_capacity(part_ids.len());
        for (index, id) in part_ids.iter().enumerate() {
            let param = format!("part_ids[{index}]");
            let Value::String(text) = id else {
                return Err(WireError::invalid_type(&param, "a string", type_name(id)));
            };
            let id: PartId = text.parse().map_err(|_| no_part(text))?;
            if !seen.insert(id) {
                let message = format!("Invalid 'part_ids': part '{id}' is named twice.");
                return Err(WireError::invalid(message)
                    .with_param("part_ids")
                    .with_code("invalid_value"));
            }
            ids.push(id);
        }
        let md5 = members
            .text("md5")?
            .map(|text| text.trim().to_ascii_lowercase());
        if let Some(text) = &md5
            && !(text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        {
            let message = "Invalid 'md5': expected 32 hexadecimal digits.";
            return Err(WireError::invalid(message)
                .with_param("md5")
                .with_code("invalid_value"));
        }
        Ok(Self { part_ids: ids, md5 })
    }

    /// Picks the parts in the order asked for, and checks that they add up to the bytes announced. `found`
    /// holds what is known of each part.
    ///
    /// # Errors
    ///
    /// A 400 if a part is not there, or the sum is another.
    pub fn select(
        &self,
        upload: &Upload,
        found: &HashMap<PartId, Piece>,
    ) -> Result<Vec<Piece>, WireError> {
        let pieces: Vec<Piece> = self
            .part_ids
            .iter()
            .map(|id| {
                found
                    .get(id)
                    .copied()
                    .ok_or_else(|| no_part(&id.to_string()))
            })
            .collect::<Result<_, _>>()?;
        let sum: u64 = pieces.iter().map(Piece::bytes).sum();
        if sum == upload.bytes {
            return Ok(pieces);
        }
        let message = format!(
            "The parts add up to {sum} bytes, but the upload was created for {} bytes.",
            upload.bytes
        );
        Err(WireError::invalid(message)
            .with_param("part_ids")
            .with_code("bytes_mismatch"))
    }
}

fn no_part(id: &str) -> WireError {
    WireError::invalid(format!(
        "No such part of this upload: '{}'.",
        super::error::clip(id)
    ))
    .with_param("part_ids")
    .with_code("invalid_value")
}

/// Says that an upload takes no more parts, cannot be completed, and so on.
#[must_use]
pub fn not_pending(status: &str) -> WireError {
    WireError::invalid(format!(
        "This upload cannot be changed any more: its status is '{status}'."
    ))
    .with_param("upload_id")
    .with_code("upload_not_pending")
}

/// Says that a part was not sent as the one field `data` of a form.
#[must_use]
pub fn part_unreadable(part: PartId, fault: &EnvelopeFault) -> WireError {
    WireError::invalid(format!(
        "We could not read the form of part '{part}': {fault}."
    ))
    .with_param("part_ids")
    .with_code("invalid_part")
}

/// Says that the bytes have another digest.
#[must_use]
pub fn md5_mismatch(expected: &str, found: &str) -> WireError {
    WireError::invalid(format!(
        "The MD5 of the parts is {found}, but the request says {expected}."
    ))
    .with_param("md5")
    .with_code("md5_mismatch")
}

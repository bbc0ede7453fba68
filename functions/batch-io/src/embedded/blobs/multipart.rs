//! Blobs in parts: `.multipart/<id>/` holds the path of the blob to be (`key`) and a file for each part.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use batch_core::time::UnixMs;

use super::Failure;
use super::disk::{Disk, Named, Scratch, ignore_missing, list, meta_of};
use crate::port::blob_rules;
use crate::port::{BlobMeta, MultipartId, PartTag};

/// What nobody has finished for this long was given up.
const LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

const FOLDER: &str = ".multipart";

/// The file that holds the blob's path. Its time is when the multipart began.
const KEY: &str = "key";

/// Makes the folder of a blob in parts.
pub(super) fn begin(disk: &Disk, path: &str) -> io::Result<MultipartId> {
    let id = MultipartId(disk.new_name());
    disk.publish_folder(&disk.root.join(FOLDER).join(&id.0), KEY, path)?;
    Ok(id)
}

/// Stores a part.
pub(super) fn put(
    disk: &Disk,
    path: &str,
    id: &MultipartId,
    number: u32,
    body: &[u8],
) -> Result<PartTag, Failure> {
    blob_rules::check_part(number, body.len() as u64)?;
    let folder = folder_of(disk, path, id)?;
    let mut scratch = disk.scratch()?;
    scratch.file.write_all(body)?;
    store(disk, &scratch, &folder, number)
}

/// Stores a range of an open file as a part. The kernel moves the bytes where it can.
pub(super) fn copy(
    disk: &Disk,
    path: &str,
    id: &MultipartId,
    number: u32,
    (mut source, meta): (File, BlobMeta),
    range: Range<u64>,
) -> Result<PartTag, Failure> {
    let len = range.end.saturating_sub(range.start);
    blob_rules::check_part(number, len)?;
    let folder = folder_of(disk, path, id)?;
    blob_rules::check_range(range.start, range.end, meta.bytes)?;
    source.seek(SeekFrom::Start(range.start))?;
    let mut scratch = disk.scratch()?;
    append(&mut source.take(len), &mut scratch, len)?;
    store(disk, &scratch, &folder, number)
}

/// Makes the blob, and removes the parts.
pub(super) fn finish(
    disk: &Disk,
    path: &str,
    id: &MultipartId,
    parts: &[PartTag],
) -> Result<BlobMeta, Failure> {
    let folder = folder_of(disk, path, id)?;
    blob_rules::check_parts(parts)?;
    let mut whole = disk.scratch()?;
    for part in parts {
        let file = File::open(part_path(&folder, part.number))?;
        let meta = meta_of(&file.metadata()?);
        if meta.etag != part.etag || meta.bytes != part.bytes {
            return Err(io::Error::new(
                ErrorKind::NotFound,
                "the part was stored again under another tag",
            )
            .into());
        }
        append(&mut file.take(meta.bytes), &mut whole, meta.bytes)?;
    }
    let meta = disk.publish(whole, path, Named::Replacing)?;
    disk.discard_folder(&folder)?;
    Ok(meta)
}

/// Removes the parts.
pub(super) fn abort(disk: &Disk, path: &str, id: &MultipartId) -> Result<(), Failure> {
    match folder_of(disk, path, id) {
        Ok(folder) => Ok(disk.discard_folder(&folder)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes what was given up.
pub(super) fn remove_old(root: &Path, now: UnixMs) -> io::Result<()> {
    let now =
        SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(now.0).unwrap_or_default());
    for entry in list(&root.join(FOLDER))? {
        let begun = match fs::metadata(entry.path().join(KEY)) {
            Ok(metadata) => metadata.modified()?,
            // Another process has just ended it.
            Err(_) => continue,
        };
        if now.duration_since(begun).is_ok_and(|age| age > LIFE) {
            ignore_missing(fs::remove_dir_all(entry.path()))?;
        }
    }
    Ok(())
}

/// Returns the folder of a blob in parts that is not over, if it is the one of this key.
fn folder_of(disk: &Disk, path: &str, id: &MultipartId) -> io::Result<PathBuf> {
    let over = || io::Error::new(ErrorKind::NotFound, "the multipart is over");
    let ours = id.0.len() == 32 && id.0.bytes().all(|b| b.is_ascii_hexdigit());
    if !ours {
        return Err(over());
    }
    let folder = disk.root.join(FOLDER).join(&id.0);
    if fs::read(folder.join(KEY))? == path.as_bytes() {
        Ok(folder)
    } else {
        Err(over())
    }
}

fn part_path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("part-{number:05}"))
}

fn store(disk: &Disk, scratch: &Scratch, folder: &Path, number: u32) -> Result<PartTag, Failure> {
    let meta = disk.seal(scratch)?;
    disk.rename(scratch, &part_path(folder, number))?;
    Ok(PartTag {
        number,
        bytes: meta.bytes,
        etag: meta.etag,
    })
}

/// Appends `len` bytes, in constant memory.
fn append(from: &mut io::Take<File>, to: &mut Scratch, len: u64) -> io::Result<()> {
    let copied = io::copy(from, &mut to.file)?;
    if copied == len {
        Ok(())
    } else {
        Err(io::Error::new(
            ErrorKind::UnexpectedEof,
            "the file is shorter than it was",
        ))
    }
}

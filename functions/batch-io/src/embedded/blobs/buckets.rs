//! Objects of others on one machine: each bucket is a folder that the operator makes. Nothing here writes.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use batch_core::external::ExternalObject;

use super::disk::meta_of;
use crate::port::BlobMeta;

/// Opens an object. The bucket may be a link to a folder elsewhere; what lies in it may not lead out of it.
pub(super) fn open(buckets: &Path, object: &ExternalObject) -> io::Result<(File, BlobMeta)> {
    let missing = || io::Error::new(ErrorKind::NotFound, "no file inside this bucket");
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
    if !is_name(&object.bucket) || !object.key.split('/').all(is_name) {
        return Err(missing());
    }
    let bucket = fs::canonicalize(buckets.join(&object.bucket))?;
    let path = fs::canonicalize(bucket.join(&object.key))?;
    if !path.starts_with(&bucket) {
        return Err(missing());
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(missing());
    }
    let meta = meta_of(&metadata);
    Ok((file, meta))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_a_bucket_can_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        let buckets = dir.path().join("buckets");
        let bucket = buckets.join("exports");
        fs::create_dir_all(bucket.join("a")).unwrap();
        fs::write(dir.path().join("secret"), "x").unwrap();
        fs::write(bucket.join("a/in.jsonl"), "line").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), bucket.join("link")).unwrap();
        std::os::unix::fs::symlink("a/in.jsonl", bucket.join("inside")).unwrap();
        let look = |bucket: &str, key: &str| {
            let (bucket, key) = (bucket.to_owned(), key.to_owned());
            let opened = open(&buckets, &ExternalObject { bucket, key });
            opened
                .map(|(_, meta)| meta.bytes)
                .map_err(|error| error.kind())
        };
        assert_eq!(look("exports", "a/in.jsonl"), Ok(4));
        assert_eq!(look("exports", "inside"), Ok(4));
        for (bucket, key) in [
            ("exports", "link"),
            ("exports", "../../secret"),
            ("exports", "a/../a/in.jsonl"),
            ("exports", "a//in.jsonl"),
            ("exports", "/etc/passwd"),
            ("exports", "a"),
            ("exports", "other"),
            ("..", "secret"),
            ("absent", "a"),
        ] {
            assert_eq!(
                look(bucket, key),
                Err(ErrorKind::NotFound),
                "{bucket} {key}"
            );
        }
    }
}

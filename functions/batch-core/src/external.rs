//! Objects outside the service's own bucket, and which of them may be imported.
//!
//! Locations are compared as text, as S3 does: nothing is decoded, and a dot or two dots mean nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const SCHEME: &str = "s3://";

/// Bytes of the longest key of an object: S3's 1,024.
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html>
const KEY_BYTES_MAX: usize = 1024;

/// An object in a bucket that is not the service's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExternalObject {
    /// Bucket.
    pub bucket: String,
    /// Key of the object, not empty.
    pub key: String,
}

/// An object as it was when an import was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedObject {
    /// Which.
    pub object: ExternalObject,
    /// Its tag; another one means other bytes.
    pub etag: String,
    /// Its size.
    pub bytes: u64,
}

/// Why a text names no object, or no location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidExternal {
    /// Another scheme, or none.
    #[error("it does not begin with 's3://'")]
    Scheme,
    /// No bucket can have this name.
    #[error("its bucket is not 3 to 63 lower-case letters, digits, dots and hyphens")]
    Bucket,
    /// No object can have this key.
    #[error("its key is not 1 to {KEY_BYTES_MAX} bytes without control characters")]
    Key,
    /// A location whose end is open would allow its neighbours too.
    #[error("a location ends with a slash")]
    OpenEnd,
}

impl ExternalObject {
    /// Returns the last name in the key, which is never empty.
    #[must_use]
    pub fn filename(&self) -> &str {
        let names = self.key.rsplit('/').find(|name| !name.is_empty());
        names.unwrap_or(&self.bucket)
    }
}

impl FromStr for ExternalObject {
    type Err = InvalidExternal;

    fn from_str(text: &str) -> Result<Self, InvalidExternal> {
        let (bucket, key) = split(text)?;
        if key.is_empty() {
            return Err(InvalidExternal::Key);
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        })
    }
}

impl fmt::Display for ExternalObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
    }
}

/// Where objects may be imported from, by any tenant. Each location is a bucket, or a folder in one:
/// `s3://bucket/` or `s3://bucket/folder/`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct ImportLocations(Vec<(String, String)>);

impl ImportLocations {
    /// Reads locations.
    ///
    /// # Errors
    ///
    /// [`InvalidLocation`] names the first that is none.
    pub fn parse(locations: &[impl AsRef<str>]) -> Result<Self, InvalidLocation> {
        let parse = |location: &str| {
            let (bucket, prefix) = split(location)?;
            if prefix.is_empty() && !location.ends_with('/')
                || !prefix.is_empty() && !prefix.ends_with('/')
            {
                return Err(InvalidExternal::OpenEnd);
            }
            Ok((bucket.to_owned(), prefix.to_owned()))
        };
        let mut parsed = Vec::with_capacity(locations.len());
        for location in locations {
            let location = location.as_ref();
            parsed.push(parse(location).map_err(|why| InvalidLocation {
                location: crate::echo::clip(location).to_owned(),
                why,
            })?);
        }
        Ok(Self(parsed))
    }

    /// Returns whether nothing may be imported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether an object lies in one of the locations.
    #[must_use]
    pub fn allow(&self, object: &ExternalObject) -> bool {
        self.0
            .iter()
            .any(|(bucket, prefix)| object.bucket == *bucket && object.key.starts_with(prefix))
    }
}

impl TryFrom<Vec<String>> for ImportLocations {
    type Error = InvalidLocation;

    fn try_from(locations: Vec<String>) -> Result<Self, InvalidLocation> {
        Self::parse(&locations)
    }
}

/// A text that is no location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{location}' is no location for imports: {why}")]
pub struct InvalidLocation {
    /// What was given, clipped.
    pub location: String,
    /// Why not.
    pub why: InvalidExternal,
}

/// Splits a text into a bucket and what follows, which may be empty.
fn split(text: &str) -> Result<(&str, &str), InvalidExternal> {
    let rest = text.strip_prefix(SCHEME).ok_or(InvalidExternal::Scheme)?;
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-');
    let is_bucket = (3..=63).contains(&bucket.len())
        && bucket.bytes().all(plain)
        && !bucket.contains("..")
        && !bucket.starts_with(['.', '-'])
        && !bucket.ends_with(['.', '-']);
    if !is_bucket {
        return Err(InvalidExternal::Bucket);
    }
    if key.len() > KEY_BYTES_MAX || key.chars().any(char::is_control) {
        return Err(InvalidExternal::Key);
    }
    Ok((bucket, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_and_written_as_one_text() {
        let text = "s3://my-bucket/a folder/%2e/../in.jsonl";
        let object: ExternalObject = text.parse().unwrap();
        assert_eq!(
            (object.bucket.as_str(), object.key.as_str()),
            ("my-bucket", "a folder/%2e/../in.jsonl")
        );
        assert_eq!(
            (object.to_string().as_str(), object.filename()),
            (text, "in.jsonl")
        );
        let folder: ExternalObject = "s3://abc/x//".parse().unwrap();
        assert_eq!(folder.filename(), "x");
    }

    #[test]
    fn texts_that_name_no_object_are_refused() {
        let long = format!("s3://abc/{}", "k".repeat(KEY_BYTES_MAX + 1));
        for (text, why) in [
            ("https://bucket/key", InvalidExternal::Scheme),
            ("S3://bucket/key", InvalidExternal::Scheme),
            ("s3://ab/key", InvalidExternal::Bucket),
            ("s3:///key", InvalidExternal::Bucket),
            ("s3://Bucket/key", InvalidExternal::Bucket),
            ("s3://a..b/key", InvalidExternal::Bucket),
            ("s3://../key", InvalidExternal::Bucket),
            ("s3://bucket", InvalidExternal::Key),
            ("s3://bucket/", InvalidExternal::Key),
            ("s3://bucket/a\nb", InvalidExternal::Key),
            (&long, InvalidExternal::Key),
        ] {
            assert_eq!(text.parse::<ExternalObject>(), Err(why), "{text}");
        }
    }

    #[test]
    fn a_location_allows_what_lies_in_it_alone() {
        let allowed = ImportLocations::parse(&["s3://whole-bucket/", "s3://shared/team-a/"]);
        let allowed = allowed.unwrap();
        for (text, expected) in [
            ("s3://whole-bucket/x", true),
            ("s3://shared/team-a/in.jsonl", true),
            ("s3://shared/team-a", false),
            ("s3://shared/team-a-secret/in.jsonl", false),
            ("s3://shared/in.jsonl", false),
            ("s3://shared2/team-a/in.jsonl", false),
        ] {
            assert_eq!(allowed.allow(&text.parse().unwrap()), expected, "{text}");
        }
        assert!(!ImportLocations::default().allow(&"s3://shared/x".parse().unwrap()));
    }

    #[test]
    fn a_location_with_an_open_end_is_refused() {
        for (location, why) in [
            ("s3://bucket", InvalidExternal::OpenEnd),
            ("s3://bucket/team", InvalidExternal::OpenEnd),
            ("bucket/", InvalidExternal::Scheme),
        ] {
            let error = ImportLocations::parse(&[location]).unwrap_err();
            assert_eq!((error.location.as_str(), error.why), (location, why));
        }
        let text = r#"["s3://bucket/a/"]"#;
        assert!(
            !serde_json::from_str::<ImportLocations>(text)
                .unwrap()
                .is_empty()
        );
        assert!(serde_json::from_str::<ImportLocations>(r#"["s3://bucket"]"#).is_err());
    }
}

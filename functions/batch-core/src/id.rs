//! Names of things. Ids sort by time, so that a cursor works after its object is gone.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::time::UnixMs;

/// A text that is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no id of the form '{prefix}<32 hexadecimal digits>'")]
pub struct InvalidId {
    /// What was given, clipped.
    pub text: String,
    /// What an id of this kind starts with.
    pub prefix: &'static str,
}

/// Sixteen random bytes; handlers get them from outside.
pub type Entropy = [u8; 16];

/// Builds a UUIDv7: 48 bits of milliseconds, then version, variant and 74 random bits.
///
/// Source: RFC 9562, section 5.7.
fn uuid_v7(now: UnixMs, entropy: Entropy) -> u128 {
    let time = u128::from(now.0.max(0).cast_unsigned() & 0xffff_ffff_ffff);
    let random = u128::from_be_bytes(entropy) & ((1 << 80) - 1);
    let mask = !((0xf << 76) | (0x3 << 62));
    ((time << 80) | random) & mask | (0x7 << 76) | (0x2 << 62)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// What the text form starts with.
            pub const PREFIX: &'static str = $prefix;

            /// Makes an id that sorts by `now`.
            #[must_use]
            pub fn new(now: UnixMs, entropy: Entropy) -> Self {
                Self(uuid_v7(now, entropy))
            }

            /// Returns the moment in the id.
            #[must_use]
            pub fn created_at(self) -> UnixMs {
                UnixMs(i64::try_from(self.0 >> 80).unwrap_or(i64::MAX))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{:032x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix($prefix)
                    .filter(|hex| hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
                    .and_then(|hex| u128::from_str_radix(hex, 16).ok())
                    .map(Self)
                    .ok_or_else(|| InvalidId { text: text.chars().take(128).collect(), prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// A file.
    FileId, "file-"
);
id!(
    /// A batch.
    BatchId, "batch_"
);
id!(
    /// An upload in parts.
    UploadId, "upload_"
);
id!(
    /// One part of an upload.
    PartId, "part_"
);
id!(
    /// An API key.
    KeyId, "key_"
);
id!(
    /// A worker process.
    WorkerId, "worker_"
);
id!(
    /// One HTTP request.
    RequestId, "req_"
);

/// The name of one line's request: derived, so that a retry has the same.
#[must_use]
pub fn batch_request_id(batch: BatchId, line: LineNo) -> String {
    let mut hash = Sha256::new();
    hash.update(batch.to_string().as_bytes());
    hash.update(line.0.to_be_bytes());
    let digest = hash.finalize();
    let mut id = String::from("batch_req_");
    for byte in &digest[..16] {
        id.push_str(&format!("{byte:02x}"));
    }
    id
}

/// The physical line number in an input file, from 1, blank lines counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LineNo(pub u64);

/// Whose data it is. Starts every partition key and blob path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(String);

/// A text that cannot name a tenant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no tenant: 1 to 64 of a-z, 0-9, '-' and '_'")]
pub struct InvalidTenant(String);

impl TenantId {
    /// The tenant of a service with one default project.
    #[must_use]
    pub fn default_tenant() -> Self {
        Self("default".to_owned())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for TenantId {
    type Error = InvalidTenant;

    fn try_from(text: String) -> Result<Self, InvalidTenant> {
        let fits = (1..=64).contains(&text.len())
            && text
                .bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'));
        if fits {
            Ok(Self(text))
        } else {
            Err(InvalidTenant(text.chars().take(128).collect()))
        }
    }
}

impl From<TenantId> for String {
    fn from(id: TenantId) -> String {
        id.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

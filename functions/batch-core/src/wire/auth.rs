//! Who asks: the key that a request presents, and whom it stands for.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::id::{KeyId, TenantId};
use crate::wire::WireError;

/// Bytes of the longest key that is looked at.
const KEY_BYTES_MAX: usize = 512;

/// Whom a request acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Whose data it may touch.
    pub tenant: TenantId,
    /// Which key it presented.
    pub key: KeyId,
}

/// The two headers that may carry a key.
#[derive(Debug, Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// `Authorization`, as OpenAI's clients send it.
    pub authorization: Option<&'a str>,
    /// `api-key`, as Azure's clients send it.
    pub api_key: Option<&'a str>,
}

impl<'a> Credentials<'a> {
    /// Returns the key: of `Authorization: Bearer`, else of `api-key`. The scheme may have any case.
    ///
    /// # Errors
    ///
    /// A 401 if there is none.
    pub fn key(self) -> Result<&'a str, WireError> {
        let bearer = self.authorization.and_then(|header| {
            let (scheme, key) = header.trim().split_once([' ', '\t'])?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        bearer
            .or(self.api_key.map(str::trim))
            .filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()))
            .ok_or_else(WireError::no_key)
    }
}

/// Returns the hash under which a key is stored: SHA-256, lower-case hexadecimal.
///
/// Looked up by its hash, neither a stored secret nor the time of a lookup says anything about keys.
#[must_use]
pub fn hash_key(secret: &str) -> String {
    let digest = Sha256::digest(secret.as_bytes());
    digest
        .iter()
        .fold(String::with_capacity(64), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(authorization: Option<&str>, api_key: Option<&str>) -> Option<String> {
        Credentials {
            authorization,
            api_key,
        }
        .key()
        .ok()
        .map(str::to_owned)
    }

    #[test]
    fn keys_are_found_in_both_headers() {
        assert_eq!(check(Some("Bearer sk-1"), None).as_deref(), Some("sk-1"));
        assert_eq!(check(Some("bEARER   sk-1 "), None).as_deref(), Some("sk-1"));
        assert_eq!(check(None, Some("sk-2")).as_deref(), Some("sk-2"));
        assert_eq!(
            check(Some("Basic abc"), Some("sk-2")).as_deref(),
            Some("sk-2")
        );
    }

    #[test]
    fn other_headers_hold_no_key() {
        for header in ["", "Bearer", "Bearer ", "sk-1", "Basic sk-1"] {
            assert_eq!(check(Some(header), None), None, "{header}");
        }
        assert_eq!(check(None, Some(" ")), None);
        assert_eq!(check(None, Some(&"k".repeat(KEY_BYTES_MAX + 1))), None);
    }

    #[test]
    fn a_refusal_shows_the_ends_of_long_keys_only() {
        let long = WireError::wrong_key("sk-abcdefghijklmnopqrstuvwxyz").message;
        assert_eq!(long, "Incorrect API key provided: sk-****yz.");
        assert_eq!(
            WireError::wrong_key("sk-short").message,
            "Incorrect API key provided: ****."
        );
    }

    #[test]
    fn a_hash_is_sha_256_in_hexadecimal() {
        assert_eq!(
            hash_key("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}

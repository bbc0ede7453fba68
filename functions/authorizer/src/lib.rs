//! Finds out whom an API key stands for.
//!
//! A key is looked up by its SHA-256, so that neither a stored secret nor the time that a lookup takes says
//! anything about keys. On AWS this is a function of its own; elsewhere the API calls it.
#![warn(missing_docs)]

use batch_core::time::UnixMs;
use batch_core::wire::{Credentials, Principal, WireError};
use batch_io::IoKind;
use batch_io::store::{KeyRecord, Store};
use sha2::{Digest, Sha256};

/// Returns the hash under which a key is stored: SHA-256, lower-case hexadecimal.
#[must_use]
pub fn hash_key(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

/// Finds out whom a request acts for.
///
/// # Errors
///
/// A 401 for no or a wrong key, a 5xx when the store cannot tell.
pub async fn authorize(
    store: &Store,
    credentials: Credentials<'_>,
    now: UnixMs,
) -> Result<Principal, WireError> {
    let secret = credentials.key()?;
    match store.find_key(&hash_key(secret)).await {
        // A key that is not made yet comes from a clock that was set back: no reason to trust it.
        Ok(Some(key)) if key.created_at <= now.plus_ms(CLOCK_SKEW_MS) => Ok(principal(key)),
        Ok(_) => Err(WireError::wrong_key(secret)),
        Err(fault) => {
            tracing::error!(error = %fault, source = ?fault.source, "cannot look up an API key");
            Err(if fault.kind == IoKind::Busy {
                WireError::overloaded(1)
            } else {
                WireError::server_error()
            })
        }
    }
}

/// How far the clocks of two machines may differ.
const CLOCK_SKEW_MS: i64 = 300_000;

fn principal(key: KeyRecord) -> Principal {
    Principal {
        tenant: key.tenant,
        key: key.id,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use batch_core::id::{KeyId, TenantId};
    use batch_core::settings::Timing;
    use batch_io::embedded::Embedded;

    use super::*;

    const NOW: UnixMs = UnixMs(1_790_000_000_000);

    async fn store(dir: &Path, secret: &str) -> Store {
        let store = Store::new(Embedded::open(dir).unwrap().records, Timing::EMBEDDED);
        let key = KeyRecord {
            id: KeyId::new(NOW, [7; 16]),
            tenant: TenantId::default_tenant(),
            created_at: NOW,
            name: "test".to_owned(),
        };
        store.put_key(&hash_key(secret), &key).await.unwrap();
        store
    }

    async fn check(
        authorization: Option<&str>,
        api_key: Option<&str>,
    ) -> Result<String, (u16, Option<&'static str>)> {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), "sk-right").await;
        let principal = authorize(
            &store,
            Credentials {
                authorization,
                api_key,
            },
            NOW,
        )
        .await;
        principal
            .map(|principal| principal.tenant.to_string())
            .map_err(|error| (error.status, error.code))
    }

    #[tokio::test]
    async fn a_known_key_gives_its_tenant() {
        assert_eq!(
            check(Some("Bearer sk-right"), None).await,
            Ok("default".to_owned())
        );
        assert_eq!(
            check(Some("bearer sk-right"), None).await,
            Ok("default".to_owned())
        );
        assert_eq!(
            check(None, Some("sk-right")).await,
            Ok("default".to_owned())
        );
    }

    #[tokio::test]
    async fn other_keys_are_refused() {
        let refused = Err((401, Some("invalid_api_key")));
        for (authorization, api_key) in [
            (None, None),
            (Some("Bearer sk-wrong"), None),
            (Some("Bearer sk-RIGHT"), None),
            (Some("sk-right"), None),
            (Some("Bearer sk-wrong"), Some("sk-right")),
            (None, Some("")),
        ] {
            assert_eq!(
                check(authorization, api_key).await,
                refused,
                "{authorization:?} {api_key:?}"
            );
        }
    }

    #[test]
    fn a_hash_is_sha_256_in_hexadecimal() {
        assert_eq!(
            hash_key("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}

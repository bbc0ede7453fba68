//! Finds out whom an API key stands for.

use batch_core::time::UnixMs;
use batch_core::wire::{Credentials, Principal, WireError, hash_key};

use crate::IoKind;
use crate::store::{KeyRecord, Store};

/// How far the clocks of two machines may differ.
const CLOCK_SKEW_MS: i64 = 300_000;

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

    use super::*;
    use crate::embedded::Embedded;

    const NOW: UnixMs = UnixMs(1_790_000_000_000);

    async fn store(dir: &Path, made_at: UnixMs) -> Store {
        let store = Store::new(Embedded::open(dir).unwrap().records, Timing::EMBEDDED);
        let key = KeyRecord {
            id: KeyId::new(NOW, [7; 16]),
            tenant: TenantId::default_tenant(),
            created_at: made_at,
            name: "test".to_owned(),
        };
        store.put_key(&hash_key("sk-right"), &key).await.unwrap();
        store
    }

    async fn check(
        made_at: UnixMs,
        authorization: Option<&str>,
        api_key: Option<&str>,
    ) -> Result<String, (u16, Option<&'static str>)> {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), made_at).await;
        let credentials = Credentials {
            authorization,
            api_key,
        };
        authorize(&store, credentials, NOW)
            .await
            .map(|principal| principal.tenant.to_string())
            .map_err(|error| (error.status, error.code))
    }

    #[tokio::test]
    async fn a_known_key_gives_its_tenant() {
        for (authorization, api_key) in [
            (Some("Bearer sk-right"), None),
            (Some("bearer sk-right"), None),
            (None, Some("sk-right")),
        ] {
            let tenant = check(NOW, authorization, api_key).await;
            assert_eq!(tenant.as_deref(), Ok("default"), "{authorization:?}");
        }
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
                check(NOW, authorization, api_key).await,
                refused,
                "{authorization:?} {api_key:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_key_of_the_future_is_refused_beyond_what_clocks_differ() {
        let soon = NOW.plus_ms(CLOCK_SKEW_MS);
        let right = Some("Bearer sk-right");
        assert!(check(soon, right, None).await.is_ok());
        assert!(check(soon.plus_ms(1), right, None).await.is_err());
    }
}

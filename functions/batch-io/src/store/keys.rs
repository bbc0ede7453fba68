//! API keys, found by the hash of their secret. The secret itself is never stored.

use batch_core::id::{KeyId, TenantId};
use batch_core::time::UnixMs;
use serde::{Deserialize, Serialize};

use super::actions::{delete, put};
use super::fields::{Attrs, Fields};
use super::{Store, paths};
use crate::IoError;

const KEY: &str = "key";

/// An API key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Name.
    pub id: KeyId,
    /// Whose it is.
    pub tenant: TenantId,
    /// When it was made.
    pub created_at: UnixMs,
    /// For people.
    pub name: String,
}

impl Store {
    /// Stores a key under the SHA-256 of its secret, hexadecimal.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn put_key(&self, hash_hex: &str, key: &KeyRecord) -> Result<(), IoError> {
        let item = Attrs::of_record().json(KEY, key).into_item();
        self.transact(vec![put(paths::api_key(hash_hex), item)])
            .await?;
        Ok(())
    }

    /// Finds a key by the SHA-256 of its secret, hexadecimal.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn find_key(&self, hash_hex: &str) -> Result<Option<KeyRecord>, IoError> {
        let key = paths::api_key(hash_hex);
        self.records
            .get(&key)
            .await?
            .map(|item| Fields::of(&key, &item)?.json(KEY))
            .transpose()
    }

    /// Lists all keys with their hashes.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn list_keys(&self) -> Result<Vec<(String, KeyRecord)>, IoError> {
        let items = self.query_all(paths::KEYS, "").await?;
        items
            .iter()
            .map(|(key, item)| Ok((key.sort.clone(), Fields::of(key, item)?.json(KEY)?)))
            .collect()
    }

    /// Removes a key. No error if it is gone.
    ///
    /// # Errors
    ///
    /// [`IoError`].
    pub async fn remove_key(&self, hash_hex: &str) -> Result<(), IoError> {
        self.transact(vec![delete(paths::api_key(hash_hex))])
            .await?;
        Ok(())
    }
}

//! The one API key of the default project.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use batch_core::id::{KeyId, TenantId};
use batch_core::wire::hash_key;
use batch_io::Platform;
use batch_io::store::{KeyRecord, Store};

use crate::failure::usage;

/// What our keys start with, so that a leaked one can be found.
const PREFIX: &str = "nsk_";

/// Takes the key from `NIGHTSHIFT_API_KEY`, or from the data directory where it was made once, and makes it
/// valid. Keys of earlier starts end.
pub(super) async fn install(
    store: &Store,
    platform: &Platform,
    data: &Path,
) -> anyhow::Result<String> {
    let key = match std::env::var("NIGHTSHIFT_API_KEY") {
        Ok(key) if key.trim().is_empty() => {
            return Err(usage(
                "NIGHTSHIFT_API_KEY is empty; set it to a key, or unset it",
            ));
        }
        Ok(key) => key.trim().to_owned(),
        Err(_) => kept_key(platform, data)?,
    };
    let hash = hash_key(&key);
    for (known, _) in store.list_keys().await.context("read the keys")? {
        if known != hash {
            store
                .remove_key(&known)
                .await
                .context("remove an earlier key")?;
        }
    }
    if store
        .find_key(&hash)
        .await
        .context("read the keys")?
        .is_none()
    {
        let now = (platform.clock)();
        let record = KeyRecord {
            id: KeyId::new(now, (platform.random)()),
            tenant: TenantId::default_tenant(),
            name: "default".to_owned(),
            created_at: now,
        };
        store
            .put_key(&hash, &record)
            .await
            .context("store the key")?;
    }
    Ok(key)
}

fn kept_key(platform: &Platform, data: &Path) -> anyhow::Result<String> {
    let path = data.join("api-key");
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(anyhow::Error::new(error).context(format!("read {}", path.display())));
        }
    }
    let key = format!(
        "{PREFIX}{}{}",
        hex::encode((platform.random)()),
        hex::encode((platform.random)())
    );
    let write = || {
        let scratch = data.join("api-key.new");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&scratch)?;
        writeln!(file, "{key}")?;
        file.sync_all()?;
        std::fs::rename(&scratch, &path)
    };
    write().with_context(|| format!("write {}", path.display()))?;
    Ok(key)
}

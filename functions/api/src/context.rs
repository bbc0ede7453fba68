//! What every handler needs.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use batch_core::blob_key::BlobKey;
use batch_core::catalog::Catalog;
use batch_core::external::ImportLocations;
use batch_core::id::{Entropy, FileId, TenantId};
use batch_core::settings::Settings;
use batch_core::time::UnixMs;
use batch_core::wire::{Credentials, Principal, WireError};
use batch_io::Platform;
use batch_io::keys::authorize;
use batch_io::store::Store;

/// Finds out whom a request acts for.
#[async_trait]
pub trait Authorize: Send + Sync + 'static {
    /// Judges the key that came with a request.
    ///
    /// # Errors
    ///
    /// The answer to send instead: a 401 for no or a wrong key.
    async fn authorize(
        &self,
        credentials: Credentials<'_>,
        now: UnixMs,
    ) -> Result<Principal, WireError>;
}

/// Callers are found by the keys that the store has.
#[async_trait]
impl Authorize for Store {
    async fn authorize(
        &self,
        credentials: Credentials<'_>,
        now: UnixMs,
    ) -> Result<Principal, WireError> {
        authorize(self, credentials, now).await
    }
}

/// What every handler needs.
#[derive(Clone)]
pub struct Context {
    /// Ports, clock and randomness.
    pub platform: Platform,
    /// Typed access to the platform's records.
    pub store: Store,
    /// The models on offer.
    pub catalog: Arc<Catalog>,
    /// Limits.
    pub settings: Settings,
    /// Where `input_s3_uri` may point to; nowhere, if empty.
    pub imports: ImportLocations,
    /// Who is who.
    pub auth: Arc<dyn Authorize>,
}

impl Context {
    pub(crate) fn now(&self) -> UnixMs {
        (self.platform.clock)()
    }

    pub(crate) fn entropy(&self) -> Entropy {
        (self.platform.random)()
    }

    /// Names a new file and its blob.
    pub(crate) fn new_file(&self, tenant: &TenantId, now: UnixMs) -> (FileId, BlobKey) {
        let file = FileId::new(now, self.entropy());
        (
            file,
            BlobKey::File {
                tenant: tenant.clone(),
                file,
            },
        )
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

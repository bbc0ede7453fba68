//! One service a data directory: two would each restart the other's workers.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};

use crate::failure::usage;

/// Takes the lock, which lasts as long as the file is open.
pub(super) fn take(data: &Path) -> anyhow::Result<File> {
    let path = data.join("up.lock");
    let file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(usage(format!(
            "the data directory {} is in use by another 'nightshift up'; stop it, or choose another folder with --data",
            data.display()
        ))),
        Err(error) => Err(anyhow::Error::new(error).context(format!("lock {}", path.display()))),
    }
}

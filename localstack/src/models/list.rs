//! `nightshift models`.

use batch_core::catalog::{Catalog, Engine, Model, Source};
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
        let on_disk = match (&model.engine, shelf.find(model)) {
            (_, Some(path)) => format!("{:.0} MB", size_bytes(&path) as f64 / 1e6),
            (Engine::Native(_), None) => "no".to_owned(),
            (Engine::Http(_), None) => "-".to_owned(),
        };
        let context = model
            .context_tokens
            .map_or_else(|| "-".to_owned(), |tokens| tokens.to_string());
        text.push_str(&format!(
            "\n{:width$}  {context:>8}  {on_disk:>10}  {}",
            model.id,
            place(&model.engine)
        ));
        for alias in &model.aliases {
            text.push_str(&format!("\n{:width$}  also {alias}", ""));
        }
    }
    let is_absent = |model: &Model| match model.engine {
        Engine::Native(_) => shelf.find(model).is_none(),
        Engine::Http(_) => false,
    };
    if catalog.models().iter().any(is_absent) {
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
        "source": place(&model.engine),
        "path": path,
        "bytes": path.as_deref().map(size_bytes),
    })
}

fn place(engine: &Engine) -> String {
    match engine {
        Engine::Native(source) => self::source(source),
        Engine::Http(server) => format!("server {}", server.base()),
    }
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

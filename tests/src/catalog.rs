//! Configuration files with models that every machine has: the default model, and a tiny one from the tree.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Dollars a million prompt tokens of every model here.
pub const INPUT_PER_MILLION: f64 = 2.0;

/// Dollars a million generated tokens of every model here.
pub const OUTPUT_PER_MILLION: f64 = 6.0;

/// The default model's name.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// Returns the folder of a random Llama with one layer, 64 tokens of context and a real tokenizer: it answers
/// in well under a millisecond.
#[must_use]
pub fn tiny_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu-worker/inference/tests/data/tiny")
}

/// Renders a catalog entry for the model at `path`.
#[must_use]
pub fn entry(id: &str, path: &Path) -> String {
    entry_with(id, path, "")
}

/// Renders a catalog entry with more fields, one `name = value` a line.
#[must_use]
pub fn entry_with(id: &str, path: &Path, fields: &str) -> String {
    let path = Value::from(path.display().to_string());
    format!(
        "[[model]]\nid = {id:?}\nendpoints = [\"/v1/chat/completions\", \"/v1/completions\"]\nsource.path = {path}\n\
         price = {{ input_per_million = {INPUT_PER_MILLION:.1}, output_per_million = {OUTPUT_PER_MILLION:.1} }}\n\
         {fields}\n\n"
    )
}

/// Renders a catalog entry for a model that the server at `url` has, with more fields.
#[must_use]
pub fn served(id: &str, url: &str, fields: &str) -> String {
    format!(
        "[[model]]\nid = {id:?}\nengine = \"http\"\nendpoints = [\"/v1/chat/completions\", \"/v1/embeddings\"]\nserver.url = {url:?}\n\
         price = {{ input_per_million = {INPUT_PER_MILLION:.1}, output_per_million = {OUTPUT_PER_MILLION:.1} }}\n\
         {fields}\n\n"
    )
}

/// Renders a short request for any model.
#[must_use]
pub fn line(custom_id: &str, model: &str, max_tokens: u32) -> String {
    let body = json!({
        "model": model,
        "messages": [{"role": "user", "content": format!("Say {custom_id}.")}],
        "max_tokens": max_tokens,
        "temperature": 0,
    });
    json!({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})
        .to_string()
}

/// Returns the custom ids `line-0`, `line-1` and so on.
#[must_use]
pub fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("line-{n}")).collect()
}

/// Makes a file of one short request for each of [`ids`].
#[must_use]
pub fn requests(model: &str, count: usize, max_tokens: u32) -> Vec<u8> {
    let lines: Vec<String> = ids(count)
        .iter()
        .map(|id| line(id, model, max_tokens))
        .collect();
    file(&lines)
}

/// Joins request lines to a file.
#[must_use]
pub fn file(lines: &[String]) -> Vec<u8> {
    let mut text = lines.join("\n");
    text.push('\n');
    text.into_bytes()
}

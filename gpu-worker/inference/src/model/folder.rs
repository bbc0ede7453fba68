//! Opens a model folder as Hugging Face lays it out.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::config_json::{ConfigJson, GenerationJson, parse};
use super::digest::Digest;
use super::gguf::Fault;
use super::safetensors::Shards;
use super::weights::{LlamaWeights, Naming};
use super::{ModelError, OpenedModel};
use crate::text::{ChatTemplate, Tokenizer, TokenizerError};

/// The largest JSON or template file that is read; the largest tokenizers have 40 MB.
const TEXT_FILE_BYTES_MAX: u64 = 256 << 20;

/// Opens a folder: `config.json`, safetensors, and what there is of tokenizer and chat template.
pub(super) fn open(folder: &Path) -> Result<OpenedModel, ModelError> {
    let config_bytes = read(folder, "config.json", require)?.unwrap_or_default();
    let config: ConfigJson = at(folder, "config.json", parse(&config_bytes))?;
    let generation = match read(folder, "generation_config.json", allow_absent)? {
        Some(bytes) => at(folder, "generation_config.json", parse(&bytes))?,
        None => GenerationJson::default(),
    };
    let tokenizer = match read(folder, "tokenizer.json", allow_absent)? {
        Some(bytes) => Some(at(
            folder,
            "tokenizer.json",
            Tokenizer::from_json(&bytes).map_err(fault_of),
        )?),
        None => None,
    };
    let model = at(
        folder,
        "config.json",
        config.to_model(tokenizer.as_ref().map(Tokenizer::vocab_size)),
    )?;
    let chat_template = open_template(folder)?;
    let mut digest = Digest::new("safetensors");
    digest.bytes(&config_bytes);
    let shards = Shards::open(folder, &mut digest)?;
    let mut weights = LlamaWeights {
        naming: Naming::HuggingFace,
        files: shards.files,
        tensors: shards.tensors,
        config: model,
    };
    // Some checkpoints leave the flag out and the tensor too.
    if !weights.tensors.contains_key("lm_head.weight") {
        weights.config.tied_embeddings = true;
    }
    weights.check()?;
    let bos = at(folder, "config.json", config.bos_token(&generation))?;
    Ok(OpenedModel {
        config: weights.config.clone(),
        bos_token: bos.filter(|&bos| {
            tokenizer
                .as_ref()
                .is_some_and(|tokenizer| tokenizer.begins_with(bos))
        }),
        tokenizer: tokenizer.map(Arc::new),
        chat_template: chat_template.map(Arc::new),
        stop_tokens: at(folder, "config.json", config.stop_tokens(&generation))?.into(),
        weights_digest: digest.finish(),
        weights,
    })
}

fn fault_of(error: TokenizerError) -> Fault {
    match error {
        TokenizerError::Unsupported(what) => Fault::Unsupported(what),
        TokenizerError::Corrupt(what) => Fault::Corrupt(what),
    }
}

fn at<T>(folder: &Path, file: &str, result: Result<T, Fault>) -> Result<T, ModelError> {
    result.map_err(|fault| fault.in_file(&folder.join(file).display().to_string()))
}

/// What to do about a file that is not there.
type Absent = fn(std::io::Error) -> Result<(), std::io::Error>;

fn require(error: std::io::Error) -> Result<(), std::io::Error> {
    Err(error)
}

fn allow_absent(error: std::io::Error) -> Result<(), std::io::Error> {
    if error.kind() == ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}

fn read(folder: &Path, file: &str, absent: Absent) -> Result<Option<Vec<u8>>, ModelError> {
    let path = folder.join(file);
    let io = |source| ModelError::Io {
        path: path.display().to_string(),
        source,
    };
    match fs::metadata(&path) {
        Ok(metadata) if metadata.len() > TEXT_FILE_BYTES_MAX => {
            let what = format!(
                "{} bytes, with a limit of {TEXT_FILE_BYTES_MAX}",
                metadata.len()
            );
            return at(folder, file, Err(Fault::corrupt(what)));
        }
        Ok(_) => {}
        Err(error) => return absent(error).map(|()| None).map_err(io),
    }
    fs::read(&path).map(Some).map_err(io)
}

/// Finds the chat template: the file of its own wins over the tokenizer's configuration.
fn open_template(folder: &Path) -> Result<Option<ChatTemplate>, ModelError> {
    let file = "tokenizer_config.json";
    let config: Value = match read(folder, file, allow_absent)? {
        Some(bytes) => at(folder, file, parse(&bytes))?,
        None => Value::Null,
    };
    let (source, file) = match read(folder, "chat_template.jinja", allow_absent)? {
        Some(bytes) => {
            let text = String::from_utf8(bytes).map_err(|_| Fault::corrupt("it is not UTF-8"));
            (
                Some(at(folder, "chat_template.jinja", text)?),
                "chat_template.jinja",
            )
        }
        None => (template_of(&config), file),
    };
    let Some(source) = source else {
        return Ok(None);
    };
    let template = ChatTemplate::new(
        &source,
        &token_text(&config, "bos_token"),
        &token_text(&config, "eos_token"),
    )
    .map_err(|error| Fault::unsupported(format!("the chat template ({error})")));
    at(folder, file, template).map(Some)
}

/// Returns the one template, or of several that named `default`.
fn template_of(config: &Value) -> Option<String> {
    let template = match config.get("chat_template")? {
        Value::Array(named) => named
            .iter()
            .find(|entry| entry.get("name") == Some(&"default".into()))?
            .get("template")?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            config.get("chat_template")?
        }
    };
    template.as_str().map(str::to_owned)
}

/// Returns the text of a token that is given as a string or as an object with `content`.
fn token_text(config: &Value, name: &str) -> String {
    let token = config.get(name);
    let content = token.and_then(|token| token.get("content")).or(token);
    content
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

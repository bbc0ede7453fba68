//! Loads a model: files, text side, and an engine on this machine's device.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use batch_core::time::UnixMs;
use inference::backend::cpu::{
    CpuBackend, CpuConfig, Isa, PackedCache, PackedStatus, available_threads,
};
use inference::backend::{BackendError, KvType, Recipe};
use inference::engine::{BatchEngine, Engine, EngineConfig, Salience};
use inference::model::{ModelConfig, ModelError, OpenedModel};
use inference::text::{ChatTemplate, Specials, Tokenizer};
use serde_json::{Map, Value};

use crate::openai::{LineError, PromptText, capitalised};
use crate::precision::{Measurements, Precision};

/// Sequences that run at once, unless set: products of fewer rows wait for weights, not for the cores.
const SEQUENCES_DEFAULT: usize = 128;

/// Rows of a step, unless set: 128 decodes leave three times as many rows for prompts, and each step reads all
/// weights once.
const STEP_TOKENS_DEFAULT: usize = 512;

/// Bytes of the KV cache, unless set or memory is short: with a model of 135M parameters, 17,000 tokens, or
/// 128 sequences of 136.
const KV_BYTES_DEFAULT: u64 = 400_000_000;

/// Share of the memory that the KV cache may take unless set: a quarter.
const KV_MEMORY_DIVISOR: u64 = 4;

/// How an engine is set up. None is the default for the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// Threads.
    pub threads: Option<usize>,
    /// Sequences that run at once.
    pub sequences: Option<usize>,
    /// Rows of a step.
    pub step_tokens: Option<usize>,
    /// Tokens that the KV cache holds.
    pub kv_tokens: Option<usize>,
    /// How products are computed.
    pub precision: Precision,
    /// The most tokens of prompt and output; the model's own limit by default.
    pub context_tokens: Option<usize>,
    /// Folder in which packed weights and measurements are kept; none keeps nothing.
    pub cache: Option<PathBuf>,
}

impl EngineOptions {
    /// Returns the file of measurements that were made on this machine.
    #[must_use]
    pub fn measurements(&self) -> Option<PathBuf> {
        self.cache
            .as_ref()
            .map(|folder| folder.join("measurements.json"))
    }
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its files.
    #[error("open the model")]
    Open(#[from] ModelError),
    /// The device.
    #[error("load the model onto the device")]
    Device(#[from] BackendError),
    /// It cannot serve text.
    #[error("the model at {0} has no tokenizer: fetch its tokenizer.json, too")]
    NoTokenizer(String),
}

/// A model on the device.
pub struct LoadedModel {
    /// Its id in the catalog.
    pub id: String,
    /// Its text side.
    pub text: Arc<ModelText>,
    /// Its engine.
    pub engine: Box<dyn Engine>,
    /// Sequences that the engine runs at once.
    pub sequences: usize,
}

impl std::fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedModel")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A model's tokenizer, chat template and stop tokens.
#[derive(Debug)]
pub struct ModelText {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    stop_tokens: Arc<[u32]>,
    bos_token: Option<u32>,
}

impl ModelText {
    /// Returns the tokens that end a text.
    #[must_use]
    pub fn stop_tokens(&self) -> Arc<[u32]> {
        Arc::clone(&self.stop_tokens)
    }
}

impl PromptText for ModelText {
    fn chat(&self, messages: &Value, now: UnixMs) -> Result<Vec<u32>, LineError> {
        let Some(template) = &self.template else {
            return Err(LineError::unsupported(
                "messages",
                "this model has no chat template; use /v1/completions",
            ));
        };
        template
            .encode(&self.tokenizer, messages, None, &answer_next(), now.secs())
            .map_err(|error| {
                LineError::invalid(
                    "messages",
                    "invalid_messages",
                    capitalised(&error.to_string()),
                )
            })
    }

    fn plain(&self, text: &str) -> Vec<u32> {
        let mut ids: Vec<u32> = self.bos_token.into_iter().collect();
        ids.extend(self.tokenizer.encode(text, Specials::Plain));
        ids
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        match self.tokenizer.special_text(token) {
            Some(text) => text.as_bytes().to_vec(),
            None => self.tokenizer.token_bytes(token).to_vec(),
        }
    }
}

/// Tells the template to open the assistant's turn: the model answers, and does not go on with the user's text.
fn answer_next() -> Map<String, Value> {
    Map::from_iter([("add_generation_prompt".to_owned(), Value::Bool(true))])
}

/// Loads models for the service.
pub trait Loader: std::fmt::Debug + Send + Sync {
    /// Opens the model at `path` and loads it onto a device.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    fn load(
        &self,
        id: &str,
        path: &Path,
        options: &EngineOptions,
    ) -> Result<LoadedModel, LoadError>;
}

/// Loads models onto this machine's CPU, as [`load`] does.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuLoader;

impl Loader for CpuLoader {
    fn load(
        &self,
        id: &str,
        path: &Path,
        options: &EngineOptions,
    ) -> Result<LoadedModel, LoadError> {
        load(id, path, options)
    }
}

/// Opens the model at `path` and loads it onto the CPU.
///
/// # Errors
///
/// [`LoadError`].
pub fn load(id: &str, path: &Path, options: &EngineOptions) -> Result<LoadedModel, LoadError> {
    let opened = inference::model::open(path)?;
    let Some(tokenizer) = opened.tokenizer.clone() else {
        return Err(LoadError::NoTokenizer(path.display().to_string()));
    };
    let text = Arc::new(ModelText {
        tokenizer: Arc::clone(&tokenizer),
        template: opened.chat_template.clone(),
        stop_tokens: Arc::clone(&opened.stop_tokens),
        bos_token: opened.bos_token,
    });
    let sequences = options.sequences.unwrap_or(SEQUENCES_DEFAULT);
    let engine = load_engine(&opened, tokenizer, sequences, options)?;
    Ok(LoadedModel {
        id: id.to_owned(),
        text,
        engine,
        sequences,
    })
}

fn load_engine(
    opened: &OpenedModel,
    tokenizer: Arc<Tokenizer>,
    sequences: usize,
    options: &EngineOptions,
) -> Result<Box<dyn Engine>, LoadError> {
    let digest = &opened.weights_digest;
    let recipe = options.precision.recipe(digest, &measurements(options));
    let kv_type = recipe.kv_type();
    let step_tokens = options
        .step_tokens
        .unwrap_or(STEP_TOKENS_DEFAULT)
        .max(sequences);
    let model_context = opened.config.context_tokens;
    let wanted_context = options
        .context_tokens
        .map_or(model_context, |tokens| tokens.min(model_context));
    let kv_tokens = options
        .kv_tokens
        .unwrap_or_else(|| kv_tokens_default(&opened.config, wanted_context, kv_type));
    // A line without a maximum asks for the whole context: it must fit the cache.
    let context_tokens = wanted_context.min(kv_tokens);
    if context_tokens < wanted_context {
        tracing::warn!(
            context_tokens,
            wanted_context,
            "the KV cache is smaller than the context, which is cut; raise kv_tokens under [engine] if memory allows"
        );
    }
    let threads = options.threads.unwrap_or_else(available_threads);
    let backend = CpuBackend::new(CpuConfig {
        threads,
        max_rows: step_tokens,
        recipe,
        isa: None,
        packed: options
            .cache
            .as_deref()
            .map(|folder| packed(folder, digest, recipe)),
    })?;
    let salience = match (recipe, backend.packed_status()) {
        // They were packed by it.
        (_, PackedStatus::Mapped) | (Recipe::F32 | Recipe::Bf16, _) => Salience::default(),
        (Recipe::Int8, _) => Salience::measure(&opened.config, opened, threads)?,
    };
    let config = EngineConfig {
        max_step_tokens: step_tokens,
        max_sequences: sequences,
        kv_tokens,
        context_tokens,
        prefix_cache: true,
        duplicates: true,
        recipe,
        kv_type,
        salience,
        weights_id: digest.clone(),
    };
    let engine = BatchEngine::load(backend, &opened.config, opened, tokenizer, &config)?;
    let status = engine.backend().packed_status();
    tracing::debug!(?status, "packed weights");
    if let PackedStatus::Failed(error) = status {
        tracing::warn!(%error, "packed weights are not kept: the next start packs them again");
    }
    Ok(Box::new(engine))
}

/// Measurements that cannot be read cost speed, not the start.
fn measurements(options: &EngineOptions) -> Measurements {
    let file = options.measurements();
    Measurements::read(file.as_deref()).unwrap_or_else(|error| {
        tracing::warn!(%error, file = ?file, "this machine's measurements of models are not used");
        Measurements::read(None).unwrap_or_default()
    })
}

/// Weights are told apart by their digest, which names the file and is its key. Which features int8 keeps in bf16
/// is measured, and instruction sets may measure it differently: each has its own file.
fn packed(folder: &Path, digest: &str, recipe: Recipe) -> PackedCache {
    let key = format!("{digest}-{}-{}", recipe.name(), Isa::detect().name());
    PackedCache {
        path: folder.join("packed").join(&key),
        key,
    }
}

/// Enough for the usual file, at least one full context where memory allows, never over a quarter of it.
fn kv_tokens_default(config: &ModelConfig, context_tokens: usize, kv_type: KvType) -> usize {
    let value_bytes = match kv_type {
        KvType::F32 => 4,
        KvType::Bf16 => 2,
        KvType::Fp8 => 1,
    };
    let token_bytes =
        (config.layers * config.kv_heads * config.head_dim * 2 * value_bytes).max(1) as u64;
    let affordable =
        memory_bytes().map_or(u64::MAX, |bytes| bytes / KV_MEMORY_DIVISOR) / token_bytes;
    let wanted = (KV_BYTES_DEFAULT / token_bytes).max(context_tokens as u64);
    wanted.min(affordable).max(1) as usize
}

/// Returns the memory that this process may use: the control group's limit, or the machine's.
fn memory_bytes() -> Option<u64> {
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let total = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
            line.split_whitespace()
                .nth(1)?
                .parse::<u64>()
                .ok()
                .map(|kib| kib * 1024)
        });
    [limit, total].into_iter().flatten().min()
}

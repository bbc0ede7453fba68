//! One small model in both formats, whole and broken. `data/make.py` writes it.
//!
//! Broken files are an error or a sound model: no panic, and no allocation beyond the file's size and a constant.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(unsafe_code, reason = "an allocator that counts is unsafe to write")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};

use inference::backend::Format;
use inference::model::{self, ModelError, OpenedModel, WeightName, Weights};
use inference::text::Specials;
use serde_json::{Map, json};

/// What a broken file may allocate beyond its own size.
const ALLOWANCE_BYTES: usize = 16 << 20;

thread_local! {
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Counts the bytes that each thread allocates.
struct Counting;

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE_BYTES.get().saturating_add(layout.size());
        LIVE_BYTES.set(live);
        PEAK_BYTES.set(PEAK_BYTES.get().max(live));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get().saturating_sub(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn weights() -> [WeightName; 8] {
    [
        WeightName::Embedding,
        WeightName::FinalNorm,
        WeightName::AttentionNorm(0),
        WeightName::Qkv(0),
        WeightName::AttentionOutput(0),
        WeightName::MlpNorm(0),
        WeightName::GateUp(0),
        WeightName::Down(0),
    ]
}

fn read(model: &OpenedModel, name: WeightName) -> Vec<f32> {
    let source = model.source(name).unwrap();
    let mut values = vec![f32::NAN; source.rows() * source.cols()];
    source.read_rows(0, &mut values).unwrap();
    values
}

/// Opens what may be broken, uses it if it opens, and checks what that allocated.
fn use_if_it_opens(path: &Path, file_len: usize) {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    if let Ok(model) = model::open(path) {
        for name in weights() {
            read(&model, name);
        }
        if let Some(tokenizer) = &model.tokenizer {
            let ids = tokenizer.encode("the <|im_end|> in", Specials::Parse);
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            let _ = tokenizer.decode(&ids);
        }
    }
    let peak = PEAK_BYTES.get() - before;
    assert!(
        peak <= file_len + ALLOWANCE_BYTES,
        "{path:?} of {file_len} bytes allocates {peak}"
    );
}

/// Writes the folder's files to a new one, with other weights.
fn folder_with(weights: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(data("tiny").join(file), folder.path().join(file)).unwrap();
    }
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    folder
}

#[test]
fn both_formats_give_the_same_model() {
    let (gguf, folder) = (
        model::open(&data("tiny.gguf")).unwrap(),
        model::open(&data("tiny")).unwrap(),
    );
    assert_eq!(gguf.config, folder.config);
    assert_eq!(
        (gguf.stop_tokens.as_ref(), folder.stop_tokens.as_ref()),
        (&[0, 2][..], &[0, 2][..])
    );
    for name in weights() {
        assert_eq!(read(&gguf, name), read(&folder, name), "{name:?}");
    }
    let messages = json!([{ "role": "user", "content": "the <|im_end|> in <tool>" }]);
    let prompt = |model: &OpenedModel| {
        let (tokenizer, template) = (
            model.tokenizer.as_ref().unwrap(),
            model.chat_template.as_ref().unwrap(),
        );
        template
            .encode(tokenizer, &messages, None, &Map::new(), 0)
            .unwrap()
    };
    assert_eq!(prompt(&gguf), prompt(&folder));
}

#[test]
fn whole_matrices_are_given_as_the_file_holds_them() {
    let folder = model::open(&data("tiny")).unwrap();
    let down = folder.source(WeightName::Down(0)).unwrap();
    assert!(
        matches!(down.raw(), Some((Format::F16, bytes)) if bytes.len() == down.rows() * down.cols() * 2)
    );
    assert!(
        folder.source(WeightName::Qkv(0)).unwrap().raw().is_none(),
        "three matrices are not one"
    );
    assert!(
        folder.source(WeightName::Output).is_err(),
        "the embeddings are tied"
    );
    assert!(
        folder.source(WeightName::Down(1)).is_err(),
        "there is one layer"
    );
}

#[test]
fn models_without_a_tokenizer_open() {
    for name in ["llama", "llama31"] {
        let model = model::open(&data("fixtures").join(name)).unwrap();
        assert!(model.tokenizer.is_none() && model.chat_template.is_none());
        assert_eq!(
            (
                model.config.layers,
                model.config.hidden_size,
                model.config.tokenizer_vocab_size
            ),
            (2, 64, 128)
        );
        assert_eq!(model.config.tied_embeddings, name == "llama31");
        assert_eq!(model.stop_tokens.as_ref(), [2]);
    }
}

#[test]
fn the_digest_changes_with_the_weights_and_only_then() {
    let digest = |path: &Path| model::open(path).unwrap().weights_digest;
    let bytes = std::fs::read(data("tiny/model.safetensors")).unwrap();
    let (same, mut other) = (folder_with(&bytes), bytes);
    *other.last_mut().unwrap() ^= 1;
    let other = folder_with(&other);
    assert_eq!(digest(same.path()), digest(&data("tiny")));
    assert_ne!(digest(other.path()), digest(&data("tiny")));
    assert_ne!(digest(&data("tiny")), digest(&data("fixtures/llama")));
}

#[test]
fn what_is_missing_or_of_another_shape_is_named() {
    let fault = |from: &str, to: &str| {
        let bytes = std::fs::read(data("tiny.gguf")).unwrap();
        let at = bytes
            .windows(from.len())
            .rposition(|window| window == from.as_bytes())
            .unwrap();
        let mut bytes = bytes;
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        model::open(file.path()).unwrap_err().to_string()
    };
    let missing = fault("blk.0.ffn_down.weight", "blk.0.ffn_dawn.weight");
    assert!(
        missing.ends_with("is corrupt: tensor blk.0.ffn_down.weight is missing"),
        "{missing}"
    );
    let shape = fault(
        "blk.0.attn_k.weight\x02\0\0\0\x20",
        "blk.0.attn_k.weight\x02\0\0\0\x40",
    );
    assert!(shape.contains("tensor"), "{shape}");
    assert!(matches!(
        model::open(Path::new("no such file")),
        Err(ModelError::Io { .. })
    ));
}

#[test]
fn truncated_gguf_files_never_open() {
    let bytes = std::fs::read(data("tiny.gguf")).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let handle = std::fs::OpenOptions::new()
        .write(true)
        .open(file.path())
        .unwrap();
    for len in (0..bytes.len()).rev() {
        handle.set_len(len as u64).unwrap();
        PEAK_BYTES.set(LIVE_BYTES.get());
        let before = LIVE_BYTES.get();
        assert!(
            model::open(file.path()).is_err(),
            "{len} of {} bytes open",
            bytes.len()
        );
        assert!(PEAK_BYTES.get() - before <= len + ALLOWANCE_BYTES);
    }
}

#[test]
fn truncated_safetensors_files_never_open() {
    let bytes = std::fs::read(data("tiny/model.safetensors")).unwrap();
    let folder = folder_with(&bytes);
    let handle = std::fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("model.safetensors"))
        .unwrap();
    // Without these, which would be read again each time.
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    std::fs::remove_file(folder.path().join("tokenizer_config.json")).unwrap();
    for len in (0..bytes.len()).rev() {
        handle.set_len(len as u64).unwrap();
        assert!(
            model::open(folder.path()).is_err(),
            "{len} of {} bytes open",
            bytes.len()
        );
    }
}

#[test]
fn flipped_bits_are_an_error_or_a_sound_model() {
    let bytes = std::fs::read(data("tiny.gguf")).unwrap();
    let header_len = 3500.min(bytes.len());
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut broken = bytes.clone();
    for at in 0..header_len {
        broken[at] ^= 1 << (at % 8);
        std::fs::write(file.path(), &broken).unwrap();
        use_if_it_opens(file.path(), broken.len());
        broken[at] = bytes[at];
    }
}

#[test]
fn lengths_of_all_ones_are_an_error_or_a_sound_model() {
    let bytes = std::fs::read(data("tiny.gguf")).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    for at in 0..3500.min(bytes.len() - 8) {
        let mut broken = bytes.clone();
        broken[at..at + 8].fill(if at % 2 == 0 { 0xFF } else { 0x7F });
        std::fs::write(file.path(), &broken).unwrap();
        use_if_it_opens(file.path(), broken.len());
    }
}

#[test]
fn the_corpus_of_broken_files_never_panics() {
    let mut replayed = 0;
    for entry in std::fs::read_dir(data("corrupt")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gguf") => use_if_it_opens(&path, bytes.len()),
            Some("safetensors") => use_if_it_opens(folder_with(&bytes).path(), bytes.len()),
            Some("json") => {
                let folder = folder_with(&std::fs::read(data("tiny/model.safetensors")).unwrap());
                let name = path.file_name().unwrap().to_str().unwrap();
                let target = if name.starts_with("config") {
                    "config.json"
                } else {
                    "tokenizer.json"
                };
                std::fs::write(folder.path().join(target), &bytes).unwrap();
                use_if_it_opens(folder.path(), bytes.len());
            }
            _ => panic!("{path:?} is of no known kind"),
        }
        replayed += 1;
    }
    assert!(replayed >= 8, "the corpus has {replayed} files");
}

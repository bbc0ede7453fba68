//! A real model gives the greedy answers of transformers, in f32 and in the default precision; int8 stays close to f32.
//!
//! `NIGHTSHIFT_TEST_MODEL` names the model file that `tests/golden/README.md` describes. Without it nothing
//! is compared, which is said loudly, and is a failure if `REQUIRE_MODEL=1`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inference::backend::cpu::{CpuBackend, CpuConfig, available_threads};
use inference::backend::{KvType, Recipe, SampleParams};
use inference::engine::quality::{self, Reader};
use inference::engine::{BatchEngine, Engine, EngineConfig, Outcome, Request, RequestId, Salience};
use serde::Deserialize;

/// How many tokens of each answer are compared.
const TOKENS: usize = 16;

/// Where the two best logits are closer than this, either token is right.
const CLEAR_GAP: f32 = 0.1;

#[derive(Debug, Deserialize)]
struct Answer {
    custom_id: String,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    gaps: Vec<f32>,
}

fn golden() -> Vec<Answer> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/answers/transformers-f32.json");
    let json = std::fs::read_to_string(path).expect("read the golden answers");
    let answers: Vec<Answer> = serde_json::from_str(&json).expect("golden answers have the fields");
    assert_eq!(answers.len(), 20);
    answers
}

#[expect(
    clippy::print_stderr,
    reason = "a comparison that does not take place must be seen"
)]
fn model_path() -> Option<PathBuf> {
    let path = std::env::var_os("NIGHTSHIFT_TEST_MODEL").map(PathBuf::from);
    if path.is_none() {
        let required = std::env::var_os("REQUIRE_MODEL").is_some_and(|value| value == "1");
        assert!(
            !required,
            "REQUIRE_MODEL=1, and NIGHTSHIFT_TEST_MODEL names no model"
        );
        eprintln!("SKIPPED: NIGHTSHIFT_TEST_MODEL is not set, no answer is compared");
    }
    path
}

fn generate(path: &Path, answers: &[Answer], recipe: Recipe, kv_type: KvType) -> Vec<Vec<u32>> {
    let model = inference::model::open(path).expect("open the model");
    let text = model.tokenizer.clone().expect("a model with a tokenizer");
    let config = EngineConfig {
        max_step_tokens: 256,
        max_sequences: 20,
        kv_tokens: 4096,
        context_tokens: 512,
        prefix_cache: true,
        duplicates: true,
        recipe,
        kv_type,
        salience: Salience::default(),
        weights_id: model.weights_digest.clone(),
    };
    let backend = CpuBackend::new(CpuConfig {
        threads: available_threads(),
        max_rows: config.max_step_tokens,
        recipe,
        isa: None,
        packed: None,
    })
    .expect("this machine runs the CPU backend");
    let mut engine =
        BatchEngine::load(backend, &model.config, &model, text, &config).expect("load the model");
    for (id, answer) in (0u64..).zip(answers) {
        engine.submit(Request {
            id: RequestId(id),
            prompt: answer.prompt_ids.as_slice().into(),
            salt: 0,
            urgent: false,
            seed: 0,
            choice: 0,
            max_tokens: TOKENS as u32,
            params: SampleParams::GREEDY,
            logit_bias: vec![],
            logprobs: None,
            stop: vec![],
            stop_tokens: Arc::clone(&model.stop_tokens),
            ignore_eos: true,
        });
    }
    while engine.step().expect("run a step") {}
    let mut outcomes = engine.take();
    outcomes.sort_by_key(|(id, _)| *id);
    outcomes
        .into_iter()
        .map(|(_, outcome)| match outcome {
            Outcome::Finished(generation) => generation.tokens,
            Outcome::Failed(failure) => panic!("{failure}"),
        })
        .collect()
}

/// Returns how many tokens agree, or where they part although the golden choice was clear.
fn compare(answer: &Answer, tokens: &[u32]) -> Result<usize, usize> {
    assert_eq!(tokens.len(), TOKENS);
    let parting = tokens
        .iter()
        .zip(&answer.greedy_ids)
        .position(|(ours, golden)| ours != golden);
    match parting {
        Some(at) if answer.gaps[at] > CLEAR_GAP => Err(at),
        Some(at) => Ok(at),
        None => Ok(TOKENS),
    }
}

/// Compares all answers; returns how many hold.
fn check(recipe: Recipe, kv_type: KvType, answers_min: usize) {
    let Some(path) = model_path() else { return };
    let answers = golden();
    let generated = generate(&path, &answers, recipe, kv_type);
    assert_eq!(generated.len(), answers.len());
    let mut compared_tokens = 0;
    let mut faults = Vec::new();
    for (answer, tokens) in answers.iter().zip(&generated) {
        match compare(answer, tokens) {
            Ok(count) => compared_tokens += count,
            Err(at) => faults.push(format!(
                "{} at {at}: gap {}, ours {:?}",
                answer.custom_id, answer.gaps[at], tokens[at]
            )),
        }
    }
    assert!(
        answers.len() - faults.len() >= answers_min,
        "{recipe:?}: {faults:#?}"
    );
    assert!(
        compared_tokens >= 10 * answers_min,
        "only {compared_tokens} tokens were compared"
    );
}

#[test]
fn answers_in_f32_are_those_of_transformers() {
    check(Recipe::F32, KvType::F32, 20);
}

#[test]
fn answers_in_the_default_precision_are_nearly_those_of_transformers() {
    check(Recipe::Bf16, KvType::Bf16, 17);
}

#[test]
fn int8_hardly_changes_what_the_model_expects() {
    let Some(path) = model_path() else {
        return;
    };
    let model = inference::model::open(&path).expect("open the model");
    let text: Vec<u32> = golden()
        .iter()
        .flat_map(|answer| answer.prompt_ids.iter().chain(&answer.greedy_ids))
        .copied()
        .collect();
    let load = |recipe| {
        Reader::load(&model.config, &model, recipe, available_threads()).expect("load the model")
    };
    let qualities = quality::compare(
        &mut load(Recipe::F32),
        &mut [load(Recipe::Int8)],
        &text,
        |_| {},
    )
    .expect("run the model");
    // Without the features that stay in bf16 it is four times as much.
    let divergence = qualities[0].divergence;
    assert!(
        divergence < 0.002,
        "{divergence} nats over {} tokens",
        text.len()
    );
}

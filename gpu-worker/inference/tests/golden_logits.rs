//! Every backend gives the logits and the greedy answers of transformers, on tiny models.

mod fixture;

use std::sync::Arc;

use fixture::Letters;
use inference::backend::cpu::{CpuBackend, CpuConfig};
use inference::backend::cuda::{CudaBackend, CudaConfig, DeviceUnavailable};
use inference::backend::deferred::Deferred;
use inference::backend::scalar::{ScalarBackend, ScalarConfig};
use inference::backend::{
    Backend, KvType, PageTable, Recipe, SampleInputs, SampleParams, SampleRow, SlotReset,
    StepInputs, StepSequence,
};
use inference::engine::{
    BatchEngine, Decoder, Engine, EngineConfig, FinishReason, MemoryPlan, Outcome, Request,
    RequestId, Salience,
};
use inference::model::OpenedModel;
use serde::Deserialize;

const MODELS: [&str; 2] = ["llama", "llama31"];

/// What transformers computed in f32.
#[derive(Debug, Deserialize)]
struct Golden {
    /// The input.
    ids: Vec<u32>,
    /// The first 12 of `ids`, then 12 greedy tokens.
    greedy: Vec<u32>,
    /// Logits at the last position.
    last: Vec<f32>,
    /// The most likely token at each position.
    argmax: Vec<u32>,
}

/// A gap between the two best logits above which every precision must pick the same token.
const CLEAR_GAP: f32 = 0.1;

fn scalar() -> ScalarBackend {
    ScalarBackend::new(ScalarConfig {
        max_rows: 64,
        lookahead: 0,
    })
}

fn cpu(recipe: Recipe) -> CpuBackend {
    CpuBackend::new(CpuConfig {
        threads: 2,
        max_rows: 64,
        recipe,
        isa: None,
        packed: None,
    })
    .expect("this machine runs the CPU backend")
}

fn open_cuda(recipe: Recipe, graphs: bool) -> Result<CudaBackend, DeviceUnavailable> {
    CudaBackend::new(CudaConfig {
        device: 0,
        max_rows: 64,
        recipe,
        graphs,
        libraries: Vec::new(),
        images: std::env::var_os("NIGHTSHIFT_CUDA_IMAGES").map(Into::into),
        cache: None,
    })
}

/// Returns how to make CUDA backends, or says that there is no driver.
#[expect(
    clippy::print_stdout,
    reason = "a comparison that does not take place must be seen"
)]
fn cuda(recipe: Recipe, graphs: bool) -> Option<impl Fn() -> CudaBackend> {
    if let Err(error) = open_cuda(recipe, graphs) {
        assert!(
            std::env::var_os("REQUIRE_CUDA").is_none(),
            "REQUIRE_CUDA is set, but {error}"
        );
        println!("SKIPPED: {error}; gpu-worker/inference/tests/cuda/run builds a fake driver");
        return None;
    }
    Some(move || open_cuda(recipe, graphs).expect("the driver was there a moment ago"))
}

/// A decoder on its backend, driven step by step.
struct Bench<'a, B> {
    backend: B,
    decoder: Decoder,
    model: &'a OpenedModel,
    ids: &'a [u32],
}

impl<'a, B: Backend> Bench<'a, B> {
    fn new(
        mut backend: B,
        model: &'a OpenedModel,
        ids: &'a [u32],
        recipe: Recipe,
        kv: KvType,
    ) -> Self {
        let plan = MemoryPlan {
            rows: 64,
            logit_rows: 1,
            sequences: 1,
            pages: 16,
            history_tokens: 128,
        };
        let decoder = Decoder::load(
            &mut backend,
            &model.config,
            model,
            plan,
            recipe,
            kv,
            &Salience::default(),
        )
        .expect("load the model");
        Bench {
            backend,
            decoder,
            model,
            ids,
        }
    }

    /// Runs the ids at `start..end` and returns the log-probability of every token after the last.
    fn step(&mut self, start: usize, end: usize) -> Vec<f32> {
        let page_tokens = self.backend.caps().page_tokens;
        let pages = end.div_ceil(page_tokens);
        let reset = SlotReset {
            slot: 0,
            prompt: self.ids[..end].to_vec(),
            output: vec![],
        };
        // Numbered from the end, so that a backend which ignores the table is found out.
        let number = |page: usize| 15 - page as u32;
        let mut inputs = StepInputs {
            tokens: self.ids[start..end].to_vec(),
            positions: (start as u32..end as u32).collect(),
            sequences: vec![StepSequence {
                slot: 0,
                q_start: 0,
                q_len: (end - start) as u32,
                kv_len: end as u32,
            }],
            page_tables: vec![PageTable {
                pages: (0..pages).map(number).collect(),
                starts: vec![0, pages as u32],
                write_slots: (start..end)
                    .map(|at| {
                        number(at / page_tokens) * page_tokens as u32 + (at % page_tokens) as u32
                    })
                    .collect(),
            }],
            logit_rows: vec![(end - start - 1) as u32],
            resets: if start == 0 { vec![reset] } else { vec![] },
            ..StepInputs::default()
        };
        inputs.bucket = inputs.exact_bucket();
        self.backend.begin(&inputs);
        self.decoder.forward(&mut self.backend, inputs.bucket);
        let vocabulary = self.model.config.vocab_size;
        let row = SampleRow {
            logprobs: Some(vocabulary as u32),
            forced: Some(1),
            ..SampleRow::greedy(0, 0)
        };
        let samples = SampleInputs {
            rows: vec![row],
            vocabulary,
        };
        self.backend.sample(self.decoder.logits(), &samples);
        let ticket = self.backend.end();
        let output = self.backend.wait(ticket).expect("run a step");
        assert!(output.bad_rows.is_empty());
        assert_eq!(output.top_n[0].len(), vocabulary);
        let mut logprobs = vec![f32::NAN; vocabulary];
        for (token, logprob) in &output.top_n[0] {
            logprobs[*token as usize] = *logprob;
        }
        logprobs
    }
}

/// Log-probabilities differ from logits by one number for the whole row; so do these from either.
fn centred(values: &[f32]) -> Vec<f64> {
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
    values
        .iter()
        .map(|value| f64::from(*value) - mean)
        .collect()
}

fn relative_distance(ours: &[f32], golden: &[f32]) -> f64 {
    let (ours, golden) = (centred(ours), centred(golden));
    let norm = |values: &mut dyn Iterator<Item = f64>| {
        values.map(|value| value * value).sum::<f64>().sqrt()
    };
    let distance = norm(&mut ours.iter().zip(&golden).map(|(ours, golden)| ours - golden));
    distance / norm(&mut golden.iter().copied())
}

/// Returns the best token and its distance to the second best.
fn best(logprobs: &[f32]) -> (u32, f32) {
    let mut order: Vec<usize> = (0..logprobs.len()).collect();
    order.sort_by(|left, right| logprobs[*right].total_cmp(&logprobs[*left]));
    (order[0] as u32, logprobs[order[0]] - logprobs[order[1]])
}

/// Compares every position (one decode each), and the last one under several ways to cut the prompt.
fn check_logits<B: Backend>(make: impl Fn() -> B, recipe: Recipe, kv: KvType, tolerance: f64) {
    for name in MODELS {
        let model = fixture::open(name);
        let golden: Golden = fixture::golden(name);
        let Golden { ids, .. } = &golden;
        assert_eq!(
            (ids.len(), golden.argmax.len(), golden.last.len()),
            (40, 40, 128)
        );
        let mut bench = Bench::new(make(), &model, ids, recipe, kv);
        let mut clear = 0;
        let mut last = Vec::new();
        for position in 0..ids.len() {
            last = bench.step(position, position + 1);
            let (token, gap) = best(&last);
            if gap > CLEAR_GAP {
                clear += 1;
                assert_eq!(
                    token, golden.argmax[position],
                    "{name}, position {position}, gap {gap}"
                );
            }
        }
        assert!(
            clear >= 25,
            "{name}: only {clear} positions have a clear best token"
        );
        let distance = relative_distance(&last, &golden.last);
        assert!(
            distance < tolerance,
            "{name}: last logits differ by {distance}"
        );
        for cuts in [vec![40], vec![17, 40], vec![1, 16, 33, 40]] {
            let mut bench = Bench::new(make(), &model, ids, recipe, kv);
            let mut start = 0;
            let mut chunked = Vec::new();
            for end in cuts {
                chunked = bench.step(start, end);
                start = end;
            }
            assert_eq!(
                chunked, last,
                "{name}: a chunk gives other bits than decodes"
            );
        }
    }
}

/// Compares the greedy continuation through the whole engine.
fn check_greedy<B: Backend + Send>(make: impl Fn() -> B, recipe: Recipe, kv: KvType) {
    for name in MODELS {
        let model = fixture::open(name);
        let golden: Golden = fixture::golden(name);
        let (prompt, expected) = golden.greedy.split_at(12);
        let config = EngineConfig {
            max_step_tokens: 5,
            max_sequences: 2,
            kv_tokens: 64,
            context_tokens: 64,
            prefix_cache: true,
            duplicates: true,
            recipe,
            kv_type: kv,
            salience: Salience::default(),
            weights_id: model.weights_digest.clone(),
        };
        let mut engine = BatchEngine::load(
            make(),
            &model.config,
            &model,
            Arc::new(Letters::new()),
            &config,
        )
        .expect("load the model");
        engine.submit(Request {
            id: RequestId(1),
            prompt: prompt.into(),
            salt: 0,
            urgent: false,
            seed: 0,
            choice: 0,
            max_tokens: 12,
            params: SampleParams::GREEDY,
            logit_bias: vec![],
            logprobs: None,
            stop: vec![],
            stop_tokens: Arc::from([2]),
            ignore_eos: false,
        });
        while engine.step().expect("run a step") {}
        let outcomes = engine.take();
        let [(RequestId(1), Outcome::Finished(generation))] = outcomes.as_slice() else {
            panic!("{name}: {outcomes:?}")
        };
        assert_eq!(generation.tokens, expected, "{name}");
        assert_eq!(generation.finish_reason, FinishReason::Length);
        assert_eq!(
            (generation.prompt_tokens, generation.completion_tokens),
            (12, 12)
        );
    }
}

#[test]
fn scalar_gives_the_golden_logits() {
    check_logits(scalar, Recipe::F32, KvType::F32, 1e-3);
}

#[test]
fn scalar_gives_the_golden_answers() {
    check_greedy(scalar, Recipe::F32, KvType::F32);
    check_greedy(|| Deferred::new(scalar()), Recipe::F32, KvType::F32);
}

#[test]
fn cpu_in_f32_gives_the_golden_logits_and_answers() {
    check_logits(|| cpu(Recipe::F32), Recipe::F32, KvType::F32, 1e-3);
    check_greedy(|| cpu(Recipe::F32), Recipe::F32, KvType::F32);
}

#[test]
fn cpu_in_bf16_gives_the_golden_logits_and_answers() {
    check_logits(|| cpu(Recipe::Bf16), Recipe::Bf16, KvType::Bf16, 3e-2);
    check_greedy(|| cpu(Recipe::Bf16), Recipe::Bf16, KvType::Bf16);
}

#[test]
fn cuda_in_bf16_gives_the_golden_logits_and_answers() {
    for graphs in [false, true] {
        let Some(make) = cuda(Recipe::Bf16, graphs) else {
            return;
        };
        check_logits(&make, Recipe::Bf16, KvType::Bf16, 3e-2);
        check_greedy(&make, Recipe::Bf16, KvType::Bf16);
    }
}

#[test]
fn cuda_in_int8_gives_the_golden_logits() {
    let Some(make) = cuda(Recipe::Int8, true) else {
        return;
    };
    check_logits(make, Recipe::Int8, KvType::Bf16, 6e-2);
}

/// A step that only decodes is captured once and then replayed, with the bits of launches.
#[test]
fn cuda_replays_decodes_with_the_same_bits() {
    let (Some(launching), Some(replaying)) = (cuda(Recipe::Bf16, false), cuda(Recipe::Bf16, true))
    else {
        return;
    };
    for name in MODELS {
        let model = fixture::open(name);
        let Golden { ids, .. } = fixture::golden(name);
        let mut launched = Bench::new(launching(), &model, &ids, Recipe::Bf16, KvType::Bf16);
        let mut replayed = Bench::new(replaying(), &model, &ids, Recipe::Bf16, KvType::Bf16);
        for position in 0..ids.len() {
            let want = launched.step(position, position + 1);
            assert_eq!(
                replayed.step(position, position + 1),
                want,
                "{name}, {position}"
            );
        }
        assert_eq!(launched.backend.replays(), 0);
        assert_eq!(replayed.backend.replays(), ids.len() - 1, "{name}");
    }
}

//! Tokens, text and log-probabilities are the same bits whatever runs beside a request, and however.

mod fixture;

use std::collections::BTreeMap;
use std::sync::Arc;

use fixture::Letters;
use inference::backend::cpu::{CpuBackend, CpuConfig};
use inference::backend::deferred::Deferred;
use inference::backend::scalar::{ScalarBackend, ScalarConfig};
use inference::backend::{Backend, KvType, Recipe, SampleParams};
use inference::engine::{
    BatchEngine, Engine, EngineConfig, Outcome, Request, RequestId, Salience, Stats,
};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Golden {
    ids: Vec<u32>,
}

/// A request's outcome without what is outside the promise (the tokens found in the cache).
type Outcomes = BTreeMap<RequestId, Outcome>;

fn scalar(lookahead: usize) -> ScalarBackend {
    ScalarBackend::new(ScalarConfig {
        max_rows: 256,
        lookahead,
    })
}

fn cpu(threads: usize, recipe: Recipe) -> CpuBackend {
    CpuBackend::new(CpuConfig {
        threads,
        max_rows: 256,
        recipe,
        isa: None,
        packed: None,
    })
    .expect("this machine runs the CPU backend")
}

fn sampled(seed: u64) -> SampleParams {
    let base = SampleParams {
        temperature: 0.9,
        ..SampleParams::GREEDY
    };
    match seed % 4 {
        0 => SampleParams::GREEDY,
        1 => SampleParams { top_p: 0.9, ..base },
        2 => SampleParams {
            top_k: 20,
            min_p: 0.02,
            repetition_penalty: 1.2,
            ..base
        },
        _ => SampleParams {
            frequency_penalty: 0.4,
            presence_penalty: 0.3,
            ..base
        },
    }
}

/// Short requests with common prefixes and all kinds of ends, and a few long ones that overfill a small pool.
fn requests(ids: &[u32]) -> Vec<Request> {
    let request = |id: u64, prompt: Vec<u32>, max_tokens: u32| Request {
        id: RequestId(id),
        prompt: prompt.into(),
        salt: id % 2,
        urgent: id % 3 == 1,
        seed: id * 77,
        choice: (id % 3) as u32,
        max_tokens,
        params: sampled(id),
        logit_bias: if id.is_multiple_of(5) {
            vec![(7, 1.5), (9, -2.0)]
        } else {
            vec![]
        },
        logprobs: (!id.is_multiple_of(7)).then_some((id % 4) as u32),
        stop: if id.is_multiple_of(3) {
            vec![b"xy".to_vec(), b"q".to_vec()]
        } else {
            vec![]
        },
        stop_tokens: Arc::from([2, 90]),
        ignore_eos: id.is_multiple_of(2),
    };
    let short = (0..20u64).map(|id| {
        let shared = [0, 16, 33, 40][(id % 4) as usize];
        let mut prompt = ids[..shared].to_vec();
        prompt.extend(ids.iter().rev().take(1 + id as usize));
        request(id, prompt, 3 + (id as u32 * 5) % 28)
    });
    // All with penalties: what was generated before a preemption still counts after it. They could end by
    // themselves, and are expected to; none does, so that a small pool is promised to too many.
    let long = [102, 103, 106].map(|id| Request {
        ignore_eos: false,
        stop: Vec::new(),
        stop_tokens: Arc::from([u32::MAX]),
        ..request(id, ids[..(id - 90) as usize].to_vec(), 330)
    });
    let mut requests: Vec<Request> = short.chain(long).collect();
    // Some come twice: also those with draws, whose seeds are the same.
    let mut twice = requests[..8].to_vec();
    for copy in &mut twice {
        copy.id = RequestId(1000 + copy.id.0);
    }
    requests.append(&mut twice);
    requests
}

/// How a run differs from the one it is compared with.
#[derive(Debug, Clone, Copy)]
struct Variant {
    step_tokens: usize,
    sequences: usize,
    kv_tokens: usize,
    prefix_cache: bool,
    duplicates: bool,
    reversed: bool,
}

const ALONE: Variant = Variant {
    step_tokens: 256,
    sequences: 1,
    kv_tokens: 512,
    prefix_cache: false,
    duplicates: false,
    reversed: false,
};

const BATCHED: Variant = Variant {
    step_tokens: 64,
    sequences: 16,
    kv_tokens: 4096,
    prefix_cache: true,
    duplicates: true,
    reversed: false,
};

const SMALL_CHUNKS: Variant = Variant {
    step_tokens: 7,
    sequences: 5,
    reversed: true,
    ..BATCHED
};

const SMALL_POOL: Variant = Variant {
    kv_tokens: 624,
    sequences: 8,
    duplicates: false,
    ..BATCHED
};

const SMALL_POOL_UNSHARED: Variant = Variant {
    prefix_cache: false,
    duplicates: true,
    reversed: true,
    ..SMALL_POOL
};

fn run<B: Backend + Send>(
    backend: B,
    recipe: Recipe,
    kv_type: KvType,
    variant: Variant,
) -> (Outcomes, Stats) {
    let model = fixture::open("llama");
    let golden: Golden = fixture::golden("llama");
    let config = EngineConfig {
        max_step_tokens: variant.step_tokens,
        max_sequences: variant.sequences,
        kv_tokens: variant.kv_tokens,
        context_tokens: 400,
        prefix_cache: variant.prefix_cache,
        duplicates: variant.duplicates,
        recipe,
        kv_type,
        salience: Salience::default(),
        weights_id: String::new(),
    };
    let mut engine = BatchEngine::load(
        backend,
        &model.config,
        &model,
        Arc::new(Letters::new()),
        &config,
    )
    .expect("load the model");
    let mut requests = requests(&golden.ids);
    let count = requests.len();
    if variant.reversed {
        requests.reverse();
    }
    for request in requests {
        engine.submit(request);
    }
    while engine.step().expect("run a step") {}
    let mut outcomes: Outcomes = engine.take().into_iter().collect();
    assert_eq!(outcomes.len(), count);
    for outcome in outcomes.values_mut() {
        let Outcome::Finished(generation) = outcome else {
            panic!("{outcome:?}")
        };
        generation.cached_tokens = 0;
    }
    (outcomes, engine.stats())
}

/// Runs every variant on every backend, late and in time, against one request at a time on the first backend.
fn check<B: Backend + Send>(backends: &[&dyn Fn() -> B], recipe: Recipe, kv_type: KvType) {
    let (alone, _) = run(backends[0](), recipe, kv_type, ALONE);
    let (mut preemptions, mut cached_tokens, mut copied) = (0, 0, 0);
    let mut compare = |what: &str, (outcomes, stats): (Outcomes, Stats)| {
        assert_eq!(outcomes, alone, "{what}");
        preemptions += stats.preemptions;
        cached_tokens += stats.cached_tokens;
        copied += stats.copied;
    };
    for (name, variant) in [
        ("batched", BATCHED),
        ("small chunks", SMALL_CHUNKS),
        ("small pool", SMALL_POOL),
        ("small pool without prefix cache", SMALL_POOL_UNSHARED),
    ] {
        for (index, make) in backends.iter().enumerate() {
            let outcomes = run(make(), recipe, kv_type, variant);
            compare(&format!("{name}, backend {index}"), outcomes);
        }
        let late = Deferred::new(backends[0]());
        compare(
            &format!("{name}, deferred"),
            run(late, recipe, kv_type, variant),
        );
    }
    assert!(
        preemptions >= 4,
        "{preemptions} preemptions are too few to tell"
    );
    assert!(
        cached_tokens > 100,
        "{cached_tokens} cached tokens are too few to tell"
    );
    assert!(copied >= 24, "{copied} copies are too few to tell");
}

#[test]
fn scalar_results_do_not_depend_on_the_batch() {
    check(&[&|| scalar(0), &|| scalar(1)], Recipe::F32, KvType::F32);
}

#[test]
fn cpu_results_in_f32_do_not_depend_on_the_batch_or_the_threads() {
    let cpu = |threads| cpu(threads, Recipe::F32);
    check(
        &[&|| cpu(1), &|| cpu(2), &|| cpu(3)],
        Recipe::F32,
        KvType::F32,
    );
}

#[test]
fn cpu_results_in_bf16_do_not_depend_on_the_batch_or_the_threads() {
    let cpu = |threads| cpu(threads, Recipe::Bf16);
    check(
        &[&|| cpu(1), &|| cpu(2), &|| cpu(3)],
        Recipe::Bf16,
        KvType::Bf16,
    );
}

#[test]
fn cpu_results_in_int8_do_not_depend_on_the_batch_or_the_threads() {
    let cpu = |threads| cpu(threads, Recipe::Int8);
    check(
        &[&|| cpu(1), &|| cpu(2), &|| cpu(3)],
        Recipe::Int8,
        KvType::Bf16,
    );
}

//! What a user of the engine sees: ends, failures, aborts and counters, on the tiny Llama.

mod fixture;

use std::sync::Arc;

use fixture::Letters;
use inference::backend::deferred::Deferred;
use inference::backend::scalar::{ScalarBackend, ScalarConfig};
use inference::backend::{KvType, Recipe, SampleParams, WeightSource};
use inference::engine::{
    BatchEngine, Engine, EngineConfig, FinishReason, Generation, Outcome, Request, RequestFailure,
    RequestId, Salience,
};
use inference::model::{ModelConfig, ModelError, OpenedModel, WeightName, Weights};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Golden {
    /// 40 tokens.
    ids: Vec<u32>,
    /// The first 12 of them, then 12 greedy tokens.
    greedy: Vec<u32>,
}

fn config() -> EngineConfig {
    EngineConfig {
        max_step_tokens: 8,
        max_sequences: 4,
        kv_tokens: 256,
        context_tokens: 48,
        prefix_cache: true,
        duplicates: true,
        recipe: Recipe::F32,
        kv_type: KvType::F32,
        salience: Salience::default(),
        weights_id: "digest-of-weights".to_owned(),
    }
}

fn scalar() -> ScalarBackend {
    ScalarBackend::new(ScalarConfig {
        max_rows: 64,
        lookahead: 0,
    })
}

/// Makes the engine twice: over a backend that is in time, and over one that is as late as it may be.
fn engines(
    shape: &ModelConfig,
    weights: &dyn Weights,
    config: &EngineConfig,
) -> [Box<dyn Engine>; 2] {
    let text = Arc::new(Letters::new());
    let in_time = BatchEngine::load(scalar(), shape, weights, Arc::clone(&text) as _, config)
        .expect("load the model");
    let late = BatchEngine::load(Deferred::new(scalar()), shape, weights, text, config)
        .expect("load the model");
    [Box::new(in_time), Box::new(late)]
}

fn request(id: u64, prompt: &[u32], max_tokens: u32) -> Request {
    Request {
        id: RequestId(id),
        prompt: prompt.into(),
        salt: 0,
        urgent: false,
        seed: 0,
        choice: 0,
        max_tokens,
        params: SampleParams::GREEDY,
        logit_bias: vec![],
        logprobs: None,
        stop: vec![],
        stop_tokens: Arc::from([]),
        ignore_eos: false,
    }
}

fn drain(engine: &mut dyn Engine) -> Vec<(RequestId, Outcome)> {
    while engine.step().expect("run a step") {}
    let mut outcomes = engine.take();
    outcomes.sort_by_key(|(id, _)| *id);
    outcomes
}

/// Runs the requests on both engines, which must agree, and returns the outcomes in the order of ids.
fn outcomes(config: &EngineConfig, requests: &[Request]) -> Vec<Outcome> {
    let model = fixture::open("llama");
    let [in_time, late] = engines(&model.config, &model, config).map(|mut engine| {
        for request in requests {
            engine.submit(request.clone());
        }
        drain(engine.as_mut())
    });
    assert_eq!(in_time, late);
    in_time.into_iter().map(|(_, outcome)| outcome).collect()
}

fn generation(request: Request) -> Generation {
    match outcomes(&config(), &[request]).remove(0) {
        Outcome::Finished(generation) => generation,
        Outcome::Failed(failure) => panic!("{failure}"),
    }
}

/// The golden prompt and its greedy answer, whose letters are `[z, m, m, m, h, e, k, y, z, z, z, z]`.
fn golden() -> (Vec<u32>, Vec<u32>) {
    let Golden { greedy, .. } = fixture::golden("llama");
    (greedy[..12].to_vec(), greedy[12..].to_vec())
}

#[test]
fn text_ends_before_a_stop_string_that_spans_tokens() {
    let (prompt, answer) = golden();
    let generation = generation(Request {
        stop: vec![b"hek".to_vec()],
        logprobs: Some(2),
        ..request(1, &prompt, 12)
    });
    assert_eq!(generation.text, "zmmm");
    assert_eq!(generation.finish_reason, FinishReason::Stop);
    assert_eq!(
        generation.tokens,
        answer[..7],
        "the tokens of the stop string count"
    );
    assert_eq!(generation.completion_tokens, 7);
    let logprobs = generation.logprobs.unwrap();
    assert_eq!(
        logprobs.iter().map(|entry| entry.token).collect::<Vec<_>>(),
        answer[..4]
    );
    for entry in logprobs {
        assert_eq!(entry.top.len(), 2);
        assert_eq!(
            entry.top[0],
            (entry.token, entry.logprob),
            "a greedy token is the most likely one"
        );
    }
}

#[test]
fn stop_token_counts_and_has_no_text() {
    let (prompt, answer) = golden();
    let stopping = Request {
        stop_tokens: Arc::from([answer[4]]),
        logprobs: Some(0),
        ..request(1, &prompt, 12)
    };
    let stopped = generation(stopping.clone());
    assert_eq!(
        (stopped.text.as_str(), stopped.completion_tokens),
        ("zmmm", 5)
    );
    assert_eq!(stopped.finish_reason, FinishReason::Stop);
    assert_eq!(stopped.logprobs.unwrap().len(), 4);
    let ignoring = generation(Request {
        ignore_eos: true,
        ..stopping
    });
    assert_eq!(
        (ignoring.text.as_str(), ignoring.completion_tokens),
        ("zmmmhekyzzzz", 12)
    );
    assert_eq!(ignoring.finish_reason, FinishReason::Length);
}

#[test]
fn logit_bias_forbids_a_token_and_ids_outside_the_vocabulary_are_ignored() {
    let (prompt, answer) = golden();
    let generation = generation(Request {
        logit_bias: vec![(answer[0], -100.0), (1 << 30, 100.0)],
        ..request(1, &prompt, 1)
    });
    assert_ne!(generation.tokens[0], answer[0]);
}

#[test]
fn output_ends_when_the_context_is_full() {
    let (prompt, _) = golden();
    let generation = generation(request(1, &prompt, 1000));
    assert_eq!(
        (generation.prompt_tokens, generation.completion_tokens),
        (12, 36)
    );
    assert_eq!(generation.finish_reason, FinishReason::Length);
}

#[test]
fn request_that_can_never_run_fails_and_others_go_on() {
    let (prompt, answer) = golden();
    let small_pool = EngineConfig {
        kv_tokens: 32,
        ..config()
    };
    let outcomes = outcomes(
        &small_pool,
        &[
            request(1, &[], 1),
            request(2, &[5, 128], 1),
            request(3, &[5; 48], 1),
            request(4, &prompt, 22),
            request(5, &prompt, 12),
        ],
    );
    let failures: Vec<RequestFailure> = outcomes[..4]
        .iter()
        .map(|outcome| match outcome {
            Outcome::Failed(failure) => failure.clone(),
            Outcome::Finished(generation) => panic!("{generation:?}"),
        })
        .collect();
    assert_eq!(
        failures,
        [
            RequestFailure::InvalidPrompt("it has no tokens".to_owned()),
            RequestFailure::InvalidPrompt(
                "token 128 is not one of the 128 tokens of the vocabulary".to_owned()
            ),
            RequestFailure::ContextTooLong {
                prompt_tokens: 48,
                context_tokens: 48
            },
            RequestFailure::PoolTooSmall {
                pool_tokens: 32,
                needed_tokens: 33
            },
        ]
    );
    let Outcome::Finished(generation) = &outcomes[4] else {
        panic!("{:?}", outcomes[4])
    };
    assert_eq!(generation.tokens, answer);
}

/// A model whose embedding of one token is not a number.
struct Poisoned {
    model: OpenedModel,
    token: usize,
}

struct PoisonedRows<'a> {
    rows: Box<dyn WeightSource + 'a>,
    token: usize,
}

impl Weights for Poisoned {
    fn source(&self, name: WeightName) -> Result<Box<dyn WeightSource + '_>, ModelError> {
        let rows = self.model.source(name)?;
        Ok(match name {
            WeightName::Embedding => Box::new(PoisonedRows {
                rows,
                token: self.token,
            }),
            WeightName::Output
            | WeightName::FinalNorm
            | WeightName::AttentionNorm(_)
            | WeightName::Qkv(_)
            | WeightName::QkvBias(_)
            | WeightName::AttentionOutput(_)
            | WeightName::MlpNorm(_)
            | WeightName::GateUp(_)
            | WeightName::Down(_) => rows,
        })
    }
}

impl WeightSource for PoisonedRows<'_> {
    fn rows(&self) -> usize {
        self.rows.rows()
    }

    fn cols(&self) -> usize {
        self.rows.cols()
    }

    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        self.rows.read_rows(first_row, out)?;
        let cols = self.cols();
        for (index, row) in out.chunks_mut(cols).enumerate() {
            if first_row + index == self.token {
                row.fill(f32::NAN);
            }
        }
        Ok(())
    }
}

#[test]
fn row_that_is_not_finite_fails_alone() {
    let (prompt, answer) = golden();
    let model = fixture::open("llama");
    let shape = model.config.clone();
    let poisoned = Poisoned { model, token: 127 };
    for mut engine in engines(&shape, &poisoned, &config()) {
        engine.submit(request(1, &prompt, 12));
        engine.submit(request(2, &[5, 127, 6], 12));
        let outcomes = drain(engine.as_mut());
        let Outcome::Finished(generation) = &outcomes[0].1 else {
            panic!("{outcomes:?}")
        };
        assert_eq!(generation.tokens, answer);
        assert_eq!(outcomes[1].1, Outcome::Failed(RequestFailure::NotFinite));
    }
}

#[test]
fn aborted_request_has_no_outcome_and_leaves_nothing_behind() {
    let (prompt, answer) = golden();
    let model = fixture::open("llama");
    for steps_before in 0..8 {
        for mut engine in engines(&model.config, &model, &config()) {
            engine.submit(request(1, &[9, 8, 7, 6, 5, 4, 3, 2, 1, 10, 11], 12));
            engine.submit(request(2, &prompt, 12));
            for _ in 0..steps_before {
                assert!(engine.step().expect("run a step"));
            }
            engine.abort(RequestId(1));
            let outcomes = drain(engine.as_mut());
            let [(RequestId(2), Outcome::Finished(generation))] = outcomes.as_slice() else {
                panic!("after {steps_before} steps: {outcomes:?}")
            };
            assert_eq!(generation.tokens, answer);
            let stats = engine.stats();
            assert_eq!((stats.waiting, stats.running), (0, 0));
            assert_eq!(stats.pages_free, stats.pages_total);
        }
    }
}

#[test]
fn ended_request_that_is_aborted_before_it_is_taken_has_no_outcome() {
    let model = fixture::open("llama");
    for mut engine in engines(&model.config, &model, &config()) {
        engine.submit(request(1, &[], 1));
        engine.abort(RequestId(1));
        assert_eq!(drain(engine.as_mut()), []);
    }
}

#[test]
fn counters_tell_what_was_computed_and_what_was_found() {
    let model = fixture::open("llama");
    let Golden { ids, .. } = fixture::golden("llama");
    let computed_twice = EngineConfig {
        duplicates: false,
        ..config()
    };
    for mut engine in engines(&model.config, &model, &computed_twice) {
        assert!(
            !engine.step().expect("run a step"),
            "there is nothing to do"
        );
        engine.submit(request(1, &ids, 3));
        assert_eq!(engine.stats().waiting, 1);
        drain(engine.as_mut());
        engine.submit(request(2, &ids, 3));
        let outcomes = drain(engine.as_mut());
        let Outcome::Finished(generation) = &outcomes[0].1 else {
            panic!("{outcomes:?}")
        };
        assert_eq!(generation.cached_tokens, 32);
        let stats = engine.stats();
        assert_eq!((stats.prompt_tokens, stats.cached_tokens), (40 + 8, 32));
        assert_eq!((stats.completion_tokens, stats.preemptions), (6, 0));
        assert_eq!(engine.context_tokens(), 48);
        assert!(
            engine.fingerprint().ends_with("digest-of-weights"),
            "{}",
            engine.fingerprint()
        );
    }
}

#[test]
fn equal_requests_are_computed_once_and_counted_in_full() {
    let (prompt, answer) = golden();
    let model = fixture::open("llama");
    for mut engine in engines(&model.config, &model, &config()) {
        for id in 1..4 {
            engine.submit(request(id, &prompt, 12));
        }
        let mut outcomes = drain(engine.as_mut());
        engine.submit(request(4, &prompt, 12));
        outcomes.extend(drain(engine.as_mut()));
        let cached: Vec<u32> = outcomes
            .iter()
            .map(|(_, outcome)| match outcome {
                Outcome::Finished(generation) => {
                    assert_eq!(generation.tokens, answer);
                    assert_eq!(generation.prompt_tokens, 12);
                    assert_eq!(generation.completion_tokens, 12);
                    generation.cached_tokens
                }
                Outcome::Failed(failure) => panic!("{failure}"),
            })
            .collect();
        assert_eq!(cached, [0, 12, 12, 12]);
        let stats = engine.stats();
        assert_eq!((stats.prompt_tokens, stats.completion_tokens), (12, 12));
        assert_eq!((stats.copied, stats.copied_tokens), (3, 3 * 24));
    }
}

#[test]
fn copy_inherits_what_ran_for_an_aborted_request() {
    let (prompt, answer) = golden();
    let model = fixture::open("llama");
    for mut engine in engines(&model.config, &model, &config()) {
        engine.submit(request(1, &prompt, 12));
        for _ in 0..6 {
            assert!(engine.step().expect("run a step"));
        }
        engine.submit(request(2, &prompt, 12));
        engine.abort(RequestId(1));
        let outcomes = drain(engine.as_mut());
        let [(RequestId(2), Outcome::Finished(generation))] = outcomes.as_slice() else {
            panic!("{outcomes:?}")
        };
        assert_eq!(generation.tokens, answer);
        assert_eq!(
            engine.stats().completion_tokens,
            12,
            "it did not start over"
        );
    }
}

#[test]
fn model_without_layers_is_refused() {
    let model = fixture::open("llama");
    let shape = ModelConfig {
        layers: 0,
        ..model.config.clone()
    };
    let error = BatchEngine::load(
        scalar(),
        &shape,
        &model,
        Arc::new(Letters::new()),
        &config(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "every backend does not support a model without layers"
    );
}

#[test]
fn urgent_requests_take_three_starts_of_four() {
    let model = fixture::open("llama");
    let one_at_a_time = EngineConfig {
        max_sequences: 1,
        ..config()
    };
    for mut engine in engines(&model.config, &model, &one_at_a_time) {
        for id in 0..10 {
            engine.submit(Request {
                urgent: id >= 3,
                ..request(id, &[5, id as u32 + 1], 1)
            });
        }
        while engine.step().expect("run a step") {}
        let order: Vec<u64> = engine.take().iter().map(|(id, _)| id.0).collect();
        assert_eq!(order, [3, 4, 5, 0, 6, 7, 8, 1, 9, 2]);
    }
}

//! The sampler against a reference that sorts the whole vocabulary.

use proptest::prelude::*;

use super::*;
use crate::backend::SampleParams;

fn row(params: SampleParams) -> SampleRow {
    SampleRow {
        seed: 7,
        params,
        logprobs: Some(0),
        ..SampleRow::greedy(0, 0)
    }
}

fn history(prompt: &[u32], output: &[u32]) -> History {
    let mut history = History::with_capacity(16);
    history.reset(prompt, output);
    history
}

fn token(logits: &[f32], row: &SampleRow) -> u32 {
    match Sampler::new(logits.len()).sample(logits, row, &History::default()) {
        Sampled::Token { id, .. } => id,
        other @ (Sampled::Dead | Sampled::Bad) => panic!("{other:?}"),
    }
}

/// The rules as [`SampleParams`] writes them, with sorts and sums over everything.
fn naive(logits: &[f32], row: &SampleRow, prompt: &[u32], output: &[u32]) -> Option<u32> {
    let params = &row.params;
    let mut adjusted: Vec<(u32, f32)> = Vec::new();
    for (id, &logit) in logits.iter().enumerate() {
        let id = id as u32;
        let allowed = row
            .mask
            .as_ref()
            .is_none_or(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 1);
        if !allowed {
            continue;
        }
        let mut x = row
            .bias
            .iter()
            .filter(|b| b.0 == id)
            .fold(logit, |x, b| x + b.1);
        if prompt.contains(&id) || output.contains(&id) {
            x = if x > 0.0 {
                x / params.repetition_penalty
            } else {
                x * params.repetition_penalty
            };
        }
        let uses = output.iter().filter(|&&t| t == id).count();
        if uses > 0 {
            x -= params.frequency_penalty * uses as f32 + params.presence_penalty;
        }
        adjusted.push((id, x));
    }
    adjusted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let max = adjusted.first()?.1;
    if params.temperature == 0.0 {
        return Some(adjusted[0].0);
    }
    let mut set: Vec<(u32, f64)> = adjusted
        .iter()
        .map(|&(id, x)| (id, f64::from(exp((x - max) / params.temperature))))
        .collect();
    set.retain(|&(_, w)| w >= f64::from(params.min_p));
    if params.top_k > 0 {
        set.truncate(params.top_k as usize);
    }
    let total = |set: &[(u32, f64)]| {
        let mut by_id = set.to_vec();
        by_id.sort_by_key(|e| e.0);
        by_id.iter().map(|e| e.1).sum::<f64>()
    };
    if params.top_p < 1.0 {
        let target = f64::from(params.top_p) * total(&set);
        let mut sum = 0.0;
        let reached = set.iter().position(|e| {
            sum += e.1;
            sum >= target
        });
        set.truncate(reached.map_or(set.len(), |i| i + 1));
    }
    let target = philox::uniform(row.seed, row.choice, row.position) * total(&set);
    set.sort_by_key(|e| e.0);
    let mut sum = 0.0;
    let drawn = set.iter().find(|e| {
        sum += e.1;
        sum > target
    });
    Some(drawn.or(set.last())?.0)
}

fn params() -> impl Strategy<Value = SampleParams> {
    (
        prop_oneof![Just(0.0f32), 0.05f32..3.0],
        prop_oneof![Just(1.0f32), 0.0f32..1.0],
        prop_oneof![Just(0u32), 1u32..300],
        prop_oneof![Just(0.0f32), 0.0f32..1.0],
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
    )
        .prop_map(
            |(
                temperature,
                top_p,
                top_k,
                min_p,
                repetition_penalty,
                frequency_penalty,
                presence_penalty,
            )| SampleParams {
                temperature,
                top_p,
                top_k,
                min_p,
                repetition_penalty,
                frequency_penalty,
                presence_penalty,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn sampled_token_equals_the_full_sort_reference(
        // Few distinct values make ties common.
        logits in prop::collection::vec((-40i32..40).prop_map(|x| x as f32 * 0.25), 1..700),
        params in params(),
        prompt in prop::collection::vec(0u32..700, 0..20),
        output in prop::collection::vec(0u32..700, 0..20),
        bias in prop::collection::vec((0u32..700, -3.0f32..3.0), 0..4),
        mask in prop::option::of(prop::collection::vec(any::<u32>(), 22)),
        seed: u64,
        position in 0u32..1000,
    ) {
        let row = SampleRow { seed, position, mask, bias, ..row(params) };
        let want = naive(&logits, &row, &prompt, &output);
        let mut sampler = Sampler::new(logits.len());
        let history = history(&prompt, &output);
        // Twice, to see that working memory is clean between rows.
        for _ in 0..2 {
            let got = match sampler.sample(&logits, &row, &history) {
                Sampled::Token { id, .. } => Some(id),
                Sampled::Bad => None,
                Sampled::Dead => panic!("the row is live"),
            };
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn logprobs_equal_a_log_softmax_in_double_precision(
        logits in prop::collection::vec(-30.0f32..30.0, 1..2000),
        top_n in 0u32..30,
    ) {
        let row = SampleRow { logprobs: Some(top_n), ..row(SampleParams::GREEDY) };
        let sampled = Sampler::new(logits.len()).sample(&logits, &row, &History::default());
        let Sampled::Token { id, logprob, top } = sampled else { panic!("{sampled:?}") };
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let is_right = |id: u32, logprob: f32| {
            let want = f64::from(logits[id as usize]) - sum.ln();
            // The sum's own error, and what f32 rounds.
            (f64::from(logprob) - want).abs() < 2e-6 + want.abs() * f64::from(f32::EPSILON) / 2.0
        };
        prop_assert!(is_right(id, logprob));
        let mut sorted: Vec<u32> = (0..logits.len() as u32).collect();
        sorted.sort_by(|&a, &b| by_likelihood(&logits, a, b));
        sorted.truncate(top_n as usize);
        prop_assert_eq!(top.iter().map(|e| e.0).collect::<Vec<_>>(), sorted);
        for (id, logprob) in top {
            prop_assert!(is_right(id, logprob));
        }
    }
}

#[test]
fn ties_go_to_the_lower_id_when_greedy() {
    let mut logits = vec![0.0; 100];
    logits[41] = 3.0;
    logits[40] = 3.0;
    assert_eq!(token(&logits, &row(SampleParams::GREEDY)), 40);
}

#[test]
fn forced_token_is_taken_and_keeps_its_raw_logprob() {
    let forced = SampleRow {
        forced: Some(1),
        mask: Some(vec![1]),
        ..row(SampleParams::GREEDY)
    };
    let sampled = Sampler::new(2).sample(&[0.0, 0.0], &forced, &History::default());
    assert_eq!(
        sampled,
        Sampled::Token {
            id: 1,
            logprob: -std::f32::consts::LN_2,
            top: Vec::new()
        }
    );
}

#[test]
fn rows_are_bad_when_a_logit_is_not_finite_or_nothing_is_allowed() {
    let mut sampler = Sampler::new(40);
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 17, 39] {
            let mut logits = vec![0.5; 40];
            logits[at] = special;
            let sampled = sampler.sample(&logits, &row(SampleParams::GREEDY), &History::default());
            assert_eq!(sampled, Sampled::Bad, "{special} at {at}");
        }
    }
    let masked = SampleRow {
        mask: Some(vec![0, 0]),
        ..row(SampleParams::GREEDY)
    };
    assert_eq!(
        sampler.sample(&[0.0; 40], &masked, &History::default()),
        Sampled::Bad
    );
    assert_eq!(
        sampler.sample(&[], &row(SampleParams::GREEDY), &History::default()),
        Sampled::Bad
    );
}

#[test]
fn dead_row_computes_nothing() {
    let dead = SampleRow {
        live: false,
        ..row(SampleParams::GREEDY)
    };
    assert_eq!(
        Sampler::new(1).sample(&[f32::NAN], &dead, &History::default()),
        Sampled::Dead
    );
}

#[test]
fn extreme_parameters_do_not_panic() {
    for x in [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -1.0,
        f32::MIN_POSITIVE,
        f32::MAX,
    ] {
        let params = SampleParams {
            temperature: x,
            top_p: x,
            top_k: u32::MAX,
            min_p: x,
            repetition_penalty: x,
            frequency_penalty: x,
            presence_penalty: x,
        };
        let row = SampleRow {
            bias: vec![(1, x), (9, x), (u32::MAX, x)],
            logprobs: Some(u32::MAX),
            ..row(params)
        };
        let logits: Vec<f32> = (0..64).map(|i| i as f32 - 32.0).collect();
        let sampled = Sampler::new(64).sample(&logits, &row, &history(&[1, 2, u32::MAX], &[2, 3]));
        assert!(
            matches!(sampled, Sampled::Token { id, .. } if id < 64),
            "{x}: {sampled:?}"
        );
    }
}

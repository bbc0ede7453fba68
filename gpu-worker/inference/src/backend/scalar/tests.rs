//! The operations that no model here uses yet, on numbers that can be checked by hand.

use super::*;
use crate::backend::{
    Activation, Bucket, ExpertHalf, HeadLayout, KvFrom, KvGroup, Mask, PageTable, Recipe,
    RopeStyle, RouteScore, StepSequence, WeightUse,
};
use crate::model::ModelError;

struct Values<'a> {
    cols: usize,
    values: &'a [f32],
}

impl WeightSource for Values<'_> {
    fn rows(&self) -> usize {
        self.values.len() / self.cols
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        out.copy_from_slice(&self.values[first_row * self.cols..][..out.len()]);
        Ok(())
    }
}

fn weight(backend: &mut ScalarBackend, experts: usize, cols: usize, values: &[f32]) -> Weight {
    let desc = WeightDesc {
        name: "test".to_owned(),
        n: values.len() / cols / experts,
        k: cols,
        experts,
        heads: 1,
        used_as: WeightUse::Linear,
        recipe: Recipe::F32,
        shard: Shard::Whole,
        salient: Vec::new(),
    };
    backend
        .weight(&desc, &Values { cols, values })
        .expect("the scalar backend stores any matrix")
}

fn buffer(backend: &mut ScalarBackend, cols: usize, role: Role, values: &[f32]) -> Buf {
    let buf = backend
        .buf(values.len() / cols, cols, role)
        .expect("there is memory");
    backend.bufs[buf.0 as usize].values.copy_from_slice(values);
    buf
}

/// Makes a backend in a step of one sequence with `rows` rows.
fn backend(rows: u32) -> ScalarBackend {
    let mut backend = ScalarBackend::new(ScalarConfig {
        max_rows: 8,
        lookahead: 0,
    });
    backend.slots(1, 16).expect("there is memory");
    backend.begin(&StepInputs {
        bucket: Bucket::default(),
        tokens: vec![0; rows as usize],
        positions: (0..rows).collect(),
        sequences: vec![StepSequence {
            slot: 0,
            q_start: 0,
            q_len: rows,
            kv_len: rows,
        }],
        page_tables: vec![PageTable {
            pages: vec![0],
            starts: vec![0, 1],
            write_slots: (0..rows).collect(),
        }],
        ..StepInputs::default()
    });
    backend
}

fn check(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (got_value, want_value) in got.iter().zip(want) {
        assert!(
            (got_value - want_value).abs() < 1e-6,
            "{got:?} is not {want:?}"
        );
    }
}

/// Routes one row whose router logits are `logits`; returns experts and weights.
fn routed(
    logits: &[f32],
    change: impl FnOnce(&mut ScalarBackend, &mut Route),
) -> (Vec<u32>, Vec<f32>) {
    let mut backend = backend(1);
    let x = buffer(&mut backend, 1, Role::Residual, &[1.0]);
    let router = weight(&mut backend, 1, 1, logits);
    let routing = buffer(&mut backend, 2, Role::Routing, &[0.0; 2]);
    let mut op = Route {
        x,
        weight: router,
        bias: None,
        score: RouteScore::Softmax,
        groups: None,
        top_k: 2,
        renorm: false,
        scale: 1.0,
        routing,
    };
    change(&mut backend, &mut op);
    backend.route(&op);
    let routing = &backend.bufs[routing.0 as usize];
    (routing.experts.clone(), routing.values.clone())
}

#[test]
fn softmax_router_chooses_the_most_likely_and_ties_go_to_the_lower_index() {
    let logits = [0.0, 2f32.ln(), 4f32.ln(), 4f32.ln(), 5f32.ln()].map(|x: f32| x - 1.0);
    let (experts, weights) = routed(&logits, |_, _| {});
    assert_eq!(experts, [4, 2]);
    check(&weights, &[5.0 / 16.0, 4.0 / 16.0]);
    let (_, weights) = routed(&logits, |_, op| (op.renorm, op.scale) = (true, 3.0));
    check(&weights, &[15.0 / 9.0, 12.0 / 9.0]);
}

#[test]
fn choice_bias_changes_the_choice_and_not_the_weights() {
    let (experts, weights) = routed(&[0.0, 3f32.ln(), 0.0], |backend, op| {
        op.score = RouteScore::Sigmoid {
            bias: Some(weight(backend, 1, 3, &[0.0, -5.0, 1.0])),
        };
    });
    assert_eq!(experts, [2, 0]);
    check(&weights, &[0.5, 0.5]);
}

#[test]
fn experts_outside_the_best_groups_are_not_chosen() {
    // The best single expert is in the group whose best two together are worse.
    let logits = [3.0, -9.0, 2.0, 1.0];
    let sigmoid = |backend: &mut ScalarBackend, op: &mut Route| {
        op.score = RouteScore::Sigmoid {
            bias: Some(weight(backend, 1, 4, &[0.0; 4])),
        };
        op.groups = Some((2, 1));
    };
    assert_eq!(routed(&logits, sigmoid).0, [2, 3]);
    assert_eq!(routed(&logits, |_, op| op.groups = Some((2, 1))).0, [0, 1]);
}

#[test]
fn rows_go_through_their_own_experts() {
    let mut backend = backend(1);
    let x = buffer(&mut backend, 1, Role::Residual, &[2.0]);
    // Two experts of one gate row and one up row each.
    let up = weight(&mut backend, 2, 1, &[50.0, 3.0, 50.0, 5.0]);
    let down = weight(&mut backend, 2, 1, &[1.0, 10.0]);
    let routing = buffer(&mut backend, 2, Role::Routing, &[0.25, 0.5]);
    backend.bufs[routing.0 as usize].experts = vec![1, 0];
    let inner = buffer(&mut backend, 1, Role::InputOf(down), &[0.0; 2]);
    let out = buffer(&mut backend, 1, Role::Residual, &[f32::NAN]);
    let op = |x, weight, half, out| LinearExperts {
        x,
        weight,
        bias: None,
        routing,
        half,
        out,
    };
    backend.linear_experts(&op(x, up, ExpertHalf::Up(Activation::Silu), inner));
    // Silu(100) is 100.
    check(&backend.bufs[inner.0 as usize].values, &[1000.0, 600.0]);
    backend.linear_experts(&op(inner, down, ExpertHalf::Down, out));
    check(
        &backend.bufs[out.0 as usize].values,
        &[0.25 * 10_000.0 + 0.5 * 600.0],
    );
}

#[test]
fn latent_is_key_and_value_and_its_rotated_part_only_key() {
    let mut backend = backend(2);
    let layout = KvLayout::Latent { rank: 2, rope: 2 };
    let groups = vec![KvGroup {
        layers: vec![0],
        window: None,
    }];
    backend
        .kv(
            &KvSpec {
                groups,
                layout,
                dtype: KvType::F32,
            },
            &[1],
        )
        .expect("there is memory");
    let spec = RopeSpec {
        style: RopeStyle::Interleaved,
        inv_freq: vec![std::f32::consts::FRAC_PI_2],
        attention_factor: 1.0,
        max_positions: 2,
    };
    let rope = backend.rope_table(&spec).expect("there is memory");
    let gain = weight(&mut backend, 1, 2, &[1.0, 2.0]);
    // One query head, then the latent and its rotated part; of the queries only the rotated part counts.
    let rows = [
        [0.0, 0.0, 1.0, 0.0, 3.0, 3.0, 1.0, 0.0],
        [0.0, 0.0, 1.0, 0.0, 5.0, -5.0, 1.0, 0.0],
    ];
    let qkv = buffer(&mut backend, 8, Role::Qkv, rows.as_flattened());
    let out = buffer(&mut backend, 2, Role::Residual, &[0.0; 4]);
    let heads = HeadLayout {
        q_heads: 1,
        kv_heads: 1,
        dk: 4,
        dv: 2,
    };
    backend.rope_store(&RopeStore {
        qkv,
        heads,
        layer: 0,
        rope: Some(rope),
        q_norm: None,
        k_norm: Some((gain, 0.0)),
        store: true,
    });
    backend.attend(&Attend {
        qkv,
        heads,
        layer: 0,
        scale: 2f32.ln(),
        mask: Mask::Causal,
        window: None,
        softcap: None,
        sinks: None,
        from: KvFrom::Pages,
        out,
    });
    // A quarter turn between the rows: the second query scores 0 with the first key and ln 2 with its own.
    let second = [(1.0 + 2.0) / 3.0, (2.0 - 2.0 * 2.0) / 3.0];
    check(
        &backend.bufs[out.0 as usize].values,
        &[1.0, 2.0, second[0], second[1]],
    );
}

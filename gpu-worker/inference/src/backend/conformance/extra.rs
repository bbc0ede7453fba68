//! Cases over the operations that a Llama model does not use.

use super::model::PAGES;
use super::step::{Part, Sequence, Trace, assert_close, greedy, sequence, step_inputs};
use super::weights::Loader;
use super::{MAX_ROWS, Options, Suite, reference};
use crate::backend::{
    Activation, Attend, Backend, BackendError, Buf, Embed, Epilogue, ExpertHalf, GraphKey,
    HeadLayout, KvFrom, KvGroup, KvLayout, KvSpec, Linear, LinearExperts, LinearHeads, Mask, Norm,
    NormKind, Pool, PoolKind, Role, RopeSpec, RopeStore, RopeStyle, Route, RouteScore, Rows,
    SampleInputs, SampleRow, StepInputs, Weight,
};

const HIDDEN: usize = 40;
const VOCABULARY: usize = 48;
const LENGTHS: [usize; 2] = [19, 30];

/// What every case has: an embedding before, a norm and an output layer after.
struct Frame {
    table: Weight,
    gain: Weight,
    output: Weight,
    x: Buf,
    hidden: Buf,
    logits: Buf,
}

impl Frame {
    fn load<B: Backend>(loader: &mut Loader<'_, B>) -> Result<Self, BackendError> {
        let table = loader.table(VOCABULARY, HIDDEN, false)?;
        let gain = loader.vector(HIDDEN, 1.0)?;
        let output = loader.matrix(VOCABULARY, HIDDEN)?;
        let x = loader.backend.buf(MAX_ROWS, HIDDEN, Role::Residual)?;
        let hidden = loader
            .backend
            .buf(MAX_ROWS, HIDDEN, Role::InputOf(output))?;
        let logits = loader.backend.buf(MAX_ROWS, VOCABULARY, Role::Logits)?;
        loader.backend.slots(LENGTHS.len(), 256)?;
        loader.backend.loaded();
        Ok(Self {
            table,
            gain,
            output,
            x,
            hidden,
            logits,
        })
    }

    fn before<B: Backend>(&self, backend: &mut B) {
        let &Self { table, x, .. } = self;
        backend.embed(&Embed {
            out: x,
            table,
            scale: 1.0,
            positions: None,
            token_types: None,
        });
    }

    fn norm(&self, out: Buf) -> Norm {
        Norm {
            x: self.x,
            add: None,
            weight: self.gain,
            bias: None,
            kind: NormKind::Rms,
            eps: 1e-5,
            plus_one: false,
            out,
        }
    }

    fn after<B: Backend>(&self, backend: &mut B) {
        backend.norm(&self.norm(self.hidden));
        backend.linear(&Linear {
            rows: Rows::Logit,
            ..linear(self.hidden, self.output, self.logits)
        });
    }

    /// Runs one step over whole sequences, and returns the log-probabilities of each row.
    fn observe<B: Backend>(&self, backend: &mut B, middle: &mut dyn FnMut(&mut B)) -> Trace {
        let (sequences, inputs) = step();
        backend.begin(&inputs);
        backend.graph(
            GraphKey {
                bucket: inputs.bucket,
                part: 0,
            },
            &mut |backend| {
                self.before(backend);
                middle(backend);
                self.after(backend);
            },
        );
        let keys: Vec<(usize, usize)> = (0..sequences.len())
            .flat_map(|i| (0..LENGTHS[i]).map(move |row| (i, row)))
            .collect();
        let rows = keys
            .iter()
            .map(|key| SampleRow {
                logprobs: Some(VOCABULARY as u32),
                ..greedy(key.0 as u32, key.1 as u32)
            })
            .collect();
        backend.sample(
            self.logits,
            &SampleInputs {
                rows,
                vocabulary: VOCABULARY,
            },
        );
        let ticket = backend.end();
        let output = backend.wait(ticket).expect("the device works");
        let by_id = |mut top: Vec<(u32, f32)>| {
            top.sort_by_key(|entry| entry.0);
            top.into_iter().map(|entry| entry.1).collect()
        };
        keys.into_iter()
            .zip(output.top_n.into_iter().map(by_id))
            .collect()
    }
}

fn linear(x: Buf, weight: Weight, out: Buf) -> Linear {
    Linear {
        x,
        weight,
        bias: None,
        out,
        epilogue: Epilogue::None,
        rows: Rows::All,
    }
}

fn step() -> (Vec<Sequence>, StepInputs) {
    let sequences = vec![
        sequence(0, LENGTHS[0], VOCABULARY, 0..2),
        sequence(1, LENGTHS[1], VOCABULARY, 2..4),
    ];
    let parts = [
        Part {
            sequence: 0,
            rows: 0..LENGTHS[0],
        },
        Part {
            sequence: 1,
            rows: 0..LENGTHS[1],
        },
    ];
    let inputs = step_inputs(&sequences, &parts, 16, 1);
    (sequences, inputs)
}

/// Routers of every kind, each followed by its experts.
pub(super) fn experts_match_the_reference<B: Backend>(
    suite: &Suite<'_, B>,
) -> Result<(), BackendError> {
    let (scalar, options) = reference();
    let got = experts((suite.make)(), suite.options)?;
    for (i, (got, want)) in got.iter().zip(&experts(scalar, options)?).enumerate() {
        assert_close(
            &format!("experts, router {i}"),
            got,
            want,
            suite.options.tolerance,
        );
    }
    Ok(())
}

fn experts<B: Backend>(mut backend: B, options: Options) -> Result<Vec<Trace>, BackendError> {
    const EXPERTS: usize = 8;
    const TOP_K: usize = 3;
    const INNER: usize = 24;
    let mut loader = Loader {
        backend: &mut backend,
        options,
        seed: 100,
    };
    let frame = Frame::load(&mut loader)?;
    let router = loader.matrix(EXPERTS, HIDDEN)?;
    let (router_bias, choice_bias) = (loader.vector(EXPERTS, 0.0)?, loader.vector(EXPERTS, 0.0)?);
    let up = loader.stack(EXPERTS, 1, 2 * INNER, HIDDEN)?;
    let down = loader.stack(EXPERTS, 1, HIDDEN, INNER)?;
    let up_in = backend.buf(MAX_ROWS, HIDDEN, Role::InputOf(up))?;
    let down_in = backend.buf(MAX_ROWS * TOP_K, INNER, Role::InputOf(down))?;
    let delta = backend.buf(MAX_ROWS, HIDDEN, Role::Residual)?;
    let routing = backend.buf(MAX_ROWS, TOP_K, Role::Routing)?;
    let route = |bias, score, groups, renorm, scale| Route {
        x: up_in,
        weight: router,
        bias,
        score,
        groups,
        top_k: TOP_K,
        renorm,
        scale,
        routing,
    };
    let routes = [
        route(None, RouteScore::Softmax, None, true, 1.0),
        route(
            Some(router_bias),
            RouteScore::Softmax,
            Some((4, 2)),
            false,
            2.0,
        ),
        route(
            None,
            RouteScore::Sigmoid {
                bias: Some(choice_bias),
            },
            Some((2, 1)),
            true,
            2.5,
        ),
        route(None, RouteScore::Sigmoid { bias: None }, None, false, 1.0),
    ];
    let half = |x, weight, half, out| LinearExperts {
        x,
        weight,
        bias: None,
        routing,
        half,
        out,
    };
    let run = |route: &Route| {
        frame.observe(&mut backend, &mut |backend| {
            backend.norm(&frame.norm(up_in));
            backend.route(route);
            backend.linear_experts(&half(up_in, up, ExpertHalf::Up(Activation::Silu), down_in));
            backend.linear_experts(&half(down_in, down, ExpertHalf::Down, delta));
            backend.norm(&Norm {
                add: Some(delta),
                ..frame.norm(frame.hidden)
            });
        })
    };
    Ok(routes.iter().map(run).collect())
}

/// Absorbed latent attention: per-head products before and after, one shared head of keys.
pub(super) fn latent_attention_matches_the_reference<B: Backend>(
    suite: &Suite<'_, B>,
) -> Result<(), BackendError> {
    let (scalar, options) = reference();
    let got = latent((suite.make)(), suite.options)?;
    assert_close(
        "latent",
        &got,
        &latent(scalar, options)?,
        suite.options.tolerance,
    );
    Ok(())
}

fn latent<B: Backend>(mut backend: B, options: Options) -> Result<Trace, BackendError> {
    const HEADS: usize = 4;
    const RANK: usize = 16;
    const ROPE: usize = 8;
    const VALUE: usize = 12;
    let rope = backend.rope_table(&RopeSpec {
        style: RopeStyle::Interleaved,
        inv_freq: (0..ROPE / 2).map(|i| 0.3f32.powi(i as i32)).collect(),
        attention_factor: 1.0,
        max_positions: 64,
    })?;
    let mut loader = Loader {
        backend: &mut backend,
        options,
        seed: 200,
    };
    let frame = Frame::load(&mut loader)?;
    let dk = RANK + ROPE;
    let project = loader.matrix(HEADS * dk + dk, HIDDEN)?;
    let latent_gain = loader.vector(RANK, 1.0)?;
    let expand = loader.stack(1, HEADS, VALUE, RANK)?;
    let combine = loader.matrix(HIDDEN, HEADS * VALUE)?;
    let project_in = backend.buf(MAX_ROWS, HIDDEN, Role::InputOf(project))?;
    let qkv = backend.buf(MAX_ROWS, HEADS * dk + dk, Role::Qkv)?;
    let attended = backend.buf(MAX_ROWS, HEADS * RANK, Role::InputOf(expand))?;
    let expanded = backend.buf(MAX_ROWS, HEADS * VALUE, Role::InputOf(combine))?;
    let layout = KvLayout::Latent {
        rank: RANK,
        rope: ROPE,
    };
    let groups = vec![KvGroup {
        layers: vec![0],
        window: None,
    }];
    backend.kv(
        &KvSpec {
            groups,
            layout,
            dtype: options.kv,
        },
        &[PAGES],
    )?;
    let heads = HeadLayout {
        q_heads: HEADS,
        kv_heads: 1,
        dk,
        dv: RANK,
    };
    Ok(frame.observe(&mut backend, &mut |backend| {
        backend.norm(&frame.norm(project_in));
        backend.linear(&linear(project_in, project, qkv));
        backend.rope_store(&RopeStore {
            qkv,
            heads,
            layer: 0,
            rope: Some(rope),
            q_norm: None,
            k_norm: Some((latent_gain, 1e-6)),
            store: true,
        });
        backend.attend(&Attend {
            qkv,
            heads,
            layer: 0,
            scale: 0.2,
            mask: Mask::Causal,
            window: None,
            softcap: None,
            sinks: None,
            from: KvFrom::Pages,
            out: attended,
        });
        backend.linear_heads(&LinearHeads {
            x: attended,
            weight: expand,
            out: expanded,
        });
        backend.linear(&Linear {
            epilogue: Epilogue::Residual,
            ..linear(expanded, combine, frame.x)
        });
    }))
}

/// Bidirectional attention over the step's own rows, learned positions, token types, and pooled rows.
pub(super) fn encoder_matches_the_reference<B: Backend>(
    suite: &Suite<'_, B>,
) -> Result<(), BackendError> {
    let (scalar, options) = reference();
    let got = encoder((suite.make)(), suite.options)?;
    for (i, (got, want)) in got.iter().zip(&encoder(scalar, options)?).enumerate() {
        assert_eq!(
            (got.len(), got[0].len()),
            (want.len(), want[0].len()),
            "encoder, pool {i}"
        );
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!(
                (got - want).abs() <= suite.options.tolerance,
                "encoder, pool {i}: {got} is not close to {want}"
            );
        }
    }
    Ok(())
}

fn encoder<B: Backend>(
    mut backend: B,
    options: Options,
) -> Result<Vec<Vec<Vec<f32>>>, BackendError> {
    let heads = HeadLayout {
        q_heads: 4,
        kv_heads: 2,
        dk: 12,
        dv: 12,
    };
    let qkv_cols = heads.q_heads * heads.dk + heads.kv_heads * (heads.dk + heads.dv);
    let mut loader = Loader {
        backend: &mut backend,
        options,
        seed: 300,
    };
    let frame = Frame::load(&mut loader)?;
    let positions = loader.table(64, HIDDEN, false)?;
    let types = loader.table(3, HIDDEN, false)?;
    let project = loader.matrix(qkv_cols, HIDDEN)?;
    let combine = loader.matrix(HIDDEN, heads.q_heads * heads.dv)?;
    let project_in = backend.buf(MAX_ROWS, HIDDEN, Role::InputOf(project))?;
    let qkv = backend.buf(MAX_ROWS, qkv_cols, Role::Qkv)?;
    let attended = backend.buf(MAX_ROWS, heads.q_heads * heads.dv, Role::InputOf(combine))?;
    let pooled = backend.buf(LENGTHS.len(), HIDDEN, Role::Pooled)?;
    let (_, mut inputs) = step();
    inputs.token_types = (0..inputs.tokens.len() as u32).map(|row| row % 2).collect();
    inputs.logit_rows.clear();
    inputs.page_tables.clear();
    inputs.bucket = inputs.exact_bucket();
    let pools = [
        (PoolKind::Mean, true, None, None),
        (PoolKind::Cls, false, None, Some(9)),
        (PoolKind::Last, true, Some(10), None),
    ];
    let mut results = Vec::new();
    for (part, (kind, l2, dimensions, window)) in pools.into_iter().enumerate() {
        backend.begin(&inputs);
        backend.graph(
            GraphKey {
                bucket: inputs.bucket,
                part: part as u32,
            },
            &mut |backend| {
                backend.embed(&Embed {
                    out: frame.x,
                    table: frame.table,
                    scale: 1.0,
                    positions: Some(positions),
                    token_types: Some(types),
                });
                backend.norm(&Norm {
                    kind: NormKind::Layer,
                    ..frame.norm(project_in)
                });
                backend.linear(&linear(project_in, project, qkv));
                backend.attend(&Attend {
                    qkv,
                    heads,
                    layer: 0,
                    scale: 0.3,
                    mask: Mask::Bidirectional,
                    window,
                    softcap: None,
                    sinks: None,
                    from: KvFrom::ThisStep,
                    out: attended,
                });
                backend.linear(&Linear {
                    epilogue: Epilogue::Residual,
                    ..linear(attended, combine, frame.x)
                });
                backend.pool(&Pool {
                    x: frame.x,
                    kind,
                    l2,
                    dimensions,
                    out: pooled,
                });
            },
        );
        let ticket = backend.end();
        results.push(backend.wait(ticket).expect("the device works").pooled);
    }
    Ok(results)
}

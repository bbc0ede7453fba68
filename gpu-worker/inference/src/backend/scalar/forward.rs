//! Embedding, norms, products and pooling.

use super::{Buffer, ScalarBackend};
use crate::backend::activation::{activate, gate, softcap};
use crate::backend::{
    Embed, Epilogue, Linear, LinearHeads, Norm, NormKind, Pool, PoolKind, Rows, StepSequence,
};

/// Returns the product of two rows, summed in ascending order.
pub(super) fn dot(x: &[f32], w: &[f32]) -> f32 {
    assert_eq!(
        x.len(),
        w.len(),
        "a row of the input is as long as a row of the weight"
    );
    x.iter().zip(w).map(|(x, w)| x * w).sum()
}

pub(super) fn embed(this: &ScalarBackend, op: &Embed, out: &mut Buffer) {
    let inputs = &this.state.inputs;
    for row in 0..this.state.rows() {
        let out = out.row_mut(row);
        for (out, x) in out
            .iter_mut()
            .zip(this.tensor(op.table).row(inputs.tokens[row] as usize))
        {
            *out = x * op.scale;
        }
        let positions = op
            .positions
            .map(|table| this.tensor(table).row(inputs.positions[row] as usize));
        let types = op.token_types.map(|table| {
            this.tensor(table)
                .row(inputs.token_types.get(row).copied().unwrap_or(0) as usize)
        });
        for extra in positions.into_iter().chain(types) {
            for (out, x) in out.iter_mut().zip(extra) {
                *out += x;
            }
        }
    }
}

pub(super) fn norm(this: &ScalarBackend, op: &Norm, out: &mut Buffer) {
    let gain = this.tensor(op.weight).row(0);
    for row in 0..this.state.rows() {
        let x = this.buffer(op.x).row(row);
        let mean = match op.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => x.iter().sum::<f32>() / x.len() as f32,
        };
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / x.len() as f32;
        let scale = 1.0 / (variance + op.eps).sqrt();
        for (i, out) in out.row_mut(row).iter_mut().enumerate() {
            let gain = if op.plus_one { 1.0 + gain[i] } else { gain[i] };
            let bias = op.bias.map_or(0.0, |bias| this.tensor(bias).row(0)[i]);
            *out = (x[i] - mean) * scale * gain + bias;
        }
    }
}

pub(super) fn linear(this: &ScalarBackend, op: &Linear, out: &mut Buffer) {
    let weight = this.tensor(op.weight);
    let rows = match op.rows {
        Rows::All => 0..this.state.rows() as u32,
        Rows::Logit => 0..0,
    };
    let logit_rows = match op.rows {
        Rows::All => &[][..],
        Rows::Logit => &this.state.inputs.logit_rows,
    };
    for (row, from) in rows.chain(logit_rows.iter().copied()).enumerate() {
        let x = this.buffer(op.x).row(from as usize);
        let product = |j: usize| {
            let bias = op.bias.map_or(0.0, |bias| this.tensor(bias).row(0)[j]);
            dot(x, weight.row(j)) + bias
        };
        let out = out.row_mut(row);
        match op.epilogue {
            Epilogue::None => (0..weight.n).for_each(|j| out[j] = product(j)),
            Epilogue::Residual => (0..weight.n).for_each(|j| out[j] += product(j)),
            Epilogue::Act(act) => (0..weight.n).for_each(|j| out[j] = activate(act, product(j))),
            Epilogue::Softcap(cap) => (0..weight.n).for_each(|j| out[j] = softcap(cap, product(j))),
            Epilogue::Gated(act) => {
                let half = weight.n / 2;
                (0..half).for_each(|j| out[j] = gate(act, product(j), product(half + j)));
            }
        }
    }
}

pub(super) fn linear_heads(this: &ScalarBackend, op: &LinearHeads, out: &mut Buffer) {
    let weight = this.tensor(op.weight);
    for row in 0..this.state.rows() {
        let heads = this.buffer(op.x).row(row).chunks_exact(weight.k);
        for (head, (x, out)) in heads
            .zip(out.row_mut(row).chunks_exact_mut(weight.n))
            .enumerate()
        {
            for (j, out) in out.iter_mut().enumerate() {
                *out = dot(x, weight.row(head * weight.n + j));
            }
        }
    }
}

/// Returns the pooled row of each sequence, cut to `op.dimensions`, then scaled if asked for.
pub(in crate::backend) fn pool_rows<'a>(
    op: &Pool,
    sequences: &[StepSequence],
    row: impl Fn(usize) -> &'a [f32],
) -> Vec<Vec<f32>> {
    let pool_one = |sequence: &StepSequence| {
        let (start, len) = (sequence.q_start as usize, sequence.q_len as usize);
        let mut pooled = match op.kind {
            PoolKind::Cls => row(start).to_vec(),
            PoolKind::Last => row(start + len - 1).to_vec(),
            PoolKind::Mean => {
                let mut sum = row(start).to_vec();
                for other in start + 1..start + len {
                    sum.iter_mut()
                        .zip(row(other))
                        .for_each(|(sum, x)| *sum += x);
                }
                sum.iter_mut().for_each(|x| *x /= len as f32);
                sum
            }
        };
        pooled.truncate(op.dimensions.unwrap_or(usize::MAX));
        if op.l2 {
            let length = pooled.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
            pooled.iter_mut().for_each(|x| *x /= length);
        }
        pooled
    };
    sequences
        .iter()
        .filter(|sequence| sequence.q_len > 0)
        .map(pool_one)
        .collect()
}

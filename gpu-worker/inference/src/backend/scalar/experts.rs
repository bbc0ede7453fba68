//! Mixtures of experts: the choice, and the products with the chosen.

use super::forward::dot;
use super::{Buffer, ScalarBackend};
use crate::backend::activation::gate;
use crate::backend::{ExpertHalf, LinearExperts, Route, RouteScore};

pub(super) fn route(this: &ScalarBackend, op: &Route, routing: &mut Buffer) {
    let router = this.tensor(op.weight);
    for row in 0..this.state.rows() {
        let x = this.buffer(op.x).row(row);
        let logits = (0..router.n).map(|e| {
            dot(x, router.row(e)) + op.bias.map_or(0.0, |bias| this.tensor(bias).row(0)[e])
        });
        let scores: Vec<f32> = match op.score {
            RouteScore::Softmax => softmax(logits.collect()),
            RouteScore::Sigmoid { .. } => logits.map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        };
        let mut choice = scores.clone();
        if let RouteScore::Sigmoid { bias: Some(bias) } = op.score {
            choice
                .iter_mut()
                .zip(this.tensor(bias).row(0))
                .for_each(|(score, bias)| *score += bias);
        }
        if let Some((groups, kept)) = op.groups {
            drop_groups(&mut choice, groups, kept, &op.score);
        }
        let experts = highest(&choice, op.top_k);
        let sum: f32 = experts.iter().map(|&e| scores[e]).sum();
        let factor = if op.renorm {
            op.scale / (sum + 1e-20)
        } else {
            op.scale
        };
        let at = row * routing.cols;
        for (i, e) in experts.into_iter().enumerate() {
            routing.experts[at + i] = e as u32;
            routing.values[at + i] = scores[e] * factor;
        }
    }
}

/// Takes all experts but those of the `kept` best groups out of the choice.
///
/// A group counts as much as its two best experts together (sigmoid) or its best (softmax).
///
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2; arXiv:2405.04434, section 2.2.2.
fn drop_groups(choice: &mut [f32], groups: usize, kept: usize, score: &RouteScore) {
    let size = choice.len() / groups;
    let counted = match score {
        RouteScore::Softmax => 1,
        RouteScore::Sigmoid { .. } => 2,
    };
    let group_scores: Vec<f32> = choice
        .chunks_exact(size)
        .map(|group| highest(group, counted).into_iter().map(|e| group[e]).sum())
        .collect();
    let best = highest(&group_scores, kept);
    for (group, experts) in choice.chunks_exact_mut(size).enumerate() {
        if !best.contains(&group) {
            experts.fill(f32::NEG_INFINITY);
        }
    }
}

/// Returns the indices of the `count` highest values, highest first, ties to the lower index.
fn highest(values: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order.truncate(count);
    order
}

fn softmax(mut logits: Vec<f32>) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|x| *x /= sum);
    logits
}

pub(super) fn linear_experts(this: &ScalarBackend, op: &LinearExperts, out: &mut Buffer) {
    let weight = this.tensor(op.weight);
    let routing = this.buffer(op.routing);
    let top_k = routing.cols;
    for row in 0..this.state.rows() {
        for i in 0..top_k {
            let pair = row * top_k + i;
            let expert = routing.experts[pair] as usize;
            let product = |x: &[f32], j: usize| {
                let bias = op
                    .bias
                    .map_or(0.0, |bias| this.tensor(bias).values[expert * weight.n + j]);
                dot(x, weight.row(expert * weight.n + j)) + bias
            };
            match op.half {
                ExpertHalf::Up(act) => {
                    let x = this.buffer(op.x).row(row);
                    let half = weight.n / 2;
                    for (j, out) in out.row_mut(pair).iter_mut().enumerate() {
                        *out = gate(act, product(x, j), product(x, half + j));
                    }
                }
                ExpertHalf::Down => {
                    let x = this.buffer(op.x).row(pair);
                    let out = out.row_mut(row);
                    if i == 0 {
                        out.fill(0.0);
                    }
                    for (j, out) in out.iter_mut().enumerate() {
                        *out += routing.values[pair] * product(x, j);
                    }
                }
            }
        }
    }
}

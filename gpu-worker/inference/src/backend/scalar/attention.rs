//! Rotary embedding, the KV cache, and attention.

use std::ops::Range;

use super::forward::dot;
use super::{Buffer, Cache, ScalarBackend};
use crate::backend::activation::softcap;
use crate::backend::rope::rms_norm_head;
use crate::backend::state::HOST_PAGE_TOKENS;
use crate::backend::{Attend, HeadLayout, KvFrom, Mask, RopeStore, StepSequence};

pub(super) fn rope_store(
    this: &ScalarBackend,
    op: &RopeStore,
    qkv: &mut Buffer,
    cache: &mut Cache,
) {
    let HeadLayout {
        q_heads,
        kv_heads,
        dk,
        dv,
    } = op.heads;
    let rope = op.rope.map(|table| &this.ropes[table.0 as usize]);
    let latent_rank = cache.latent_rank;
    for row in 0..this.state.rows() {
        let position = this.state.inputs.positions[row];
        let (queries, rest) = qkv.row_mut(row).split_at_mut(q_heads * dk);
        let (keys, values) = rest.split_at_mut(kv_heads * dk);
        for (heads, norm) in [(queries, op.q_norm), (&mut *keys, op.k_norm)] {
            for head in heads.chunks_exact_mut(dk) {
                if let Some((gain, eps)) = norm {
                    let gain = this.tensor(gain).row(0);
                    rms_norm_head(&mut head[..gain.len()], gain, eps);
                }
                if let Some(rope) = rope {
                    let first = latent_rank.map_or(0, |_| dk - rope.rotated());
                    rope.rotate(&mut head[first..], position);
                }
            }
        }
        if op.store {
            let layer = cache.layers[op.layer]
                .as_mut()
                .expect("the layer has a cache");
            let slot = this.state.inputs.page_tables[layer.group].write_slots[row] as usize;
            layer.keys.row_mut(slot).copy_from_slice(keys);
            if latent_rank.is_none() {
                layer
                    .values
                    .row_mut(slot)
                    .copy_from_slice(&values[..kv_heads * dv]);
            }
        }
    }
}

pub(super) fn attend(this: &ScalarBackend, op: &Attend, out: &mut Buffer) {
    let qkv = this.buffer(op.qkv);
    let sinks = op.sinks.map(|sinks| this.tensor(sinks).row(0));
    if op.from == KvFrom::ThisStep {
        let cols = out.cols;
        for sequence in &this.state.inputs.sequences {
            let start = sequence.q_start as usize;
            let out = &mut out.values[start * cols..][..sequence.q_len as usize * cols];
            attend_step_rows(op, sinks, sequence, |row| qkv.row(row), out);
        }
        return;
    }
    let HeadLayout {
        q_heads,
        kv_heads,
        dk,
        dv,
    } = op.heads;
    let layer = this.cache.layers[op.layer]
        .as_ref()
        .expect("the layer has a cache");
    let table = &this.state.inputs.page_tables[layer.group];
    let latent_rank = this.cache.latent_rank;
    for (sequence, &first_page) in this.state.inputs.sequences.iter().zip(&table.starts) {
        let slot = |t: usize| {
            let page = table.pages[first_page as usize + t / HOST_PAGE_TOKENS] as usize;
            page * HOST_PAGE_TOKENS + t % HOST_PAGE_TOKENS
        };
        for i in 0..sequence.q_len as usize {
            let row = sequence.q_start as usize + i;
            let position = (sequence.kv_len - sequence.q_len) as usize + i;
            let seen = visible(op, position, sequence.kv_len as usize);
            for head in 0..q_heads {
                let kv_head = head / (q_heads / kv_heads);
                let key = |t: usize| &layer.keys.row(slot(t))[kv_head * dk..][..dk];
                let value = |t: usize| match latent_rank {
                    Some(rank) => &layer.keys.row(slot(t))[..rank],
                    None => &layer.values.row(slot(t))[kv_head * dv..][..dv],
                };
                let query = &qkv.row(row)[head * dk..][..dk];
                let out = &mut out.row_mut(row)[head * dv..][..dv];
                attend_one(
                    op,
                    sinks.map(|s| s[head]),
                    query,
                    seen.clone(),
                    key,
                    value,
                    out,
                );
            }
        }
    }
}

/// Attends the rows of one sequence to each other, without a cache: `out` is `[q_len, q_heads * dv]`.
pub(in crate::backend) fn attend_step_rows<'a>(
    op: &Attend,
    sinks: Option<&[f32]>,
    sequence: &StepSequence,
    qkv: impl Fn(usize) -> &'a [f32],
    out: &mut [f32],
) {
    let HeadLayout {
        q_heads,
        kv_heads,
        dk,
        dv,
    } = op.heads;
    let (start, len) = (sequence.q_start as usize, sequence.q_len as usize);
    for (i, out) in out.chunks_exact_mut(q_heads * dv).enumerate() {
        let seen = visible(op, i, len);
        for (head, out) in out.chunks_exact_mut(dv).enumerate() {
            let kv_head = head / (q_heads / kv_heads);
            let key = |t: usize| &qkv(start + t)[(q_heads + kv_head) * dk..][..dk];
            let value =
                |t: usize| &qkv(start + t)[(q_heads + kv_heads) * dk + kv_head * dv..][..dv];
            let query = &qkv(start + i)[head * dk..][..dk];
            attend_one(
                op,
                sinks.map(|s| s[head]),
                query,
                seen.clone(),
                key,
                value,
                out,
            );
        }
    }
}

/// Returns the positions that a query at `position` of a sequence of `len` tokens sees.
pub(in crate::backend) fn visible(op: &Attend, position: usize, len: usize) -> Range<usize> {
    let window = op.window.unwrap_or(len);
    let first = (position + 1).saturating_sub(window);
    match op.mask {
        Mask::Causal => first..position + 1,
        Mask::Bidirectional => first..len.min(position.saturating_add(window)),
    }
}

fn attend_one<'a>(
    op: &Attend,
    sink: Option<f32>,
    query: &[f32],
    seen: Range<usize>,
    key: impl Fn(usize) -> &'a [f32],
    value: impl Fn(usize) -> &'a [f32],
    out: &mut [f32],
) {
    let score = |t: usize| {
        let score = dot(query, key(t)) * op.scale;
        op.softcap.map_or(score, |cap| softcap(cap, score))
    };
    let scores: Vec<f32> = seen.clone().map(score).collect();
    let max = scores
        .iter()
        .copied()
        .chain(sink)
        .fold(f32::NEG_INFINITY, f32::max);
    let sum =
        scores.iter().map(|s| (s - max).exp()).sum::<f32>() + sink.map_or(0.0, |s| (s - max).exp());
    out.fill(0.0);
    for (t, score) in seen.zip(scores) {
        let weight = (score - max).exp() / sum;
        for (out, v) in out.iter_mut().zip(value(t)) {
            *out += weight * v;
        }
    }
}

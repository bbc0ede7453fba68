//! Rows of projected queries, keys and values: normalised, rotated, and stored in the pages.
#![expect(unsafe_code, reason = "rows are stored in parallel")]

use std::ops::Range;

use super::element::Element;
use super::isa::Kernel;
use super::kv::BlockShape;
use super::simd::Simd;
use super::storage::{Shared, write_values};
use crate::backend::rope::{Angles, Rotations};
use crate::backend::state::HOST_PAGE_TOKENS;
use crate::backend::{HeadLayout, RopeStyle};

/// The longest head whose rounded values lie on the stack; longer ones are stored in pieces.
const PIECE: usize = 256;

/// The operands of one call.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, E> {
    /// `[R, stride]`: queries, keys, values.
    pub(super) qkv: Shared<'a, f32>,
    /// Values from row to row.
    pub(super) stride: usize,
    /// Head layout of a row.
    pub(super) heads: HeadLayout,
    /// Position of each row.
    pub(super) positions: &'a [u32],
    /// The rotation.
    pub(super) rope: Option<&'a Rotations>,
    /// Gain and eps of query heads.
    pub(super) q_norm: Option<(&'a [f32], f32)>,
    /// Gain and eps of key heads.
    pub(super) k_norm: Option<(&'a [f32], f32)>,
    /// Where keys and values go.
    pub(super) target: Option<Target<'a, E>>,
}

/// The pages of a layer.
#[derive(Clone, Copy)]
pub(super) struct Target<'a, E> {
    /// `[pages, heads, block]`.
    pub(super) blocks: Shared<'a, E>,
    /// Shape of a block.
    pub(super) shape: BlockShape,
    /// Page and offset of each row of the step.
    pub(super) slots: &'a [u32],
}

/// One task: some rows.
pub(super) struct StoreRows<'a, E> {
    pub(super) operands: Operands<'a, E>,
    pub(super) rows: Range<usize>,
}

impl<E: Element> Kernel for StoreRows<'_, E> {
    const HAS_BF16: bool = E::IS_BF16;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Operands {
            qkv,
            stride,
            heads,
            positions,
            rope,
            q_norm,
            k_norm,
            target,
        } = self.operands;
        let query_cols = heads.q_heads * heads.dk;
        let key_cols = heads.kv_heads * heads.dk;
        let cols = query_cols + key_cols + heads.kv_heads * heads.dv;
        for row in self.rows {
            // SAFETY: each row belongs to one task.
            let values = unsafe { qkv.part(row * stride..row * stride + cols) };
            let (queries, rest) = values.split_at_mut(query_cols);
            let (keys, values) = rest.split_at_mut(key_cols);
            for (part, norm) in [(queries, q_norm), (&mut *keys, k_norm)] {
                for head in part.chunks_exact_mut(heads.dk) {
                    if let Some((gain, eps)) = norm {
                        normalise(s, head, gain, eps);
                    }
                    if let Some(rope) = rope {
                        rotate(s, rope.at(positions[row]), head);
                    }
                }
            }
            if let Some(target) = &target {
                // SAFETY: each row has its own slot.
                unsafe { target.store(s, row, keys, values) };
            }
        }
    }
}

impl<E: Element> Target<'_, E> {
    /// Writes the keys and values of a row, all heads, to its slot.
    ///
    /// # Safety
    ///
    /// No other task may write the row's slot.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, s: S, row: usize, keys: &[f32], values: &[f32]) {
        let shape = self.shape;
        let slot = self.slots[row] as usize;
        let (page, token) = (slot / HOST_PAGE_TOKENS, slot % HOST_PAGE_TOKENS);
        let (dk, dv) = (keys.len() / shape.heads, values.len() / shape.heads);
        // Attention reads whole lanes of values, of one or two tokens. Behind its last token a sequence has
        // nothing: the lane's second half is zeroed with it, since no other row of the step writes it (the next
        // slot of the same page can only be the next row's).
        let last = self
            .slots
            .get(row + 1)
            .is_none_or(|&next| next as usize != slot + 1);
        let written = if last && token.is_multiple_of(E::PACK) {
            E::PACK
        } else {
            1
        };
        let mut rounded = [E::default(); PIECE];
        for head in 0..shape.heads {
            let block = (page * shape.heads + head) * shape.len();
            let key = &keys[head * dk..][..dk];
            let value = &values[head * dv..][..dv];
            for (piece, key) in key.chunks(PIECE).enumerate() {
                write_values(s, key, &mut rounded[..key.len()]);
                // A last lane that is half full has zero in the other half, as in the queries.
                let lanes = key.len().div_ceil(E::PACK);
                rounded[key.len()..lanes * E::PACK].fill(E::default());
                for (i, lane) in rounded[..lanes * E::PACK].chunks_exact(E::PACK).enumerate() {
                    let unit = piece * PIECE / E::PACK + i;
                    let at = block + (unit * HOST_PAGE_TOKENS + token) * E::PACK;
                    // SAFETY: these lanes belong to the slot alone.
                    unsafe { self.blocks.part(at..at + E::PACK) }.copy_from_slice(lane);
                }
            }
            let lanes = block + shape.key_len() + token / E::PACK * shape.dv * E::PACK;
            for (piece, value) in value.chunks(PIECE).enumerate() {
                write_values(s, value, &mut rounded[..value.len()]);
                let first = lanes + piece * PIECE * E::PACK + token % E::PACK;
                for (i, &x) in rounded[..value.len()].iter().enumerate() {
                    let at = first + i * E::PACK;
                    // SAFETY: this token of the lane belongs to the slot.
                    let lane = unsafe { self.blocks.part(at..at + 1) };
                    lane[0] = x;
                }
                for offset in 1..written {
                    for i in 0..value.len() {
                        let at = first + i * E::PACK + offset;
                        // SAFETY: this token of the lane belongs to nobody in this step.
                        let lane = unsafe { self.blocks.part(at..at + 1) };
                        lane[0] = E::default();
                    }
                }
            }
        }
    }
}

/// Scales `head` by its root mean square and `gain`.
#[inline(always)]
fn normalise<S: Simd>(s: S, head: &mut [f32], gain: &[f32], eps: f32) {
    let len = head.len();
    let whole = len / S::LANES * S::LANES;
    let mut squares = s.splat(0.0);
    let mut at = 0;
    while at < whole {
        let x = s.load(&head[at..]);
        squares = s.fma(x, x, squares);
        at += S::LANES;
    }
    let mut sum = s.sum(squares);
    for x in &head[whole..] {
        sum += x * x;
    }
    let scale = 1.0 / (sum / len as f32 + eps).sqrt();
    let mut at = 0;
    while at < whole {
        let gain = s.mul(s.load(&gain[at..]), s.splat(scale));
        s.store(s.mul(s.load(&head[at..]), gain), &mut head[at..]);
        at += S::LANES;
    }
    for (x, gain) in head[whole..].iter_mut().zip(&gain[whole..]) {
        *x *= scale * gain;
    }
}

/// Rotates the first values of `head`.
#[inline(always)]
fn rotate<S: Simd>(s: S, angles: Angles<'_>, head: &mut [f32]) {
    let pairs = angles.cosines.len();
    let vectors = match angles.style {
        RopeStyle::Neox => pairs / S::LANES * S::LANES,
        RopeStyle::Interleaved => 0,
    };
    if vectors != pairs {
        // Rare: interleaved pairs, and partial rotations of odd sizes.
        return angles.rotate(head);
    }
    let (first, second) = head[..2 * pairs].split_at_mut(pairs);
    let mut at = 0;
    while at < pairs {
        let (a, b) = (s.load(&first[at..]), s.load(&second[at..]));
        let (cos, sin) = (s.load(&angles.cosines[at..]), s.load(&angles.sines[at..]));
        let turned = s.sub(s.mul(a, cos), s.mul(b, sin));
        s.store(s.fma(a, sin, s.mul(b, cos)), &mut second[at..]);
        s.store(turned, &mut first[at..]);
        at += S::LANES;
    }
}

//! The paged KV cache.
//!
//! A page holds 16 tokens of one layer: for each KV head a block of keys, `[dk / PACK][16][PACK]`, and one of
//! values, `[16 / PACK][dv][PACK]`. Both are panels as products read them. `dk` and `dv` are rounded up; the
//! padding is never written, and stays zero. A lane of values whose first token is a sequence's last has zero
//! in the second: what products read, someone has written.
use half::bf16;

use super::element::Element;
use super::storage::Aligned;
use crate::backend::state::HOST_PAGE_TOKENS;
use crate::backend::{BackendError, KvSpec};

/// Shape of the blocks of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockShape {
    /// KV heads.
    pub(super) heads: usize,
    /// Size of a key, rounded up to whole lanes.
    pub(super) dk: usize,
    /// Size of a value, rounded up to whole vectors.
    pub(super) dv: usize,
}

impl BlockShape {
    /// Returns the shape for `heads` heads of `dk` and `dv` values.
    pub(super) fn new<E: Element>(heads: usize, dk: usize, dv: usize) -> Self {
        Self {
            heads,
            dk: dk.next_multiple_of(E::PACK),
            dv: dv.next_multiple_of(16),
        }
    }

    /// Returns the values of a key block.
    pub(super) fn key_len(&self) -> usize {
        self.dk * HOST_PAGE_TOKENS
    }

    /// Returns the values of a value block.
    pub(super) fn value_len(&self) -> usize {
        self.dv * HOST_PAGE_TOKENS
    }

    /// Returns the values of both blocks of one head.
    pub(super) fn len(&self) -> usize {
        self.key_len() + self.value_len()
    }
}

/// The cache in its number type.
#[derive(Debug)]
pub(super) enum Cache {
    /// Single precision.
    F32(Pages<f32>),
    /// bfloat16.
    Bf16(Pages<bf16>),
}

impl Cache {
    /// Returns the bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Cache::F32(pages) => pages.bytes(),
            Cache::Bf16(pages) => pages.bytes(),
        }
    }
}

/// The pages of all layers.
#[derive(Debug)]
pub(super) struct Pages<E> {
    /// Shape of a block.
    pub(super) shape: BlockShape,
    layers: Vec<Option<Layer<E>>>,
}

/// The pages of one layer.
#[derive(Debug)]
pub(super) struct Layer<E> {
    /// Index of its page table.
    pub(super) group: usize,
    /// `[pages, heads, block]`.
    pub(super) blocks: Aligned<E>,
}

impl<E: Element> Pages<E> {
    /// Makes the pages of every layer.
    pub(super) fn new(
        shape: BlockShape,
        spec: &KvSpec,
        pages: &[usize],
    ) -> Result<Self, BackendError> {
        let mut layers = Vec::new();
        for (group, (members, &pages)) in spec.groups.iter().zip(pages).enumerate() {
            for &layer in &members.layers {
                if layers.len() <= layer {
                    layers.resize_with(layer + 1, || None);
                }
                let len = pages.saturating_mul(shape.heads * shape.len());
                layers[layer] = Some(Layer {
                    group,
                    blocks: Aligned::zeros(len, "KV pool")?,
                });
            }
        }
        Ok(Self { shape, layers })
    }

    /// Returns a layer.
    ///
    /// # Panics
    ///
    /// If it is in no group.
    pub(super) fn layer(&self, layer: usize) -> &Layer<E> {
        self.layers[layer].as_ref().expect("the layer has a cache")
    }

    /// Returns a layer, as [`Pages::layer`].
    pub(super) fn layer_mut(&mut self, layer: usize) -> &mut Layer<E> {
        self.layers[layer].as_mut().expect("the layer has a cache")
    }

    fn bytes(&self) -> usize {
        self.layers
            .iter()
            .flatten()
            .map(|layer| layer.blocks.bytes())
            .sum()
    }
}

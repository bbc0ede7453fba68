//! What happens at load: weights, buffers, the KV pool.

use std::sync::Mutex;

use half::bf16;

use super::element::Element;
use super::int8::{CodedPlane, PackedInt8, QUAD};
use super::kv::{BlockShape, Cache, Pages};
use super::pack::{Packed, ROWS, lanes_of};
use super::packed_file::Plain;
use super::storage::{Aligned, Buffer, Plane};
use super::{CpuBackend, Stored, attention, unsupported};
use crate::backend::sampling::Sampler;
use crate::backend::scalar::zeros;
use crate::backend::{
    BackendError, Buf, KvLayout, KvSpec, KvType, Recipe, Role, Shard, Weight, WeightDesc,
    WeightSource, WeightUse,
};

impl CpuBackend {
    pub(super) fn load_weight(
        &mut self,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Weight, BackendError> {
        if desc.shard != Shard::Whole {
            return Err(unsupported("sharded weights"));
        }
        if desc.experts != 1 || desc.heads != 1 {
            return Err(unsupported("stacked weights"));
        }
        let stored = match desc.used_as {
            WeightUse::Vector => {
                let mut values = zeros(desc.n * desc.k, &desc.name)?;
                source
                    .read_rows(0, &mut values)
                    .map_err(|source| BackendError::Weight {
                        name: desc.name.clone(),
                        source,
                    })?;
                Stored::Vector(values)
            }
            WeightUse::Linear | WeightUse::Embedding | WeightUse::TiedEmbedding => {
                self.load_matrix(desc, source)?
            }
        };
        self.reserve_logit_rows(&stored)?;
        self.weights.push(stored);
        Ok(Weight(self.weights.len() as u32 - 1))
    }

    fn load_matrix(
        &mut self,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Stored, BackendError> {
        let (pool, file) = (&self.pool, &mut self.packed);
        Ok(match (desc.recipe, desc.used_as) {
            (Recipe::F32, _) => Stored::F32(Packed::load(pool, file, desc, source)?),
            (Recipe::Bf16, _) | (Recipe::Int8, WeightUse::Embedding) => {
                Stored::Bf16(Packed::load(pool, file, desc, source)?)
            }
            (Recipe::Int8, WeightUse::TiedEmbedding) => Stored::TiedInt8 {
                table: Packed::load(pool, file, desc, source)?,
                matrix: PackedInt8::load(pool, file, desc, source)?,
            },
            (Recipe::Int8, WeightUse::Linear | WeightUse::Vector) => {
                Stored::Int8(PackedInt8::load(pool, file, desc, source)?)
            }
        })
    }

    /// Any matrix may be the output layer: its input rows must fit.
    fn reserve_logit_rows(&mut self, stored: &Stored) -> Result<(), BackendError> {
        let rows = self.caps.max_rows.next_multiple_of(ROWS);
        let scratch = &mut self.scratch;
        match stored {
            Stored::F32(packed) => reserve(&mut scratch.logit_rows_f32, packed.units * rows),
            Stored::Bf16(packed) => reserve(&mut scratch.logit_rows_bf16, 2 * packed.units * rows),
            Stored::Int8(matrix) | Stored::TiedInt8 { matrix, .. } => {
                let kept = lanes_of(matrix.kept_features(), bf16::PACK) * bf16::PACK;
                reserve(&mut scratch.logit_rows_bf16, kept * rows)?;
                reserve(&mut scratch.logit_row_scales, rows)?;
                // Rows lie as far apart as if all features were codes.
                let stride = lanes_of(matrix.features(), QUAD) * QUAD;
                reserve(&mut scratch.logit_row_codes, stride * rows)
            }
            Stored::Vector(_) => Ok(()),
        }
    }

    pub(super) fn make_buffer(
        &mut self,
        rows: usize,
        cols: usize,
        role: Role,
    ) -> Result<Buf, BackendError> {
        let buffer = match role {
            Role::Residual | Role::Qkv | Role::Pooled => Buffer::F32(Plane::zeros(rows, cols)?),
            Role::Logits => {
                self.scratch.samplers = (0..self.pool.workers())
                    .map(|_| Mutex::new(Sampler::new(cols)))
                    .collect();
                Buffer::F32(Plane::zeros(rows, cols)?)
            }
            Role::InputOf(weight) => match self.weights[weight.0 as usize] {
                Stored::Bf16(_) => Buffer::Bf16(Plane::zeros(rows, cols)?),
                Stored::Int8(ref matrix) | Stored::TiedInt8 { ref matrix, .. } => {
                    Buffer::Int8(CodedPlane::zeros(rows, cols, matrix.kept_features())?)
                }
                Stored::F32(_) | Stored::Vector(_) => Buffer::F32(Plane::zeros(rows, cols)?),
            },
            Role::Routing => return Err(unsupported("mixtures of experts")),
        };
        self.bufs.push(buffer);
        let buf = Buf(self.bufs.len() as u32 - 1);
        if role == Role::Logits {
            self.logits = Some(buf);
        }
        Ok(buf)
    }

    pub(super) fn make_cache(
        &mut self,
        spec: &KvSpec,
        pages: &[usize],
    ) -> Result<(), BackendError> {
        let KvLayout::Gqa { heads, dk, dv } = spec.layout else {
            return Err(unsupported("latent attention"));
        };
        let workers = self.pool.workers();
        let cache = match spec.dtype {
            KvType::F32 => {
                let shape = BlockShape::new::<f32>(heads, dk, dv);
                self.scratch.attention_f32 = attention_scratch(workers, shape)?;
                Cache::F32(Pages::new(shape, spec, pages)?)
            }
            KvType::Bf16 => {
                let shape = BlockShape::new::<bf16>(heads, dk, dv);
                self.scratch.attention_bf16 = attention_scratch(workers, shape)?;
                Cache::Bf16(Pages::new(shape, spec, pages)?)
            }
            KvType::Fp8 => return Err(unsupported("a KV cache in fp8")),
        };
        self.cache = Some(cache);
        self.state.make_page_tables(spec.groups.len());
        Ok(())
    }
}

fn reserve<T: Plain>(values: &mut Aligned<T>, len: usize) -> Result<(), BackendError> {
    if values.len() < len {
        *values = Aligned::zeros(len, "logit rows")?;
    }
    Ok(())
}

/// Makes the working memory of attention, one for each thread.
fn attention_scratch<E: Element>(
    workers: usize,
    shape: BlockShape,
) -> Result<Vec<Mutex<attention::Scratch<E>>>, BackendError> {
    (0..workers)
        .map(|_| attention::Scratch::new(shape).map(Mutex::new))
        .collect()
}

//! The reference: every operation of the contract in plain f32 loops, in the order that its formula has.
//!
//! Never fast, never clever, never sharded. Whatever a recipe says, it computes in f32.
//! Allocates small temporaries inside operations: the one rule of the contract that it does not keep.
//!
//! Latent attention: `kv_heads` is 1, `dk` is `rank + rope`, `dv` is `rank`. A row of `qkv` is
//! `q_heads * dk` queries, then the latent (`rank`) and its rotated part (`rope`): there are no values,
//! the latent is both. Rotation touches the last `rope` values of a head, and `k_norm` the latent.

mod attention;
mod experts;
mod forward;
#[cfg(test)]
mod tests;

pub(in crate::backend) use attention::{attend_step_rows, visible};
pub(in crate::backend) use forward::pool_rows;

use super::rope::Rotations;
use super::sampling::Sampler;
use super::state::{HOST_PAGE_TOKENS, LogitRows, StepState};
use super::{
    Attend, Backend, BackendError, Buf, Caps, Embed, GraphKey, KvLayout, KvSpec, KvType, Linear,
    LinearExperts, LinearHeads, Norm, Pool, Role, RopeSpec, RopeStore, RopeTable, Route,
    SampleInputs, Shard, StepInputs, StepOutput, Ticket, Weight, WeightDesc, WeightSource,
};

/// Settings of a [`ScalarBackend`].
#[derive(Debug, Clone)]
pub struct ScalarConfig {
    /// The most rows in one step.
    pub max_rows: usize,
    /// 0 or 1: how many steps may be enqueued beyond the one that is waited for.
    pub lookahead: usize,
}

/// The reference backend.
#[derive(Debug)]
pub struct ScalarBackend {
    caps: Caps,
    weights: Vec<Tensor>,
    ropes: Vec<Rotations>,
    bufs: Vec<Buffer>,
    cache: Cache,
    state: StepState,
}

/// A stack of matrices: `[stacks, n, k]`.
#[derive(Debug)]
struct Tensor {
    n: usize,
    k: usize,
    values: Vec<f32>,
}

impl Tensor {
    /// Row `row` of all rows of all matrices.
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.k..][..self.k]
    }
}

/// An activation buffer: `[rows, cols]`.
#[derive(Debug, Default)]
struct Buffer {
    cols: usize,
    values: Vec<f32>,
    /// Chosen experts, for [`Role::Routing`] alone; `values` are their weights.
    experts: Vec<u32>,
}

impl Buffer {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.cols..][..self.cols]
    }
}

/// The KV pool: for each layer, one row of keys and one of values a token slot.
#[derive(Debug, Default)]
struct Cache {
    layers: Vec<Option<CacheLayer>>,
    /// Rank of the latent, where there is one.
    latent_rank: Option<usize>,
}

#[derive(Debug)]
struct CacheLayer {
    /// Index of its page table.
    group: usize,
    /// `[pages * page_tokens, heads * dk]`; latent and rotated part where there is a latent.
    keys: Buffer,
    /// `[pages * page_tokens, heads * dv]`; empty where there is a latent.
    values: Buffer,
}

impl ScalarBackend {
    /// Makes a backend without weights.
    pub fn new(config: ScalarConfig) -> Self {
        Self {
            caps: Caps {
                page_tokens: HOST_PAGE_TOKENS,
                lookahead: config.lookahead,
                max_rows: config.max_rows,
                fingerprint: format!("{}-scalar-f32", env!("CARGO_PKG_VERSION")),
            },
            weights: Vec::new(),
            ropes: Vec::new(),
            bufs: Vec::new(),
            cache: Cache::default(),
            state: StepState::with_rows(config.max_rows),
        }
    }

    fn tensor(&self, weight: Weight) -> &Tensor {
        &self.weights[weight.0 as usize]
    }

    fn buffer(&self, buf: Buf) -> &Buffer {
        &self.bufs[buf.0 as usize]
    }

    /// Runs `work` with buffer `out` taken out, so that the rest can be read.
    fn with_out(&mut self, out: Buf, work: impl FnOnce(&Self, &mut Buffer)) {
        let mut taken = std::mem::take(&mut self.bufs[out.0 as usize]);
        work(self, &mut taken);
        self.bufs[out.0 as usize] = taken;
    }
}

fn unsupported(what: impl Into<String>) -> BackendError {
    BackendError::Unsupported {
        backend: "scalar",
        what: what.into(),
    }
}

/// Returns a vector of zeros, or the error that there is no room for it.
pub(in crate::backend) fn zeros<T: Clone + Default>(
    len: usize,
    what: &str,
) -> Result<Vec<T>, BackendError> {
    let mut values = Vec::new();
    values
        .try_reserve_exact(len)
        .map_err(|_| BackendError::OutOfMemory {
            what: what.to_owned(),
            needed_bytes: len.saturating_mul(size_of::<T>()),
            // The allocator does not say how much it has.
            available_bytes: 0,
        })?;
    values.resize(len, T::default());
    Ok(values)
}

impl Backend for ScalarBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn weight(
        &mut self,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Weight, BackendError> {
        if desc.shard != Shard::Whole {
            return Err(unsupported("sharded weights"));
        }
        let rows = desc.experts * desc.heads * desc.n;
        assert_eq!(
            (source.rows(), source.cols()),
            (rows, desc.k),
            "the source of {} has its shape",
            desc.name
        );
        let mut values = zeros(rows * desc.k, &desc.name)?;
        source
            .read_rows(0, &mut values)
            .map_err(|source| BackendError::Weight {
                name: desc.name.clone(),
                source,
            })?;
        self.weights.push(Tensor {
            n: desc.n,
            k: desc.k,
            values,
        });
        Ok(Weight(self.weights.len() as u32 - 1))
    }

    fn rope_table(&mut self, spec: &RopeSpec) -> Result<RopeTable, BackendError> {
        self.ropes.push(Rotations::new(spec));
        Ok(RopeTable(self.ropes.len() as u32 - 1))
    }

    fn buf(&mut self, rows: usize, cols: usize, role: Role) -> Result<Buf, BackendError> {
        let experts = match role {
            Role::Routing => zeros(rows * cols, "routing")?,
            Role::Residual | Role::InputOf(_) | Role::Qkv | Role::Logits | Role::Pooled => {
                Vec::new()
            }
        };
        self.bufs.push(Buffer {
            cols,
            values: zeros(rows * cols, "activations")?,
            experts,
        });
        Ok(Buf(self.bufs.len() as u32 - 1))
    }

    fn kv(&mut self, spec: &KvSpec, pages: &[usize]) -> Result<(), BackendError> {
        if spec.dtype == KvType::Fp8 {
            return Err(unsupported("a KV cache in fp8"));
        }
        let (key_cols, value_cols, latent_rank) = match spec.layout {
            KvLayout::Gqa { heads, dk, dv } => (heads * dk, heads * dv, None),
            KvLayout::Latent { rank, rope } => (rank + rope, 0, Some(rank)),
        };
        let mut layers = Vec::new();
        for (group, (layout, &pages)) in spec.groups.iter().zip(pages).enumerate() {
            let rows = pages * HOST_PAGE_TOKENS;
            for &layer in &layout.layers {
                if layers.len() <= layer {
                    layers.resize_with(layer + 1, || None);
                }
                let part = |cols| -> Result<Buffer, BackendError> {
                    Ok(Buffer {
                        cols,
                        values: zeros(rows * cols, "KV pool")?,
                        experts: Vec::new(),
                    })
                };
                layers[layer] = Some(CacheLayer {
                    group,
                    keys: part(key_cols)?,
                    values: part(value_cols)?,
                });
            }
        }
        self.cache = Cache {
            layers,
            latent_rank,
        };
        self.state.make_page_tables(spec.groups.len());
        Ok(())
    }

    fn slots(&mut self, slots: usize, history_tokens: usize) -> Result<(), BackendError> {
        self.state.make_slots(slots, history_tokens);
        Ok(())
    }

    fn loaded(&mut self) {}

    fn begin(&mut self, inputs: &StepInputs) {
        self.state.begin(inputs);
    }

    fn graph(&mut self, _key: GraphKey, forward: &mut dyn FnMut(&mut Self)) {
        forward(self);
    }

    fn embed(&mut self, op: &Embed) {
        self.with_out(op.out, |this, out| forward::embed(this, op, out));
    }

    fn norm(&mut self, op: &Norm) {
        if let Some(add) = op.add {
            self.with_out(op.x, |this, x| {
                for row in 0..this.state.rows() {
                    for (x, add) in x.row_mut(row).iter_mut().zip(this.buffer(add).row(row)) {
                        *x += add;
                    }
                }
            });
        }
        self.with_out(op.out, |this, out| forward::norm(this, op, out));
    }

    fn linear(&mut self, op: &Linear) {
        self.with_out(op.out, |this, out| forward::linear(this, op, out));
    }

    fn linear_heads(&mut self, op: &LinearHeads) {
        self.with_out(op.out, |this, out| forward::linear_heads(this, op, out));
    }

    fn rope_store(&mut self, op: &RopeStore) {
        let mut cache = std::mem::take(&mut self.cache);
        self.with_out(op.qkv, |this, qkv| {
            attention::rope_store(this, op, qkv, &mut cache)
        });
        self.cache = cache;
    }

    fn attend(&mut self, op: &Attend) {
        self.with_out(op.out, |this, out| attention::attend(this, op, out));
    }

    fn route(&mut self, op: &Route) {
        self.with_out(op.routing, |this, routing| {
            experts::route(this, op, routing)
        });
    }

    fn linear_experts(&mut self, op: &LinearExperts) {
        self.with_out(op.out, |this, out| experts::linear_experts(this, op, out));
    }

    fn pool(&mut self, op: &Pool) {
        let x = self.buffer(op.x);
        let pooled = pool_rows(op, &self.state.inputs.sequences, |row| x.row(row));
        for (row, pooled) in pooled.iter().enumerate() {
            self.bufs[op.out.0 as usize].row_mut(row)[..pooled.len()].copy_from_slice(pooled);
        }
        self.state.store_pooled(pooled);
    }

    fn all_reduce(&mut self, _buf: Buf) {}

    fn sample(&mut self, logits: Buf, inputs: &SampleInputs) {
        let buffer = &self.bufs[logits.0 as usize];
        let mut samples = Vec::with_capacity(inputs.rows.len());
        let mut sampler = Sampler::new(buffer.cols);
        self.state.sample(
            0..inputs.rows.len(),
            LogitRows {
                values: &buffer.values,
                stride: buffer.cols,
            },
            inputs,
            &mut sampler,
            |_| None,
            |_, sampled| samples.push(sampled),
        );
        self.state.store_samples(samples.into_iter());
    }

    fn end(&mut self) -> Ticket {
        self.state.end(self.caps.lookahead)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        Ok(self.state.take(ticket))
    }
}

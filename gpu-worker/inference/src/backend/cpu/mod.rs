//! The CPU: packed weights, paged attention, and all cores, in f32 or bf16.
//!
//! Every operation runs to its end when it is called; [`Backend::wait`] only hands results over.
//! Results are bit-identical for any thread count, batch, chunking and cache hit: tasks share no sums, and a
//! row's arithmetic depends on the row alone. Between instruction sets bits differ: the fingerprint names it.
//!
//! After load nothing is allocated, but for what a step gives back. Mixtures of experts, latent attention,
//! fp8 caches, int8 and sharded weights are refused at load.

mod attention;
mod element;
mod forward;
mod isa;
mod kv;
mod linear;
mod load;
mod mapped;
mod math;
mod norm;
mod pack;
mod pool;
mod rope_store;
mod sample;
mod simd;
mod storage;
#[cfg(test)]
mod tests;

use std::sync::Mutex;

use half::bf16;

pub use isa::Isa;
pub use pool::available_threads;

use self::element::Element;
use self::kv::Cache;
use self::pack::Packed;
use self::pool::Pool;
use self::storage::{Aligned, Buffer};
use super::rope::Rotations;
use super::sampling::{Sampled, Sampler};
use super::state::{HOST_PAGE_TOKENS, StepState};
use super::{
    Attend, Backend, BackendError, Buf, Caps, Embed, GraphKey, KvSpec, Linear, LinearExperts,
    LinearHeads, Norm, Recipe, Role, RopeSpec, RopeStore, RopeTable, Route, SampleInputs,
    StepInputs, StepOutput, Ticket, Weight, WeightDesc, WeightSource,
};

/// Settings of a [`CpuBackend`].
#[derive(Debug, Clone)]
pub struct CpuConfig {
    /// Threads that compute, the caller's included; see [`available_threads`].
    pub threads: usize,
    /// The most rows in one step.
    pub max_rows: usize,
    /// Number type of products and of the KV cache: [`Recipe::F32`] or [`Recipe::Bf16`].
    pub recipe: Recipe,
    /// Instruction set; none is the best of this machine. For tests.
    pub isa: Option<Isa>,
}

/// The backend of this machine's cores.
#[derive(Debug)]
pub struct CpuBackend {
    caps: Caps,
    isa: Isa,
    recipe: Recipe,
    pool: Pool,
    weights: Vec<Stored>,
    ropes: Vec<Rotations>,
    bufs: Vec<Buffer>,
    cache: Option<Cache>,
    scratch: Scratch,
    state: StepState,
}

/// A weight in the backend's own form.
#[derive(Debug)]
enum Stored {
    /// A matrix of the f32 recipe.
    F32(Packed<f32>),
    /// A matrix of the bf16 recipe.
    Bf16(Packed<bf16>),
    /// A gain or a bias.
    Vector(Vec<f32>),
}

/// Working memory, made at load. Each thread locks its own entry: the locks are never contended.
#[derive(Debug, Default)]
struct Scratch {
    attention_f32: Vec<Mutex<attention::Scratch<f32>>>,
    attention_bf16: Vec<Mutex<attention::Scratch<bf16>>>,
    /// The logit rows of an input, side by side.
    logit_rows_f32: Aligned<f32>,
    logit_rows_bf16: Aligned<bf16>,
    /// How the step's attention is cut.
    schedule: attention::Schedule,
    samplers: Vec<Mutex<Sampler>>,
    /// One for each logit row.
    samples: Vec<Mutex<Sampled>>,
    /// First row of each run of logit rows of one slot, and the number of rows.
    sample_runs: Vec<usize>,
}

impl CpuBackend {
    /// Starts the threads of a backend without weights.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unsupported`] for [`Recipe::Int8`], and for an instruction set that the machine lacks.
    pub fn new(config: CpuConfig) -> Result<Self, BackendError> {
        let isa = config.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            return Err(unsupported(format!("{} on this machine", isa.name())));
        }
        let recipe = match config.recipe {
            Recipe::F32 => "f32",
            Recipe::Bf16 => "bf16",
            Recipe::Int8 => return Err(unsupported("the int8 recipe")),
        };
        let rows = config.max_rows;
        Ok(Self {
            caps: Caps {
                page_tokens: HOST_PAGE_TOKENS,
                lookahead: 0,
                max_rows: rows,
                fingerprint: format!("{}-cpu-{}-{recipe}", env!("CARGO_PKG_VERSION"), isa.name()),
            },
            isa,
            recipe: config.recipe,
            pool: Pool::new(config.threads),
            weights: Vec::new(),
            ropes: Vec::new(),
            bufs: Vec::new(),
            cache: None,
            scratch: Scratch {
                schedule: attention::Schedule::with_rows(rows),
                samples: (0..rows).map(|_| Mutex::default()).collect(),
                sample_runs: Vec::with_capacity(rows + 1),
                ..Scratch::default()
            },
            state: StepState::with_rows(rows),
        })
    }

    /// Returns the bytes that the backend holds: constant from load on.
    pub fn held_bytes(&self) -> usize {
        let scratch = &self.scratch;
        let weights = self.weights.iter().map(|weight| match weight {
            Stored::F32(packed) => packed.bytes(),
            Stored::Bf16(packed) => packed.bytes(),
            Stored::Vector(values) => values.capacity() * size_of::<f32>(),
        });
        weights.sum::<usize>()
            + self.ropes.iter().map(Rotations::bytes).sum::<usize>()
            + self.bufs.iter().map(Buffer::bytes).sum::<usize>()
            + self.cache.as_ref().map_or(0, Cache::bytes)
            + scratch.logit_rows_f32.bytes()
            + scratch.logit_rows_bf16.bytes()
            + scratch.schedule.bytes()
            + attention_bytes(&scratch.attention_f32)
            + attention_bytes(&scratch.attention_bf16)
            + scratch.sample_runs.capacity() * size_of::<usize>()
            + scratch
                .samplers
                .iter()
                .map(|sampler| lock(sampler).bytes())
                .sum::<usize>()
            + self.state.bytes()
    }

    fn vector(&self, weight: Weight) -> &[f32] {
        match &self.weights[weight.0 as usize] {
            Stored::Vector(values) => values,
            Stored::F32(_) | Stored::Bf16(_) => panic!("the operation needs a vector"),
        }
    }

    /// Runs `work` with buffer `out` taken out, so that the rest can be read.
    fn with_out(&mut self, out: Buf, work: impl FnOnce(&mut Self, &mut Buffer)) {
        let mut taken = std::mem::take(&mut self.bufs[out.0 as usize]);
        work(self, &mut taken);
        self.bufs[out.0 as usize] = taken;
    }
}

fn unsupported(what: impl Into<String>) -> BackendError {
    BackendError::Unsupported {
        backend: "cpu",
        what: what.into(),
    }
}

/// Returns the bytes of the attention's working memory.
fn attention_bytes<E: Element>(scratch: &[Mutex<attention::Scratch<E>>]) -> usize {
    scratch.iter().map(|scratch| lock(scratch).bytes()).sum()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Backend for CpuBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn weight(
        &mut self,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Weight, BackendError> {
        self.load_weight(desc, source)
    }

    fn rope_table(&mut self, spec: &RopeSpec) -> Result<RopeTable, BackendError> {
        self.ropes.push(Rotations::new(spec));
        Ok(RopeTable(self.ropes.len() as u32 - 1))
    }

    fn buf(&mut self, rows: usize, cols: usize, role: Role) -> Result<Buf, BackendError> {
        self.make_buffer(rows, cols, role)
    }

    fn kv(&mut self, spec: &KvSpec, pages: &[usize]) -> Result<(), BackendError> {
        self.make_cache(spec, pages)
    }

    fn slots(&mut self, slots: usize, history_tokens: usize) -> Result<(), BackendError> {
        self.state.make_slots(slots, history_tokens);
        Ok(())
    }

    fn begin(&mut self, inputs: &StepInputs) {
        self.state.begin(inputs);
        self.scratch.schedule.clear();
    }

    fn graph(&mut self, _key: GraphKey, forward: &mut dyn FnMut(&mut Self)) {
        forward(self);
    }

    fn embed(&mut self, op: &Embed) {
        self.with_out(op.out, |this, out| this.run_embed(op, out));
    }

    fn norm(&mut self, op: &Norm) {
        let mut x = std::mem::take(&mut self.bufs[op.x.0 as usize]);
        self.with_out(op.out, |this, out| this.run_norm(op, x.f32_mut(), out));
        self.bufs[op.x.0 as usize] = x;
    }

    fn linear(&mut self, op: &Linear) {
        self.with_out(op.out, |this, out| this.run_linear(op, out));
    }

    fn linear_heads(&mut self, _op: &LinearHeads) {
        unreachable!("stacked heads are refused at load");
    }

    fn rope_store(&mut self, op: &RopeStore) {
        let mut cache = self.cache.take();
        self.with_out(op.qkv, |this, qkv| {
            this.run_rope_store(op, qkv.f32_mut(), cache.as_mut())
        });
        self.cache = cache;
    }

    fn attend(&mut self, op: &Attend) {
        self.with_out(op.out, |this, out| this.run_attend(op, out));
    }

    fn route(&mut self, _op: &Route) {
        unreachable!("routing buffers are refused at load");
    }

    fn linear_experts(&mut self, _op: &LinearExperts) {
        unreachable!("stacked experts are refused at load");
    }

    fn pool(&mut self, op: &super::Pool) {
        self.run_pool(op);
    }

    fn all_reduce(&mut self, _buf: Buf) {}

    fn sample(&mut self, logits: Buf, inputs: &SampleInputs) {
        self.run_sample(logits, inputs);
    }

    fn end(&mut self) -> Ticket {
        self.state.end(self.caps.lookahead)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        Ok(self.state.take(ticket))
    }
}

//! The CPU: packed weights, paged attention, and all cores, in f32, bf16 or int8.
//!
//! Every operation runs to its end when it is called; [`Backend::wait`] only hands results over.
//! Results are bit-identical for any thread count, batch, chunking and cache hit: tasks share no sums, and a
//! row's arithmetic depends on the row alone. Between instruction sets bits differ: the fingerprint names it.
//!
//! After load nothing is allocated, but for what a step gives back. Mixtures of experts, latent attention,
//! fp8 caches and sharded weights are refused at load.

mod attention;
mod element;
mod forward;
mod int8;
mod isa;
mod kv;
mod linear;
mod load;
mod math;
mod norm;
mod pack;
mod packed_file;
mod pool;
mod rope_store;
mod sample;
mod simd;
mod storage;
#[cfg(test)]
mod tests;
mod winners;

use std::sync::Mutex;

use half::bf16;

pub use isa::Isa;
pub use packed_file::{PackedCache, PackedStatus};
pub use pool::available_threads;

use self::element::Element;
use self::int8::PackedInt8;
use self::kv::Cache;
use self::linear::Room;
use self::pack::Packed;
use self::packed_file::PackedFile;
use self::pool::Pool;
use self::storage::{Aligned, Buffer};
use self::winners::Winners;
use super::rope::Rotations;
use super::sampling::{Sampled, Sampler};
use super::state::{HOST_PAGE_TOKENS, StepState};
use super::{
    Attend, Backend, BackendError, Buf, Caps, Embed, GraphKey, KvSpec, Linear, LinearExperts,
    LinearHeads, Norm, Recipe, Role, RopeSpec, RopeStore, RopeTable, Route, Rows, SampleInputs,
    StepInputs, StepOutput, Ticket, Weight, WeightDesc, WeightSource,
};

/// Raised whenever a kernel's results change in a bit: fingerprints name it.
const KERNELS: u32 = 4;

/// Settings of a [`CpuBackend`].
#[derive(Debug, Clone)]
pub struct CpuConfig {
    /// Threads that compute, the caller's included; see [`available_threads`].
    pub threads: usize,
    /// The most rows in one step.
    pub max_rows: usize,
    /// How most products are computed, for the fingerprint: each weight says it for itself.
    pub recipe: Recipe,
    /// Instruction set; none is the best of this machine. For tests.
    pub isa: Option<Isa>,
    /// Where packed weights are kept between loads; none packs them every time.
    pub packed: Option<PackedCache>,
}

/// The backend of this machine's cores.
#[derive(Debug)]
pub struct CpuBackend {
    caps: Caps,
    isa: Isa,
    pool: Pool,
    packed: PackedFile,
    weights: Vec<Stored>,
    ropes: Vec<Rotations>,
    bufs: Vec<Buffer>,
    cache: Option<Cache>,
    /// For the tiles of products, one for each thread.
    rooms: Vec<Mutex<Room>>,
    scratch: Scratch,
    state: StepState,
    /// The buffer of logits.
    logits: Option<Buf>,
    /// For each weight, what rows that it multiplied were made of: [`CpuBackend::watch_inputs`].
    watch: Option<Vec<Watched>>,
    /// The step's output layer, until it is known what its rows are for.
    output_layer: Option<Linear>,
}

/// A weight in the backend's own form.
#[derive(Debug)]
enum Stored {
    /// A matrix of the f32 recipe.
    F32(Packed<f32>),
    /// A matrix of the bf16 recipe, or a table that is only gathered from.
    Bf16(Packed<bf16>),
    /// A matrix of the int8 recipe.
    Int8(PackedInt8),
    /// A table, and the same values as a matrix of the int8 recipe: what is gathered is not rounded to codes.
    TiedInt8 {
        /// What is gathered from.
        table: Packed<bf16>,
        /// What multiplies.
        matrix: PackedInt8,
    },
    /// A gain or a bias.
    Vector(Vec<f32>),
}

/// What rows were made of that a weight multiplied.
#[derive(Debug, Default)]
struct Watched {
    /// For each feature, the sum over rows of its share of the row's energy.
    energies: Vec<f32>,
}

impl Watched {
    fn see(&mut self, row: &[bf16]) {
        self.energies.resize(row.len(), 0.0);
        let energy = |x: &bf16| x.to_f32() * x.to_f32();
        let sum: f32 = row.iter().map(energy).sum();
        if sum > 0.0 && sum.is_finite() {
            for (total, x) in self.energies.iter_mut().zip(row) {
                *total += energy(x) / sum;
            }
        }
    }
}

/// Working memory, made at load. Each thread locks its own entry: the locks are never contended.
#[derive(Debug, Default)]
struct Scratch {
    attention_f32: Vec<Mutex<attention::Scratch<f32>>>,
    attention_bf16: Vec<Mutex<attention::Scratch<bf16>>>,
    /// The logit rows of an input, side by side.
    logit_rows_f32: Aligned<f32>,
    logit_rows_bf16: Aligned<bf16>,
    logit_row_codes: Aligned<u8>,
    logit_row_scales: Aligned<f32>,
    /// How the step's attention is cut.
    schedule: attention::Schedule,
    samplers: Vec<Mutex<Sampler>>,
    /// One for each logit row.
    samples: Vec<Mutex<Sampled>>,
    /// For each logit row, whether only its greatest logit matters.
    picked: Vec<bool>,
    /// One for each thread.
    winners: Vec<Mutex<Winners>>,
    /// First row of each run of logit rows of one slot, and the number of rows.
    sample_runs: Vec<usize>,
}

impl CpuBackend {
    /// Starts the threads of a backend without weights.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unsupported`] for an instruction set that the machine lacks.
    pub fn new(config: CpuConfig) -> Result<Self, BackendError> {
        let isa = config.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            return Err(unsupported(format!("{} on this machine", isa.name())));
        }
        let rows = config.max_rows;
        Ok(Self {
            caps: Caps {
                page_tokens: HOST_PAGE_TOKENS,
                lookahead: 0,
                max_rows: rows,
                fingerprint: format!(
                    "{}-cpu{KERNELS}-{}-{}",
                    env!("CARGO_PKG_VERSION"),
                    isa.name(),
                    config.recipe.name()
                ),
            },
            isa,
            pool: Pool::new(config.threads),
            packed: PackedFile::open(config.packed.as_ref()),
            weights: Vec::new(),
            ropes: Vec::new(),
            bufs: Vec::new(),
            cache: None,
            rooms: (0..config.threads.max(1))
                .map(|_| Mutex::default())
                .collect(),
            scratch: Scratch {
                schedule: attention::Schedule::with_rows(rows),
                samples: (0..rows).map(|_| Mutex::default()).collect(),
                sample_runs: Vec::with_capacity(rows + 1),
                picked: Vec::with_capacity(rows),
                winners: (0..config.threads.max(1))
                    .map(|_| Mutex::new(Winners::with_rows(rows)))
                    .collect(),
                ..Scratch::default()
            },
            state: StepState::with_rows(rows),
            logits: None,
            watch: None,
            output_layer: None,
        })
    }

    /// Returns what became of [`CpuConfig::packed`].
    pub fn packed_status(&self) -> PackedStatus<'_> {
        self.packed.status()
    }

    /// Returns the bytes that the backend holds, mapped files left out: constant from load on.
    pub fn held_bytes(&self) -> usize {
        let scratch = &self.scratch;
        let weights = self.weights.iter().map(|weight| match weight {
            Stored::F32(packed) => packed.bytes(),
            Stored::Bf16(packed) => packed.bytes(),
            Stored::Int8(packed) => packed.bytes(),
            Stored::TiedInt8 { table, matrix } => table.bytes() + matrix.bytes(),
            Stored::Vector(values) => values.capacity() * size_of::<f32>(),
        });
        weights.sum::<usize>()
            + self.ropes.iter().map(Rotations::bytes).sum::<usize>()
            + self.bufs.iter().map(Buffer::bytes).sum::<usize>()
            + self.cache.as_ref().map_or(0, Cache::bytes)
            + scratch.logit_rows_f32.bytes()
            + scratch.logit_rows_bf16.bytes()
            + scratch.logit_row_codes.bytes()
            + scratch.logit_row_scales.bytes()
            + scratch.schedule.bytes()
            + attention_bytes(&scratch.attention_f32)
            + attention_bytes(&scratch.attention_bf16)
            + scratch.sample_runs.capacity() * size_of::<usize>()
            + scratch.picked.capacity()
            + self.rooms.capacity() * size_of::<Mutex<Room>>()
            + scratch
                .winners
                .iter()
                .map(|winners| lock(winners).bytes())
                .sum::<usize>()
            + scratch
                .samplers
                .iter()
                .map(|sampler| lock(sampler).bytes())
                .sum::<usize>()
            + self.state.bytes()
    }

    /// Returns a row of an f32 buffer as the last step left it. For measurements: an engine never reads one.
    /// Logits of live rows that are sampled greedily, without log-probabilities, are not in it.
    ///
    /// # Panics
    ///
    /// If the buffer has another type, or no such row.
    pub fn f32_row(&self, buf: Buf, row: usize) -> &[f32] {
        self.bufs[buf.0 as usize].f32().row(row)
    }

    /// Watches the inputs of int8 products from now on, which takes time and memory. For measurements.
    pub fn watch_inputs(&mut self) {
        self.watch = Some(self.weights.iter().map(|_| Watched::default()).collect());
    }

    /// Returns each feature's share of the energy of a row, on average over the rows that `weight` has multiplied
    /// since [`CpuBackend::watch_inputs`], times their number; none if it is not of int8 products.
    pub fn input_energies(&self, weight: Weight) -> Option<Vec<f32>> {
        let watched = self.watch.as_ref()?.get(weight.0 as usize)?;
        (!watched.energies.is_empty()).then(|| watched.energies.clone())
    }

    fn vector(&self, weight: Weight) -> &[f32] {
        match &self.weights[weight.0 as usize] {
            Stored::Vector(values) => values,
            Stored::F32(_) | Stored::Bf16(_) | Stored::Int8(_) | Stored::TiedInt8 { .. } => {
                panic!("the operation needs a vector")
            }
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

    fn loaded(&mut self) {
        self.packed.finish();
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
        if op.rows == Rows::Logit && Some(op.out) == self.logits {
            self.compute_logits(None);
            self.output_layer = Some(op.clone());
        } else {
            self.with_out(op.out, |this, out| this.run_linear(op, out, None));
        }
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
        self.compute_logits(None);
        self.state.end(self.caps.lookahead)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        Ok(self.state.take(ticket))
    }
}

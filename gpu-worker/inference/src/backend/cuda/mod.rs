//! NVIDIA GPUs: kernels of this repository, launched through the driver, in one stream.
//!
//! Nothing of CUDA is needed to build: the driver and NVRTC are looked for when a [`CudaBackend`] is made, and
//! [`DeviceUnavailable`] says in one line what is missing. `kernels/README.md` states every kernel's
//! arguments; [`super::scalar`] is the reference of what they compute.
//!
//! Operations only enqueue. What goes wrong in one is kept and given by the next [`Backend::wait`]; the
//! process should then end. All memory is allocated at load. Steps that only decode are padded to a bucket,
//! captured once for each, and replayed.

mod args;
mod attention;
mod compile;
mod driver;
mod forward;
mod inputs;
mod load;
mod sample;
mod upload;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use self::attention::{KvKind, LayerPool};
use self::driver::{Argument, Device, Function, Graph, Said, Shape};
use self::inputs::{Cut, HostStep, LAYOUTS_MAX, SPLIT_TOKENS, StepMemory};
use self::load::{Arena, Loader, Staging, Stored, no_room};
use self::sample::SampleMemory;
use super::rope::Rotations;
use super::{
    Attend, Backend, BackendError, Buf, Caps, Embed, GraphKey, KvLayout, KvSpec, KvType, Linear,
    LinearExperts, LinearHeads, Norm, Pool, Recipe, Role, RopeSpec, RopeStore, RopeStyle,
    RopeTable, Route, SampleInputs, Shard, StepInputs, StepOutput, Ticket, Weight, WeightDesc,
    WeightSource, WeightUse,
};

/// Raised whenever a kernel's results change in a bit: fingerprints name it.
const KERNELS: u32 = 1;

/// Tokens of a page, as in the kernels.
const PAGE_TOKENS: usize = 16;

/// The most graphs that are kept; steps of more buckets run without.
const GRAPHS_MAX: usize = 256;

/// The most bytes of partial attention results: more sequences are attended without splits.
const PARTIAL_BYTES_MAX: usize = 1 << 30;

/// The largest head that attention has a kernel for.
const HEAD_MAX: usize = 256;

/// The largest latent and key that latent attention has a kernel for.
const LATENT_MAX: (usize, usize) = (512, 576);

/// Settings of a [`CudaBackend`].
#[derive(Debug, Clone)]
pub struct CudaConfig {
    /// Which GPU, counted from 0.
    pub device: usize,
    /// The most rows in one step.
    pub max_rows: usize,
    /// How most products are computed, for the fingerprint: each weight says it for itself.
    pub recipe: Recipe,
    /// Whether steps that only decode are captured and replayed.
    pub graphs: bool,
    /// Folders to look for NVRTC in, before the loader's own.
    pub libraries: Vec<PathBuf>,
    /// Folder of cubins `{file}.sm_{architecture}.cubin` to use in place of NVRTC.
    pub images: Option<PathBuf>,
    /// Folder in which compiled kernels are kept between starts; none compiles them every time.
    pub cache: Option<PathBuf>,
}

/// Why no GPU can be used, each in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceUnavailable {
    /// The driver's library is not installed.
    #[error("this machine has no NVIDIA driver (libcuda.so.1)")]
    NoDriver,
    /// The driver has nothing to drive.
    #[error("the NVIDIA driver finds no GPU")]
    NoDevice,
    /// There is no GPU of this number.
    #[error("there is no GPU {index}: this machine has {count}, counted from 0")]
    NoSuchDevice {
        /// Asked for.
        index: usize,
        /// GPUs of the machine.
        count: usize,
    },
    /// The driver does not load what today's compilers make.
    #[error("the NVIDIA driver is of CUDA {found}, and {needed} is the oldest that works")]
    OldDriver {
        /// CUDA version of the driver.
        found: String,
        /// The oldest that works.
        needed: String,
    },
    /// The GPU lacks bf16 products.
    #[error("{name} is of architecture sm_{architecture}, and sm_80 is the oldest that works")]
    OldDevice {
        /// The GPU's name.
        name: String,
        /// Its compute capability.
        architecture: u32,
    },
    /// NVRTC is not installed.
    #[error("this machine has no CUDA compiler library (libnvrtc.so)")]
    NoCompiler,
    /// Kernels could not be compiled or read.
    #[error("{message}")]
    Compiler {
        /// What was done, and the compiler's words.
        message: String,
    },
    /// The driver refused.
    #[error("the NVIDIA driver says: {0}")]
    Driver(String),
}

/// The backend of one NVIDIA GPU.
#[derive(Debug)]
pub struct CudaBackend {
    caps: Caps,
    device: Device,
    sources: compile::Sources,
    functions: HashMap<&'static str, Function>,
    modules: HashSet<&'static str>,
    arena: Arena,
    staging: Staging,
    weights: Vec<Stored>,
    ropes: Vec<Rope>,
    bufs: Vec<Buffer>,
    plan: Plan,
    pools: Vec<Option<LayerPool>>,
    kv_kind: Option<KvKind>,
    slots: Slots,
    scratch: Scratch,
    step: Option<StepMemory>,
    sampling: Option<SampleMemory>,
    host: HostStep,
    mode: Mode,
    /// How attention cuts its rows, for each layout of heads in the model.
    cuts: Vec<Cut>,
    /// Parts whose closures the survey has seen.
    surveyed: HashSet<u32>,
    use_graphs: bool,
    graphs: HashMap<RunKey, Graph>,
    /// Steps that were replayed.
    replays: usize,
    /// What went wrong first.
    failed: Option<String>,
}

/// What the forward operations do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Only note how attention cuts its rows.
    Survey,
    /// Launch.
    Eager,
    /// Launch into a graph, for any step of the bucket.
    Capture,
}

/// Steps that the same graph can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RunKey {
    part: u32,
    rows: usize,
    logit_rows: usize,
    decodes: bool,
    blocks: [bool; LAYOUTS_MAX],
    merges: bool,
}

/// An activation buffer on the device.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    at: u64,
    cols: usize,
    /// Elements from row to row.
    ld: usize,
    kind: Kind,
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy)]
enum Kind {
    F32,
    Bf16,
    /// Codes, and the address of the scale of each row.
    Int8 {
        scales: u64,
    },
    /// Experts, and the addresses of their weights and of their sort.
    Routing {
        weights: u64,
        pairs: u64,
        tiles: u64,
    },
}

/// A rotary table on the device.
#[derive(Debug, Clone, Copy)]
struct Rope {
    cosines: u64,
    sines: u64,
    pairs: usize,
    style: RopeStyle,
}

/// Token histories on the device.
#[derive(Debug, Clone, Copy, Default)]
struct Slots {
    count: usize,
    history_tokens: usize,
    /// `[count, history_tokens]`.
    history: u64,
    /// `[count, 4]`.
    states: u64,
}

/// What has been loaded, from which working memory follows.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    /// Something was loaded since working memory was made.
    changed: bool,
    /// The least rows of a buffer that steps use; 0 is none yet.
    rows_min: usize,
    logit_rows_max: usize,
    logit_rows_min: usize,
    vocabulary_max: usize,
    qkv_cols_max: usize,
    pooled_max: usize,
    staging_bytes: usize,
    pairs_max: usize,
    expert_cols_max: usize,
    kv_groups: usize,
    layout: Option<(usize, usize, usize)>,
}

/// Working memory, by address.
#[derive(Debug, Clone, Copy, Default)]
struct Scratch {
    /// bf16 rows on their way to codes.
    staging: u64,
    staging_bytes: usize,
    /// Products of experts `[pairs, cols]`.
    products: u64,
    product_bytes: usize,
    /// Partial attention `[slots, q_heads, dvp]`.
    part_acc: u64,
    /// Maxima and sums `[slots, q_heads, 2]`.
    part_ml: u64,
    partials: usize,
    partial_bytes: usize,
}

/// Kernels that every model needs.
const BASE_MODULES: [&str; 5] = ["step", "embed", "norm", "gemm_bf16", "sample"];

impl CudaBackend {
    /// Opens the GPU, and compiles the kernels that every model needs.
    ///
    /// # Errors
    ///
    /// [`DeviceUnavailable`] says why the GPU cannot be used.
    pub fn new(config: CudaConfig) -> Result<Self, DeviceUnavailable> {
        let mut device = Device::open(config.device)?;
        let staging = Staging::new(&mut device).map_err(DeviceUnavailable::Driver)?;
        let mut this = Self {
            caps: Caps {
                page_tokens: PAGE_TOKENS,
                lookahead: 1,
                max_rows: config.max_rows,
                fingerprint: format!(
                    "{}-cuda{KERNELS}-sm_{}-{}",
                    env!("CARGO_PKG_VERSION"),
                    device.architecture(),
                    config.recipe.name()
                ),
            },
            device,
            sources: compile::Sources {
                libraries: config.libraries,
                images: config.images,
                cache: config.cache,
            },
            functions: HashMap::new(),
            modules: HashSet::new(),
            arena: Arena::default(),
            staging,
            weights: Vec::new(),
            ropes: Vec::new(),
            bufs: Vec::new(),
            plan: Plan {
                changed: true,
                ..Plan::default()
            },
            pools: Vec::new(),
            kv_kind: None,
            slots: Slots::default(),
            scratch: Scratch::default(),
            step: None,
            sampling: None,
            host: HostStep::default(),
            mode: Mode::Eager,
            cuts: Vec::new(),
            surveyed: HashSet::new(),
            use_graphs: config.graphs,
            graphs: HashMap::new(),
            replays: 0,
            failed: None,
        };
        for module in BASE_MODULES {
            this.load_module(module)?;
        }
        Ok(this)
    }

    /// Returns the GPU's name and architecture, for logs.
    pub fn device_name(&self) -> String {
        format!("{} (sm_{})", self.device.name(), self.device.architecture())
    }

    /// Returns the bytes of the GPU's memory that are free, and all of them.
    ///
    /// # Errors
    ///
    /// [`BackendError::Device`].
    pub fn memory_bytes(&self) -> Result<(usize, usize), BackendError> {
        self.device
            .bind()
            .and_then(|()| self.device.memory_bytes())
            .map_err(device_error)
    }

    /// Returns how often memory was allocated: constant from load on.
    pub fn allocations(&self) -> usize {
        self.device.allocations()
    }

    /// Returns how many steps were replayed from a graph.
    pub fn replays(&self) -> usize {
        self.replays
    }

    fn load_module(&mut self, name: &'static str) -> Result<(), DeviceUnavailable> {
        if !self.modules.insert(name) {
            return Ok(());
        }
        let module = compile::MODULES
            .iter()
            .find(|module| module.name == name)
            .expect("modules are asked for by the names of files");
        let image = compile::cubin(module, self.device.architecture(), &self.sources)?;
        let functions = self.device.load(&image, module.kernels).map_err(|said| {
            DeviceUnavailable::Compiler {
                message: format!("load {name}.cu: {said}"),
            }
        })?;
        self.functions
            .extend(module.kernels.iter().copied().zip(functions));
        Ok(())
    }

    fn need(&mut self, modules: &[&'static str]) -> Result<(), BackendError> {
        self.device.bind().map_err(device_error)?;
        modules.iter().try_for_each(|module| {
            self.load_module(module)
                .map_err(|unavailable| device_error(unavailable.to_string()))
        })
    }

    fn take(&mut self, bytes: usize, what: &str) -> Result<u64, BackendError> {
        self.arena.take(&mut self.device, bytes, what)
    }

    fn buffer(&self, buf: Buf) -> Buffer {
        self.bufs[buf.0 as usize]
    }

    fn stored(&self, weight: Weight) -> Stored {
        self.weights[weight.0 as usize]
    }

    /// Address of a gain or a bias; 0 where there is none.
    fn vector(&self, weight: Option<Weight>) -> u64 {
        weight.map_or(0, |weight| self.stored(weight).vector)
    }

    fn layer_pool(&self, layer: usize) -> Option<LayerPool> {
        self.pools.get(layer).copied().flatten()
    }

    /// Keeps the first thing that goes wrong, for the next wait.
    fn fail(&mut self, message: String) {
        self.failed.get_or_insert(message);
    }

    /// Returns the value, or keeps what went wrong.
    fn keep<T>(&mut self, said: Said<T>) -> Option<T> {
        match said {
            Ok(value) => Some(value),
            Err(message) => {
                self.fail(message);
                None
            }
        }
    }

    /// Enqueues a kernel, unless a survey is on or something has gone wrong.
    fn launch(&mut self, name: &'static str, shape: Shape, arguments: &[Argument<'_>]) {
        if self.mode == Mode::Survey || self.failed.is_some() {
            return;
        }
        if shape.grid.0 == 0 || shape.grid.1 == 0 {
            return;
        }
        let Some(function) = self.functions.get_mut(name) else {
            return self.fail(format!("kernel {name} was not loaded"));
        };
        if let Err(said) = self.device.launch(function, shape, arguments) {
            self.fail(format!("{name}: {said}"));
        }
    }

    /// Makes working memory for what has been loaded.
    fn settle(&mut self) -> Result<(), BackendError> {
        if !std::mem::replace(&mut self.plan.changed, false) {
            return Ok(());
        }
        let plan = self.plan;
        if plan.staging_bytes > self.scratch.staging_bytes {
            self.scratch.staging = self.take(plan.staging_bytes, "activations")?;
            self.scratch.staging_bytes = plan.staging_bytes;
        }
        let product_bytes = 4 * plan.pairs_max * plan.expert_cols_max;
        if product_bytes > self.scratch.product_bytes {
            self.scratch.products = self.take(product_bytes, "products of experts")?;
            self.scratch.product_bytes = product_bytes;
        }
        let (group, partials) = self.settle_partials()?;
        let bounds = inputs::Bounds {
            rows: self.caps.max_rows,
            logit_rows: plan.logit_rows_max,
            groups: plan.kv_groups,
            pages: self.slots.count * self.slots.history_tokens.div_ceil(PAGE_TOKENS),
            slots: self.slots.count,
            history_tokens: self.slots.history_tokens,
            partials,
            group,
        };
        if self
            .step
            .as_ref()
            .is_none_or(|step| step.bounds() != bounds)
        {
            let step = StepMemory::new(&mut self.device, bounds).map_err(device_error)?;
            self.step = Some(step.map_err(|bytes| no_room(&self.device, bytes, "step inputs"))?);
        }
        let bounds = sample::Bounds {
            rows: plan.logit_rows_max,
            vocabulary: plan.vocabulary_max,
            blocks: (2 * self.device.multiprocessors() as usize).min(plan.logit_rows_max.max(1)),
            pooled: plan.pooled_max,
        };
        if self
            .sampling
            .as_ref()
            .is_none_or(|sampling| sampling.bounds() != bounds)
        {
            let sampling = SampleMemory::new(&mut self.device, bounds).map_err(device_error)?;
            self.sampling =
                Some(sampling.map_err(|bytes| no_room(&self.device, bytes, "sampling"))?);
        }
        Ok(())
    }

    /// Makes room for partial attention. Returns the most query heads that share a KV head, and the slots.
    fn settle_partials(&mut self) -> Result<(usize, usize), BackendError> {
        let Some((kv_heads, dk, dv)) = self.plan.layout else {
            // Encoders have no splits to merge, and heads of 8 at least.
            return Ok(((self.plan.qkv_cols_max / 8).clamp(1, 128), 0));
        };
        let latent = self.kv_kind.is_some_and(|kind| kind.latent.is_some());
        let values = if latent { 0 } else { kv_heads * dv };
        let query_cols = self
            .plan
            .qkv_cols_max
            .saturating_sub(kv_heads * dk + values);
        let q_heads = (query_cols / dk.max(1)).max(1);
        let slot_values = q_heads * dv.next_multiple_of(16);
        let splits = self.slots.history_tokens.div_ceil(SPLIT_TOKENS).max(1);
        let partials = (self.slots.count * splits)
            .min(PARTIAL_BYTES_MAX / (4 * slot_values).max(1))
            .max(1);
        let bytes = 4 * partials * slot_values;
        if bytes > self.scratch.partial_bytes || partials > self.scratch.partials {
            self.scratch.part_acc = self.take(bytes, "partial attention")?;
            self.scratch.part_ml = self.take(8 * partials * q_heads, "partial attention")?;
            self.scratch.partials = partials;
            self.scratch.partial_bytes = bytes;
        }
        Ok((q_heads.div_ceil(kv_heads.max(1)), partials))
    }

    /// Uploads a step's inputs, and readies its slots and tokens.
    fn begin_step(&mut self, inputs: &StepInputs) -> Said<()> {
        self.device.bind()?;
        self.settle().map_err(|error| error.to_string())?;
        let exact = inputs.exact_bucket();
        let (mut rows, mut logit_rows) = (
            exact.rows.max(inputs.bucket.rows),
            exact.logit_rows.max(inputs.bucket.logit_rows),
        );
        if self.use_graphs && inputs::is_decode(inputs) {
            rows = rows.max(padded(rows).min(self.plan.rows_min));
            logit_rows = logit_rows.max(padded(logit_rows).min(self.plan.logit_rows_min));
        }
        self.host.begin(inputs, rows, logit_rows);
        let Some(step) = &mut self.step else {
            return Err("a step has begun before load was over".to_owned());
        };
        step.turn(&self.device)?;
        step.send_inputs(&mut self.device, &self.host, inputs)?;
        step.uploaded(&self.device)?;
        if let Some(sampling) = &mut self.sampling {
            sampling.begin();
        }
        let (resets, reset_tokens) = step.resets();
        let tokens = step.tokens();
        use Argument::{Address, U32};
        let arguments = [
            Address(self.slots.history),
            Address(self.slots.states),
            Address(resets),
            Address(reset_tokens),
            U32(self.slots.history_tokens as u32),
        ];
        self.launch(
            "reset_slots",
            Shape::rows(inputs.resets.len(), 128),
            &arguments,
        );
        let arguments = [
            Address(tokens),
            Address(self.slots.states),
            U32(rows as u32),
        ];
        let shape = Shape::rows(rows.div_ceil(256), 256);
        self.launch("resolve_tokens", shape, &arguments);
        Ok(())
    }

    /// Uploads the lists of attention, whose cuts the closure of a new part tells first.
    fn send_lists(&mut self, part: u32, forward: &mut dyn FnMut(&mut Self)) -> Said<()> {
        if self.surveyed.insert(part) {
            self.mode = Mode::Survey;
            forward(self);
            self.mode = Mode::Eager;
        }
        let Some(step) = &mut self.step else {
            return Err("a step has begun before load was over".to_owned());
        };
        step.send_lists(&mut self.device, &mut self.host, &self.cuts)?;
        step.uploaded(&self.device)
    }

    /// Replays the graph of a step that only decodes, or makes it.
    fn replay(&mut self, part: u32, forward: &mut dyn FnMut(&mut Self)) -> Said<()> {
        let host = &self.host;
        let key = RunKey {
            part,
            rows: host.rows,
            logit_rows: host.logit_rows,
            decodes: host.decode_items > 0,
            blocks: host.block_items.map(|items| items > 0),
            merges: host.merge_rows > 0,
        };
        if let Some(graph) = self.graphs.get(&key) {
            self.device.replay(*graph)?;
            self.replays += 1;
            return Ok(());
        }
        if self.graphs.len() >= GRAPHS_MAX {
            forward(self);
            return Ok(());
        }
        self.device.begin_capture()?;
        self.mode = Mode::Capture;
        forward(self);
        self.mode = Mode::Eager;
        let graph = self.device.end_capture()?;
        if self.failed.is_none() {
            self.graphs.insert(key, graph);
            self.device.replay(graph)?;
        }
        Ok(())
    }
}

/// Rounds rows up to those of the next bucket.
fn padded(rows: usize) -> usize {
    match rows {
        0..=8 => rows.next_power_of_two(),
        9..=64 => rows.next_multiple_of(8),
        65..=256 => rows.next_multiple_of(16),
        _ => rows.next_multiple_of(64),
    }
}

fn device_error(message: String) -> BackendError {
    BackendError::Device {
        backend: "cuda",
        message,
    }
}

fn unsupported(what: impl Into<String>) -> BackendError {
    BackendError::Unsupported {
        backend: "cuda",
        what: what.into(),
    }
}

impl Backend for CudaBackend {
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
        let stacked = desc.experts > 1 || desc.heads > 1;
        if desc.recipe == Recipe::Int8 && desc.used_as != WeightUse::Vector {
            if stacked {
                return Err(unsupported("experts and heads in int8"));
            }
            self.need(&["gemm_s8"])?;
        }
        if desc.experts > 1 {
            self.need(&["combine", "route"])?;
            let cols = desc.n.next_multiple_of(4);
            self.plan.expert_cols_max = self.plan.expert_cols_max.max(cols);
            self.plan.changed = true;
        }
        self.device.bind().map_err(device_error)?;
        let stored = Loader {
            device: &mut self.device,
            arena: &mut self.arena,
            staging: &mut self.staging,
        }
        .weight(desc, source)?;
        self.weights.push(stored);
        Ok(Weight(self.weights.len() as u32 - 1))
    }

    fn rope_table(&mut self, spec: &RopeSpec) -> Result<RopeTable, BackendError> {
        self.device.bind().map_err(device_error)?;
        let table = Rotations::new(spec);
        let mut addresses = [0; 2];
        for (at, values) in addresses.iter_mut().zip(table.values()) {
            *at = self.take(size_of_val(values), "rotary tables")?;
            self.staging
                .send_floats(&mut self.device, *at, values)
                .map_err(device_error)?;
        }
        self.ropes.push(Rope {
            cosines: addresses[0],
            sines: addresses[1],
            pairs: spec.inv_freq.len(),
            style: spec.style,
        });
        Ok(RopeTable(self.ropes.len() as u32 - 1))
    }

    fn buf(&mut self, rows: usize, cols: usize, role: Role) -> Result<Buf, BackendError> {
        let needed: &[&'static str] = match role {
            Role::Qkv => &["rope", "attend_bf16", "merge"],
            Role::Pooled => &["pool"],
            Role::Residual | Role::InputOf(_) | Role::Routing | Role::Logits => &[],
        };
        self.need(needed)?;
        let int8 = match role {
            Role::InputOf(weight) => self.stored(weight).int8.is_some(),
            Role::Residual | Role::Qkv | Role::Routing | Role::Logits | Role::Pooled => false,
        };
        let (ld, element_bytes) = match role {
            Role::InputOf(_) if int8 => (cols.next_multiple_of(16), 1),
            Role::InputOf(_) | Role::Qkv => (cols.next_multiple_of(8), 2),
            Role::Residual | Role::Logits | Role::Pooled => (cols.next_multiple_of(4), 4),
            Role::Routing => (cols, 4),
        };
        let size = |elements: usize| elements.saturating_mul(element_bytes);
        let at = self.take(size(rows.saturating_mul(ld)), "activations")?;
        let kind = match role {
            Role::InputOf(_) if int8 => Kind::Int8 {
                scales: self.take(4 * rows, "activations")?,
            },
            Role::InputOf(_) | Role::Qkv => Kind::Bf16,
            Role::Residual | Role::Logits | Role::Pooled => Kind::F32,
            Role::Routing => {
                let pairs = rows * cols;
                // Tiles are of one expert each: as many more as there are experts, or pairs.
                let tiles = 1 + 3 * (pairs.div_ceil(64) + pairs);
                Kind::Routing {
                    weights: self.take(4 * pairs, "routing")?,
                    pairs: self.take(4 * pairs, "routing")?,
                    tiles: self.take(4 * tiles, "routing")?,
                }
            }
        };
        let plan = &mut self.plan;
        plan.changed = true;
        let least = |known: usize| if known == 0 { rows } else { known.min(rows) };
        match role {
            Role::Residual | Role::InputOf(_) => plan.rows_min = least(plan.rows_min),
            Role::Qkv => {
                plan.rows_min = least(plan.rows_min);
                plan.qkv_cols_max = plan.qkv_cols_max.max(cols);
            }
            Role::Logits => {
                plan.logit_rows_min = least(plan.logit_rows_min);
                plan.logit_rows_max = plan.logit_rows_max.max(rows);
                plan.vocabulary_max = plan.vocabulary_max.max(cols);
            }
            Role::Pooled => plan.pooled_max = plan.pooled_max.max(rows * ld),
            Role::Routing => plan.pairs_max = plan.pairs_max.max(rows * cols),
        }
        if int8 {
            plan.staging_bytes = plan.staging_bytes.max(2 * rows * ld);
        }
        self.bufs.push(Buffer { at, cols, ld, kind });
        Ok(Buf(self.bufs.len() as u32 - 1))
    }

    fn kv(&mut self, spec: &KvSpec, pages: &[usize]) -> Result<(), BackendError> {
        let (fp8, element_bytes) = match spec.dtype {
            KvType::F32 => return Err(unsupported("a KV cache in f32")),
            KvType::Bf16 => (false, 2),
            KvType::Fp8 => (true, 1),
        };
        let (heads, dk, dv, latent) = match spec.layout {
            KvLayout::Gqa { heads, dk, dv } => (heads, dk, dv, None),
            KvLayout::Latent { rank, rope } => (1, rank + rope, rank, Some(rank)),
        };
        let fits = match latent {
            None => dk.max(dv) <= HEAD_MAX,
            Some(rank) => rank <= LATENT_MAX.0 && dk <= LATENT_MAX.1,
        };
        if !fits {
            return Err(unsupported(format!("heads of {dk} and {dv} values")));
        }
        self.need(match (latent, fp8) {
            (None, false) => &["rope", "attend_bf16", "merge"],
            (None, true) => &["rope", "attend_bf16", "attend_fp8", "merge"],
            (Some(_), false) => &["rope", "latent_bf16", "merge"],
            (Some(_), true) => &["rope", "latent_fp8", "merge"],
        })?;
        let page_bytes =
            |head: usize| element_bytes * heads * PAGE_TOKENS * head.next_multiple_of(16);
        let mut pools = Vec::new();
        for (group, (layers, &pages)) in spec.groups.iter().zip(pages).enumerate() {
            for &layer in &layers.layers {
                if pools.len() <= layer {
                    pools.resize(layer + 1, None);
                }
                let keys = self.take(pages.saturating_mul(page_bytes(dk)), "KV pool")?;
                let values = match latent {
                    None => self.take(pages.saturating_mul(page_bytes(dv)), "KV pool")?,
                    Some(_) => 0,
                };
                pools[layer] = Some(LayerPool {
                    group,
                    keys,
                    values,
                });
            }
        }
        self.pools = pools;
        self.kv_kind = Some(KvKind { fp8, latent });
        self.plan.kv_groups = spec.groups.len();
        self.plan.layout = Some((heads, dk, dv));
        self.plan.changed = true;
        Ok(())
    }

    fn slots(&mut self, slots: usize, history_tokens: usize) -> Result<(), BackendError> {
        self.device.bind().map_err(device_error)?;
        let states_bytes = 16 * slots;
        let history = self.take(
            4usize.saturating_mul(slots).saturating_mul(history_tokens),
            "token histories",
        )?;
        let states = self.take(states_bytes, "token histories")?;
        self.device
            .clear(states, states_bytes)
            .map_err(device_error)?;
        self.slots = Slots {
            count: slots,
            history_tokens,
            history,
            states,
        };
        self.plan.changed = true;
        self.settle()
    }

    fn loaded(&mut self) {
        let done = self
            .settle()
            .map_err(|error| error.to_string())
            .and_then(|()| self.device.drain());
        self.keep(done);
    }

    fn begin(&mut self, inputs: &StepInputs) {
        let begun = self.begin_step(inputs);
        self.keep(begun);
    }

    fn graph(&mut self, key: GraphKey, forward: &mut dyn FnMut(&mut Self)) {
        if self.host.rows == 0 || self.failed.is_some() {
            return;
        }
        let sent = self.send_lists(key.part, forward);
        if self.keep(sent).is_none() {
            return;
        }
        if self.use_graphs && self.host.decodes_only {
            let ran = self.replay(key.part, forward);
            self.keep(ran);
        } else {
            forward(self);
        }
    }

    fn embed(&mut self, op: &Embed) {
        forward::embed(self, op);
    }

    fn norm(&mut self, op: &Norm) {
        forward::norm(self, op);
    }

    fn linear(&mut self, op: &Linear) {
        forward::linear(self, op);
    }

    fn linear_heads(&mut self, op: &LinearHeads) {
        forward::linear_heads(self, op);
    }

    fn rope_store(&mut self, op: &RopeStore) {
        attention::rope_store(self, op);
    }

    fn attend(&mut self, op: &Attend) {
        attention::attend(self, op);
    }

    fn route(&mut self, op: &Route) {
        forward::route(self, op);
    }

    fn linear_experts(&mut self, op: &LinearExperts) {
        forward::linear_experts(self, op);
    }

    fn pool(&mut self, op: &Pool) {
        forward::pool(self, op);
    }

    fn all_reduce(&mut self, _buf: Buf) {}

    fn sample(&mut self, logits: Buf, inputs: &SampleInputs) {
        let logits = self.buffer(logits);
        sample::sample(self, logits, inputs);
    }

    fn end(&mut self) -> Ticket {
        let Some(sampling) = &mut self.sampling else {
            self.fail("a step has ended before load was over".to_owned());
            return Ticket(0);
        };
        let (ticket, copied) = sampling.end(&mut self.device);
        self.keep(copied);
        ticket
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        if let Some(message) = &self.failed {
            return Err(device_error(message.clone()));
        }
        let bound = self.device.bind();
        self.keep(bound);
        let output = match &mut self.sampling {
            Some(sampling) => sampling.wait(&self.device, ticket),
            None => Err("a step is waited for before load was over".to_owned()),
        };
        output.map_err(|message| {
            self.fail(message.clone());
            device_error(message)
        })
    }
}

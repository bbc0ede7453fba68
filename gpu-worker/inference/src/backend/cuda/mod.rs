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
mod backend;
mod compile;
mod driver;
mod forward;
mod inputs;
mod load;
mod pool;
mod sample;
mod step;
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

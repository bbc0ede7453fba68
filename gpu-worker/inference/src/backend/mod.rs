//! The contract between the engine and a device.
//!
//! A [`Backend`] offers fourteen operations over opaque handles. The engine plans a step on the host,
//! enqueues it, and learns the result only from [`Backend::wait`].
//! Every backend passes the suite in [`conformance`]; [`scalar`] is the reference that it compares with.
//!
//! Rules that every implementation keeps:
//! - Operations only enqueue. None returns data, blocks, allocates, or reads device memory.
//! - Buffers, weights and the KV pool are made at load, and nowhere else.
//! - What differs between sequences travels in [`StepInputs`] and [`SampleInputs`] alone. All other
//!   arguments are bucket shapes and model constants, so that a captured graph stays valid.
//! - Row `i` of a result depends on row `i` and on the KV of its own sequence, on nothing else in the step.

mod activation;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod cpu;
pub mod cuda;
pub mod deferred;
mod exp;
mod ops;
mod plan;
mod rope;
mod sampling;
pub mod scalar;
mod state;
mod step;

pub use ops::*;
pub use plan::*;
pub use step::*;

/// Why a device cannot go on. The process that owns it should end: a device context does not recover.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The plan made at load does not fit into memory.
    #[error("{what} needs {needed_bytes} bytes, {available_bytes} are available")]
    OutOfMemory {
        /// What was being allocated.
        what: String,
        /// Bytes asked for.
        needed_bytes: usize,
        /// Bytes left.
        available_bytes: usize,
    },
    /// The backend has no kernel for this shape, type or model feature.
    #[error("{backend} backend does not support {what}")]
    Unsupported {
        /// The backend's name.
        backend: &'static str,
        /// The missing feature.
        what: String,
    },
    /// Weight bytes could not be read.
    #[error("read weight {name}")]
    Weight {
        /// The tensor's name in the file.
        name: String,
        /// Why.
        #[source]
        source: crate::model::ModelError,
    },
    /// The device reported an error.
    #[error("{backend} device error: {message}")]
    Device {
        /// The backend's name.
        backend: &'static str,
        /// The driver's words.
        message: String,
    },
}

/// A device that runs the steps of one model.
///
/// `R` is the row bucket of the current step, `H` the hidden size, `S` the sampled rows, `V` the
/// vocabulary. All calls come from one thread. The order of calls in a step is
/// `begin`, one `graph` (whose closure calls the forward operations), `sample`, `end`; `wait` comes any
/// time later, and at most `caps().lookahead + 1` tickets are open.
pub trait Backend {
    /// Returns what the engine must know to plan steps.
    fn caps(&self) -> &Caps;

    // --- At load: the only calls that allocate. ---

    /// Stores one weight matrix (or stack of them) in the backend's own layout and type.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`], [`BackendError::Unsupported`], or [`BackendError::Weight`] if the
    /// source cannot be read.
    fn weight(
        &mut self,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Weight, BackendError>;

    /// Stores the cosine and sine table of one rotary embedding.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`] or [`BackendError::Unsupported`].
    fn rope_table(&mut self, spec: &RopeSpec) -> Result<RopeTable, BackendError>;

    /// Makes an activation buffer of `rows x cols`. Its element type follows from `role`.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`].
    fn buf(&mut self, rows: usize, cols: usize, role: Role) -> Result<Buf, BackendError>;

    /// Makes the KV pool: `pages[g]` pages of `caps().page_tokens` tokens for each layer group `g`.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`] or [`BackendError::Unsupported`].
    fn kv(&mut self, spec: &KvSpec, pages: &[usize]) -> Result<(), BackendError>;

    /// Makes `slots` slots, each with a token history of up to `history_tokens`.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`].
    fn slots(&mut self, slots: usize, history_tokens: usize) -> Result<(), BackendError>;

    /// Says that everything is loaded: what comes are steps.
    fn loaded(&mut self);

    // --- Each step. ---

    /// 1. Uploads the step's inputs, resets the named slots, and resolves [`StepInputs::LAST`] tokens.
    ///
    /// A step without rows is legal: its operations do nothing.
    fn begin(&mut self, inputs: &StepInputs);

    /// 2. Runs `forward`, or replays what an earlier call with an equal `key` captured.
    fn graph(&mut self, key: GraphKey, forward: &mut dyn FnMut(&mut Self))
    where
        Self: Sized;

    /// 3. Gathers the embedding rows of the step's tokens into `op.out` `[R, H]`.
    fn embed(&mut self, op: &Embed);

    /// 4. Adds `op.add` to the residual `op.x` `[R, C]` if there is one, then writes the normalised row to
    ///    `op.out` in the type that its consumer reads.
    ///
    /// Source: Zhang and Sennrich 2019, arXiv:1910.07467 (RMSNorm); Ba et al. 2016, arXiv:1607.06450.
    fn norm(&mut self, op: &Norm);

    /// 5. `op.out[R, N] = epilogue(op.x[R, K] · op.weight[N, K]ᵀ)`.
    ///
    /// With [`Rows::Logit`] only the step's logit rows are read, and `out` is `[S, N]` in f32.
    fn linear(&mut self, op: &Linear);

    /// 6. `op.out[R, h, N] = op.x[R, h, K] · op.weight[h, N, K]ᵀ`: one product a head (absorbed MLA).
    fn linear_heads(&mut self, op: &LinearHeads);

    /// 7. Normalises and rotates the heads of `op.qkv`, and writes K and V (or the latent) to the step's
    ///    write slots of `op.layer`. Queries are rotated in place.
    ///
    /// Source: Su et al. 2021, arXiv:2104.09864.
    fn rope_store(&mut self, op: &RopeStore);

    /// 8. Attention of the step's query rows over their sequences' pages (or over this step's rows).
    ///
    /// One call serves decodes, chunks, mixed steps and share groups.
    fn attend(&mut self, op: &Attend);

    /// 9. Chooses experts: `op.routing` gets, for each row, `top_k` experts and their f32 weights.
    fn route(&mut self, op: &Route);

    /// 10. Runs the rows through the experts that [`Backend::route`] chose.
    fn linear_experts(&mut self, op: &LinearExperts);

    /// 11. Writes one pooled row for each encode sequence that ends in this step.
    fn pool(&mut self, op: &Pool);

    /// 12. Sums `buf` over all devices. Nothing on one device.
    fn all_reduce(&mut self, buf: Buf);

    /// 13. Draws one token for each live row of `logits` `[S, V]`, and appends it to its slot's history.
    ///
    /// The order of operations is that of [`SampleParams`]; ties go to the lower id. Rows with a value that
    /// is not finite are reported in [`StepOutput::bad_rows`].
    fn sample(&mut self, logits: Buf, inputs: &SampleInputs);

    /// 14. Closes the step and returns the ticket of its results.
    fn end(&mut self) -> Ticket;

    /// Blocks until the step of `ticket` has run, and returns what it produced.
    ///
    /// # Errors
    ///
    /// [`BackendError::Device`]. Nothing of the step may then be used.
    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError>;
}

//! What happens once a step: memory for its inputs, their upload, and the replay of graphs.

use super::*;

impl CudaBackend {
    /// Makes working memory for what has been loaded.
    pub(super) fn settle(&mut self) -> Result<(), BackendError> {
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
    pub(super) fn settle_partials(&mut self) -> Result<(usize, usize), BackendError> {
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
    pub(super) fn begin_step(&mut self, inputs: &StepInputs) -> Said<()> {
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
    pub(super) fn send_lists(&mut self, part: u32, forward: &mut dyn FnMut(&mut Self)) -> Said<()> {
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
    pub(super) fn replay(&mut self, part: u32, forward: &mut dyn FnMut(&mut Self)) -> Said<()> {
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

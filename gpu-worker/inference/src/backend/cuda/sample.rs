//! Sampling: what it uploads, and the results that wait for their ticket.

use std::collections::VecDeque;

use super::args::SampleArgs;
use super::driver::{Argument, Device, Event, Pinned, Said, Shape};
use super::upload::{Place, Plan, Upload};
use super::{Buffer, CudaBackend, Kind};
use crate::backend::{SampleInputs, SampleRow, StepOutput, Ticket};

/// Words of a row in the kernel's form.
const ROW_WORDS: usize = 20;
/// Biased tokens that a row may have on average.
const BIASES_PER_ROW: usize = 1024;
/// Most likely tokens that a row may report on average: the API has at most 20.
const TOP_PER_ROW: usize = 32;
/// Most likely tokens that a step may report where that is more.
const TOP_MIN: usize = 1 << 16;

const LIVE: u32 = 1;
const FORCED: u32 = 2;
const MASKED: u32 = 4;
const LOGPROBS: u32 = 8;

/// What the kernel says of a row with a logit that is not finite.
const STATUS_BAD: u32 = 2;

/// Bounds of sampling, known at load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Logit rows.
    pub(super) rows: usize,
    /// Columns of the logits.
    pub(super) vocabulary: usize,
    /// Blocks that sample at once.
    pub(super) blocks: usize,
    /// Values of the pooled rows of a step.
    pub(super) pooled: usize,
}

/// The memory of sampling.
#[derive(Debug)]
pub(super) struct SampleMemory {
    bounds: Bounds,
    upload: Upload,
    rows: Place,
    runs: Place,
    masks: Place,
    biases: Place,
    /// Scratch `[blocks, vocabulary]`: adjusted logits, weights, and uses of tokens.
    scratch: [u64; 3],
    /// Results on the device, the same places as in each of `results`.
    at: u64,
    tokens: usize,
    logprobs: usize,
    status: usize,
    top_ids: usize,
    top_logprobs: usize,
    pooled: usize,
    top_max: usize,
    results: [(Pinned, Event); 2],
    pending: VecDeque<Pending>,
    tickets: u64,
    /// The step in work.
    step: Step,
}

/// What a step will give.
#[derive(Debug, Default)]
struct Step {
    /// For each row, the most likely tokens that it reports.
    top: Vec<usize>,
    pooled: Option<Pooled>,
}

/// Pooled rows on the device.
#[derive(Debug, Clone)]
pub(super) struct Pooled {
    pub(super) at: u64,
    pub(super) ld: usize,
    pub(super) cols: usize,
    /// For each row, whether its sequence had rows in the step.
    pub(super) written: Vec<bool>,
}

#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    step: Step,
}

impl SampleMemory {
    /// Allocates everything, or returns the bytes that the device has no room for.
    pub(super) fn new(device: &mut Device, bounds: Bounds) -> Said<Result<Self, usize>> {
        let Bounds {
            rows, vocabulary, ..
        } = bounds;
        let mut plan = Plan::default();
        let row_words = plan.place(ROW_WORDS * rows);
        let runs = plan.place(rows + 1);
        let masks = plan.place(rows * vocabulary.div_ceil(32));
        let biases = plan.place(2 * BIASES_PER_ROW * rows);
        let upload = match Upload::new(device, &plan)? {
            Ok(upload) => upload,
            Err(bytes) => return Ok(Err(bytes)),
        };
        let mut scratch = [0; 3];
        let bytes = 4 * (bounds.blocks * vocabulary).max(1);
        for at in &mut scratch {
            let Some(allocated) = device.allocate(bytes)? else {
                return Ok(Err(bytes));
            };
            *at = allocated;
        }
        // The kernel leaves the uses as it finds them: zero.
        device.clear(scratch[2], bytes)?;
        let top_max = (TOP_PER_ROW * rows).max(TOP_MIN.min(rows * vocabulary));
        let words = 3 * rows + 2 * top_max + bounds.pooled;
        let bytes = 4 * words.max(1);
        let Some(at) = device.allocate(bytes)? else {
            return Ok(Err(bytes));
        };
        let mut result = || -> Said<_> { Ok((device.allocate_pinned(words)?, device.event()?)) };
        let results = [result()?, result()?];
        Ok(Ok(Self {
            bounds,
            upload,
            rows: row_words,
            runs,
            masks,
            biases,
            scratch,
            at,
            tokens: 0,
            logprobs: rows,
            status: 2 * rows,
            top_ids: 3 * rows,
            top_logprobs: 3 * rows + top_max,
            pooled: 3 * rows + 2 * top_max,
            top_max,
            results,
            pending: VecDeque::new(),
            tickets: 0,
            step: Step::default(),
        }))
    }

    /// Returns what it was made for.
    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Forgets what was left of the step before.
    pub(super) fn begin(&mut self) {
        self.step = Step::default();
    }

    /// Notes that the step pools rows.
    pub(super) fn set_pooled(&mut self, pooled: Pooled) {
        self.step.pooled = Some(pooled);
    }

    fn word(&self, first: usize) -> u64 {
        self.at + 4 * first as u64
    }

    /// Uploads the rows and their parameters; returns how many runs of one slot there are.
    fn send(&mut self, device: &mut Device, inputs: &SampleInputs) -> Said<usize> {
        self.upload.turn(device)?;
        let vocabulary = inputs.vocabulary.min(self.bounds.vocabulary);
        let (mut masks, mut biases, mut top) = (0, 0, 0);
        let mut rows = Vec::with_capacity(ROW_WORDS * inputs.rows.len());
        self.step.top.clear();
        for row in &inputs.rows {
            let top_n = row.logprobs.map_or(0, |n| (n as usize).min(vocabulary));
            rows.extend(row_words(row, masks, biases, top));
            masks += row.mask.as_ref().map_or(0, Vec::len);
            biases += row.bias.len();
            top += top_n;
            self.step.top.push(top_n);
        }
        if top > self.top_max {
            return Err(format!(
                "a step asks for {top} of the most likely tokens where the plan has room for {}",
                self.top_max
            ));
        }
        let starts = inputs.rows.iter().enumerate().filter_map(|(i, row)| {
            let first = i == 0 || inputs.rows[i - 1].slot != row.slot;
            first.then_some(i as u32)
        });
        let mut runs: Vec<u32> = starts.collect();
        let run_count = runs.len();
        runs.push(inputs.rows.len() as u32);
        self.upload.send_all(device, self.rows, &rows)?;
        self.upload.send_all(device, self.runs, &runs)?;
        let words = inputs
            .rows
            .iter()
            .flat_map(|row| row.mask.iter().flatten().copied());
        self.upload.send(device, self.masks, words, masks, 0)?;
        let pairs = inputs
            .rows
            .iter()
            .flat_map(|row| row.bias.iter().flat_map(|&(id, bias)| [id, bias.to_bits()]));
        self.upload
            .send(device, self.biases, pairs, 2 * biases, 0)?;
        self.upload.uploaded(device)?;
        Ok(run_count)
    }

    /// Enqueues the copies of the step's results, and returns their ticket.
    ///
    /// # Panics
    ///
    /// If two tickets are open.
    pub(super) fn end(&mut self, device: &mut Device) -> (Ticket, Said<()>) {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        assert!(
            self.pending.len() < self.results.len(),
            "{} tickets are open",
            self.pending.len() + 1
        );
        let step = std::mem::take(&mut self.step);
        let copied = self.copy_results(device, ticket, &step);
        self.pending.push_back(Pending { ticket, step });
        (ticket, copied)
    }

    fn copy_results(&self, device: &mut Device, ticket: Ticket, step: &Step) -> Said<()> {
        let (pinned, event) = self.results[(ticket.0 % 2) as usize];
        let (rows, top) = (step.top.len(), step.top.iter().sum::<usize>());
        for (first, len) in [
            (self.tokens, rows),
            (self.logprobs, rows),
            (self.status, rows),
            (self.top_ids, top),
            (self.top_logprobs, top),
        ] {
            device.copy_out(pinned, first, self.word(first), len)?;
        }
        if let Some(pooled) = &step.pooled {
            let len = pooled.written.len() * pooled.ld;
            device.copy_out(pinned, self.pooled, pooled.at, len)?;
        }
        device.record(event)
    }

    /// Blocks until the step of `ticket` has run, and returns its results.
    ///
    /// # Panics
    ///
    /// If the ticket is not open.
    pub(super) fn wait(&mut self, device: &Device, ticket: Ticket) -> Said<StepOutput> {
        let at = self
            .pending
            .iter()
            .position(|pending| pending.ticket == ticket)
            .expect("the ticket is open");
        let pending = self
            .pending
            .remove(at)
            .expect("the position was just found");
        let (pinned, event) = self.results[(ticket.0 % 2) as usize];
        device.wait(event)?;
        Ok(self.read(device, pinned, &pending.step))
    }

    fn read(&self, device: &Device, pinned: Pinned, step: &Step) -> StepOutput {
        let rows = step.top.len();
        let floats = |first, len| {
            device
                .words(pinned, first, len)
                .iter()
                .map(|&x| f32::from_bits(x))
        };
        let mut output = StepOutput {
            tokens: device.words(pinned, self.tokens, rows).to_vec(),
            logprobs: floats(self.logprobs, rows).collect(),
            ..StepOutput::default()
        };
        let mut top = 0;
        for (row, &status) in device.words(pinned, self.status, rows).iter().enumerate() {
            let len = step.top[row];
            let ids = device
                .words(pinned, self.top_ids + top, len)
                .iter()
                .copied();
            let entries = ids.zip(floats(self.top_logprobs + top, len));
            top += len;
            output.top_n.push(match status {
                1 => entries.collect(),
                _ => Vec::new(),
            });
            if status == STATUS_BAD {
                output.bad_rows.push(row as u32);
            }
        }
        if let Some(pooled) = &step.pooled {
            let rows = pooled.written.iter().enumerate().filter(|row| *row.1);
            output.pooled = rows
                .map(|(row, _)| floats(self.pooled + row * pooled.ld, pooled.cols).collect())
                .collect();
        }
        output
    }
}

/// Returns a row in the kernel's form.
fn row_words(row: &SampleRow, mask_at: usize, bias_at: usize, top_at: usize) -> [u32; ROW_WORDS] {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let params = &row.params;
    [
        row.slot,
        flag(row.live, LIVE)
            | flag(row.forced.is_some(), FORCED)
            | flag(row.mask.is_some(), MASKED)
            | flag(row.logprobs.is_some(), LOGPROBS),
        row.seed as u32,
        (row.seed >> 32) as u32,
        row.choice,
        row.position,
        row.forced.unwrap_or(0),
        row.logprobs.unwrap_or(0),
        params.top_k,
        params.temperature.to_bits(),
        params.top_p.to_bits(),
        params.min_p.to_bits(),
        params.repetition_penalty.to_bits(),
        params.frequency_penalty.to_bits(),
        params.presence_penalty.to_bits(),
        mask_at as u32,
        row.mask.as_ref().map_or(0, Vec::len) as u32,
        bias_at as u32,
        row.bias.len() as u32,
        top_at as u32,
    ]
}

/// Enqueues the draw of one token a row.
pub(super) fn sample(this: &mut CudaBackend, logits: Buffer, inputs: &SampleInputs) {
    if inputs.rows.is_empty() {
        return;
    }
    let Kind::F32 = logits.kind else {
        return this.fail("logits are not f32".to_owned());
    };
    let Some(memory) = &mut this.sampling else {
        return this.fail("there is no room to sample".to_owned());
    };
    let sent = memory.send(&mut this.device, inputs);
    let [adjusted, weights, uses] = memory.scratch;
    let vocabulary = inputs.vocabulary.min(logits.cols);
    let arguments = SampleArgs {
        logits: logits.at,
        rows: memory.upload.address(memory.rows),
        runs: memory.upload.address(memory.runs),
        masks: memory.upload.address(memory.masks),
        biases: memory.upload.address(memory.biases),
        history: this.slots.history,
        slots: this.slots.states,
        adjusted,
        weights,
        uses,
        out_tokens: memory.word(memory.tokens),
        out_logprobs: memory.word(memory.logprobs),
        out_status: memory.word(memory.status),
        top_ids: memory.word(memory.top_ids),
        top_logprobs: memory.word(memory.top_logprobs),
        run_count: *sent.as_ref().unwrap_or(&0) as u32,
        ld: logits.ld as u32,
        vocabulary: vocabulary as u32,
        history_tokens: this.slots.history_tokens as u32,
    };
    let blocks = memory.bounds.blocks;
    let Some(runs) = this.keep(sent) else { return };
    let shape = Shape::rows(runs.min(blocks), 512);
    this.launch("sample", shape, &[Argument::structure(&arguments)]);
}

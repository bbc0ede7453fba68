//! Sampling: runs of logit rows of one slot are tasks.

use std::ops::Range;
use std::sync::Mutex;

use super::isa::Kernel;
use super::simd::Simd;
use super::storage::Plane;
use super::winners::{IDS_MAX, Winners};
use super::{CpuBackend, lock};
use crate::backend::sampling::{Sampled, Sampler, needs_only_greatest};
use crate::backend::state::{LogitRows, StepState};
use crate::backend::{Buf, SampleInputs};

impl CpuBackend {
    /// Computes the output layer, if it is still to be; with `inputs`, of rows that need no more than their
    /// greatest logit only that.
    pub(super) fn compute_logits(&mut self, inputs: Option<&SampleInputs>) {
        self.scratch.picked.clear();
        let Some(op) = self.output_layer.take() else {
            return;
        };
        let vocabulary = inputs.and_then(|inputs| self.pick_rows(inputs));
        self.with_out(op.out, |this, out| this.run_linear(&op, out, vocabulary));
    }

    /// Marks the rows that need no more than their greatest logit; returns the vocabulary, if there are any.
    fn pick_rows(&mut self, inputs: &SampleInputs) -> Option<usize> {
        let rows = self.state.inputs.logit_rows.len();
        assert_eq!(inputs.rows.len(), rows, "each logit row is sampled");
        let is_picked = |row| inputs.vocabulary <= IDS_MAX && needs_only_greatest(row);
        if !inputs.rows.iter().any(is_picked) {
            return None;
        }
        self.scratch
            .picked
            .extend(inputs.rows.iter().map(is_picked));
        for winners in &self.scratch.winners {
            lock(winners).begin(rows);
        }
        Some(inputs.vocabulary)
    }

    pub(super) fn run_sample(&mut self, logits: Buf, inputs: &SampleInputs) {
        self.compute_logits(Some(inputs));
        let logits = self.bufs[logits.0 as usize].f32();
        let scratch = &mut self.scratch;
        // A row's history holds the tokens of the rows before it of the same slot: these stay together.
        let runs = &mut scratch.sample_runs;
        runs.clear();
        for (row, sample) in inputs.rows.iter().enumerate() {
            if row == 0 || inputs.rows[row - 1].slot != sample.slot {
                runs.push(row);
            }
        }
        let tasks = runs.len();
        runs.push(inputs.rows.len());
        let (runs, samplers, samples) = (&*runs, &scratch.samplers, &scratch.samples);
        let (picked, winners) = (&scratch.picked, &scratch.winners);
        let state = &self.state;
        let isa = self.isa;
        let workers = self.pool.workers();
        self.pool
            .run_owned(|worker| tasks * worker / workers, &|worker, task| {
                let mut sampler = lock(&samplers[worker]);
                let rows = runs[task]..runs[task + 1];
                isa.run(SampleRows {
                    state,
                    rows,
                    logits,
                    inputs,
                    sampler: &mut sampler,
                    samples,
                    picked,
                    winners,
                });
            });
        let sampled = samples[..inputs.rows.len()]
            .iter()
            .map(|sample| std::mem::take(&mut *lock(sample)));
        self.state.store_samples(sampled);
    }
}

/// One task: the passes over the vocabulary, compiled for the instruction set.
struct SampleRows<'a> {
    state: &'a StepState,
    rows: Range<usize>,
    logits: &'a Plane<f32>,
    inputs: &'a SampleInputs,
    sampler: &'a mut Sampler,
    samples: &'a [Mutex<Sampled>],
    /// Rows whose logits were not written; empty: all were.
    picked: &'a [bool],
    /// What the threads have seen of those rows.
    winners: &'a [Mutex<Winners>],
}

impl Kernel for SampleRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self {
            state,
            rows,
            logits,
            inputs,
            sampler,
            samples,
            picked,
            winners,
        } = self;
        state.sample(
            rows,
            LogitRows {
                values: &logits.values,
                stride: logits.stride,
            },
            inputs,
            sampler,
            |row| {
                let is_picked = picked.get(row).is_some_and(|&is_picked| is_picked);
                is_picked.then(|| Winners::token(winners, row))
            },
            |row, sampled| {
                *lock(&samples[row]) = sampled;
            },
        );
    }
}

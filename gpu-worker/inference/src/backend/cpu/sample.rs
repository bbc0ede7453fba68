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
        let picked = &mut self.scratch.picked;
        picked.clear();
        let Some(op) = self.output_layer.take() else {
            return;
        };
        let rows = self.state.inputs.logit_rows.len();
        let inputs = inputs.filter(|inputs| {
            assert_eq!(inputs.rows.len(), rows, "each logit row is sampled");
            picked.extend(inputs.rows.iter().map(needs_only_greatest));
            inputs.vocabulary <= IDS_MAX && picked.contains(&true)
        });
        if let Some(inputs) = inputs {
            for winners in &self.scratch.winners {
                lock(winners).begin(inputs.rows.len());
            }
        } else {
            picked.clear();
        }
        let vocabulary = inputs.map(|inputs| inputs.vocabulary);
        self.with_out(op.out, |this, out| this.run_linear(&op, out, vocabulary));
    }

    pub(super) fn run_sample(&mut self, logits: Buf, inputs: &SampleInputs) {
        self.compute_logits(Some(inputs));
        let picked = &self.scratch.picked;
        let winners: Vec<_> = self.scratch.winners.iter().map(lock).collect();
        for (row, _) in picked.iter().enumerate().filter(|(_, picked)| **picked) {
            let token = Winners::token(winners.iter().map(|winners| &**winners), row);
            *lock(&self.scratch.samples[row]) = token;
        }
        drop(winners);
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
        let picked = &scratch.picked;
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
    /// Rows that have a token already; empty: none has.
    picked: &'a [bool],
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
                is_picked.then(|| std::mem::take(&mut *lock(&samples[row])))
            },
            |row, sampled| {
                *lock(&samples[row]) = sampled;
            },
        );
    }
}

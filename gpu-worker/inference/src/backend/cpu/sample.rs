//! Sampling: runs of logit rows of one slot are tasks.

use std::ops::Range;
use std::sync::Mutex;

use super::isa::Kernel;
use super::simd::Simd;
use super::storage::Plane;
use super::{CpuBackend, lock};
use crate::backend::sampling::{Sampled, Sampler};
use crate::backend::state::StepState;
use crate::backend::{Buf, SampleInputs};

impl CpuBackend {
    pub(super) fn run_sample(&mut self, logits: Buf, inputs: &SampleInputs) {
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
        let state = &self.state;
        let isa = self.isa;
        self.pool.run(tasks, &|worker, task| {
            let mut sampler = lock(&samplers[worker]);
            let rows = runs[task]..runs[task + 1];
            isa.run(SampleRows {
                state,
                rows,
                logits,
                inputs,
                sampler: &mut sampler,
                samples,
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
        } = self;
        state.sample(
            rows,
            &logits.values,
            logits.stride,
            inputs,
            sampler,
            |row, sampled| {
                *lock(&samples[row]) = sampled;
            },
        );
    }
}

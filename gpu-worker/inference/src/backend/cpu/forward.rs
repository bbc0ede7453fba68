//! The forward operations: each cut into tasks that write disjoint parts.
#![expect(unsafe_code, reason = "tasks write disjoint rows")]

use std::ops::Range;
use std::sync::Mutex;

use super::element::Element;
use super::int8::{CodedPlane, EncodeRow, Int8Factors, PackedInt8};
use super::kv::{Cache, Pages};
use super::linear::{self, Factors, FloatFactors, Picks, Product};
use super::norm::{NormRow, RowOut};
use super::pack::Packed;
use super::pool::first_row;
use super::rope_store::{self, StoreRows};
use super::storage::{Aligned, Buffer, OutputValues, Plane, Shared};
use super::{CpuBackend, Stored, attention, lock};
use crate::backend::scalar::{attend_step_rows, pool_rows};
use crate::backend::{Attend, Embed, KvFrom, Linear, Norm, Pool, RopeStore, Rows, Weight};

/// Rows of a task of a row-wise operation; divides a tile's, so that tasks have one owner.
const ROWS_PER_TASK: usize = 8;

impl CpuBackend {
    pub(super) fn run_embed(&mut self, op: &Embed, out: &mut Buffer) {
        let out = out.f32_mut();
        let (cols, stride) = (out.cols, out.stride);
        let shared = Shared::new(&mut out.values);
        let inputs = &self.state.inputs;
        self.each_row(|row| {
            // SAFETY: each row belongs to one task.
            let out = unsafe { shared.part(row * stride..row * stride + cols) };
            out.fill(0.0);
            self.add_table_row(op.table, inputs.tokens[row], op.scale, out);
            if let Some(positions) = op.positions {
                self.add_table_row(positions, inputs.positions[row], 1.0, out);
            }
            if let Some(types) = op.token_types {
                self.add_table_row(
                    types,
                    inputs.token_types.get(row).copied().unwrap_or(0),
                    1.0,
                    out,
                );
            }
        });
    }

    fn add_table_row(&self, table: Weight, row: u32, scale: f32, out: &mut [f32]) {
        match &self.weights[table.0 as usize] {
            Stored::F32(packed) => packed.add_row(row as usize, scale, out),
            Stored::Bf16(packed) | Stored::TiedInt8 { table: packed, .. } => {
                packed.add_row(row as usize, scale, out)
            }
            Stored::Int8(_) | Stored::Vector(_) => panic!("the weight is not an embedding table"),
        }
    }

    pub(super) fn run_norm(&mut self, op: &Norm, x: &mut Plane<f32>, out: &mut Buffer) {
        let (cols, stride) = (x.cols, x.stride);
        let x = Shared::new(&mut x.values);
        let target = out.output();
        let add = op.add.map(|add| self.bufs[add.0 as usize].f32());
        let gain = self.vector(op.weight);
        let bias = op.bias.map(|bias| self.vector(bias));
        self.each_row(|row| {
            let out_range = row * target.stride..row * target.stride + target.cols;
            let out = match &target.values {
                // SAFETY: each row belongs to one task.
                OutputValues::F32(values) => RowOut::F32(unsafe { values.part(out_range) }),
                // SAFETY: each row belongs to one task.
                OutputValues::Bf16(values) => RowOut::Bf16(unsafe { values.part(out_range) }),
            };
            // SAFETY: each row belongs to one task.
            let x = unsafe { x.part(row * stride..row * stride + cols) };
            let add = add.map(|add| add.row(row));
            self.isa.run(NormRow {
                x,
                add,
                gain,
                bias,
                kind: op.kind,
                eps: op.eps,
                plus_one: op.plus_one,
                out,
            });
        });
    }

    /// Computes a product. `vocabulary` says that it is of logits, of whose rows [`Scratch::picked`](super::Scratch)
    /// only the greatest of the first so many matters.
    pub(super) fn run_linear(&mut self, op: &Linear, out: &mut Buffer, vocabulary: Option<usize>) {
        let mut x = std::mem::take(&mut self.bufs[op.x.0 as usize]);
        let mut scratch = std::mem::take(&mut self.scratch);
        let logit_rows = &self.state.inputs.logit_rows;
        let picks = vocabulary.map(|vocabulary| Picks {
            rows: &scratch.picked,
            vocabulary,
            winners: &scratch.winners,
        });
        match (&self.weights[op.weight.0 as usize], &mut x) {
            (Stored::F32(weight), Buffer::F32(x)) => {
                self.multiply_floats(op, x, weight, &mut scratch.logit_rows_f32, picks, out)
            }
            (Stored::Bf16(weight), Buffer::Bf16(x)) => {
                self.multiply_floats(op, x, weight, &mut scratch.logit_rows_bf16, picks, out)
            }
            (Stored::Int8(weight) | Stored::TiedInt8 { matrix: weight, .. }, Buffer::Int8(x)) => {
                if let Some(watch) = &mut self.watch {
                    for row in 0..self.state.rows() {
                        watch[op.weight.0 as usize].see(x.values.row(row));
                    }
                }
                self.encode(x, op.weight, weight);
                let (codes, scales, kept) = match op.rows {
                    Rows::All => (&x.codes, &x.scales, &x.kept.values),
                    Rows::Logit => {
                        gather(&mut scratch.logit_row_codes, &x.codes, x.stride, logit_rows);
                        gather(&mut scratch.logit_row_scales, &x.scales, 1, logit_rows);
                        let (kept, kept_stride) = (&x.kept.values, x.kept.stride);
                        gather(&mut scratch.logit_rows_bf16, kept, kept_stride, logit_rows);
                        (
                            &scratch.logit_row_codes,
                            &scratch.logit_row_scales,
                            &scratch.logit_rows_bf16,
                        )
                    }
                };
                let factors = Int8Factors {
                    codes,
                    stride: x.stride,
                    scales,
                    kept,
                    kept_stride: x.kept.stride,
                    weight,
                };
                self.multiply(op, factors, picks, out);
            }
            _ => panic!("the input buffer was made for another kind of weight"),
        }
        self.scratch = scratch;
        self.bufs[op.x.0 as usize] = x;
    }

    fn multiply_floats<E: Element>(
        &self,
        op: &Linear,
        x: &Plane<E>,
        weight: &Packed<E>,
        gathered: &mut Aligned<E>,
        picks: Option<Picks<'_>>,
        out: &mut Buffer,
    ) {
        let values = match op.rows {
            Rows::All => &x.values,
            Rows::Logit => {
                gather(gathered, &x.values, x.stride, &self.state.inputs.logit_rows);
                &*gathered
            }
        };
        let factors = FloatFactors {
            x: values,
            stride: x.stride,
            weight,
        };
        assert_rows_fit(x.stride, weight.units * E::PACK);
        self.multiply(op, factors, picks, out);
    }

    fn multiply<F: Factors>(
        &self,
        op: &Linear,
        factors: F,
        picks: Option<Picks<'_>>,
        out: &mut Buffer,
    ) {
        let product = Product {
            factors,
            rows: match op.rows {
                Rows::All => self.state.rows(),
                Rows::Logit => self.state.inputs.logit_rows.len(),
            },
            bias: op.bias.map(|bias| self.vector(bias)),
            epilogue: op.epilogue,
            out: out.output(),
            picks,
        };
        linear::run(self.isa, &self.pool, &self.rooms, product);
    }

    /// Makes the codes of the step's rows for products with `matrix`, if they are not there.
    fn encode(&self, x: &mut CodedPlane, weight: Weight, matrix: &PackedInt8) {
        assert_rows_fit(x.values.cols, matrix.features());
        assert_eq!(
            x.kept.cols,
            matrix.kept_features(),
            "the input buffer has room for what the weight keeps"
        );
        match x.coded_for.replace(weight) {
            None => {}
            Some(other) if other == weight || x.kept.cols == 0 => return,
            Some(_) => panic!("rows that became codes for one weight are not another's input"),
        }
        let stride = x.stride;
        let (cols, value_stride) = (x.values.cols, x.values.stride);
        let (kept_cols, kept_stride) = (x.kept.cols, x.kept.stride);
        let kept = Shared::new(&mut x.kept.values);
        let values = Shared::new(&mut x.values.values);
        let codes = Shared::new(&mut x.codes);
        let scales = Shared::new(&mut x.scales);
        self.each_row(|row| {
            // SAFETY: each row belongs to one task.
            let codes = unsafe { codes.part(row * stride..(row + 1) * stride) };
            // SAFETY: as above.
            let values = unsafe { values.part(row * value_stride..row * value_stride + cols) };
            // SAFETY: as above.
            let scale = unsafe { scales.part(row..row + 1) };
            // SAFETY: as above.
            let kept = unsafe { kept.part(row * kept_stride..row * kept_stride + kept_cols) };
            self.isa.run(EncodeRow {
                split: &matrix.split,
                values,
                kept,
                codes,
                scale: &mut scale[0],
            });
        });
    }

    pub(super) fn run_rope_store(
        &mut self,
        op: &RopeStore,
        qkv: &mut Plane<f32>,
        cache: Option<&mut Cache>,
    ) {
        match cache {
            Some(Cache::F32(pages)) if op.store => self.rope_and_store(op, qkv, Some(pages)),
            Some(Cache::Bf16(pages)) if op.store => self.rope_and_store(op, qkv, Some(pages)),
            Some(Cache::F32(_) | Cache::Bf16(_)) | None => {
                self.rope_and_store::<f32>(op, qkv, None)
            }
        }
    }

    fn rope_and_store<E: Element>(
        &self,
        op: &RopeStore,
        qkv: &mut Plane<f32>,
        pages: Option<&mut Pages<E>>,
    ) {
        let inputs = &self.state.inputs;
        let target = pages.map(|pages| {
            let shape = pages.shape;
            let layer = pages.layer_mut(op.layer);
            rope_store::Target {
                blocks: Shared::new(&mut layer.blocks),
                shape,
                slots: &inputs.page_tables[layer.group].write_slots,
            }
        });
        let norm = |norm: Option<(Weight, f32)>| norm.map(|(gain, eps)| (self.vector(gain), eps));
        let operands = rope_store::Operands {
            stride: qkv.stride,
            qkv: Shared::new(&mut qkv.values),
            heads: op.heads,
            positions: &inputs.positions,
            rope: op.rope.map(|table| &self.ropes[table.0 as usize]),
            q_norm: norm(op.q_norm),
            k_norm: norm(op.k_norm),
            target,
        };
        self.each_rows(|rows| self.isa.run(StoreRows { operands, rows }));
    }

    pub(super) fn run_attend(&mut self, op: &Attend, out: &mut Buffer) {
        if op.from == KvFrom::ThisStep {
            return self.attend_this_step(op, out);
        }
        let workers = self.pool.workers();
        self.scratch.schedule.prepare(op, &self.state, workers);
        match self
            .cache
            .as_ref()
            .expect("attention over pages needs a cache")
        {
            Cache::F32(pages) => self.attend_pages(op, pages, &self.scratch.attention_f32, out),
            Cache::Bf16(pages) => self.attend_pages(op, pages, &self.scratch.attention_bf16, out),
        }
    }

    fn attend_pages<E: Element>(
        &self,
        op: &Attend,
        pages: &Pages<E>,
        scratch: &[Mutex<attention::Scratch<E>>],
        out: &mut Buffer,
    ) {
        let inputs = &self.state.inputs;
        let layer = pages.layer(op.layer);
        let operands = attention::Operands {
            op,
            qkv: self.bufs[op.qkv.0 as usize].f32(),
            sequences: &inputs.sequences,
            table: &inputs.page_tables[layer.group],
            layer,
            shape: pages.shape,
            sinks: op.sinks.map(|sinks| self.vector(sinks)),
            out: out.output(),
        };
        let schedule = &self.scratch.schedule;
        self.pool
            .run_owned(|worker| schedule.first_task(worker), &|worker, task| {
                attention::run(
                    self.isa,
                    operands,
                    schedule,
                    task,
                    &mut lock(&scratch[worker]),
                );
            });
    }

    /// Encoders attend in plain f32, one task a sequence.
    fn attend_this_step(&self, op: &Attend, out: &mut Buffer) {
        let inputs = &self.state.inputs;
        let qkv = self.bufs[op.qkv.0 as usize].f32();
        let sinks = op.sinks.map(|sinks| self.vector(sinks));
        let out = out.output();
        self.pool.run(inputs.sequences.len(), &|_, task| {
            let sequence = &inputs.sequences[task];
            let (start, len) = (sequence.q_start as usize, sequence.q_len as usize);
            let range = start * out.stride..(start + len) * out.stride;
            match &out.values {
                OutputValues::F32(values) => {
                    // SAFETY: the rows of a sequence belong to one task.
                    let out = unsafe { values.part(range) };
                    attend_step_rows(op, sinks, sequence, |row| qkv.row(row), out);
                }
                OutputValues::Bf16(values) => {
                    let mut wide = vec![0.0; len * out.cols];
                    attend_step_rows(op, sinks, sequence, |row| qkv.row(row), &mut wide);
                    // SAFETY: the rows of a sequence belong to one task.
                    let narrow = unsafe { values.part(range) };
                    for (narrow, wide) in narrow
                        .chunks_exact_mut(out.stride)
                        .zip(wide.chunks_exact(out.cols))
                    {
                        for (narrow, &wide) in narrow.iter_mut().zip(wide) {
                            *narrow = Element::from_f32(wide);
                        }
                    }
                }
            }
        });
    }

    pub(super) fn run_pool(&mut self, op: &Pool) {
        let x = self.bufs[op.x.0 as usize].f32();
        let pooled = pool_rows(op, &self.state.inputs.sequences, |row| x.row(row));
        let out = self.bufs[op.out.0 as usize].f32_mut();
        for (row, pooled) in pooled.iter().enumerate() {
            out.values[row * out.stride..][..pooled.len()].copy_from_slice(pooled);
        }
        self.state.store_pooled(pooled);
    }

    /// Calls `work` for each row of the step.
    fn each_row(&self, work: impl Fn(usize) + Sync) {
        self.each_rows(|rows| rows.for_each(&work));
    }

    /// Calls `work` for ranges of rows that cover the step.
    fn each_rows(&self, work: impl Fn(Range<usize>) + Sync) {
        let rows = self.state.rows();
        let workers = self.pool.workers();
        let first = |worker| first_row(rows, workers, worker).div_ceil(ROWS_PER_TASK);
        self.pool.run_owned(first, &|_, task| {
            let first = task * ROWS_PER_TASK;
            work(first..rows.min(first + ROWS_PER_TASK));
        });
    }
}

fn assert_rows_fit(input: usize, weight: usize) {
    assert_eq!(
        input, weight,
        "a row of the input is as long as a row of the weight"
    );
}

/// Copies rows of `stride` values side by side.
fn gather<T: Copy>(to: &mut [T], from: &[T], stride: usize, rows: &[u32]) {
    if stride == 0 {
        return;
    }
    for (to, &row) in to.chunks_exact_mut(stride).zip(rows) {
        to.copy_from_slice(&from[row as usize * stride..][..stride]);
    }
}

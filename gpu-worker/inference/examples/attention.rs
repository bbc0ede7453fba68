//! How near paged attention is to the machine's limit.
//!
//! Prints GFLOP/s of one thread, and their share of what a loop of bf16 products in registers reaches in the
//! same run: `cargo run --release -p inference --example attention`. FLOPs are those that a row's visible
//! tokens need. Times are CPU times: other processes do not count.
#![expect(clippy::print_stdout, reason = "it is a program")]

use std::time::Instant;

use inference::backend::cpu::{CpuBackend, CpuConfig};
use inference::backend::{
    Attend, Backend, BackendError, Buf, Embed, HeadLayout, KvFrom, KvGroup, KvLayout, KvSpec,
    KvType, Mask, PageTable, Recipe, Role, RopeSpec, RopeStore, RopeStyle, RopeTable, Shard,
    ShareGroup, StepInputs, StepSequence, WeightDesc, WeightSource, WeightUse,
};
use inference::model::ModelError;

/// Heads of SmolLM2-135M.
const HEADS: HeadLayout = HeadLayout {
    q_heads: 9,
    kv_heads: 3,
    dk: 64,
    dv: 64,
};
const PAGE: usize = 16;
const PAGES: usize = 64 * 64;
const ROWS: usize = 256;
const COLS: usize = HEADS.q_heads * HEADS.dk + HEADS.kv_heads * (HEADS.dk + HEADS.dv);
/// Layers that take turns, so that keys and values come from memory as they do in a model.
const LAYERS: usize = 4;

fn main() -> Result<(), BackendError> {
    let (peak, products) = register_peak();
    println!("registers: {peak:.0} GFLOP/s a thread, {products}");
    let mut bench = Bench::new()?;
    let chunks: Vec<(f64, f64)> = (0..1000)
        .step_by(ROWS)
        .map(|start| {
            let rows = ROWS.min(1000 - start);
            let step = bench.step(&[(start, rows, 0)], 0);
            bench.time(&step)
        })
        .collect();
    let total = |part: fn(&(f64, f64)) -> f64| chunks.iter().map(part).sum::<f64>();
    report(
        "prefill of 1,000 in chunks of 256",
        peak,
        total(|c| c.0),
        total(|c| c.1),
    );
    for context in [100, 300, 1000] {
        let sequences: Vec<_> = (0..64).map(|i| (context - 1, 1, i * 64)).collect();
        let (flop, seconds) = {
            let step = bench.step(&sequences, 0);
            bench.time(&step)
        };
        report(&format!("decode of 64 at {context}"), peak, flop, seconds);
    }
    let sequences: Vec<_> = (0..64).map(|i| (640 + i % 7, 1, i * 64)).collect();
    for shared in [0, 600] {
        let step = bench.step(&sequences, shared / PAGE);
        let (flop, seconds) = bench.time(&step);
        report(
            &format!("decode of 64 at 640, {shared} tokens read together"),
            peak,
            flop,
            seconds,
        );
    }
    let step = bench.step(&[(0, ROWS, 0)], 0);
    let seconds = bench.time_rope_store(&step);
    println!(
        "rope and store: {:.2} us a row",
        seconds / ROWS as f64 * 1e6
    );
    Ok(())
}

fn report(what: &str, peak: f64, flop: f64, seconds: f64) {
    let rate = flop / seconds * 1e-9;
    println!(
        "{what}: {:.3} ms, {rate:.0} GFLOP/s, {:.0} % of the registers",
        seconds * 1e3,
        100.0 * rate / peak
    );
}

/// Rows of numbers that look like projections.
struct Noise;

impl WeightSource for Noise {
    fn rows(&self) -> usize {
        ROWS
    }

    fn cols(&self) -> usize {
        COLS
    }

    fn read_rows(&self, first_row: usize, out: &mut [f32]) -> Result<(), ModelError> {
        for (i, x) in out.iter_mut().enumerate() {
            let hash = (first_row * COLS + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            *x = hash as f32 / f32::from(u16::MAX) / 64.0 - 2.0;
        }
        Ok(())
    }
}

struct Bench {
    backend: CpuBackend,
    embed: Embed,
    qkv: Buf,
    out: Buf,
    rope: RopeTable,
}

impl Bench {
    fn new() -> Result<Self, BackendError> {
        let mut backend = CpuBackend::new(CpuConfig {
            threads: 1,
            max_rows: ROWS,
            recipe: Recipe::Bf16,
            isa: None,
            packed: None,
        })?;
        let desc = |n, k, used_as| WeightDesc {
            name: "noise".to_owned(),
            n,
            k,
            experts: 1,
            heads: 1,
            used_as,
            recipe: Recipe::Bf16,
            shard: Shard::Whole,
            salient: Vec::new(),
        };
        let table = backend.weight(&desc(ROWS, COLS, WeightUse::Embedding), &Noise)?;
        let next = backend.weight(&desc(ROWS, COLS, WeightUse::Linear), &Noise)?;
        let qkv = backend.buf(ROWS, COLS, Role::Qkv)?;
        let out = backend.buf(ROWS, HEADS.q_heads * HEADS.dv, Role::InputOf(next))?;
        let groups = vec![KvGroup {
            layers: (0..LAYERS).collect(),
            window: None,
        }];
        let layout = KvLayout::Gqa {
            heads: HEADS.kv_heads,
            dk: HEADS.dk,
            dv: HEADS.dv,
        };
        let dtype = KvType::Bf16;
        backend.kv(
            &KvSpec {
                groups,
                layout,
                dtype,
            },
            &[PAGES],
        )?;
        backend.slots(64, 1024)?;
        let rope = backend.rope_table(&RopeSpec {
            style: RopeStyle::Neox,
            inv_freq: (0..32).map(|i| 1e5f32.powf(-(i as f32) / 32.0)).collect(),
            attention_factor: 1.0,
            max_positions: 1024,
        })?;
        let embed = Embed {
            out: qkv,
            table,
            scale: 1.0,
            positions: None,
            token_types: None,
        };
        let mut bench = Self {
            backend,
            embed,
            qkv,
            out,
            rope,
        };
        for first in (0..PAGES * PAGE).step_by(ROWS) {
            let mut step = bench.step(&[(0, ROWS, 0)], 0);
            step.page_tables[0].write_slots = (first as u32..(first + ROWS) as u32).collect();
            bench.begin(&step);
            (0..LAYERS).for_each(|layer| bench.rope_store(layer));
        }
        Ok(bench)
    }

    /// Returns a step over sequences of (tokens before, rows, first page), whose first pages are one
    /// sequence's.
    fn step(&self, sequences: &[(usize, usize, usize)], shared: usize) -> StepInputs {
        let mut inputs = StepInputs::default();
        let mut table = PageTable {
            starts: vec![0],
            ..PageTable::default()
        };
        for &(start, rows, first_page) in sequences {
            let kv_len = start + rows;
            inputs.sequences.push(StepSequence {
                slot: 0,
                q_start: inputs.tokens.len() as u32,
                q_len: rows as u32,
                kv_len: kv_len as u32,
            });
            let first = inputs.tokens.len();
            inputs
                .tokens
                .extend((first..first + rows).map(|row| (row % ROWS) as u32));
            inputs.positions.extend(start as u32..kv_len as u32);
            let pages: Vec<u32> = (0..kv_len.div_ceil(PAGE))
                .map(|page| (page + if page < shared { 0 } else { first_page }) as u32)
                .collect();
            let slot =
                |position: usize| pages[position / PAGE] * PAGE as u32 + (position % PAGE) as u32;
            table.write_slots.extend((start..kv_len).map(slot));
            table.pages.extend(pages);
            table.starts.push(table.pages.len() as u32);
        }
        if shared > 0 {
            inputs.share_groups.push(ShareGroup {
                pages: shared as u32,
                members: (0..sequences.len() as u32).collect(),
            });
        }
        inputs.page_tables = vec![table];
        inputs.bucket = inputs.exact_bucket();
        inputs
    }

    fn begin(&mut self, step: &StepInputs) {
        self.backend.begin(step);
        self.backend.embed(&self.embed);
    }

    fn rope_store(&mut self, layer: usize) {
        self.backend.rope_store(&RopeStore {
            qkv: self.qkv,
            heads: HEADS,
            layer,
            rope: Some(self.rope),
            q_norm: None,
            k_norm: None,
            store: true,
        });
    }

    fn attend(&mut self, layer: usize) {
        self.backend.attend(&Attend {
            qkv: self.qkv,
            heads: HEADS,
            layer,
            scale: 0.125,
            mask: Mask::Causal,
            window: None,
            softcap: None,
            sinks: None,
            from: KvFrom::Pages,
            out: self.out,
        });
    }

    /// Returns the FLOPs and the seconds of one layer's attention.
    fn time(&mut self, step: &StepInputs) -> (f64, f64) {
        self.begin(step);
        self.rope_store(0);
        let seen: u32 = step.positions.iter().map(|position| position + 1).sum();
        let flop = f64::from(seen) * (HEADS.q_heads * (HEADS.dk + HEADS.dv) * 2) as f64;
        (flop, seconds_of(|i| self.attend(i % LAYERS)))
    }

    /// Returns the seconds of rotating and storing a step's rows.
    fn time_rope_store(&mut self, step: &StepInputs) -> f64 {
        self.begin(step);
        seconds_of(|i| self.rope_store(i % LAYERS))
    }
}

/// Returns the seconds of CPU time that a call of `work` takes, over enough calls to tell.
fn seconds_of(mut work: impl FnMut(usize)) -> f64 {
    (0..8).for_each(&mut work);
    let mut calls = 0;
    let (start, begun) = (Instant::now(), cpu_seconds());
    while start.elapsed().as_millis() < 400 || cpu_seconds() - begun < 0.1 {
        work(calls);
        calls += 1;
    }
    (cpu_seconds() - begun) / calls as f64
}

/// Returns the seconds that this thread has run for: the wall clock counts other processes too.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat
        .split(' ')
        .next()
        .and_then(|nanos| nanos.parse::<f64>().ok());
    nanos.expect("Linux tells how long a thread has run") * 1e-9
}

/// Returns the GFLOP/s of products whose operands stay in registers, and what they are.
fn register_peak() -> (f64, &'static str) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected;
        #[expect(unsafe_code, reason = "code for an instruction set")]
        let peak = |turn_flop: usize, turns: unsafe fn()| {
            // SAFETY: called with code for an instruction set that the machine has.
            turn_flop as f64 / seconds_of(|_| unsafe { turns() }) * 1e-9
        };
        if is_x86_feature_detected!("avx512bf16") {
            return (
                peak(TURNS * 12 * 64, peak::bf16),
                "bf16 products of 512 bits",
            );
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return (peak(TURNS * 12 * 16, peak::f32), "f32 products of 256 bits");
        }
    }
    (f64::NAN, "an unknown instruction set")
}

const TURNS: usize = 100_000;

/// Loops of [`TURNS`] turns with twelve products that do not wait for each other.
#[cfg(target_arch = "x86_64")]
mod peak {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn bf16() {
        let zero = _mm512_setzero_si512();
        #[expect(unsafe_code, reason = "one type of 512 bits for another")]
        // SAFETY: both are 512 bits of any content.
        let operand = black_box(unsafe { std::mem::transmute::<__m512i, __m512bh>(zero) });
        let mut sums = [_mm512_setzero_ps(); 12];
        for _ in 0..super::TURNS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, operand, operand);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn f32() {
        let operand = black_box(_mm256_setzero_ps());
        let mut sums = [_mm256_setzero_ps(); 12];
        for _ in 0..super::TURNS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(operand, operand, *sum);
            }
        }
        black_box(sums);
    }
}

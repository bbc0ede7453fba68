//! Rotation, the KV pool, and attention as launches.

use super::args::{AttendArgs, RopeArgs};
use super::driver::{Argument, Shape};
use super::forward::quantize;
use super::inputs::{Cut, LAYOUTS_MAX};
use super::{CudaBackend, Kind, Mode};
use crate::backend::{Attend, KvFrom, Mask, RopeStore, RopeStyle};

/// Shared memory of a multiprocessor, near enough to guess how many blocks it holds.
const SHARED_BYTES_SM: u32 = 228 << 10;

/// Packed rows of a block item.
const BLOCK_ROWS: usize = 64;
/// The same for heads beyond 128.
const BLOCK_ROWS_WIDE: usize = 32;

/// Heads of one latent block.
const LATENT_ROWS: usize = 16;

/// One layer's pools on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerPool {
    /// Index of its page table.
    pub(super) group: usize,
    /// Keys, or latents.
    pub(super) keys: u64,
    /// Values; 0 where there is a latent.
    pub(super) values: u64,
}

/// What all layers' pools have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct KvKind {
    /// Whether numbers are e4m3.
    pub(super) fp8: bool,
    /// Rank of the latent, where there is one.
    pub(super) latent: Option<usize>,
}

/// Kernels for heads of up to 64, 128 and 256.
const DECODE_BF16: [&str; 3] = [
    "attend_decode_bf16_64",
    "attend_decode_bf16_128",
    "attend_decode_bf16_256",
];
const BLOCK_BF16: [&str; 3] = [
    "attend_block_bf16_64",
    "attend_block_bf16_128",
    "attend_block_bf16_256",
];
const DECODE_FP8: [&str; 3] = [
    "attend_decode_fp8_64",
    "attend_decode_fp8_128",
    "attend_decode_fp8_256",
];
const BLOCK_FP8: [&str; 3] = [
    "attend_block_fp8_64",
    "attend_block_fp8_128",
    "attend_block_fp8_256",
];

/// Shared memory of one warp that decodes.
const DECODE_SHARED_BYTES: [u32; 3] = [18_432, 34_816, 76_032];
/// Shared memory of a block of rows.
const BLOCK_SHARED_BYTES: [u32; 3] = [25_600, 50_176, 83_456];
/// Threads of a block of rows.
const BLOCK_THREADS: [u32; 3] = [128, 128, 64];

pub(super) fn rope_store(this: &mut CudaBackend, op: &RopeStore) {
    let qkv = this.buffer(op.qkv);
    let pool = op.store.then(|| this.layer_pool(op.layer)).flatten();
    if op.store && pool.is_none() {
        return this.fail(format!("layer {} has no cache", op.layer));
    }
    let Some(memory) = &this.step else { return };
    let rope = op.rope.map(|table| this.ropes[table.0 as usize]);
    let norm = |norm: Option<(crate::backend::Weight, f32)>| match norm {
        Some((gain, eps)) => {
            let gain = this.stored(gain);
            (gain.vector, gain.k as u32, eps)
        }
        None => (0, op.heads.dk as u32, 0.0),
    };
    let (q_gain, q_gain_len, q_eps) = norm(op.q_norm);
    let (k_gain, k_gain_len, k_eps) = norm(op.k_norm);
    let kind = this.kv_kind;
    let arguments = RopeArgs {
        qkv: qkv.at,
        k_pool: pool.map_or(0, |pool| pool.keys),
        v_pool: pool.map_or(0, |pool| pool.values),
        cosines: rope.map_or(0, |rope| rope.cosines),
        sines: rope.map_or(0, |rope| rope.sines),
        q_gain,
        k_gain,
        positions: memory.positions(),
        write_slots: pool.map_or(0, |pool| memory.table(pool.group).2),
        ldq: qkv.ld as u32,
        q_heads: op.heads.q_heads as u32,
        kv_heads: op.heads.kv_heads as u32,
        dk: op.heads.dk as u32,
        dv: op.heads.dv as u32,
        pairs: rope.map_or(0, |rope| rope.pairs as u32),
        style: match rope.map(|rope| rope.style) {
            Some(RopeStyle::Interleaved) => 1,
            Some(RopeStyle::Neox) | None => 0,
        },
        latent: kind.and_then(|kind| kind.latent).unwrap_or(0) as u32,
        q_gain_len,
        k_gain_len,
        fp8: u32::from(kind.is_some_and(|kind| kind.fp8)),
        q_eps,
        k_eps,
        k_scale: 1.0,
        v_scale: 1.0,
    };
    let shape = Shape::rows(this.host.rows, 128);
    this.launch("rope_store", shape, &[Argument::structure(&arguments)]);
}

/// Index of the least head size that a kernel is made for.
fn size_class(op: &Attend) -> usize {
    match op.heads.dk.max(op.heads.dv) {
        0..=64 => 0,
        65..=128 => 1,
        _ => 2,
    }
}

fn is_latent(this: &CudaBackend, op: &Attend) -> bool {
    op.from == KvFrom::Pages && this.kv_kind.is_some_and(|kind| kind.latent.is_some())
}

/// Returns how attention of these heads is cut.
fn cut(this: &CudaBackend, op: &Attend) -> Cut {
    let wide = size_class(op) == 2 && !is_latent(this, op);
    Cut {
        group: op.heads.q_heads / op.heads.kv_heads,
        block_rows: if wide { BLOCK_ROWS_WIDE } else { BLOCK_ROWS },
        causal: op.mask == Mask::Causal,
    }
}

pub(super) fn attend(this: &mut CudaBackend, op: &Attend) {
    let cut = cut(this, op);
    let known = this.cuts.iter().position(|known| *known == cut);
    if this.mode == Mode::Survey {
        if known.is_none() && this.cuts.len() == LAYOUTS_MAX {
            return this.fail("more than two layouts of heads in one model".to_owned());
        }
        if known.is_none() {
            this.cuts.push(cut);
        }
        return;
    }
    let Some(layout) = known else {
        return this.fail("a layout of heads that the survey did not see".to_owned());
    };
    let out = this.buffer(op.out);
    let (at, ld) = match out.kind {
        Kind::Bf16 => (out.at, out.ld),
        Kind::Int8 { .. } => (this.scratch.staging, out.ld),
        Kind::F32 | Kind::Routing { .. } => {
            return this.fail("attend: the result is not bf16".to_owned());
        }
    };
    let Some(arguments) = arguments(this, op, layout, (at, ld)) else {
        return;
    };
    if is_latent(this, op) {
        latent(this, op, layout, &arguments);
    } else {
        decode(this, op, &arguments);
        blocks(this, op, layout, &arguments);
    }
    if this.host.merge_rows > 0 {
        let merge = AttendArgs {
            items: this.step.as_ref().map_or(0, |memory| memory.merge_rows()),
            ..arguments
        };
        let shape = Shape {
            grid: (this.host.rows as u32, op.heads.q_heads as u32, 1),
            block: 128,
            shared_bytes: 0,
        };
        this.launch("attend_merge", shape, &[Argument::structure(&merge)]);
    }
    if let Kind::Int8 { scales } = out.kind {
        let rows = this.host.rows;
        quantize(this, at, ld, out, scales, rows);
    }
}

/// Fills in all but the items.
fn arguments(
    this: &mut CudaBackend,
    op: &Attend,
    layout: usize,
    (out, ldo): (u64, usize),
) -> Option<AttendArgs> {
    let qkv = this.buffer(op.qkv);
    let pool = match op.from {
        KvFrom::Pages => {
            let pool = this.layer_pool(op.layer);
            if pool.is_none() {
                this.fail(format!("layer {} has no cache", op.layer));
                return None;
            }
            pool
        }
        KvFrom::ThisStep => None,
    };
    let memory = this.step.as_ref()?;
    let (pages, starts) = pool.map_or((0, 0), |pool| {
        let (pages, starts, _) = memory.table(pool.group);
        (pages, starts)
    });
    Some(AttendArgs {
        qkv: qkv.at,
        k_pool: pool.map_or(0, |pool| pool.keys),
        v_pool: pool.map_or(0, |pool| pool.values),
        sinks: this.vector(op.sinks),
        pages,
        starts,
        sequences: memory.sequences(),
        q_pos: memory.q_pos(),
        counters: memory.counters(layout),
        part_base: memory.part_base(),
        items: 0,
        row_list: memory.list(layout).1,
        part_acc: this.scratch.part_acc,
        part_ml: this.scratch.part_ml,
        out,
        ldq: qkv.ld as u32,
        ldo: ldo as u32,
        q_heads: op.heads.q_heads as u32,
        kv_heads: op.heads.kv_heads as u32,
        dk: op.heads.dk as u32,
        dv: op.heads.dv as u32,
        bidirectional: u32::from(op.mask == Mask::Bidirectional),
        window: op.window.unwrap_or(0) as u32,
        scale: op.scale,
        softcap: op.softcap.unwrap_or(0.0),
        k_scale: 1.0,
        v_scale: 1.0,
    })
}

/// Blocks in the grid's first dimension: as many as the device holds, or as there are items. A graph must fit
/// any number of items.
fn blocks_of(this: &CudaBackend, items: usize, others: usize, shared_bytes: u32) -> u32 {
    let resident = (SHARED_BYTES_SM / (shared_bytes + 1024)).clamp(1, 8);
    let held = (this.device.multiprocessors() * resident / others as u32).max(1);
    match this.mode {
        Mode::Capture => held,
        Mode::Survey | Mode::Eager => held.min(items as u32),
    }
}

fn decode(this: &mut CudaBackend, op: &Attend, arguments: &AttendArgs) {
    if this.host.decode_items == 0 {
        return;
    }
    let Some(memory) = &this.step else { return };
    let arguments = AttendArgs {
        items: memory.decode_items(),
        ..*arguments
    };
    let class = size_class(op);
    let most = this.device.shared_bytes_max();
    let warp_bytes = DECODE_SHARED_BYTES[class];
    let warps = [4, 2, 1]
        .into_iter()
        .find(|warps| warps * warp_bytes <= most);
    let warps = warps.unwrap_or(1);
    let heads = op.heads.kv_heads * (op.heads.q_heads / op.heads.kv_heads).div_ceil(16);
    let shape = Shape {
        grid: (
            blocks_of(this, this.host.decode_items, heads, warps * warp_bytes),
            heads as u32,
            1,
        ),
        block: 32 * warps,
        shared_bytes: warps * warp_bytes,
    };
    let names = if this.kv_kind.is_some_and(|kind| kind.fp8) {
        DECODE_FP8
    } else {
        DECODE_BF16
    };
    this.launch(names[class], shape, &[Argument::structure(&arguments)]);
}

fn blocks(this: &mut CudaBackend, op: &Attend, layout: usize, arguments: &AttendArgs) {
    let items = this.host.block_items[layout];
    if items == 0 {
        return;
    }
    let Some(memory) = &this.step else { return };
    let arguments = AttendArgs {
        items: memory.list(layout).0,
        ..*arguments
    };
    let class = size_class(op);
    let shared_bytes = BLOCK_SHARED_BYTES[class];
    let shape = Shape {
        grid: (
            blocks_of(this, items, op.heads.kv_heads, shared_bytes),
            op.heads.kv_heads as u32,
            1,
        ),
        block: BLOCK_THREADS[class],
        shared_bytes,
    };
    let fp8 = op.from == KvFrom::Pages && this.kv_kind.is_some_and(|kind| kind.fp8);
    let names = if fp8 { BLOCK_FP8 } else { BLOCK_BF16 };
    this.launch(names[class], shape, &[Argument::structure(&arguments)]);
}

fn latent(this: &mut CudaBackend, op: &Attend, layout: usize, arguments: &AttendArgs) {
    let Some(memory) = &this.step else { return };
    let fp8 = this.kv_kind.is_some_and(|kind| kind.fp8);
    let name = if fp8 {
        "attend_latent_fp8"
    } else {
        "attend_latent_bf16"
    };
    let (dkp, dvp) = (
        op.heads.dk.next_multiple_of(16),
        op.heads.dv.next_multiple_of(16),
    );
    let shared_bytes =
        ((16 + 2 * 32) * (dkp + 8) * 2 + 16 * 40 * 4 + 4096 * dvp.div_ceil(64)) as u32;
    let lists = [
        (
            this.host.decode_items,
            memory.decode_items(),
            op.heads.q_heads.div_ceil(LATENT_ROWS),
        ),
        (
            this.host.block_items[layout],
            memory.list(layout).0,
            BLOCK_ROWS / LATENT_ROWS,
        ),
    ];
    for (list, (count, items, others)) in lists.into_iter().enumerate() {
        if count == 0 {
            continue;
        }
        let arguments = AttendArgs {
            items,
            ..*arguments
        };
        let shape = Shape {
            grid: (
                blocks_of(this, count, others, shared_bytes),
                others as u32,
                1,
            ),
            block: 128,
            shared_bytes,
        };
        let arguments = [Argument::structure(&arguments), Argument::U32(list as u32)];
        this.launch(name, shape, &arguments);
    }
}

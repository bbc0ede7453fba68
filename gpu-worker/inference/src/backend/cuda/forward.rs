//! The forward operations as launches.

use super::args::{GemmArgs, NormArgs, RouteArgs};
use super::driver::{Argument, Shape};
use super::{Buffer, CudaBackend, Kind};
use crate::backend::{
    Activation, Embed, Epilogue, ExpertHalf, Linear, LinearExperts, LinearHeads, Norm, NormKind,
    Route, RouteScore, Rows, Weight,
};

/// Rows of a tile of experts.
const EXPERT_TILE: usize = 64;

/// How a product is cut into blocks.
#[derive(Debug, Clone, Copy)]
struct Tile {
    name: &'static str,
    rows: usize,
    cols: usize,
    threads: u32,
    shared_bytes: u32,
}

const TILES: [Tile; 3] = [
    Tile {
        name: "m16",
        rows: 16,
        cols: 64,
        threads: 128,
        shared_bytes: 4 * (16 + 64) * 144,
    },
    Tile {
        name: "m64",
        rows: 64,
        cols: 64,
        threads: 128,
        shared_bytes: 3 * (64 + 64) * 144,
    },
    Tile {
        name: "m128",
        rows: 128,
        cols: 128,
        threads: 256,
        shared_bytes: 3 * (128 + 128) * 144,
    },
];

/// Names of the kernels of one kind of operands.
struct Products {
    tiles: [&'static str; 3],
    experts: &'static str,
}

static BF16: Products = Products {
    tiles: ["gemm_bf16_m16", "gemm_bf16_m64", "gemm_bf16_m128"],
    experts: "gemm_experts_bf16",
};
static INT8: Products = Products {
    tiles: ["gemm_s8_m16", "gemm_s8_m64", "gemm_s8_m128"],
    experts: "gemm_experts_s8",
};

pub(super) fn embed(this: &mut CudaBackend, op: &Embed) {
    let out = this.buffer(op.out);
    let (Some(table), Some(memory)) = (this.stored(op.table).bf16, &this.step) else {
        return this.fail("embed: the table is not bf16".to_owned());
    };
    let types = if this.host.has_types {
        memory.token_types()
    } else {
        0
    };
    let (tokens, positions) = (memory.tokens(), memory.positions());
    let table_of = |weight: Option<Weight>| {
        let matrix = weight.and_then(|weight| this.stored(weight).bf16);
        matrix.map_or((0, 0), |matrix| (matrix.at, matrix.ld as u32))
    };
    let (position_table, ldp) = table_of(op.positions);
    let (type_table, ldy) = table_of(op.token_types);
    use Argument::{Address, F32, U32};
    let arguments = [
        Address(out.at),
        U32(out.ld as u32),
        Address(table.at),
        U32(table.ld as u32),
        Address(position_table),
        U32(ldp),
        Address(type_table),
        U32(ldy),
        Address(tokens),
        Address(positions),
        Address(types),
        U32(out.cols as u32),
        F32(op.scale),
    ];
    let rows = this.host.rows;
    this.launch("embed", Shape::rows(rows, 128), &arguments);
}

pub(super) fn norm(this: &mut CudaBackend, op: &Norm) {
    let (x, out) = (this.buffer(op.x), this.buffer(op.out));
    let add = op.add.map(|add| this.buffer(add));
    let (out_type, out_scale) = match out.kind {
        Kind::F32 => (0, 0),
        Kind::Bf16 => (1, 0),
        Kind::Int8 { scales } => (2, scales),
        Kind::Routing { .. } => return this.fail("norm: the result is a routing".to_owned()),
    };
    let arguments = NormArgs {
        x: x.at,
        add: add.map_or(0, |add| add.at),
        gain: this.stored(op.weight).vector,
        bias: this.vector(op.bias),
        out: out.at,
        out_scale,
        cols: x.cols as u32,
        ldx: x.ld as u32,
        lda: add.map_or(0, |add| add.ld as u32),
        ldo: out.ld as u32,
        kind: match op.kind {
            NormKind::Rms => 0,
            NormKind::Layer => 1,
        },
        out_type,
        plus_one: u32::from(op.plus_one),
        block: 0,
        eps: op.eps,
        zero: 0,
    };
    let shape = Shape::rows(this.host.rows, 256).with_shared(4 * x.cols);
    this.launch("norm_rows", shape, &[Argument::structure(&arguments)]);
}

/// Where a product goes, and what must follow it.
struct Target {
    at: u64,
    ld: usize,
    out_type: u32,
    /// The buffer of codes that bf16 rows must become.
    codes: Option<(Buffer, u64)>,
}

fn target(this: &mut CudaBackend, out: Buffer) -> Option<Target> {
    let target = |at, out_type, codes| {
        Some(Target {
            at,
            ld: out.ld,
            out_type,
            codes,
        })
    };
    match out.kind {
        Kind::F32 => target(out.at, 0, None),
        Kind::Bf16 => target(out.at, 1, None),
        Kind::Int8 { scales } => target(this.scratch.staging, 1, Some((out, scales))),
        Kind::Routing { .. } => {
            this.fail("a product goes to a routing".to_owned());
            None
        }
    }
}

/// Turns the bf16 rows of a target into codes, where its buffer holds codes.
fn finish(this: &mut CudaBackend, target: &Target, rows: usize) {
    let Some((out, scales)) = target.codes else {
        return;
    };
    quantize(this, target.at, target.ld, out, scales, rows);
}

/// Turns bf16 rows into codes and scales.
pub(super) fn quantize(
    this: &mut CudaBackend,
    from: u64,
    ld: usize,
    out: Buffer,
    scales: u64,
    rows: usize,
) {
    use Argument::{Address, U32};
    let arguments = [
        Address(from),
        U32(ld as u32),
        Address(out.at),
        U32(out.ld as u32),
        Address(scales),
        U32(out.cols as u32),
        U32(2),
        U32(0),
    ];
    let shape = Shape::rows(rows, 256).with_shared(4 * out.cols);
    this.launch("quantize_rows", shape, &arguments);
}

/// The operands of a product, and the kernels for them.
fn operands(
    this: &mut CudaBackend,
    x: Buffer,
    weight: Weight,
) -> Option<(&'static Products, GemmArgs)> {
    let stored = this.stored(weight);
    let found = match x.kind {
        Kind::Bf16 => stored.bf16.map(|matrix| (&BF16, matrix, 0)),
        Kind::Int8 { scales } => stored.int8.map(|matrix| (&INT8, matrix, scales)),
        Kind::F32 | Kind::Routing { .. } => None,
    };
    let Some((products, matrix, x_scale)) = found else {
        this.fail("the input of a product is not of its weight's type".to_owned());
        return None;
    };
    let arguments = GemmArgs {
        x: x.at,
        w: matrix.at,
        x_scale,
        w_scale: matrix.scales,
        n: stored.n as u32,
        k: stored.k as u32,
        ldx: x.ld as u32,
        ldw: matrix.ld as u32,
        x_div: 1,
        ..GemmArgs::default()
    };
    Some((products, arguments))
}

/// Code of an activation, and its two numbers.
fn activation(act: Activation) -> (u32, f32, f32) {
    match act {
        Activation::Silu => (1, 0.0, 0.0),
        Activation::GeluTanh => (2, 0.0, 0.0),
        Activation::GeluErf => (3, 0.0, 0.0),
        Activation::ClampedSwiglu { alpha, limit } => (4, alpha, limit),
    }
}

fn set_epilogue(arguments: &mut GemmArgs, epilogue: Epilogue) {
    let (code, (act, p0, p1)) = match epilogue {
        Epilogue::None => (0, (0, 0.0, 0.0)),
        Epilogue::Residual => (1, (0, 0.0, 0.0)),
        Epilogue::Gated(act) => (2, activation(act)),
        Epilogue::Act(act) => (3, activation(act)),
        Epilogue::Softcap(cap) => (4, (0, cap, 0.0)),
    };
    arguments.epilogue = code;
    (arguments.act, arguments.p0, arguments.p1) = (act, p0, p1);
}

/// Columns of blocks: a gated block has as many gate rows as up rows.
fn column_blocks(arguments: &GemmArgs, cols: usize) -> usize {
    let n = arguments.n as usize;
    match arguments.epilogue {
        2 => (n / 2).div_ceil(cols / 2),
        _ => n.div_ceil(cols),
    }
}

fn gemm(this: &mut CudaBackend, products: &Products, arguments: &GemmArgs, stacks: usize) {
    let rows = arguments.m as usize;
    let most = this.device.shared_bytes_max();
    let choice = match rows {
        0..=16 => 0,
        17..=256 => 1,
        _ if TILES[2].shared_bytes > most => 1,
        _ => 2,
    };
    let tile = TILES[choice];
    debug_assert!(
        products.tiles[choice].ends_with(tile.name),
        "names follow tiles"
    );
    let shape = Shape {
        grid: (
            column_blocks(arguments, tile.cols) as u32,
            rows.div_ceil(tile.rows) as u32,
            stacks as u32,
        ),
        block: tile.threads,
        shared_bytes: tile.shared_bytes,
    };
    this.launch(
        products.tiles[choice],
        shape,
        &[Argument::structure(arguments)],
    );
}

pub(super) fn linear(this: &mut CudaBackend, op: &Linear) {
    let (x, out) = (this.buffer(op.x), this.buffer(op.out));
    let (rows, x_rows) = match (op.rows, &this.step) {
        (Rows::Logit, Some(memory)) => (this.host.logit_rows, memory.logit_rows()),
        (Rows::All, _) | (Rows::Logit, None) => (this.host.rows, 0),
    };
    if rows == 0 {
        return;
    }
    let Some((products, operands)) = operands(this, x, op.weight) else {
        return;
    };
    let Some(target) = target(this, out) else {
        return;
    };
    let mut arguments = GemmArgs {
        out: target.at,
        ldo: target.ld as u32,
        out_type: target.out_type,
        bias: this.vector(op.bias),
        x_rows,
        m: rows as u32,
        ..operands
    };
    set_epilogue(&mut arguments, op.epilogue);
    gemm(this, products, &arguments, 1);
    finish(this, &target, rows);
}

pub(super) fn linear_heads(this: &mut CudaBackend, op: &LinearHeads) {
    let (x, out) = (this.buffer(op.x), this.buffer(op.out));
    let stored = this.stored(op.weight);
    let Some((products, operands)) = operands(this, x, op.weight) else {
        return;
    };
    let Some(target) = target(this, out) else {
        return;
    };
    let rows = this.host.rows;
    let arguments = GemmArgs {
        out: target.at,
        ldo: target.ld as u32,
        out_type: target.out_type,
        m: rows as u32,
        x_stack: stored.k as u32,
        out_stack: stored.n as u32,
        ..operands
    };
    gemm(this, products, &arguments, stored.stacks);
    finish(this, &target, rows);
}

pub(super) fn route(this: &mut CudaBackend, op: &Route) {
    let (x, routing) = (this.buffer(op.x), this.buffer(op.routing));
    let router = this.stored(op.weight);
    let (Kind::Bf16, Some(matrix), Some(memory)) = (x.kind, router.bf16, &this.step) else {
        return this.fail("route: the input or the router is not bf16".to_owned());
    };
    let Kind::Routing {
        weights,
        pairs,
        tiles,
    } = routing.kind
    else {
        return this.fail("route: the result is no routing".to_owned());
    };
    let (sigmoid, choice_bias) = match op.score {
        RouteScore::Softmax => (0, None),
        RouteScore::Sigmoid { bias } => (1, bias),
    };
    let (groups, groups_kept) = op.groups.unwrap_or((0, 0));
    let arguments = RouteArgs {
        x: x.at,
        w: matrix.at,
        bias: this.vector(op.bias),
        choice_bias: this.vector(choice_bias),
        experts: routing.at,
        weights,
        counters: memory.counters(0),
        expert_count: router.n as u32,
        k: router.k as u32,
        ldx: x.ld as u32,
        ldw: matrix.ld as u32,
        top_k: op.top_k as u32,
        sigmoid,
        groups: groups as u32,
        groups_kept: groups_kept as u32,
        renorm: u32::from(op.renorm),
        scale: op.scale,
    };
    let rows = this.host.rows;
    let shape = Shape::rows(rows, 128).with_shared(4 * (2 * router.n + groups));
    this.launch("route", shape, &[Argument::structure(&arguments)]);
    use Argument::{Address, U32};
    let arguments = [
        Address(routing.at),
        Address(pairs),
        Address(tiles),
        U32((rows * op.top_k) as u32),
        U32(router.n as u32),
    ];
    let shape = Shape::rows(1, 1024).with_shared(8 * (router.n + 1));
    this.launch("sort_pairs", shape, &arguments);
}

pub(super) fn linear_experts(this: &mut CudaBackend, op: &LinearExperts) {
    let (x, out, routing) = (
        this.buffer(op.x),
        this.buffer(op.out),
        this.buffer(op.routing),
    );
    let Kind::Routing {
        weights,
        pairs,
        tiles,
    } = routing.kind
    else {
        return this.fail("experts: the routing is none".to_owned());
    };
    let (rows, top_k) = (this.host.rows, routing.cols);
    let stored = this.stored(op.weight);
    let Some((products, operands)) = operands(this, x, op.weight) else {
        return;
    };
    let pair_count = rows * top_k;
    let mut arguments = GemmArgs {
        bias: this.vector(op.bias),
        tiles,
        pairs,
        m: pair_count as u32,
        ..operands
    };
    let target = match op.half {
        ExpertHalf::Up(act) => {
            let Some(target) = target(this, out) else {
                return;
            };
            (arguments.out, arguments.ldo) = (target.at, target.ld as u32);
            (arguments.out_type, arguments.x_div) = (target.out_type, top_k as u32);
            set_epilogue(&mut arguments, Epilogue::Gated(act));
            Some(target)
        }
        ExpertHalf::Down => {
            arguments.out = this.scratch.products;
            arguments.ldo = stored.n.next_multiple_of(4) as u32;
            None
        }
    };
    let tile = TILES[1];
    let tiles_max = pair_count.div_ceil(EXPERT_TILE) + stored.stacks.min(pair_count);
    let shape = Shape {
        grid: (
            column_blocks(&arguments, tile.cols) as u32,
            tiles_max as u32,
            1,
        ),
        block: tile.threads,
        shared_bytes: tile.shared_bytes,
    };
    this.launch(products.experts, shape, &[Argument::structure(&arguments)]);
    if let Some(target) = target {
        return finish(this, &target, pair_count);
    }
    let Some(memory) = &this.step else { return };
    use Argument::{Address, U32};
    let arguments = [
        Address(out.at),
        U32(out.ld as u32),
        Address(arguments.out),
        U32(arguments.ldo),
        Address(weights),
        Address(memory.counters(0)),
        U32(stored.n as u32),
        U32(top_k as u32),
    ];
    this.launch("combine_experts", Shape::rows(rows, 128), &arguments);
}

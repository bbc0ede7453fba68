//! Products of rows of activations with panels of weights.
#![expect(
    unsafe_code,
    reason = "instructions that the compiler has no stable intrinsics for"
)]

use std::arch::asm;

use super::TILE_ROWS;

/// Bytes of a row of a tile register.
const TILE_BYTES: usize = 64;

/// Bytes from lane to lane of a panel: 32 columns of 32 bits.
const LANE_BYTES: usize = 128;

/// What is multiplied, in bytes.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu::simd) struct Operands {
    /// The first of 16 rows, or of 32.
    pub(in crate::backend::cpu::simd) x: *const u8,
    /// Bytes from row to row.
    pub(in crate::backend::cpu::simd) stride: usize,
    /// `[steps][16][32]` lanes of 4 bytes.
    pub(in crate::backend::cpu::simd) panel: *const u8,
    /// Stretches of 64 bytes of a row.
    pub(in crate::backend::cpu::simd) steps: usize,
    /// The first value of each of the 32 sums of every row; null for zeros.
    pub(in crate::backend::cpu::simd) first: *const u32,
    /// `[16][32]` sums, or `[32][32]`.
    pub(in crate::backend::cpu::simd) sums: *mut u32,
    /// What to ask memory for meanwhile: it need not be there.
    pub(in crate::backend::cpu::simd) ahead: *const u8,
    /// Cache lines of it a step.
    pub(in crate::backend::cpu::simd) pace: Pace,
}

/// Cache lines that are asked for while two tiles of weights are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::cpu::simd) enum Pace {
    None,
    Eight,
    Sixteen,
    ThirtyTwo,
}

impl Pace {
    /// Returns the pace at which `tiles` tiles of rows ask for a panel of `steps` steps, and where tile `tile` begins.
    ///
    /// Requests that come in one burst wait for each other, and the products with them.
    #[inline(always)]
    pub(in crate::backend::cpu::simd) fn of(
        tile: usize,
        tiles: usize,
        steps: usize,
    ) -> (Self, usize) {
        let (pace, lines) = match tiles {
            1 => (Self::ThirtyTwo, 32),
            2 | 3 => (Self::Sixteen, 16),
            _ => (Self::Eight, 8),
        };
        match tile * lines {
            0..32 => (pace, tile * lines * TILE_BYTES * steps),
            _ => (Self::None, 0),
        }
    }
}

/// The loop of a product of 32 rows: two tiles of rows with two of columns.
macro_rules! multiply_32 {
    ($operands:ident, $dot:literal, $bytes:literal, [$($ahead:literal),*]) => {
        asm!(
            "test {first}, {first}",
            "jz 3f",
            "tileloadd tmm0, [{first} + {zero}*1]",
            "tileloadd tmm1, [{first} + {zero}*1 + 64]",
            "tileloadd tmm2, [{first} + {zero}*1]",
            "tileloadd tmm3, [{first} + {zero}*1 + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm6, [{panel} + {lane}*1]",
            "tileloadd tmm4, [{x} + {stride}*1]",
            "tileloadd tmm7, [{panel} + {lane}*1 + 64]",
            $(concat!("prefetcht1 [{ahead} + ", $ahead, "]"),)*
            concat!($dot, " tmm0, tmm4, tmm6"),
            "tileloadd tmm5, [{y} + {stride}*1]",
            concat!($dot, " tmm1, tmm4, tmm7"),
            concat!($dot, " tmm2, tmm5, tmm6"),
            concat!($dot, " tmm3, tmm5, tmm7"),
            "add {x}, 64",
            "add {y}, 64",
            "add {panel}, 2048",
            concat!("add {ahead}, ", $bytes),
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {lane}*1], tmm0",
            "tilestored [{sums} + {lane}*1 + 64], tmm1",
            "tilestored [{sums} + {lane}*1 + 2048], tmm2",
            "tilestored [{sums} + {lane}*1 + 2112], tmm3",
            x = inout(reg) $operands.x => _,
            y = inout(reg) $operands.x.wrapping_add(TILE_ROWS * $operands.stride) => _,
            panel = inout(reg) $operands.panel => _,
            ahead = inout(reg) $operands.ahead => _,
            steps = inout(reg) $operands.steps => _,
            stride = in(reg) $operands.stride,
            lane = in(reg) LANE_BYTES,
            zero = in(reg) 0_usize,
            first = in(reg) $operands.first,
            sums = in(reg) $operands.sums,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// The loop of a product of 16 rows.
macro_rules! multiply_16 {
    ($operands:ident, $dot:literal, $bytes:literal, [$($ahead:literal),*]) => {
        asm!(
            "test {first}, {first}",
            "jz 3f",
            "tileloadd tmm0, [{first} + {zero}*1]",
            "tileloadd tmm1, [{first} + {zero}*1 + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{x} + {stride}*1]",
            "tileloadd tmm6, [{panel} + {lane}*1]",
            "tileloadd tmm7, [{panel} + {lane}*1 + 64]",
            $(concat!("prefetcht1 [{ahead} + ", $ahead, "]"),)*
            concat!($dot, " tmm0, tmm4, tmm6"),
            concat!($dot, " tmm1, tmm4, tmm7"),
            "add {x}, 64",
            "add {panel}, 2048",
            concat!("add {ahead}, ", $bytes),
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {lane}*1], tmm0",
            "tilestored [{sums} + {lane}*1 + 64], tmm1",
            x = inout(reg) $operands.x => _,
            panel = inout(reg) $operands.panel => _,
            ahead = inout(reg) $operands.ahead => _,
            steps = inout(reg) $operands.steps => _,
            stride = in(reg) $operands.stride,
            lane = in(reg) LANE_BYTES,
            zero = in(reg) 0_usize,
            first = in(reg) $operands.first,
            sums = in(reg) $operands.sums,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// A loop at each [`Pace`].
macro_rules! paced {
    ($loop:ident, $operands:ident, $dot:literal) => {
        match $operands.pace {
            Pace::None => $loop!($operands, $dot, "0", []),
            Pace::Eight => $loop!(
                $operands,
                $dot,
                "512",
                ["0", "64", "128", "192", "256", "320", "384", "448"]
            ),
            Pace::Sixteen => $loop!(
                $operands,
                $dot,
                "1024",
                [
                    "0", "64", "128", "192", "256", "320", "384", "448", "512", "576", "640",
                    "704", "768", "832", "896", "960"
                ]
            ),
            Pace::ThirtyTwo => $loop!(
                $operands,
                $dot,
                "2048",
                [
                    "0", "64", "128", "192", "256", "320", "384", "448", "512", "576", "640",
                    "704", "768", "832", "896", "960", "1024", "1088", "1152", "1216", "1280",
                    "1344", "1408", "1472", "1536", "1600", "1664", "1728", "1792", "1856", "1920",
                    "1984"
                ]
            ),
        }
    };
}

/// Products with a panel. `$dot` names the instruction.
macro_rules! product {
    ($name:ident, $dot:literal, $what:literal) => {
        #[doc = concat!("Multiplies 16 or 32 rows of ", $what, " with a panel.")]
        ///
        /// # Safety
        ///
        /// The tiles are open; all of the operands' rows, lanes and sums can be read, or written.
        pub(in crate::backend::cpu::simd) unsafe fn $name(rows: usize, operands: Operands) {
            if rows > TILE_ROWS {
                // SAFETY: the caller's promise.
                unsafe { paced!(multiply_32, operands, $dot) }
            } else {
                // SAFETY: the caller's promise.
                unsafe { paced!(multiply_16, operands, $dot) }
            }
        }
    };
}

product!(multiply_codes, "tdpbusd", "unsigned codes");
product!(multiply_pairs, "tdpbf16ps", "bf16");

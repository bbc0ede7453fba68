//! The two products of attention: queries with keys, and weights with values.
#![expect(
    unsafe_code,
    reason = "instructions that the compiler has no stable intrinsics for"
)]

use std::arch::asm;

use super::{Config, TILE_ROWS, configure};

/// Four sums of `height` rows, then queries, weights of a page's tokens, keys, and values.
const fn config(height: u8) -> Config {
    let sums = (height, 64);
    Config::new([
        sums,
        sums,
        sums,
        sums,
        (height, 64),
        (height, 32),
        (16, 64),
        (8, 64),
    ])
}

/// For 1 to 16 rows.
static CONFIGS: [Config; TILE_ROWS] = {
    let mut configs = [const { config(1) }; TILE_ROWS];
    let mut height = 1;
    while height <= TILE_ROWS {
        configs[height - 1] = config(height as u8);
        height += 1;
    }
    configs
};

/// Sets the registers up for attention of `height` rows, 1 to 16.
///
/// # Safety
///
/// The tiles are open.
#[inline(always)]
pub(in crate::backend::cpu::simd) unsafe fn set_rows(height: usize) {
    let config = &CONFIGS[height - 1];
    // SAFETY: the caller's promise.
    unsafe { configure(config) };
}

/// Writes the scores of a tile of queries with the keys of four pages of 16 tokens.
///
/// `queries` are `stride` bytes apart and `steps` times 64 bytes long; the pages' keys are `[steps][16][16]` lanes of 4
/// bytes; `scores` are `[rows][64]`.
///
/// # Safety
///
/// The tiles are open for attention, and all that is named can be read, or written.
#[inline(always)]
pub(in crate::backend::cpu::simd) unsafe fn score(
    queries: *const u8,
    stride: usize,
    steps: usize,
    keys: [*const u8; 4],
    scores: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{queries} + {stride}*1]",
            "tileloadd tmm6, [{a} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm6, [{b} + {line}*1]",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tileloadd tmm6, [{c} + {line}*1]",
            "tdpbf16ps tmm2, tmm4, tmm6",
            "tileloadd tmm6, [{d} + {line}*1]",
            "tdpbf16ps tmm3, tmm4, tmm6",
            "add {queries}, 64",
            "add {a}, 1024",
            "add {b}, 1024",
            "add {c}, 1024",
            "add {d}, 1024",
            "dec {steps}",
            "jnz 2b",
            "shl {line}, 2",
            "tilestored [{scores} + {line}*1], tmm0",
            "tilestored [{scores} + {line}*1 + 64], tmm1",
            "tilestored [{scores} + {line}*1 + 128], tmm2",
            "tilestored [{scores} + {line}*1 + 192], tmm3",
            queries = inout(reg) queries => _,
            stride = in(reg) stride,
            steps = inout(reg) steps => _,
            a = inout(reg) keys[0] => _,
            b = inout(reg) keys[1] => _,
            c = inout(reg) keys[2] => _,
            d = inout(reg) keys[3] => _,
            scores = in(reg) scores,
            line = inout(reg) 64_usize => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm6") _,
            options(nostack),
        );
    }
}

/// Where the weights and the values of some pages are.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu::simd) struct Values<'a> {
    /// Of the first row and page: 32 bytes a page.
    pub(in crate::backend::cpu::simd) weights: *const u8,
    /// Bytes from row to row of the weights.
    pub(in crate::backend::cpu::simd) weight_stride: usize,
    /// Each page's values: 8 lanes of 4 bytes for every column.
    pub(in crate::backend::cpu::simd) pages: &'a [*const u8],
    /// Bytes from lane to lane of the values.
    pub(in crate::backend::cpu::simd) value_stride: usize,
    /// Bytes before the first column, in the values and in the sums.
    pub(in crate::backend::cpu::simd) column: usize,
    /// The first row.
    pub(in crate::backend::cpu::simd) sums: *mut f32,
    /// Bytes from row to row of the sums.
    pub(in crate::backend::cpu::simd) sum_stride: usize,
}

/// A weighted sum of some columns: for each 16 of them a register, and their bytes behind the first.
macro_rules! accumulate {
    ($name:ident, $columns:literal, [$($sum:literal $at:literal),*]) => {
        #[doc = concat!("Adds the weighted values of some pages to ", $columns, " columns of a tile's sums.")]
        ///
        /// # Safety
        ///
        /// As for [`score`].
        #[inline(always)]
        pub(in crate::backend::cpu::simd) unsafe fn $name(values: Values<'_>) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "add {sums}, {column}",
                    $(concat!("tileloadd ", $sum, ", [{sums} + {sum_stride}*1 + ", $at, "]"),)*
                    "2:",
                    "mov {values}, [{pages}]",
                    "add {values}, {column}",
                    "tileloadd tmm5, [{weights} + {weight_stride}*1]",
                    $(
                        concat!("tileloadd tmm7, [{values} + {value_stride}*1 + ", $at, "]"),
                        concat!("tdpbf16ps ", $sum, ", tmm5, tmm7"),
                    )*
                    "add {weights}, 32",
                    "add {pages}, 8",
                    "dec {count}",
                    "jnz 2b",
                    $(concat!("tilestored [{sums} + {sum_stride}*1 + ", $at, "], ", $sum),)*
                    sums = inout(reg) values.sums => _,
                    sum_stride = in(reg) values.sum_stride,
                    column = in(reg) values.column,
                    values = out(reg) _,
                    value_stride = in(reg) values.value_stride,
                    weights = inout(reg) values.weights => _,
                    weight_stride = in(reg) values.weight_stride,
                    pages = inout(reg) values.pages.as_ptr() => _,
                    count = inout(reg) values.pages.len() => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm5") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

accumulate!(accumulate_16, "16", ["tmm0" "0"]);
accumulate!(
    accumulate_64,
    "64",
    ["tmm0" "0", "tmm1" "64", "tmm2" "128", "tmm3" "192"]
);

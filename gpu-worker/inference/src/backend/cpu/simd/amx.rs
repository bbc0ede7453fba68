//! AMX: a core's matrix unit multiplies 16 rows with 16 columns in one instruction.
//!
//! A tile register holds 16 rows of 64 bytes: rows of activations as they lie in memory, or 16 lanes of the summed
//! dimension for 16 columns, which is how a panel is packed. Two tiles of rows and the two halves of a panel are in
//! registers while all of the summed dimension passes by; the unit is then busy, and the loads hide behind it.
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#![expect(
    unsafe_code,
    reason = "instructions that the compiler has no stable intrinsics for"
)]

use std::arch::asm;
use std::sync::OnceLock;

/// Rows of a tile register.
pub(super) const TILE_ROWS: usize = 16;

/// Bytes of a row of a tile register.
const TILE_BYTES: usize = 64;

/// Bytes from lane to lane of a panel: 32 columns of 32 bits.
const LANE_BYTES: usize = 128;

/// Tile registers.
const TILES: usize = 8;

/// What `LDTILECFG` reads: rows and bytes of a row of each register.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Makes the configuration of registers with `(rows, bytes)`.
    const fn new(shapes: [(u8, u16); TILES]) -> Self {
        let mut config = Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut tile = 0;
        while tile < TILES {
            (config.rows[tile], config.row_bytes[tile]) = shapes[tile];
            tile += 1;
        }
        config
    }

    /// Four sums of `height` rows, then queries, weights of a page's tokens, keys, and values.
    const fn attention(height: u8) -> Self {
        let sums = (height, 64);
        Self::new([
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
}

static WEIGHTS: Config = Config::new([(16, 64); TILES]);

/// For 1 to 16 rows.
static ATTENTION: [Config; TILE_ROWS] = {
    let mut configs = [const { Config::attention(1) }; TILE_ROWS];
    let mut height = 1;
    while height <= TILE_ROWS {
        configs[height - 1] = Config::attention(height as u8);
        height += 1;
    }
    configs
};

/// Returns whether the processor has tiles of 8-bit integers and of bf16, and the system lets this process use them.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        /// Bits of EDX of leaf 7: AMX-BF16, AMX-TILE, AMX-INT8.
        const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        let leaves = std::arch::x86_64::__cpuid(0).eax;
        leaves >= 7
            && std::arch::x86_64::__cpuid_count(7, 0).edx & FEATURES == FEATURES
            && is_permitted()
    })
}

/// Asks the system for the registers: threads have them only in a process that has asked.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: the call only widens what the process may use; a kernel that does not know it answers with an error.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") 158_isize => result, // arch_prctl
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Sets the registers up, with zeros in them.
///
/// # Safety
///
/// [`is_available`] has returned true.
#[inline(always)]
unsafe fn configure(config: &Config) {
    // SAFETY: the caller's promise; the configuration is a valid one.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            config = in(reg) std::ptr::from_ref(config),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// The tile registers of this thread, in use.
pub(super) struct Tiles(());

impl Tiles {
    /// Sets the registers up for products with weights.
    ///
    /// # Safety
    ///
    /// [`is_available`] has returned true.
    #[inline(always)]
    pub(super) unsafe fn open() -> Self {
        // SAFETY: the caller's promise.
        unsafe { configure(&WEIGHTS) };
        Self(())
    }
}

/// Sets the registers up for attention of `height` rows, 1 to 16.
///
/// # Safety
///
/// The tiles are open.
#[inline(always)]
pub(super) unsafe fn set_attention_rows(height: usize) {
    let config = &ATTENTION[height - 1];
    // SAFETY: the caller's promise.
    unsafe { configure(config) };
}

impl Drop for Tiles {
    /// Lets go of the registers: a switch to another thread need not save them.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the registers were set up, so the processor has the instruction.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }
}

/// What is multiplied, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    /// The first of 16 rows, or of 32.
    pub(super) x: *const u8,
    /// Bytes from row to row.
    pub(super) stride: usize,
    /// `[steps][16][32]` lanes of 4 bytes.
    pub(super) panel: *const u8,
    /// Stretches of 64 bytes of a row.
    pub(super) steps: usize,
    /// The first value of each of the 32 sums of every row.
    pub(super) first: *const u32,
    /// `[16][32]` sums, or `[32][32]`.
    pub(super) sums: *mut u32,
    /// What to ask memory for meanwhile: it need not be there.
    pub(super) ahead: *const u8,
    /// Cache lines of it a step.
    pub(super) pace: Pace,
}

/// Cache lines that are asked for while two tiles of weights are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
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
    pub(super) fn of(tile: usize, tiles: usize, steps: usize) -> (Self, usize) {
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
            "tileloadd tmm0, [{first} + {zero}*1]",
            "tileloadd tmm1, [{first} + {zero}*1 + 64]",
            "tileloadd tmm2, [{first} + {zero}*1]",
            "tileloadd tmm3, [{first} + {zero}*1 + 64]",
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
            "tileloadd tmm0, [{first} + {zero}*1]",
            "tileloadd tmm1, [{first} + {zero}*1 + 64]",
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
        pub(super) unsafe fn $name(rows: usize, operands: Operands) {
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

/// Writes the scores of a tile of queries with the keys of four pages of 16 tokens.
///
/// `queries` are `stride` bytes apart and `steps` times 64 bytes long; the pages' keys are `[steps][16][16]` lanes of 4
/// bytes; `scores` are `[rows][64]`.
///
/// # Safety
///
/// The tiles are open for attention, and all that is named can be read, or written.
#[inline(always)]
pub(super) unsafe fn score(
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
pub(super) struct Values<'a> {
    /// Of the first row and page: 32 bytes a page.
    pub(super) weights: *const u8,
    /// Bytes from row to row of the weights.
    pub(super) weight_stride: usize,
    /// Each page's values: 8 lanes of 4 bytes for every column.
    pub(super) pages: &'a [*const u8],
    /// Bytes from lane to lane of the values.
    pub(super) value_stride: usize,
    /// Bytes before the first column, in the values and in the sums.
    pub(super) column: usize,
    /// The first row.
    pub(super) sums: *mut f32,
    /// Bytes from row to row of the sums.
    pub(super) sum_stride: usize,
}

/// Adds the weighted values of some pages to 64 columns of a tile's sums.
///
/// # Safety
///
/// As for [`score`].
#[inline(always)]
pub(super) unsafe fn accumulate_64(values: Values<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "add {sums}, {column}",
            "tileloadd tmm0, [{sums} + {sum_stride}*1]",
            "tileloadd tmm1, [{sums} + {sum_stride}*1 + 64]",
            "tileloadd tmm2, [{sums} + {sum_stride}*1 + 128]",
            "tileloadd tmm3, [{sums} + {sum_stride}*1 + 192]",
            "2:",
            "mov {values}, [{pages}]",
            "add {values}, {column}",
            "tileloadd tmm5, [{weights} + {weight_stride}*1]",
            "tileloadd tmm7, [{values} + {value_stride}*1]",
            "tdpbf16ps tmm0, tmm5, tmm7",
            "tileloadd tmm7, [{values} + {value_stride}*1 + 64]",
            "tdpbf16ps tmm1, tmm5, tmm7",
            "tileloadd tmm7, [{values} + {value_stride}*1 + 128]",
            "tdpbf16ps tmm2, tmm5, tmm7",
            "tileloadd tmm7, [{values} + {value_stride}*1 + 192]",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {weights}, 32",
            "add {pages}, 8",
            "dec {count}",
            "jnz 2b",
            "tilestored [{sums} + {sum_stride}*1], tmm0",
            "tilestored [{sums} + {sum_stride}*1 + 64], tmm1",
            "tilestored [{sums} + {sum_stride}*1 + 128], tmm2",
            "tilestored [{sums} + {sum_stride}*1 + 192], tmm3",
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

/// As [`accumulate_64`], of 16 columns.
///
/// # Safety
///
/// As for [`score`].
#[inline(always)]
pub(super) unsafe fn accumulate_16(values: Values<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "add {sums}, {column}",
            "tileloadd tmm0, [{sums} + {sum_stride}*1]",
            "2:",
            "mov {values}, [{pages}]",
            "add {values}, {column}",
            "tileloadd tmm5, [{weights} + {weight_stride}*1]",
            "tileloadd tmm7, [{values} + {value_stride}*1]",
            "tdpbf16ps tmm0, tmm5, tmm7",
            "add {weights}, 32",
            "add {pages}, 8",
            "dec {count}",
            "jnz 2b",
            "tilestored [{sums} + {sum_stride}*1], tmm0",
            sums = inout(reg) values.sums => _,
            sum_stride = in(reg) values.sum_stride,
            column = in(reg) values.column,
            values = out(reg) _,
            value_stride = in(reg) values.value_stride,
            weights = inout(reg) values.weights => _,
            weight_stride = in(reg) values.weight_stride,
            pages = inout(reg) values.pages.as_ptr() => _,
            count = inout(reg) values.pages.len() => _,
            out("tmm0") _, out("tmm5") _, out("tmm7") _,
            options(nostack),
        );
    }
}

//! Vectors of f32 and of bf16 pairs: one trait, one implementation for each instruction set.
//!
//! A value of a [`Simd`] type is the proof that the machine has the instruction set: it is made only inside
//! [`run`], behind a check. That is what makes the arithmetic methods safe.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "entering code that is compiled for an instruction set"
    )
)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use half::bf16;

use super::isa::{Isa, Kernel};
use super::pack::PANEL;

/// Vector arithmetic of one instruction set.
///
/// Lane `i` of a result depends on lane `i` of the operands alone, reductions excepted. For each operation
/// the bits are a function of the operands and the instruction set.
pub(super) trait Simd: Copy {
    /// [`Simd::LANES`] f32 values.
    type V: Copy;
    /// [`Simd::LANES`] pairs of bf16 values.
    type P: Copy;
    /// [`Simd::LANES`] integers of 32 bits.
    type I: Copy;
    /// [`Simd::LANES`] quads of 8-bit integers.
    type Q: Copy;
    /// Values in a vector; divides 16.
    const LANES: usize;
    /// Rows of the tallest product tile whose sums stay in registers: 1, 2, 4, 8 or 12.
    const ROWS: usize;

    /// Returns `x` in all lanes.
    fn splat(self, x: f32) -> Self::V;
    /// Reads the first values of `x`, which has at least [`Simd::LANES`].
    fn load(self, x: &[f32]) -> Self::V;
    /// Writes the first values of `out`, which has at least [`Simd::LANES`].
    fn store(self, v: Self::V, out: &mut [f32]);
    /// Rounds to bf16, ties to even, and writes the first values of `out`.
    fn store_bf16(self, v: Self::V, out: &mut [bf16]);
    /// Reads the first pairs of `x`, which has at least `2 * LANES` values.
    fn load_pairs(self, x: &[bf16]) -> Self::P;
    /// Returns one pair (the first value in the low half) in all lanes.
    fn splat_pair(self, pair: u32) -> Self::P;
    /// Returns `acc + a.0 * b.0 + a.1 * b.1`.
    fn dot_pairs(self, acc: Self::V, a: Self::P, b: Self::P) -> Self::V;
    /// Returns `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns `1 / v` to about 1e-7 of itself, for positive numbers; 0 above 2^126.
    #[inline(always)]
    fn reciprocal(self, v: Self::V) -> Self::V {
        self.div(self.splat(1.0), v)
    }
    /// Returns `a * b + c`, in one rounding where the instruction set can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Returns the lower, `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns `x` where `a < b`, else `y`.
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// Adds the low bits of `n` (an integer in f32 bits) to the exponent of `v`.
    fn add_exponent(self, v: Self::V, n: Self::V) -> Self::V;
    /// Returns the sum of all lanes.
    fn sum(self, v: Self::V) -> f32;

    // --- Products of 8-bit integers: exact, and so the same on every instruction set. ---

    /// Reads the first integers of `x`, which has at least [`Simd::LANES`].
    fn load_int(self, x: &[i32]) -> Self::I;
    /// Reads the first quads of `x`, which has at least `4 * LANES` values.
    fn load_quads(self, x: &[i8]) -> Self::Q;
    /// Returns one quad of unsigned values (the first in the lowest byte) in all lanes.
    fn splat_quad(self, quad: u32) -> Self::Q;
    /// Returns `acc` plus the four products of unsigned `x` and signed `w`.
    fn dot_quads(self, acc: Self::I, x: Self::Q, w: Self::Q) -> Self::I;
    /// Converts to f32, ties to even.
    fn int_to_f32(self, v: Self::I) -> Self::V;
    /// Reads and widens the first values of `x`, which has at least [`Simd::LANES`].
    fn load_bf16(self, x: &[bf16]) -> Self::V;
    /// Returns the magnitude of `a` or of `b`, whichever is greater; a NaN is greater than all numbers.
    fn max_magnitude(self, a: Self::V, b: Self::V) -> Self::V;
    /// Multiplies the lanes by the Hadamard matrix of [`Simd::LANES`] rows, whose entries are 1 and -1: sums and
    /// differences of neighbours first, then of those 2 apart, and so on.
    fn mix_lanes(self, v: Self::V) -> Self::V;
    /// Rounds values below 127.5 in magnitude to integers, ties to even, adds 128, and writes the first
    /// values of `out`. What it writes for others is not specified.
    fn store_codes(self, v: Self::V, out: &mut [u8]);

    // --- Tiles, where a matrix unit multiplies them. ---

    /// Whether there is a matrix unit. The methods below are for those that have one.
    const HAS_TILES: bool = false;

    /// Returns the bits of `v` as integers.
    fn bits(self, _v: Self::V) -> Self::I {
        unreachable!("the instruction set has no tiles")
    }

    /// Computes `sums[r][c] = first[c] + sum over k of x[r][k] * panel[k][c]` for `M` rows, 16 or 32, that lie
    /// `stride` apart; their length and the panel's are those of whole [`super::pack::STEP`]s. The sums are
    /// integers, in the bits of `sums`.
    ///
    /// The panel behind this one in memory is asked for meanwhile, by each of `of` tiles of rows its part: `part`
    /// is `(tile, of)`.
    fn multiply_codes<const M: usize>(
        self,
        _x: &[u8],
        _stride: usize,
        _panel: &[i8],
        _first: &[i32; PANEL],
        _sums: &mut [[f32; PANEL]; M],
        _part: (usize, usize),
    ) {
        unreachable!("the instruction set has no tiles")
    }

    /// As [`Simd::multiply_codes`], of bf16, with sums in f32 that begin at zero.
    fn multiply_pairs<const M: usize>(
        self,
        _x: &[bf16],
        _stride: usize,
        _panel: &[bf16],
        _sums: &mut [[f32; PANEL]; M],
        _part: (usize, usize),
    ) {
        unreachable!("the instruction set has no tiles")
    }

    /// Says how many rows, 1 to 16, the next tiles of attention have.
    fn set_attention_rows(self, _rows: usize) {
        unreachable!("the instruction set has no tiles")
    }

    /// Writes the scores of `rows` queries, `dk` values apart, with the keys of four pages of 16 tokens:
    /// `scores` is `[rows, 64]`. `dk` is in whole [`super::pack::STEP`]s.
    fn score_tile(
        self,
        _rows: usize,
        _queries: &[bf16],
        _dk: usize,
        _keys: [&[bf16]; 4],
        _scores: &mut [f32],
    ) {
        unreachable!("the instruction set has no tiles")
    }

    /// Computes `sums += weights * values` for `rows` rows and pages of 16 tokens: `weights` is `[rows, 64]`,
    /// `values` `[8, dv]` pairs a page, `sums` `[rows, dv]`, and `dv` is a multiple of 16.
    fn accumulate_tile(
        self,
        _rows: usize,
        _weights: &[bf16],
        _values: &[&[bf16]],
        _dv: usize,
        _sums: &mut [f32],
    ) {
        unreachable!("the instruction set has no tiles")
    }

    // For attention.

    /// Returns the greater, `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns `v * 2^n` for whole `n` of up to 127; below -126, 0 or what is left of the number.
    fn scale(self, v: Self::V, n: Self::V) -> Self::V;
    /// Returns the greatest of all lanes; any of them where one is NaN.
    fn greatest(self, v: Self::V) -> f32;
}

/// Asks for the cache lines of `x` in the second-level cache, for a read that comes soon.
#[inline(always)]
pub(super) fn prefetch<T>(x: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let first = x.as_ptr().cast::<i8>();
        for offset in (0..size_of_val(x)).step_by(64) {
            // SAFETY: a prefetch only hints, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
}

/// Returns whether the machine has AVX2 and FMA.
pub(super) fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has =
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Returns whether the machine has the parts of AVX-512 that every kernel uses.
pub(super) fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = has_avx2()
        && std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Returns whether the machine has AVX-512 and its products of 8-bit integers.
pub(super) fn has_avx512_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = has_avx512() && std::arch::is_x86_feature_detected!("avx512vnni");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Returns whether the machine has AVX-512 and its products of 8-bit integers and of bf16.
pub(super) fn has_avx512_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = has_avx512_vnni() && std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Returns whether the machine has all that [`has_avx512_bf16`] asks for, and AMX, which the system lets us use.
pub(super) fn has_amx() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = has_avx512_bf16() && amx::is_available();
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Runs `kernel`, compiled for `isa`.
///
/// # Panics
///
/// If the machine does not have `isa`.
#[inline]
pub(super) fn run<K: Kernel>(isa: Isa, kernel: K) {
    // The checks read a cached word: their cost is nothing beside a kernel's.
    assert!(isa.is_available(), "this machine does not have {isa:?}");
    match isa {
        Isa::Portable => kernel.run(portable::Portable),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `is_available` has found the features that the entry point is compiled for.
        Isa::Avx2 => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Amx if K::HAS_TILES => unsafe { avx512::run_amx(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512Bf16 | Isa::Amx if K::HAS_BF16 => unsafe { avx512::run_bf16(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx if K::HAS_INT8 => unsafe {
            avx512::run_vnni(kernel)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => unsafe {
            avx512::run(kernel)
        },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => {
            kernel.run(portable::Portable)
        }
    }
}

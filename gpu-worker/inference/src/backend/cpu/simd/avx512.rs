//! AVX-512: vectors of sixteen, products of bf16 and of 8-bit integers by instruction or widened.
#![expect(unsafe_code, reason = "intrinsics")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one proof covers a sequence of intrinsics"
)]

use std::arch::x86_64::*;

use half::bf16;

use super::{Simd, amx};
use crate::backend::cpu::isa::Kernel;
use crate::backend::cpu::pack::{PANEL, STEP};

const LANES: usize = 16;

/// The proof that the machine has AVX-512 F, BW, DQ and VL, and its products of 8-bit integers and of bf16 if
/// `VNNI` and `BF16`, and that AMX's tiles are open if `AMX`.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const VNNI: bool, const BF16: bool, const AMX: bool>(());

/// Runs `kernel` with AVX-512.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn run(kernel: impl Kernel) {
    kernel.run(Avx512::<false, false, false>(()));
}

/// Runs `kernel` with AVX-512 and its products of 8-bit integers.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn run_vnni(kernel: impl Kernel) {
    kernel.run(Avx512::<true, false, false>(()));
}

/// Runs `kernel` with AVX-512 and its products of 8-bit integers and of bf16.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
pub(super) fn run_bf16(kernel: impl Kernel) {
    kernel.run(Avx512::<true, true, false>(()));
}

/// Runs `kernel` with AVX-512, its products, and AMX.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
pub(super) fn run_amx(kernel: impl Kernel) {
    // SAFETY: who may call this function has asked `amx::is_available`.
    let _tiles = unsafe { amx::Tiles::open() };
    kernel.run(Avx512::<true, true, true>(()));
}

impl<const VNNI: bool, const BF16: bool, const AMX: bool> Simd for Avx512<VNNI, BF16, AMX> {
    type V = __m512;
    type P = __m512i;
    type I = __m512i;
    type Q = __m512i;
    const LANES: usize = LANES;
    const ROWS: usize = 12;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32]) -> Self::V {
        let x = &x[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32]) {
        let out = &mut out[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe {
            _mm512_storeu_ps(out.as_mut_ptr(), v);
        }
    }

    #[inline(always)]
    fn store_bf16(self, v: Self::V, out: &mut [bf16]) {
        let out = &mut out[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length; bf16 is two plain bytes.
        unsafe {
            if BF16 {
                let packed: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(v));
                _mm256_storeu_si256(out.as_mut_ptr().cast(), packed);
                return;
            }
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            // A NaN would round to infinity or zero: it becomes the quiet NaN instead.
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let words = _mm512_mask_blend_epi32(nan, rounded, _mm512_set1_epi32(0x7fc0_0000));
            let packed = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), packed);
        }
    }

    #[inline(always)]
    fn load_pairs(self, x: &[bf16]) -> Self::P {
        let x = &x[..2 * LANES];
        // SAFETY: the token proves the instruction set, and the slice its length; bf16 is two plain bytes.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn splat_pair(self, pair: u32) -> Self::P {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_set1_epi32(pair.cast_signed()) }
    }

    #[inline(always)]
    fn dot_pairs(self, acc: Self::V, a: Self::P, b: Self::P) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe {
            if BF16 {
                _mm512_dpbf16_ps(
                    acc,
                    std::mem::transmute::<__m512i, __m512bh>(a),
                    std::mem::transmute::<__m512i, __m512bh>(b),
                )
            } else {
                let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
                let a_low = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(a));
                let b_low = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(b));
                let a_high = _mm512_castsi512_ps(_mm512_and_si512(a, high));
                let b_high = _mm512_castsi512_ps(_mm512_and_si512(b, high));
                _mm512_fmadd_ps(a_high, b_high, _mm512_fmadd_ps(a_low, b_low, acc))
            }
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn reciprocal(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe {
            // 14 bits, and a step of Newton's method: a fifth of a division's time.
            let guess = _mm512_rcp14_ps(v);
            let error = _mm512_fnmadd_ps(v, guess, _mm512_set1_ps(1.0));
            _mm512_fmadd_ps(guess, error, guess)
        }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }

    #[inline(always)]
    fn add_exponent(self, v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), shifted))
        }
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        // SAFETY: the token proves the instruction set.
        unsafe {
            let half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let quarter = _mm_add_ps(
                _mm256_castps256_ps128(half),
                _mm256_extractf128_ps::<1>(half),
            );
            let pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    fn load_int(self, x: &[i32]) -> Self::I {
        let x = &x[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_quads(self, x: &[i8]) -> Self::Q {
        let x = &x[..4 * LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn splat_quad(self, quad: u32) -> Self::Q {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_set1_epi32(quad.cast_signed()) }
    }

    #[inline(always)]
    fn dot_quads(self, acc: Self::I, x: Self::Q, w: Self::Q) -> Self::I {
        // SAFETY: the token proves the instruction set.
        unsafe {
            if VNNI {
                _mm512_dpbusd_epi32(acc, x, w)
            } else {
                // Products of 8-bit halves would saturate: all are widened to 16 bits, the even and the odd.
                let low = _mm512_set1_epi16(0xff);
                let even = _mm512_madd_epi16(
                    _mm512_and_si512(x, low),
                    _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(w)),
                );
                let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(x), _mm512_srai_epi16::<8>(w));
                _mm512_add_epi32(acc, _mm512_add_epi32(even, odd))
            }
        }
    }

    #[inline(always)]
    fn int_to_f32(self, v: Self::I) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_cvtepi32_ps(v) }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16]) -> Self::V {
        let x = &x[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length; bf16 is two plain bytes.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }

    #[inline(always)]
    fn max_magnitude(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe {
            // Without signs, floats are ordered as their bits are.
            let magnitude = _mm512_set1_epi32(0x7fff_ffff);
            let a = _mm512_and_si512(_mm512_castps_si512(a), magnitude);
            let b = _mm512_and_si512(_mm512_castps_si512(b), magnitude);
            _mm512_castsi512_ps(_mm512_max_epi32(a, b))
        }
    }

    #[inline(always)]
    fn mix_lanes(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe {
            let one = _mm512_set1_ps(1.0);
            // Lane i of a stage is `v[i ^ d] + v[i]`, or `v[i ^ d] - v[i]` where bit d of i is set.
            let sign = |mask| _mm512_mask_blend_ps(mask, one, _mm512_set1_ps(-1.0));
            let v = _mm512_fmadd_ps(v, sign(0xaaaa), _mm512_permute_ps::<0b10_11_00_01>(v));
            let v = _mm512_fmadd_ps(v, sign(0xcccc), _mm512_permute_ps::<0b01_00_11_10>(v));
            let swapped = _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v);
            let v = _mm512_fmadd_ps(v, sign(0xf0f0), swapped);
            let swapped = _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v);
            _mm512_fmadd_ps(v, sign(0xff00), swapped)
        }
    }

    #[inline(always)]
    fn store_codes(self, v: Self::V, out: &mut [u8]) {
        let out = &mut out[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe {
            let codes = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(128));
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(codes));
        }
    }

    const HAS_TILES: bool = AMX;

    #[inline(always)]
    fn bits(self, v: Self::V) -> Self::I {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_castps_si512(v) }
    }

    #[inline(always)]
    fn multiply_codes<const M: usize>(
        self,
        x: &[u8],
        stride: usize,
        panel: &[i8],
        first: &[i32; PANEL],
        sums: &mut [[f32; PANEL]; M],
        (tile, tiles): (usize, usize),
    ) {
        assert!(AMX, "the tiles are open");
        let steps = steps::<M>(size_of_val(x), stride, size_of_val(panel));
        let (pace, at) = amx::weights::Pace::of(tile, tiles, steps);
        let operands = amx::weights::Operands {
            x: x.as_ptr(),
            stride,
            panel: panel.as_ptr().cast(),
            steps,
            first: first.as_ptr().cast(),
            sums: sums.as_mut_ptr().cast(),
            ahead: panel.as_ptr_range().end.wrapping_byte_add(at).cast(),
            pace,
        };
        // SAFETY: the token proves that the tiles are open, and `steps` that the operands are long enough.
        unsafe { amx::weights::multiply_codes(M, operands) };
    }

    #[inline(always)]
    fn multiply_pairs<const M: usize>(
        self,
        x: &[bf16],
        stride: usize,
        panel: &[bf16],
        sums: &mut [[f32; PANEL]; M],
        (tile, tiles): (usize, usize),
    ) {
        assert!(AMX, "the tiles are open");
        let stride = stride * size_of::<bf16>();
        let steps = steps::<M>(size_of_val(x), stride, size_of_val(panel));
        let (pace, at) = amx::weights::Pace::of(tile, tiles, steps);
        let operands = amx::weights::Operands {
            x: x.as_ptr().cast(),
            stride,
            panel: panel.as_ptr().cast(),
            steps,
            first: std::ptr::null(),
            sums: sums.as_mut_ptr().cast(),
            ahead: panel.as_ptr_range().end.wrapping_byte_add(at).cast(),
            pace,
        };
        // SAFETY: as for `multiply_codes`.
        unsafe { amx::weights::multiply_pairs(M, operands) };
    }

    #[inline(always)]
    fn set_attention_rows(self, rows: usize) {
        assert!(AMX, "the tiles are open");
        // SAFETY: the token proves that they are.
        unsafe { amx::attention::set_rows(rows) };
    }

    #[inline(always)]
    fn score_tile(
        self,
        rows: usize,
        queries: &[bf16],
        dk: usize,
        keys: [&[bf16]; 4],
        scores: &mut [f32],
    ) {
        let steps = dk / (2 * STEP);
        assert!(
            AMX && steps > 0
                && dk.is_multiple_of(2 * STEP)
                && queries.len() >= rows * dk
                && keys.iter().all(|keys| keys.len() >= dk * LANES)
                && scores.len() >= rows * 4 * LANES,
            "the tiles are open, and the operands as long as they say"
        );
        // SAFETY: as asserted; the caller has set the rows.
        unsafe {
            amx::attention::score(
                queries.as_ptr().cast(),
                dk * size_of::<bf16>(),
                steps,
                keys.map(|keys| keys.as_ptr().cast()),
                scores.as_mut_ptr(),
            );
        }
    }

    #[inline(always)]
    fn accumulate_tile(
        self,
        rows: usize,
        weights: &[bf16],
        values: &[&[bf16]],
        dv: usize,
        sums: &mut [f32],
    ) {
        assert!(
            AMX && (1..=4).contains(&values.len())
                && dv.is_multiple_of(LANES)
                && weights.len() >= rows * 4 * LANES
                && values.iter().all(|values| values.len() >= dv * LANES)
                && sums.len() >= rows * dv,
            "the tiles are open, and the operands as long as they say"
        );
        let mut pages = [std::ptr::null(); 4];
        for (page, values) in pages.iter_mut().zip(values) {
            *page = values.as_ptr().cast();
        }
        let mut column = 0;
        while column < dv {
            let values = amx::attention::Values {
                weights: weights.as_ptr().cast(),
                weight_stride: 4 * LANES * size_of::<bf16>(),
                pages: &pages[..values.len()],
                value_stride: dv * 2 * size_of::<bf16>(),
                column: column * size_of::<f32>(),
                sums: sums.as_mut_ptr(),
                sum_stride: dv * size_of::<f32>(),
            };
            // SAFETY: as asserted; the caller has set the rows. A pair of values is as wide as a sum.
            column += unsafe {
                if column + 4 * LANES <= dv {
                    amx::attention::accumulate_64(values);
                    4 * LANES
                } else {
                    amx::attention::accumulate_16(values);
                    LANES
                }
            };
        }
    }

    // For attention.

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn scale(self, v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_scalef_ps(v, n) }
    }

    #[inline(always)]
    fn greatest(self, v: Self::V) -> f32 {
        // SAFETY: the token proves the instruction set.
        unsafe {
            let half = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let quarter = _mm_max_ps(
                _mm256_castps256_ps128(half),
                _mm256_extractf128_ps::<1>(half),
            );
            let pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
}

/// Returns how many stretches of tiles a panel of so many bytes has, when all of them lie in `M` rows of `x`.
#[inline(always)]
fn steps<const M: usize>(x_bytes: usize, stride_bytes: usize, panel_bytes: usize) -> usize {
    const LANE_BYTES: usize = 4;
    let steps = panel_bytes / (PANEL * STEP * LANE_BYTES);
    assert!(
        (M == amx::TILE_ROWS || M == 2 * amx::TILE_ROWS)
            && steps > 0
            && steps * PANEL * STEP * LANE_BYTES == panel_bytes
            && x_bytes >= (M - 1) * stride_bytes + steps * STEP * LANE_BYTES,
        "all rows of the tile lie in x, and the panel is whole"
    );
    steps
}

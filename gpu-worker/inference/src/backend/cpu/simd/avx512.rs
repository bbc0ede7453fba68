//! AVX-512: vectors of sixteen, bf16 products by instruction or widened.
#![expect(unsafe_code, reason = "intrinsics")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one proof covers a sequence of intrinsics"
)]

use std::arch::x86_64::*;

use half::bf16;

use super::Simd;
use crate::backend::cpu::isa::Kernel;

const LANES: usize = 16;

/// The proof that the machine has AVX-512 F, BW, DQ and VL, and its bf16 products if `BF16`.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const BF16: bool>(());

/// Runs `kernel` with AVX-512.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn run(kernel: impl Kernel) {
    kernel.run(Avx512::<false>(()));
}

/// Runs `kernel` with AVX-512 and its bf16 products.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn run_bf16(kernel: impl Kernel) {
    kernel.run(Avx512::<true>(()));
}

impl<const BF16: bool> Simd for Avx512<BF16> {
    type V = __m512;
    type P = __m512i;
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

    // For attention.

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn round(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
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

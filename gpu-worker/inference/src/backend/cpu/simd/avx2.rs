//! AVX2 with FMA: vectors of eight.
#![expect(unsafe_code, reason = "intrinsics")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one proof covers a sequence of intrinsics"
)]

use std::arch::x86_64::*;

use half::bf16;

use super::Simd;
use crate::backend::cpu::isa::Kernel;

const LANES: usize = 8;

/// The proof that the machine has AVX2 and FMA.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// Runs `kernel` with AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) fn run(kernel: impl Kernel) {
    kernel.run(Avx2(()));
}

impl Simd for Avx2 {
    type V = __m256;
    type P = __m256i;
    type I = __m256i;
    type Q = __m256i;
    const LANES: usize = LANES;
    const ROWS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32]) -> Self::V {
        let x = &x[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32]) {
        let out = &mut out[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), v);
        }
    }

    #[inline(always)]
    fn store_bf16(self, v: Self::V, out: &mut [bf16]) {
        let out = &mut out[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length; bf16 is two plain bytes.
        unsafe {
            let bits = _mm256_castps_si256(v);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
            // A NaN would round to infinity or zero: it becomes the quiet NaN instead.
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let words = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0_0000), nan);
            let high = _mm256_srli_epi32::<16>(words);
            let packed = _mm_packus_epi32(
                _mm256_castsi256_si128(high),
                _mm256_extracti128_si256::<1>(high),
            );
            _mm_storeu_si128(out.as_mut_ptr().cast(), packed);
        }
    }

    #[inline(always)]
    fn load_pairs(self, x: &[bf16]) -> Self::P {
        let x = &x[..2 * LANES];
        // SAFETY: the token proves the instruction set, and the slice its length; bf16 is two plain bytes.
        unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn splat_pair(self, pair: u32) -> Self::P {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_set1_epi32(pair.cast_signed()) }
    }

    #[inline(always)]
    fn dot_pairs(self, acc: Self::V, a: Self::P, b: Self::P) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe {
            let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let a_low = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(a));
            let b_low = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(b));
            let a_high = _mm256_castsi256_ps(_mm256_and_si256(a, high));
            let b_high = _mm256_castsi256_ps(_mm256_and_si256(b, high));
            _mm256_fmadd_ps(a_high, b_high, _mm256_fmadd_ps(a_low, b_low, acc))
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }

    #[inline(always)]
    fn add_exponent(self, v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe {
            let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), shifted))
        }
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        // SAFETY: the token proves the instruction set.
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    fn load_int(self, x: &[i32]) -> Self::I {
        let x = &x[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_quads(self, x: &[i8]) -> Self::Q {
        let x = &x[..4 * LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn splat_quad(self, quad: u32) -> Self::Q {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_set1_epi32(quad.cast_signed()) }
    }

    #[inline(always)]
    fn dot_quads(self, acc: Self::I, x: Self::Q, w: Self::Q) -> Self::I {
        // SAFETY: the token proves the instruction set.
        unsafe {
            // `vpmaddubsw` saturates: all are widened to 16 bits, the even and the odd.
            let low = _mm256_set1_epi16(0xff);
            let even = _mm256_madd_epi16(
                _mm256_and_si256(x, low),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w)),
            );
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(x), _mm256_srai_epi16::<8>(w));
            _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    fn int_to_f32(self, v: Self::I) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_cvtepi32_ps(v) }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16]) -> Self::V {
        let x = &x[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length; bf16 is two plain bytes.
        unsafe {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }
    }

    #[inline(always)]
    fn max_magnitude(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe {
            // Without signs, floats are ordered as their bits are.
            let magnitude = _mm256_set1_epi32(0x7fff_ffff);
            let a = _mm256_and_si256(_mm256_castps_si256(a), magnitude);
            let b = _mm256_and_si256(_mm256_castps_si256(b), magnitude);
            _mm256_castsi256_ps(_mm256_max_epi32(a, b))
        }
    }

    #[inline(always)]
    fn mix_lanes(self, v: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe {
            // Lane i of a stage is `v[i ^ d] + v[i]`, or `v[i ^ d] - v[i]` where bit d of i is set.
            let sign = _mm256_setr_ps(1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0);
            let v = _mm256_fmadd_ps(v, sign, _mm256_permute_ps::<0b10_11_00_01>(v));
            let sign = _mm256_setr_ps(1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0);
            let v = _mm256_fmadd_ps(v, sign, _mm256_permute_ps::<0b01_00_11_10>(v));
            let sign = _mm256_setr_ps(1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0);
            _mm256_fmadd_ps(v, sign, _mm256_permute2f128_ps::<1>(v, v))
        }
    }

    #[inline(always)]
    fn store_codes(self, v: Self::V, out: &mut [u8]) {
        let out = &mut out[..LANES];
        // SAFETY: the token proves the instruction set, and the slice its length.
        unsafe {
            let codes = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(128));
            let words = _mm_packus_epi32(
                _mm256_castsi256_si128(codes),
                _mm256_extracti128_si256::<1>(codes),
            );
            _mm_storel_epi64(out.as_mut_ptr().cast(), _mm_packus_epi16(words, words));
        }
    }

    // For attention.

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn scale(self, v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: the token proves the instruction set.
        let scaled = unsafe {
            let shifted = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(n));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), shifted))
        };
        self.select_less(n, self.splat(-126.0), self.splat(0.0), scaled)
    }

    #[inline(always)]
    fn greatest(self, v: Self::V) -> f32 {
        // SAFETY: the token proves the instruction set.
        unsafe {
            let half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
}

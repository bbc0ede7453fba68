//! Exponential and its kin on vectors. NaN in, NaN out.

use super::simd::Simd;
use crate::backend::exp::{HIGHEST, LN2_HIGH, LN2_LOW, LOWEST, POLYNOMIAL, ROUND};

/// Returns `e^x`; 0 below -87, `e^88` above 88.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let clamped = s.min(s.splat(HIGHEST), x);
    let shifted = s.fma(clamped, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    let r = s.fma(n, s.splat(-LN2_HIGH), clamped);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(POLYNOMIAL[0]);
    p = s.fma(p, r, s.splat(POLYNOMIAL[1]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[2]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[3]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[4]));
    p = s.fma(p, r, s.splat(POLYNOMIAL[5]));
    let mantissa = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    let result = s.select_less(
        x,
        s.splat(LOWEST),
        s.splat(0.0),
        s.add_exponent(mantissa, shifted),
    );
    // `x - x` is 0 but for NaN and infinities; -infinity must stay 0, and +infinity does not occur unless
    // something has already overflowed.
    let nan = s.sub(x, x);
    s.select_less(x, s.splat(LOWEST), result, s.add(result, nan))
}

/// Coefficients of `(2^r - 1) / r` on `[-1/2, 1/2]`, highest first: `2^r` is off by less than 2e-7 of itself.
const EXP2: [f32; 5] = [
    1.330_060_7e-3,
    9.669_691e-3,
    5.550_558_5e-2,
    0.240_222_83,
    std::f32::consts::LN_2,
];

/// Returns `2^x` for `x` of up to 127, 0 below -150, and 1 for 0.
#[inline(always)]
pub(super) fn exp2<S: Simd>(s: S, x: S::V) -> S::V {
    let (n, r) = split(s, x);
    let mut p = s.splat(EXP2[0]);
    p = s.fma(p, r, s.splat(EXP2[1]));
    p = s.fma(p, r, s.splat(EXP2[2]));
    p = s.fma(p, r, s.splat(EXP2[3]));
    p = s.fma(p, r, s.splat(EXP2[4]));
    s.scale(s.fma(p, r, s.splat(1.0)), n)
}

/// As [`exp2`], off by up to 4e-5 of itself: a fiftieth of what rounding to bf16 adds.
#[inline(always)]
pub(super) fn exp2_coarse<S: Simd>(s: S, x: S::V) -> S::V {
    let (n, r) = split(s, x);
    let mut p = s.splat(EXP2[1]);
    p = s.fma(p, r, s.splat(EXP2[2]));
    p = s.fma(p, r, s.splat(EXP2[3]));
    p = s.fma(p, r, s.splat(EXP2[4]));
    s.scale(s.fma(p, r, s.splat(1.0)), n)
}

/// Returns the whole number nearest to `x` and what is left.
#[inline(always)]
fn split<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    // Keeps a NaN, which is the second operand, and makes -infinity a number.
    let x = s.max(s.splat(-200.0), x);
    let n = s.sub(s.add(x, s.splat(ROUND)), s.splat(ROUND));
    (n, s.sub(x, n))
}

/// Returns `x * sigmoid(x)`.
#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    // Beyond, the sigmoid is 0 to f32. A NaN is the second operand, and stays.
    let exponent = s.min(s.splat(125.0), s.mul(x, s.splat(-std::f32::consts::LOG2_E)));
    s.mul(x, s.reciprocal(s.add(s.splat(1.0), exp2(s, exponent))))
}

/// Returns `tanh(x)` to about 1e-7 absolutely.
#[inline(always)]
pub(super) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.mul(x, s.splat(2.0)));
    s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))))
}

/// Returns GELU in its tanh form.
#[inline(always)]
pub(super) fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let scale = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
    let cubic = s.fma(s.mul(s.mul(x, x), x), s.splat(0.044_715), x);
    let half = s.mul(x, s.splat(0.5));
    s.fma(half, tanh(s, s.mul(cubic, s.splat(scale))), half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::isa::{Isa, Kernel};

    struct Exp2<'a>(&'a mut [f32]);

    impl Kernel for Exp2<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for x in self.0.chunks_exact_mut(S::LANES) {
                s.store(exp2(s, s.load(x)), x);
            }
        }
    }

    /// Returns `2^x` for each of 16 values.
    fn powers(isa: Isa, mut x: [f32; 16]) -> [f32; 16] {
        isa.run(Exp2(&mut x));
        x
    }

    #[test]
    fn powers_of_two_are_close_and_total() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for i in (-125_000..=1_000).step_by(16) {
                let x = std::array::from_fn(|lane| (i + lane as i32) as f32 * 1e-3);
                for (x, power) in x.into_iter().zip(powers(isa, x)) {
                    let error = (f64::from(power) / f64::from(x).exp2() - 1.0).abs();
                    assert!(error < 4e-7, "{isa:?}: 2^{x} is off by {error}");
                }
            }
            assert_eq!(powers(isa, [0.0; 16]), [1.0; 16], "{isa:?}");
            for hidden in [-200.0, -1e30, f32::NEG_INFINITY] {
                assert_eq!(powers(isa, [hidden; 16]), [0.0; 16], "{isa:?}");
            }
            assert!(
                powers(isa, [f32::NAN; 16]).iter().all(|x| x.is_nan()),
                "{isa:?}"
            );
        }
    }
}

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

/// Returns `x * sigmoid(x)`.
#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
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

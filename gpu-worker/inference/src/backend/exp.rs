//! One exponential for every host-side softmax: the same bits on every machine.
//!
//! Plain arithmetic without fused steps, so that the compiler may vectorise it and may not change it.

/// Multiples of this survive rounding when added to and subtracted from a small float: 1.5 * 2^23.
pub(super) const ROUND: f32 = 12_582_912.0;
/// High part of ln 2, exact in few bits.
pub(super) const LN2_HIGH: f32 = 0.693_359_4;
/// What [`LN2_HIGH`] lacks.
pub(super) const LN2_LOW: f32 = -2.121_944_4e-4;
/// Below this the result is 0.
pub(super) const LOWEST: f32 = -87.0;
/// Above this the argument is clamped; the result stays finite.
pub(super) const HIGHEST: f32 = 88.0;
/// Coefficients of `(e^r - 1 - r) / r^2` on `[-ln 2 / 2, ln 2 / 2]`, highest first.
///
/// Source: Moshier, Cephes mathematical library, `expf`.
pub(super) const POLYNOMIAL: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    0.5,
];

/// Returns `e^x` to about one unit in the last place; 0 below -87, `e^88` above 88, NaN for NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let clamped = if x > HIGHEST { HIGHEST } else { x };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = POLYNOMIAL[0];
    p = p * r + POLYNOMIAL[1];
    p = p * r + POLYNOMIAL[2];
    p = p * r + POLYNOMIAL[3];
    p = p * r + POLYNOMIAL[4];
    p = p * r + POLYNOMIAL[5];
    let mantissa = p * (r * r) + r + 1.0;
    // The low bits of `shifted` are n in two's complement: moved to the exponent field they scale by 2^n.
    let scaled = f32::from_bits(mantissa.to_bits().wrapping_add(shifted.to_bits() << 23));
    let result = if x < LOWEST { 0.0 } else { scaled };
    if x.is_nan() { x } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_within_two_units_in_the_last_place() {
        for i in -860_000..=880_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) / exact - 1.0).abs();
            assert!(error < 2.5e-7, "exp({x}) is off by {error}");
        }
    }

    #[test]
    fn exponential_is_total_at_the_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert!(exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }
}

//! Element-wise functions in plain f32, shared by the scalar reference and the rare paths of the CPU.

use super::Activation;

/// Returns `act(x)`.
pub(super) fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = std::f32::consts::FRAC_2_SQRT_PI
                * std::f32::consts::FRAC_1_SQRT_2
                * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::ClampedSwiglu { alpha, limit } => {
            let x = if x > limit { limit } else { x };
            x / (1.0 + (-alpha * x).exp())
        }
    }
}

/// Returns `act(gate) * up`, with the clamps of gpt-oss where the activation has them.
pub(super) fn gate(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::ClampedSwiglu { limit, .. } => {
            let up = if up > limit {
                limit
            } else if up < -limit {
                -limit
            } else {
                up
            };
            activate(activation, gate) * (up + 1.0)
        }
        Activation::Silu | Activation::GeluTanh | Activation::GeluErf => {
            activate(activation, gate) * up
        }
    }
}

/// Returns `cap * tanh(x / cap)`.
pub(super) fn softcap(cap: f32, x: f32) -> f32 {
    cap * (x / cap).tanh()
}

/// Returns the error function to 1.2e-7.
///
/// Source: Press et al., Numerical Recipes, 2nd edition, section 6.2 (`erfcc`).
fn erf(x: f32) -> f32 {
    const TERMS: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let x = f64::from(x);
    let t = 1.0 / (1.0 + 0.5 * x.abs());
    let polynomial = TERMS.iter().fold(0.0, |sum, term| sum * t + term);
    let complement = t * (polynomial - x * x).exp();
    (if x >= 0.0 {
        1.0 - complement
    } else {
        complement - 1.0
    }) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(activation: Activation, x: f32, want: f32) {
        let got = activate(activation, x);
        assert!(
            (got - want).abs() < 1e-6,
            "{activation:?}({x}) is {got}, not {want}"
        );
    }

    #[test]
    fn activations_match_known_values() {
        check(Activation::Silu, 1.0, 0.731_058_6);
        check(Activation::Silu, -2.0, -0.238_405_84);
        check(Activation::GeluTanh, 1.0, 0.841_192);
        check(Activation::GeluErf, 1.0, 0.841_344_7);
        check(Activation::GeluErf, -3.0, -0.004_049_7);
        check(
            Activation::ClampedSwiglu {
                alpha: 1.702,
                limit: 7.0,
            },
            9.0,
            6.999_953_3,
        );
    }

    #[test]
    fn clamped_swiglu_clamps_both_halves() {
        let activation = Activation::ClampedSwiglu {
            alpha: 1.702,
            limit: 7.0,
        };
        assert_eq!(gate(activation, 100.0, -100.0), gate(activation, 7.0, -7.0));
    }
}

//! Rotary frequencies from what a model file says about them.

use std::f64::consts::TAU;

/// How a model stretches its rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum RopeScaling {
    /// Not at all.
    None,
    /// All positions divided by the factor.
    Linear {
        /// At least 1 in practice.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by the factor, short ones kept, a ramp between.
    Llama3 {
        /// Divides the long ones.
        factor: f64,
        /// Wavelengths over `original_tokens / low` are long.
        low: f64,
        /// Wavelengths under `original_tokens / high` are short.
        high: f64,
        /// Context that the model was first trained on.
        original_tokens: f64,
    },
}

/// Returns the angle of one position, in radians, for each of `head_dim / 2` pairs.
///
/// Source: `_compute_default_rope_parameters` and `_compute_llama3_parameters` of transformers.
pub(super) fn inverse_frequencies(theta: f64, head_dim: usize, scaling: RopeScaling) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|pair| {
            let frequency = theta.powf(-((2 * pair) as f64) / head_dim as f64);
            scale(frequency, scaling) as f32
        })
        .collect()
}

fn scale(frequency: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 {
            factor,
            low,
            high,
            original_tokens,
        } => {
            let wavelength = TAU / frequency;
            if wavelength < original_tokens / high {
                frequency
            } else if wavelength > original_tokens / low {
                frequency / factor
            } else {
                let smooth = (original_tokens / wavelength - low) / (high - low);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(scaling: RopeScaling, expected: [f32; 8]) {
        for (got, expected) in inverse_frequencies(10_000.0, 16, scaling)
            .into_iter()
            .zip(expected)
        {
            assert!(
                (got - expected).abs() <= 1e-6 * expected,
                "{got} is not {expected}"
            );
        }
    }

    #[test]
    fn unscaled_frequencies_are_powers_of_theta() {
        check(
            RopeScaling::None,
            [
                1.0,
                0.316_227_77,
                0.1,
                0.031_622_776,
                0.01,
                0.003_162_277_6,
                0.001,
                0.000_316_227_76,
            ],
        );
    }

    #[test]
    fn linear_scaling_divides_all() {
        check(
            RopeScaling::Linear { factor: 4.0 },
            [
                0.25,
                0.079_056_94,
                0.025,
                0.007_905_694,
                0.0025,
                0.000_790_569_4,
                0.000_25,
                0.000_079_056_94,
            ],
        );
    }

    #[test]
    fn llama3_scaling_keeps_short_waves_and_divides_long_ones() {
        // Values of transformers 5.24 for the same parameters.
        check(
            RopeScaling::Llama3 {
                factor: 8.0,
                low: 1.0,
                high: 4.0,
                original_tokens: 64.0,
            },
            [
                1.0,
                0.244_384_59,
                0.013_042_256,
                0.003_952_847_3,
                0.00125,
                0.000_395_284_73,
                0.000_125,
                0.000_039_528_473,
            ],
        );
    }
}

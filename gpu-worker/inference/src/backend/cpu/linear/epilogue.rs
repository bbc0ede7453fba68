//! What becomes of a row of a product before it is stored.

use crate::backend::Activation;
use crate::backend::activation::{activate, gate};
use crate::backend::cpu::math;
use crate::backend::cpu::pack::PANEL;
use crate::backend::cpu::simd::Simd;

#[inline(always)]
pub(super) fn activate_row<S: Simd>(s: S, act: Activation, values: &mut [f32; PANEL]) {
    let mut at = 0;
    match act {
        Activation::Silu => {
            while at < PANEL {
                s.store(math::silu(s, s.load(&values[at..])), &mut values[at..]);
                at += S::LANES;
            }
        }
        Activation::GeluTanh => {
            while at < PANEL {
                s.store(math::gelu_tanh(s, s.load(&values[at..])), &mut values[at..]);
                at += S::LANES;
            }
        }
        Activation::GeluErf | Activation::ClampedSwiglu { .. } => {
            for value in values {
                *value = activate(act, *value);
            }
        }
    }
}

/// Writes `act(values) * up` to `values`.
#[inline(always)]
pub(super) fn gate_row<S: Simd>(
    s: S,
    act: Activation,
    values: &mut [f32; PANEL],
    up: &[f32; PANEL],
) {
    match act {
        Activation::Silu => {
            let mut at = 0;
            while at < PANEL {
                let gated = s.mul(math::silu(s, s.load(&values[at..])), s.load(&up[at..]));
                s.store(gated, &mut values[at..]);
                at += S::LANES;
            }
        }
        Activation::GeluTanh | Activation::GeluErf => {
            activate_row(s, act, values);
            for (value, up) in values.iter_mut().zip(up) {
                *value *= up;
            }
        }
        Activation::ClampedSwiglu { .. } => {
            for (value, up) in values.iter_mut().zip(up) {
                *value = gate(act, *value, *up);
            }
        }
    }
}

#[inline(always)]
pub(super) fn softcap_row<S: Simd>(s: S, cap: f32, values: &mut [f32; PANEL]) {
    let mut at = 0;
    while at < PANEL {
        let capped = math::tanh(s, s.div(s.load(&values[at..]), s.splat(cap)));
        s.store(s.mul(capped, s.splat(cap)), &mut values[at..]);
        at += S::LANES;
    }
}

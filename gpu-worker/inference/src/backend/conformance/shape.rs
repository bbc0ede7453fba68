//! Shapes of the small decoders that the suite runs.

use crate::backend::{Activation, HeadLayout, NormKind, RopeStyle};

/// The shape of a small decoder.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) hidden: usize,
    pub(super) heads: HeadLayout,
    pub(super) intermediate: usize,
    pub(super) vocabulary: usize,
    /// Style and rotated values of a head.
    pub(super) rope: Option<(RopeStyle, usize)>,
    pub(super) head_norms: bool,
    pub(super) biases: bool,
    /// Window of the first layer.
    pub(super) window: Option<usize>,
    pub(super) softcap: Option<f32>,
    pub(super) sinks: bool,
    pub(super) activation: Activation,
    pub(super) gated: bool,
    pub(super) norm: NormKind,
    pub(super) plus_one: bool,
    pub(super) tied: bool,
    /// Whether the suite also tries schedules on it.
    pub(super) invariance: bool,
}

fn base(name: &'static str, q_heads: usize, kv_heads: usize, dk: usize) -> Shape {
    Shape {
        name,
        hidden: 48,
        heads: HeadLayout {
            q_heads,
            kv_heads,
            dk,
            dv: dk,
        },
        intermediate: 64,
        vocabulary: 50,
        rope: Some((RopeStyle::Neox, dk)),
        head_norms: false,
        biases: false,
        window: None,
        softcap: None,
        sinks: false,
        activation: Activation::Silu,
        gated: true,
        norm: NormKind::Rms,
        plus_one: false,
        tied: false,
        invariance: false,
    }
}

/// Returns the shapes of the suite: each brings something that the others lack.
pub(super) fn shapes() -> Vec<Shape> {
    let swiglu = Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 1.0,
    };
    vec![
        Shape {
            invariance: true,
            tied: true,
            hidden: 96,
            intermediate: 160,
            ..base("llama", 9, 3, 64)
        },
        Shape {
            invariance: true,
            window: Some(20),
            ..base("window", 4, 1, 32)
        },
        Shape {
            hidden: 33,
            intermediate: 45,
            vocabulary: 37,
            biases: true,
            ..base("odd widths", 3, 1, 18)
        },
        Shape {
            hidden: 70,
            intermediate: 100,
            vocabulary: 65,
            ..base("head size 16", 2, 2, 16)
        },
        base("head size 80", 2, 1, 80),
        Shape {
            invariance: true,
            ..base("head size 128", 8, 1, 128)
        },
        base("head size 256", 2, 1, 256),
        base("many heads", 40, 1, 16),
        Shape {
            heads: HeadLayout {
                q_heads: 4,
                kv_heads: 2,
                dk: 24,
                dv: 16,
            },
            rope: Some((RopeStyle::Interleaved, 8)),
            ..base("key and value sizes differ", 4, 2, 24)
        },
        Shape {
            head_norms: true,
            biases: true,
            rope: None,
            ..base("head norms without rotation", 4, 2, 32)
        },
        Shape {
            softcap: Some(5.0),
            plus_one: true,
            activation: Activation::GeluTanh,
            ..base("caps", 4, 2, 32)
        },
        Shape {
            sinks: true,
            activation: swiglu,
            window: Some(16),
            biases: true,
            ..base("sinks", 8, 2, 16)
        },
        Shape {
            norm: NormKind::Layer,
            gated: false,
            biases: true,
            activation: Activation::GeluErf,
            ..base("layer norm without gate", 4, 4, 16)
        },
    ]
}

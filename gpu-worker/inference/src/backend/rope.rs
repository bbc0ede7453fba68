//! Rotary tables and the rotation of one head, shared by the scalar reference and the CPU.

use super::{RopeSpec, RopeStyle};

/// Cosines and sines of every position.
#[derive(Debug)]
pub(super) struct Rotations {
    style: RopeStyle,
    pairs: usize,
    /// `[positions, pairs]`.
    cosines: Vec<f32>,
    /// `[positions, pairs]`.
    sines: Vec<f32>,
}

/// Cosines and sines of one position, one for each pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Angles<'a> {
    pub(super) style: RopeStyle,
    pub(super) cosines: &'a [f32],
    pub(super) sines: &'a [f32],
}

impl Rotations {
    /// Computes the table of `spec`.
    pub(super) fn new(spec: &RopeSpec) -> Self {
        let len = spec.max_positions * spec.inv_freq.len();
        let (mut cosines, mut sines) = (Vec::with_capacity(len), Vec::with_capacity(len));
        for position in 0..spec.max_positions {
            for &frequency in &spec.inv_freq {
                // The angle is rounded to f32 first, as in the code that models are trained with.
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                cosines.push(cos as f32 * spec.attention_factor);
                sines.push(sin as f32 * spec.attention_factor);
            }
        }
        Self {
            style: spec.style,
            pairs: spec.inv_freq.len(),
            cosines,
            sines,
        }
    }

    /// Returns how many values of a head are rotated.
    pub(super) fn rotated(&self) -> usize {
        2 * self.pairs
    }

    /// Returns cosines and sines `[positions, pairs]`.
    pub(super) fn values(&self) -> [&[f32]; 2] {
        [&self.cosines, &self.sines]
    }

    /// Returns the bytes of the table.
    pub(super) fn bytes(&self) -> usize {
        (self.cosines.capacity() + self.sines.capacity()) * size_of::<f32>()
    }

    /// Returns the angles of `position`.
    pub(super) fn at(&self, position: u32) -> Angles<'_> {
        let range = position as usize * self.pairs..(position as usize + 1) * self.pairs;
        Angles {
            style: self.style,
            cosines: &self.cosines[range.clone()],
            sines: &self.sines[range],
        }
    }

    /// Rotates the first [`Rotations::rotated`] values of `head` to `position`.
    pub(super) fn rotate(&self, head: &mut [f32], position: u32) {
        self.at(position).rotate(head);
    }
}

impl Angles<'_> {
    /// Rotates the first values of `head`, two for each pair.
    #[inline(always)]
    pub(super) fn rotate(&self, head: &mut [f32]) {
        let pairs = self.cosines.len();
        let angles = self.cosines.iter().zip(self.sines);
        let head = &mut head[..2 * pairs];
        match self.style {
            RopeStyle::Neox => {
                let (first, second) = head.split_at_mut(pairs);
                for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
            RopeStyle::Interleaved => {
                for (pair, (cos, sin)) in head.chunks_exact_mut(2).zip(angles) {
                    (pair[0], pair[1]) =
                        (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin);
                }
            }
        }
    }
}

/// Scales `head` by its root mean square and `gain`.
pub(super) fn rms_norm_head(head: &mut [f32], gain: &[f32], eps: f32) {
    let mean = head.iter().map(|x| x * x).sum::<f32>() / head.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for (x, gain) in head.iter_mut().zip(gain) {
        *x *= scale * gain;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotated(style: RopeStyle) -> Vec<f32> {
        let spec = RopeSpec {
            style,
            inv_freq: vec![1.0, 0.5],
            attention_factor: 1.0,
            max_positions: 8,
        };
        let mut head = vec![1.0, 2.0, 3.0, 4.0, 5.0];
        Rotations::new(&spec).rotate(&mut head, 3);
        head
    }

    #[test]
    fn pairs_follow_the_style_and_the_rest_stays() {
        let turn = |a: f32, b: f32, angle: f32| {
            (
                a * angle.cos() - b * angle.sin(),
                b * angle.cos() + a * angle.sin(),
            )
        };
        let neox = rotated(RopeStyle::Neox);
        assert!((neox[0] - turn(1.0, 3.0, 3.0).0).abs() < 1e-6);
        assert!((neox[3] - turn(2.0, 4.0, 1.5).1).abs() < 1e-6);
        let interleaved = rotated(RopeStyle::Interleaved);
        assert!((interleaved[1] - turn(1.0, 2.0, 3.0).1).abs() < 1e-6);
        assert!((interleaved[2] - turn(3.0, 4.0, 1.5).0).abs() < 1e-6);
        assert_eq!((neox[4], interleaved[4]), (5.0, 5.0));
    }
}

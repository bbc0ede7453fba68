//! Arrays of eight: what the compiler makes of them on any machine.

use half::bf16;

use super::Simd;

const LANES: usize = 8;

/// Needs nothing of the machine.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// Applies `$f` lane by lane. A macro, since closures are compiled apart from their kernel.
macro_rules! lanes {
    (|$i:ident| $value:expr) => {{
        let mut out = [0.0f32; LANES];
        let mut $i = 0;
        while $i < LANES {
            out[$i] = $value;
            $i += 1;
        }
        out
    }};
}

impl Simd for Portable {
    type V = [f32; LANES];
    type P = [u32; LANES];
    type I = [i32; LANES];
    type Q = [[u8; 4]; LANES];
    const LANES: usize = LANES;
    const ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32]) -> Self::V {
        let x = &x[..LANES];
        lanes!(|i| x[i])
    }

    #[inline(always)]
    fn store(self, v: Self::V, out: &mut [f32]) {
        out[..LANES].copy_from_slice(&v);
    }

    #[inline(always)]
    fn store_bf16(self, v: Self::V, out: &mut [bf16]) {
        for (out, x) in out[..LANES].iter_mut().zip(v) {
            *out = bf16::from_f32(x);
        }
    }

    #[inline(always)]
    fn load_pairs(self, x: &[bf16]) -> Self::P {
        let x = &x[..2 * LANES];
        let mut pairs = [0; LANES];
        for (i, pair) in pairs.iter_mut().enumerate() {
            *pair = u32::from(x[2 * i].to_bits()) | u32::from(x[2 * i + 1].to_bits()) << 16;
        }
        pairs
    }

    #[inline(always)]
    fn splat_pair(self, pair: u32) -> Self::P {
        [pair; LANES]
    }

    #[inline(always)]
    fn dot_pairs(self, acc: Self::V, a: Self::P, b: Self::P) -> Self::V {
        let low = lanes!(|i| acc[i] + f32::from_bits(a[i] << 16) * f32::from_bits(b[i] << 16));
        lanes!(|i| low[i] + f32::from_bits(a[i] & 0xffff_0000) * f32::from_bits(b[i] & 0xffff_0000))
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Not `mul_add`: without the instruction it is a slow library call.
        lanes!(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        lanes!(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }

    #[inline(always)]
    fn add_exponent(self, v: Self::V, n: Self::V) -> Self::V {
        lanes!(|i| f32::from_bits(v[i].to_bits().wrapping_add(n[i].to_bits() << 23)))
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }

    #[inline(always)]
    fn load_int(self, x: &[i32]) -> Self::I {
        let mut out = [0; LANES];
        out.copy_from_slice(&x[..LANES]);
        out
    }

    #[inline(always)]
    fn load_quads(self, x: &[i8]) -> Self::Q {
        let mut quads = [[0; 4]; LANES];
        for (quad, x) in quads.iter_mut().zip(x[..4 * LANES].as_chunks::<4>().0) {
            for (code, x) in quad.iter_mut().zip(x) {
                *code = x.cast_unsigned();
            }
        }
        quads
    }

    #[inline(always)]
    fn splat_quad(self, quad: u32) -> Self::Q {
        [quad.to_le_bytes(); LANES]
    }

    #[inline(always)]
    fn dot_quads(self, acc: Self::I, x: Self::Q, w: Self::Q) -> Self::I {
        let mut out = acc;
        for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
            for (x, w) in x.into_iter().zip(w) {
                *out += i32::from(x) * i32::from(w.cast_signed());
            }
        }
        out
    }

    #[inline(always)]
    fn int_to_f32(self, v: Self::I) -> Self::V {
        lanes!(|i| v[i] as f32)
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16]) -> Self::V {
        let x = &x[..LANES];
        lanes!(|i| x[i].to_f32())
    }

    #[inline(always)]
    fn max_magnitude(self, a: Self::V, b: Self::V) -> Self::V {
        // Without signs, floats are ordered as their bits are.
        const MAGNITUDE: u32 = 0x7fff_ffff;
        lanes!(|i| f32::from_bits((a[i].to_bits() & MAGNITUDE).max(b[i].to_bits() & MAGNITUDE)))
    }

    #[inline(always)]
    fn mix_lanes(self, v: Self::V) -> Self::V {
        let mut v = v;
        let mut distance = 1;
        while distance < LANES {
            // Lane i is `v[i ^ d] + v[i]`, or `v[i ^ d] - v[i]` where bit d of i is set.
            v = lanes!(|i| v[i ^ distance] + if i & distance == 0 { v[i] } else { -v[i] });
            distance *= 2;
        }
        v
    }

    #[inline(always)]
    fn store_codes(self, v: Self::V, out: &mut [u8]) {
        for (out, x) in out[..LANES].iter_mut().zip(v) {
            *out = (x.round_ties_even() as i32 + 128) as u8;
        }
    }

    // For attention.

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        lanes!(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn scale(self, v: Self::V, n: Self::V) -> Self::V {
        let scaled = lanes!(|i| f32::from_bits(
            v[i].to_bits()
                .wrapping_add((n[i] as i32).cast_unsigned() << 23)
        ));
        self.select_less(n, [-126.0; LANES], [0.0; LANES], scaled)
    }

    #[inline(always)]
    fn greatest(self, v: Self::V) -> f32 {
        let half = lanes!(|i| if v[i] > v[i ^ 4] { v[i] } else { v[i ^ 4] });
        let quarter = lanes!(|i| if half[i] > half[i ^ 2] {
            half[i]
        } else {
            half[i ^ 2]
        });
        if quarter[0] > quarter[1] {
            quarter[0]
        } else {
            quarter[1]
        }
    }
}

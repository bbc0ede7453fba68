//! The two number types of packed operands, f32 and bf16, behind one trait: each kernel is written once.

use half::bf16;

use super::packed_file::Plain;
use super::simd::Simd;

/// A number that products read, [`Element::PACK`] of them in a 32-bit lane.
pub(super) trait Element: Plain {
    /// The type's name.
    const NAME: &'static str;
    /// Whether [`Element::dot`] is a product of bf16.
    const IS_BF16: bool;
    /// Values in a lane: neighbours along the summed dimension.
    const PACK: usize;
    /// One vector of lanes.
    type Lanes<S: Simd>: Copy;

    /// Rounds from f32.
    fn from_f32(x: f32) -> Self;
    /// Widens to f32.
    fn to_f32(self) -> f32;
    /// Reads the first `PACK * LANES` values of `x`.
    fn load<S: Simd>(s: S, x: &[Self]) -> Self::Lanes<S>;
    /// Puts the `PACK` values of `x` in all lanes.
    fn splat<S: Simd>(s: S, x: &[Self]) -> Self::Lanes<S>;
    /// Returns `acc` plus the products of the lanes' values, in their order.
    fn dot<S: Simd>(s: S, acc: S::V, a: Self::Lanes<S>, b: Self::Lanes<S>) -> S::V;
    /// Returns the values as bf16, for a matrix unit. For the type whose [`Element::IS_BF16`] is true.
    fn bf16s(x: &[Self]) -> &[bf16];
    /// Rounds and writes the first `LANES` values of `out`.
    fn store<S: Simd>(s: S, v: S::V, out: &mut [Self]);
}

impl Element for f32 {
    const NAME: &'static str = "f32";
    const IS_BF16: bool = false;
    const PACK: usize = 1;
    type Lanes<S: Simd> = S::V;

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self]) -> Self::Lanes<S> {
        s.load(x)
    }

    #[inline(always)]
    fn splat<S: Simd>(s: S, x: &[Self]) -> Self::Lanes<S> {
        s.splat(x[0])
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, acc: S::V, a: Self::Lanes<S>, b: Self::Lanes<S>) -> S::V {
        s.fma(a, b, acc)
    }

    fn bf16s(_x: &[Self]) -> &[bf16] {
        unreachable!("matrix units do not multiply f32")
    }

    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::V, out: &mut [Self]) {
        s.store(v, out);
    }
}

impl Element for bf16 {
    const NAME: &'static str = "bf16";
    const IS_BF16: bool = true;
    const PACK: usize = 2;
    type Lanes<S: Simd> = S::P;

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self]) -> Self::Lanes<S> {
        s.load_pairs(x)
    }

    #[inline(always)]
    fn splat<S: Simd>(s: S, x: &[Self]) -> Self::Lanes<S> {
        s.splat_pair(u32::from(x[0].to_bits()) | u32::from(x[1].to_bits()) << 16)
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, acc: S::V, a: Self::Lanes<S>, b: Self::Lanes<S>) -> S::V {
        s.dot_pairs(acc, a, b)
    }

    #[inline(always)]
    fn bf16s(x: &[Self]) -> &[bf16] {
        x
    }

    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::V, out: &mut [Self]) {
        s.store_bf16(v, out);
    }
}

//! Instruction sets, and how a kernel runs on one of them.

use super::simd::{self, Simd};

/// An instruction set that the kernels are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the compiler's target has; every machine.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL; bf16 and 8-bit integers are widened.
    Avx512,
    /// AVX-512 with `VPDPBUSD`; bf16 is widened.
    Avx512Vnni,
    /// AVX-512 with `VPDPBUSD` and `VDPBF16PS`.
    Avx512Bf16,
    /// The same with AMX: `TDPBUSD` and `TDPBF16PS` multiply whole tiles.
    Amx,
}

impl Isa {
    /// All, the slowest first.
    pub const ALL: [Isa; 6] = [
        Isa::Portable,
        Isa::Avx2,
        Isa::Avx512,
        Isa::Avx512Vnni,
        Isa::Avx512Bf16,
        Isa::Amx,
    ];

    /// Returns the best that this machine has.
    pub fn detect() -> Self {
        let best = Self::ALL.into_iter().rev().find(|isa| isa.is_available());
        best.unwrap_or(Isa::Portable)
    }

    /// Returns whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Avx2 => simd::has_avx2(),
            Isa::Avx512 => simd::has_avx512(),
            Isa::Avx512Vnni => simd::has_avx512_vnni(),
            Isa::Avx512Bf16 => simd::has_avx512_bf16(),
            Isa::Amx => simd::has_amx(),
        }
    }

    /// Returns its name in fingerprints.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512vnni",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        }
    }

    /// Runs `kernel`, compiled for this instruction set.
    #[inline]
    pub(super) fn run(self, kernel: impl Kernel) {
        simd::run(self, kernel);
    }
}

/// Work that is compiled once for each instruction set.
///
/// `run` and all that it calls must be `#[inline(always)]` and free of closures: only code that ends up
/// inside [`Isa::run`]'s entry points is compiled with the instruction set.
pub(super) trait Kernel {
    /// Whether it has products of 8-bit integers. A kernel that has none is not built for instruction sets that
    /// differ in these alone.
    const HAS_INT8: bool = false;
    /// Whether it has products of bf16, or rounds to it; as [`Kernel::HAS_INT8`].
    const HAS_BF16: bool = false;
    /// Whether it multiplies by a matrix unit; as [`Kernel::HAS_INT8`].
    const HAS_TILES: bool = false;

    /// Does the work.
    fn run<S: Simd>(self, simd: S);
}

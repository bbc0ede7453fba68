// Products of bf16 operands, f32 sums.
//
// Shapes, geometry, bounds and tolerance: gemm.cuh. Reference: `linear` in scalar/forward.rs.
#include "gemm.cuh"

GEMM(bf16, Bf16)

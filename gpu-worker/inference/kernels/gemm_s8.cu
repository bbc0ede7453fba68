// Products of int8 operands, i32 sums, one scale a row of x and one a row of w.
//
// Shapes, geometry, bounds and tolerance: gemm.cuh. Reference: `linear` in scalar/forward.rs.
#include "gemm.cuh"

GEMM(s8, S8)

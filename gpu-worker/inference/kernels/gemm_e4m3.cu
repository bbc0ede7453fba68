// Products of 8-bit floats, f32 sums, scales by row and channel or by 128 x 128 block.
//
// Shapes, geometry, bounds and tolerance: gemm.cuh. Reference: `linear` in scalar/forward.rs.
#include "gemm.cuh"

GEMM(e4m3, E4m3)

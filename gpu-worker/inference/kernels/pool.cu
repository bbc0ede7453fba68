// One row for each sequence: mean, first or last of its rows, cut to `dimensions`, scaled to length one if asked for.
//
// Shapes: x [R, ldx] f32, out [sequences, ldo] f32. Geometry: one block of 256 threads a sequence, the row in
// 4 * cols bytes of dynamic shared memory. Reference: `pool_rows` in scalar/forward.rs. Bound by reading x.
// Tolerance: the length is summed in another order, 1e-6.
#include "prims.cuh"

KERNEL(256)
pool(float *out, u32 ldo, const float *x, u32 ldx, const u32 *sequences, const u32 *counters, u32 cols, u32 dimensions,
     u32 kind, u32 l2) {
  DYNAMIC_SHARED(float, row);
  __shared__ float parts[8];
  if (blockIdx.x >= counters[1]) return;
  u32 start = sequences[4 * blockIdx.x + 1], len = sequences[4 * blockIdx.x + 2];
  if (len == 0) return;
  u32 first = kind == 2 ? start + len - 1 : start, end = kind == 0 ? start + len : first + 1;
  u32 kept = min_of(cols, dimensions);
  float squares = 0;
  for (u32 i = threadIdx.x; i < kept; i += blockDim.x) {
    float sum = x[(u64)first * ldx + i];
    for (u32 r = first + 1; r < end; r++) sum += x[(u64)r * ldx + i];
    float value = kind == 0 ? sum / (float)len : sum;
    row[i] = value;
    squares += value * value;
  }
  float length = l2 ? fmaxf(sqrtf(block_sum(squares, parts)), 1e-12f) : 1.0f;
  for (u32 i = threadIdx.x; i < kept; i += blockDim.x) out[(u64)blockIdx.x * ldo + i] = l2 ? row[i] / length : row[i];
}

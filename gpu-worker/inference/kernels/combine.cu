// Adds the products of a row's experts.
//
// out[row] = sum over i, in order, of weights[row, i] * products[row * top_k + i]. Grid (R).
// Reference: the `Down` half of `linear_experts` in scalar/experts.rs. Bound by reading the products.
#include "prims.cuh"

KERNEL(128)
combine_experts(float *out, u32 ldo, const float *products, u32 ldp, const float *weights, const u32 *counters, u32 cols,
                u32 top_k) {
  u32 row = blockIdx.x;
  if (row >= counters[0]) return;
  for (u32 col = threadIdx.x; col < cols; col += blockDim.x) {
    float sum = 0;
    for (u32 i = 0; i < top_k; i++) {
      u64 pair = (u64)row * top_k + i;
      sum += weights[pair] * products[pair * ldp + col];
    }
    out[(u64)row * ldo + col] = sum;
  }
}

// Gathers embedding rows: out [R, ldo] f32, tables bf16.
//
// Geometry: one block of 128 threads a row, two values a thread.
// Reference: `embed` in scalar/forward.rs. Bound by memory: 2 bytes read and 4 written a value. Exact but for the
// rounding of the scale's product.
#include "prims.cuh"

KERNEL(128)
embed(float *out, u32 ldo, const u16 *table, u32 ldt, const u16 *position_table, u32 ldp, const u16 *type_table, u32 ldy,
      const u32 *tokens, const u32 *positions, const u32 *token_types, u32 cols, float scale) {
  u32 row = blockIdx.x;
  const u16 *from = table + (u64)tokens[row] * ldt;
  const u16 *position = position_table ? position_table + (u64)positions[row] * ldp : nullptr;
  const u16 *type = type_table ? type_table + (u64)(token_types ? token_types[row] : 0) * ldy : nullptr;
  float *to = out + (u64)row * ldo;
  for (u32 i = threadIdx.x; i < cols; i += blockDim.x) {
    float x = __fmul_rn(f32_of_bf16(from[i]), scale);
    if (position) x += f32_of_bf16(position[i]);
    if (type) x += f32_of_bf16(type[i]);
    to[i] = x;
  }
}

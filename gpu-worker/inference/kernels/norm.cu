// Norms of residual rows, and rows in 8 bits.
//
// Geometry: one block of 256 threads a row; `norm` keeps the row in 4 * cols bytes of dynamic shared memory.
// Reference: `norm` in scalar/forward.rs. Bound by memory: 4 bytes read (12 with an addend) and the output's written
// a value. Tolerance: sums in another order, 1e-6 of the row's norm; then the output type's rounding.
#include "args.cuh"

// Returns the scale of values whose greatest magnitude is `max`: NaN where one is not finite.
DEVICE float scale_of(float max, u32 out_type) {
  if (!is_finite(max)) return NAN_F;
  return max == 0.0f ? 1.0f : max / (out_type == OUT_S8 ? 127.0f : 448.0f);
}

DEVICE u8 narrow(float x, float scale, u32 out_type) {
  float y = x / scale;
  if (out_type == OUT_E4M3) return e4m3_of(y);
  return (u8)(signed char)(y == y ? rintf(fminf(fmaxf(y, -127.0f), 127.0f)) : 0.0f);
}

// Greatest magnitude, infinite where a value is NaN: fmaxf alone would lose it.
DEVICE float magnitude(float x) { return x == x ? fabsf(x) : INFINITY_F; }

// Writes `row` (shared memory, complete) as 8-bit values with one scale for each `block` columns.
DEVICE void write_narrow(const float *row, u8 *out, float *scales, u32 cols, u32 out_type, u32 block, float *parts) {
  if (block == 0) {
    float max = 0;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) max = fmaxf(max, magnitude(row[i]));
    float scale = scale_of(block_max(max, parts), out_type);
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) out[i] = narrow(row[i], scale, out_type);
    if (threadIdx.x == 0) scales[0] = scale;
    return;
  }
  // A warp takes block after block of columns.
  for (u32 first = warp_id() * block; first < cols; first += blockDim.x / 32 * block) {
    u32 end = min_of(cols, first + block);
    float max = 0;
    for (u32 i = first + lane_id(); i < end; i += 32) max = fmaxf(max, magnitude(row[i]));
    float scale = scale_of(warp_max(max), out_type);
    for (u32 i = first + lane_id(); i < end; i += 32) out[i] = narrow(row[i], scale, out_type);
    if (lane_id() == 0) scales[first / block] = scale;
  }
}

DEVICE u32 scales_in_row(u32 cols, u32 block) { return block ? (cols + block - 1) / block : 1; }

KERNEL(256) norm_rows(NormArgs a) {
  DYNAMIC_SHARED(float, row);
  __shared__ float parts[8];
  float *x = a.x + (u64)blockIdx.x * a.ldx;
  const float *add = a.add ? a.add + (u64)blockIdx.x * a.lda : nullptr;
  float sum = 0;
  for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
    float value = x[i];
    if (add) x[i] = value = value + add[i];
    row[i] = value;
    sum += value;
  }
  // Each thread reads only what it wrote, until the sums have passed the barriers.
  float mean = a.kind == 1 ? block_sum(sum, parts) / (float)a.cols : 0.0f;
  float squares = 0;
  for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
    float centred = row[i] - mean;
    squares += centred * centred;
  }
  float scale = 1.0f / sqrtf(block_sum(squares, parts) / (float)a.cols + a.eps);
  u64 at = (u64)blockIdx.x * a.ldo;
  for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
    float gain = a.plus_one ? 1.0f + a.gain[i] : a.gain[i];
    float y = (row[i] - mean) * scale * gain + (a.bias ? a.bias[i] : 0.0f);
    if (a.out_type == OUT_F32) ((float *)a.out)[at + i] = y;
    else if (a.out_type == OUT_BF16) ((u16 *)a.out)[at + i] = bf16_of(y);
    else row[i] = y;
  }
  if (a.out_type >= OUT_S8) {
    __syncthreads();
    float *scales = a.out_scale + (u64)blockIdx.x * scales_in_row(a.cols, a.block);
    write_narrow(row, (u8 *)a.out + at, scales, a.cols, a.out_type, a.block, parts);
  }
}

// bf16 rows [rows, ldx] to 8 bits (or f32). Dynamic shared memory 4 * cols bytes.
KERNEL(256)
quantize_rows(const u16 *x, u32 ldx, void *out, u32 ldo, float *out_scale, u32 cols, u32 out_type, u32 block) {
  DYNAMIC_SHARED(float, row);
  __shared__ float parts[8];
  const u16 *from = x + (u64)blockIdx.x * ldx;
  u64 at = (u64)blockIdx.x * ldo;
  for (u32 i = threadIdx.x; i < cols; i += blockDim.x) {
    row[i] = f32_of_bf16(from[i]);
    if (out_type == OUT_F32) ((float *)out)[at + i] = row[i];
  }
  if (out_type < OUT_S8) return;
  __syncthreads();
  float *scales = out_scale + (u64)blockIdx.x * scales_in_row(cols, block);
  write_narrow(row, (u8 *)out + at, scales, cols, out_type, block, parts);
}

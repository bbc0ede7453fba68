// Norms and rotates the heads of projected rows, and writes keys and values to their pages.
//
// Shapes: qkv bf16 [R, ldq]; pools [pages, kv_heads, 16, dkp | dvp] in bf16 or e4m3, padding written as zeros.
// Geometry: one block of 128 threads a row; a warp takes head after head, the head in registers and shuffles only
// for the norm's sum. Reference: `rope_store` in scalar/attention.rs.
// Bound by memory: each row read once and written once. Tolerance: one rounding to bf16 (or e4m3) of f32 arithmetic.
#include "args.cuh"

#define PAGE_TOKENS 16
// The longest head: 576 values of a latent and its rotated part.
#define HEAD_MAX 576

// Where a head goes in its pool: the row of `slot`, `padded` values long.
DEVICE u64 pool_at(u32 slot, u32 head, u32 heads, u32 padded) {
  return ((u64)(slot / PAGE_TOKENS) * heads + head) * PAGE_TOKENS * padded + (u64)(slot % PAGE_TOKENS) * padded;
}

DEVICE void store(void *pool, u64 at, float x, float scale, u32 fp8) {
  if (fp8) ((u8 *)pool)[at] = e4m3_of(x / scale);
  else ((u16 *)pool)[at] = bf16_of(x);
}

KERNEL(128) rope_store(RopeArgs a) {
  __shared__ float heads[4][HEAD_MAX];
  float *head = heads[warp_id()];
  u32 row = blockIdx.x, lane = lane_id();
  u16 *qkv = a.qkv + (u64)row * a.ldq;
  u32 slot = a.k_pool ? a.write_slots[row] : 0xffffffffu;
  const float *cosines = a.cosines + (u64)a.positions[row] * a.pairs;
  const float *sines = a.sines + (u64)a.positions[row] * a.pairs;
  for (u32 h = warp_id(); h < a.q_heads + a.kv_heads; h += blockDim.x / 32) {
    bool is_key = h >= a.q_heads;
    u16 *from = qkv + h * a.dk;
    const float *gain = is_key ? a.k_gain : a.q_gain;
    u32 normed = is_key ? a.k_gain_len : a.q_gain_len;
    float sum = 0;
    for (u32 i = lane; i < a.dk; i += 32) {
      float x = f32_of_bf16(from[i]);
      head[i] = x;
      if (i < normed) sum += x * x;
    }
    if (gain) {
      float scale = 1.0f / sqrtf(warp_sum(sum) / (float)normed + (is_key ? a.k_eps : a.q_eps));
      for (u32 i = lane; i < normed; i += 32) head[i] *= scale * gain[i];
    }
    __syncwarp();
    if (a.cosines) {
      float *rotated = head + (a.latent ? a.dk - 2 * a.pairs : 0);
      for (u32 i = lane; i < a.pairs; i += 32) {
        u32 first = a.style ? 2 * i : i, second = a.style ? 2 * i + 1 : a.pairs + i;
        float x = rotated[first], y = rotated[second];
        rotated[first] = x * cosines[i] - y * sines[i];
        rotated[second] = y * cosines[i] + x * sines[i];
      }
    }
    __syncwarp();
    for (u32 i = lane; i < a.dk; i += 32) from[i] = bf16_of(head[i]);
    if (is_key && slot != 0xffffffffu) {
      u32 padded = round_up(a.dk, 16);
      u64 to = pool_at(slot, h - a.q_heads, a.kv_heads, padded);
      for (u32 i = lane; i < padded; i += 32) store(a.k_pool, to + i, i < a.dk ? head[i] : 0.0f, a.k_scale, a.fp8);
    }
    __syncwarp();
  }
  if (!a.v_pool || slot == 0xffffffffu) return;
  u32 padded = round_up(a.dv, 16);
  const u16 *values = qkv + (a.q_heads + a.kv_heads) * a.dk;
  for (u32 h = warp_id(); h < a.kv_heads; h += blockDim.x / 32) {
    u64 to = pool_at(slot, h, a.kv_heads, padded);
    for (u32 i = lane; i < padded; i += 32) {
      float x = i < a.dv ? f32_of_bf16(values[h * a.dv + i]) : 0.0f;
      store(a.v_pool, to + i, x, a.v_scale, a.fp8);
    }
  }
}

// What kernels are made of: number formats as raw bits, matrix units, asynchronous copies, reductions.
//
// The one file with two bodies: PTX for the GPU, plain C++ where CUDA_SHIM is defined.
// Source of fragment layouts: PTX ISA, "Warp level matrix multiply-accumulate instructions".
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
// One block a multiprocessor is enough: without the 1 the compiler spills to fit two.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define ALL_LANES 0xffffffffu
#define INFINITY_F __uint_as_float(0x7f800000u)
#define NAN_F __uint_as_float(0x7fc00000u)

// ---- Two bodies. ----

#ifndef CUDA_SHIM

#define DYNAMIC_SHARED(T, name)                    \
  extern __shared__ __align__(16) u8 name##_raw[]; \
  T *name = (T *)name##_raw

DEVICE u16 bf16_of(float x) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

// Packs two values; `low` goes to the low half.
DEVICE u32 bf16x2_of(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

DEVICE float exp2_fast(float x) {
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// d[16, 8] += a[16, 16] b[16, 8], bf16 operands.
DEVICE void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d[16, 8] += a[16, 32] b[32, 8], int8 operands.
DEVICE void mma_s8(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 tiles of 16-bit values: lane `8 t + r` gives the address of row `r` of tile `t`.
DEVICE void ldmatrix(u32 (&r)[4], const void *row) {
  u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// As ldmatrix, each tile transposed.
DEVICE void ldmatrix_transposed(u32 (&r)[4], const void *row) {
  u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// Copies 16 bytes to shared memory, the first `bytes` from `from`, the rest zeros; reads no more than `bytes`.
DEVICE void copy_async(void *to, const void *from, u32 bytes) {
  u32 at = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}

DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `Open` of this thread's committed groups are under way.
template <int Open>
DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Open) : "memory");
}

#else

#define DYNAMIC_SHARED(T, name) T *name = (T *)shim::dynamic_shared()

inline u16 bf16_of(float x) {
  u32 u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return u16((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

inline u32 bf16x2_of(float low, float high) { return u32(bf16_of(low)) | u32(bf16_of(high)) << 16; }

inline float exp2_fast(float x) { return exp2f(x); }

namespace shim {

template <class D>
struct Product {
  D *d;
  const u32 *a;
  u32 b[2];
};

// Unpacks the fragments of a warp, multiplies, and adds; `Bits` wide values, K of them.
template <class D, int K, class Read>
void multiply(void **lanes, Read read) {
  constexpr int PER_WORD = K / 8;
  D a[16][K], b[8][K];
  for (int lane = 0; lane < 32; lane++) {
    auto &p = *(Product<D> *)lanes[lane];
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < PER_WORD; i++) {
      for (int r = 0; r < 4; r++) a[g + 8 * (r & 1)][(r >> 1) * (K / 2) + t * PER_WORD + i] = read(p.a[r], i);
      for (int r = 0; r < 2; r++) b[g][r * (K / 2) + t * PER_WORD + i] = read(p.b[r], i);
    }
  }
  for (int lane = 0; lane < 32; lane++) {
    auto &p = *(Product<D> *)lanes[lane];
    int g = lane / 4, t = lane % 4;
    for (int e = 0; e < 4; e++) {
      D sum = p.d[e];
      for (int k = 0; k < K; k++) sum += a[g + 8 * (e >> 1)][k] * b[2 * t + (e & 1)][k];
      p.d[e] = sum;
    }
  }
}

inline void load_tiles(void **lanes, bool transposed) {
  struct Load { u32 *r; const void *row; };
  for (int lane = 0; lane < 32; lane++) {
    auto &own = *(Load *)lanes[lane];
    for (int tile = 0; tile < 4; tile++) {
      auto row = [&](int r) { return (const u16 *)((Load *)lanes[8 * tile + r])->row; };
      int g = lane / 4, t = lane % 4;
      own.r[tile] = transposed ? u32(row(2 * t)[g]) | u32(row(2 * t + 1)[g]) << 16
                               : u32(row(g)[2 * t]) | u32(row(g)[2 * t + 1]) << 16;
    }
  }
}

}  // namespace shim

inline void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  shim::Product<float> own{d, a, {b0, b1}};
  shim::collective(ALL_LANES, &own, [](void **lanes, unsigned) {
    shim::multiply<float, 16>(lanes, [](u32 word, int i) { return __uint_as_float(i ? word & 0xffff0000u : word << 16); });
  });
}

inline void mma_s8(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  shim::Product<int> own{d, a, {b0, b1}};
  shim::collective(ALL_LANES, &own, [](void **lanes, unsigned) {
    shim::multiply<int, 32>(lanes, [](u32 word, int i) { return int((signed char)(word >> 8 * i)); });
  });
}

inline void ldmatrix(u32 (&r)[4], const void *row) {
  struct { u32 *r; const void *row; } own{r, row};
  shim::require_aligned(row, 16);
  shim::collective(ALL_LANES, &own, [](void **lanes, unsigned) { shim::load_tiles(lanes, false); });
}

inline void ldmatrix_transposed(u32 (&r)[4], const void *row) {
  struct { u32 *r; const void *row; } own{r, row};
  shim::require_aligned(row, 16);
  shim::collective(ALL_LANES, &own, [](void **lanes, unsigned) { shim::load_tiles(lanes, true); });
}

inline void copy_async(void *to, const void *from, u32 bytes) { shim::copy_start(to, from, bytes); }
inline void copy_commit() { shim::copy_commit(); }
template <int Open>
void copy_wait() { shim::copy_wait(Open); }

#endif

// ---- One body. ----

DEVICE float f32_of_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
DEVICE float f32_of_low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float f32_of_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

DEVICE u32 min_of(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 max_of(u32 a, u32 b) { return a > b ? a : b; }
DEVICE u32 round_up(u32 x, u32 unit) { return (x + unit - 1) / unit * unit; }
DEVICE u32 lane_id() { return threadIdx.x & 31; }
DEVICE u32 warp_id() { return threadIdx.x >> 5; }

DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// The 8-bit float e4m3: its bits sit 120 binades low in an f32.
DEVICE float f32_of_e4m3(u8 x) {
  float y = __uint_as_float(((u32)x & 0x80) << 24 | ((u32)x & 0x7f) << 20) * 0x1p120f;
  return (x & 0x7f) == 0x7f ? NAN_F : y;
}

// Rounds to nearest, ties to even; what is greater than 448 becomes 448.
DEVICE u8 e4m3_of(float x) {
#if !defined(CUDA_SHIM) && __CUDA_ARCH__ >= 890
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return (u8)pair;
#else
  u32 sign = __float_as_uint(x) >> 24 & 0x80;
  float a = fabsf(x);
  if (!(a <= 448.0f)) return a != a ? 0x7f : sign | 0x7e;
  if (a < 0x1p-6f) return sign | (u32)rintf(a * 512.0f);
  u32 bits = __float_as_uint(a);
  bits += 0x7ffff + (bits >> 20 & 1);
  return sign | ((bits >> 20) - (120 << 3));
#endif
}

// Two e4m3 values as two bf16: both formats hold them exactly.
DEVICE u32 bf16x2_of_e4m3(u32 low, u32 high) { return bf16x2_of(f32_of_e4m3((u8)low), f32_of_e4m3((u8)high)); }

// d[16, 8] += a[16, 32] b[32, 8], e4m3 operands. Without an fp8 unit they are widened: the order of K within a
// fragment is free as long as both operands share it.
DEVICE void mma_e4m3(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if !defined(CUDA_SHIM) && __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  u32 b[2] = {b0, b1};
  for (int half = 0; half < 2; half++) {
    u32 wide[4];
    for (int i = 0; i < 2; i++) {
      u32 word = a[2 * half + i];
      wide[i] = bf16x2_of_e4m3(word & 0xff, word >> 8 & 0xff);
      wide[2 + i] = bf16x2_of_e4m3(word >> 16 & 0xff, word >> 24);
    }
    u32 word = b[half];
    mma_bf16(d, wide, bf16x2_of_e4m3(word & 0xff, word >> 8 & 0xff), bf16x2_of_e4m3(word >> 16 & 0xff, word >> 24));
  }
#endif
}

// As copy_async, from an address that need not be aligned.
DEVICE void copy_any(void *to, const void *from, u32 bytes) {
  if (((u64)from & 15) == 0) {
    copy_async(to, from, bytes);
  } else {
    for (u32 i = 0; i < 16; i++) ((u8 *)to)[i] = i < bytes ? ((const u8 *)from)[i] : 0;
  }
}

DEVICE float warp_sum(float x) {
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(ALL_LANES, x, o);
  return x;
}

DEVICE float warp_max(float x) {
  for (int o = 16; o; o >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, o));
  return x;
}

// Sum over the block, in one order. `parts` holds a float for each warp, and may be used again after a barrier.
DEVICE float block_sum(float x, float *parts) {
  x = warp_sum(x);
  __syncthreads();
  if (lane_id() == 0) parts[warp_id()] = x;
  __syncthreads();
  float sum = 0;
  for (u32 i = 0; i < blockDim.x / 32; i++) sum += parts[i];
  return sum;
}

// Greatest of the block; NaN only if all are.
DEVICE float block_max(float x, float *parts) {
  x = warp_max(x);
  __syncthreads();
  if (lane_id() == 0) parts[warp_id()] = x;
  __syncthreads();
  float max = parts[0];
  for (u32 i = 1; i < blockDim.x / 32; i++) max = fmaxf(max, parts[i]);
  return max;
}

// Element-wise functions; the reference is activation.rs.
enum Act { ACT_NONE, ACT_SILU, ACT_GELU_TANH, ACT_GELU_ERF, ACT_CLAMPED };

DEVICE float activate(u32 act, float x, float alpha, float limit) {
  switch (act) {
    case ACT_SILU: return x / (1.0f + expf(-x));
    case ACT_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    case ACT_GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
    case ACT_CLAMPED: {
      float y = x > limit ? limit : x;
      return y / (1.0f + expf(-alpha * y));
    }
    default: return x;
  }
}

DEVICE float gated(u32 act, float gate, float up, float alpha, float limit) {
  if (act == ACT_CLAMPED) up = (up > limit ? limit : up < -limit ? -limit : up) + 1.0f;
  return activate(act, gate, alpha, limit) * up;
}

// How typed rows are written.
enum Out { OUT_F32, OUT_BF16, OUT_S8, OUT_E4M3 };

// Products with weights: out[M, N] = epilogue(x[M, K] w[N, K]^T), in bf16, int8 and e4m3.
//
// Geometry: a block computes a BM x BN tile, K in steps of 128 bytes through a pipeline of asynchronous copies.
// Every tile shape adds K in the same order, so a row has the same bits in all of them: no split of K.
// Reference: `linear`, `linear_heads` in scalar/forward.rs; `linear_experts` in scalar/experts.rs.
// Bound by the weights' bytes below about 250 rows (sm_90), by the matrix unit above.
// Tolerance: f32 sums of exact products in another order, 1e-6 of the sum of magnitudes; int8 sums are exact.
#pragma once
#include "args.cuh"

enum Epilogue { EPILOGUE_NONE, EPILOGUE_RESIDUAL, EPILOGUE_GATED, EPILOGUE_ACT, EPILOGUE_SOFTCAP };

// Bytes of K in a pipeline step; rows in shared memory are 16 bytes longer, which spreads them over the banks.
#define STEP_BYTES 128
#define ROW_BYTES (STEP_BYTES + 16)
#define CHUNKS (STEP_BYTES / 16)
// Rows of tiles that run side by side, so that they share the weights in the L2 cache.
#define SWIZZLE_ROWS 8

struct Bf16 {
  typedef float Sum;
  static const u32 BYTES = 2;
  static const bool PROMOTES = false;
  static DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16(d, a, b0, b1); }
};
struct S8 {
  typedef int Sum;
  static const u32 BYTES = 1;
  static const bool PROMOTES = false;
  static DEVICE void mma(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_s8(d, a, b0, b1); }
};
struct E4m3 {
  typedef float Sum;
  static const u32 BYTES = 1;
  // The unit adds in few bits: sums move to f32 after each step, which is where blocks of 128 have their scale.
  static const bool PROMOTES = true;
  static DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_e4m3(d, a, b0, b1); }
};

// Which part of the product a block computes.
struct Tile {
  u32 stack;       // head or expert
  u32 row, rows;   // first product row, and how many there are from it on
  u32 col;         // first column of the output (gated) or weight row
};

// A product row's row of x and of out.
struct RowMap {
  const u32 *pairs;
  const u32 *x_rows;
  u32 x_div;
  DEVICE u32 out(u32 row) const { return pairs ? pairs[row] : row; }
  DEVICE u32 x(u32 row) const {
    if (pairs) return pairs[row] / x_div;
    return x_rows ? x_rows[row] : row;
  }
};

template <u32 BN>
DEVICE u32 weight_row(const GemmArgs &a, const Tile &tile, u32 j, bool &valid) {
  if (a.epilogue != EPILOGUE_GATED) {
    u32 row = tile.col + j;
    valid = row < a.n;
    return row;
  }
  // Gate and up rows alternate by eights: one thread holds both sums of an output.
  u32 half = a.n / 2, col = tile.col + j / 16 * 8 + j % 8;
  valid = col < half;
  return j / 8 % 2 * half + col;
}

// Floats from row to row of a tile of sums: 8 more than a row, which spreads float2 writes over the banks.
#define SUMS_STRIDE(BN) ((BN) + 8)

// A product with its scales and bias, for weight row `col`.
DEVICE float product_of(const GemmArgs &a, u32 stack, float sum, float x_scale, u32 col) {
  u32 row = stack * a.n + col;
  if (a.w_scale && !a.scale_block) sum *= x_scale * a.w_scale[row];
  return a.bias ? sum + a.bias[row] : sum;
}

// The output value of column `at` of a tile of sums.
DEVICE float finish(const GemmArgs &a, const Tile &tile, const float *row, u32 at, float x_scale) {
  u32 col = tile.col + at;
  if (a.epilogue == EPILOGUE_GATED) {
    u32 place = at / 8 * 16 + at % 8;
    float gate = product_of(a, tile.stack, row[place], x_scale, col);
    return gated(a.act, gate, product_of(a, tile.stack, row[place + 8], x_scale, a.n / 2 + col), a.p0, a.p1);
  }
  float value = product_of(a, tile.stack, row[at], x_scale, col);
  if (a.epilogue == EPILOGUE_ACT) return activate(a.act, value, a.p0, a.p1);
  if (a.epilogue == EPILOGUE_SOFTCAP) return a.p0 * tanhf(value / a.p0);
  return value;
}

// Writes a tile of sums, two columns a thread.
template <u32 BM, u32 BN, u32 THREADS>
DEVICE void write_tile(const GemmArgs &a, const Tile &tile, const RowMap &map, const float *sums) {
  bool is_gated = a.epilogue == EPILOGUE_GATED;
  u32 width = is_gated ? BN / 2 : BN, cols = is_gated ? a.n / 2 : a.n;
  u32 rows = min_of(BM, tile.rows);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < rows * width / 2; i += THREADS) {
    u32 row = i / (width / 2), at = i % (width / 2) * 2, col = tile.col + at;
    if (col >= cols) continue;
    float x_scale = a.x_scale && !a.scale_block ? a.x_scale[map.x(tile.row + row)] : 1.0f;
    float values[2] = {0.0f, 0.0f};
    u32 count = min_of(2, cols - col);
#pragma unroll 1
    for (u32 c = 0; c < count; c++) values[c] = finish(a, tile, sums + row * SUMS_STRIDE(BN), at + c, x_scale);
    u64 to = (u64)map.out(tile.row + row) * a.ldo + tile.stack * a.out_stack + col;
    bool together = count == 2 && (to & 1) == 0;
    if (a.out_type == OUT_BF16) {
      u16 *out = (u16 *)a.out + to;
      if (together) {
        *(u32 *)out = bf16x2_of(values[0], values[1]);
      } else {
        out[0] = bf16_of(values[0]);
        if (count == 2) out[1] = bf16_of(values[1]);
      }
      continue;
    }
    float *out = (float *)a.out + to;
    bool adds = a.epilogue == EPILOGUE_RESIDUAL;
    if (together) {
      float2 before = adds ? *(const float2 *)out : make_float2(0.0f, 0.0f);
      *(float2 *)out = adds ? make_float2(before.x + values[0], before.y + values[1]) : make_float2(values[0], values[1]);
    } else {
      for (u32 c = 0; c < count; c++) out[c] = adds ? out[c] + values[c] : values[c];
    }
  }
}

template <class Kind, u32 BM, u32 BN, u32 WARPS_M, u32 WARPS_N, u32 STAGES>
DEVICE void multiply_tile(const GemmArgs &a, const Tile &tile, const RowMap &map, u8 *shared) {
  const u32 THREADS = 32 * WARPS_M * WARPS_N, STAGE_BYTES = (BM + BN) * ROW_BYTES;
  const u32 TILES_M = BM / WARPS_M / 16, TILES_N = BN / WARPS_N / 8;
  const u32 X_COPIES = BM * CHUNKS / THREADS, W_COPIES = BN * CHUNKS / THREADS;
  const u32 lane = lane_id(), warp_m = warp_id() / WARPS_N, warp_n = warp_id() % WARPS_N;
  const u32 row_bytes = a.k * Kind::BYTES, steps = (row_bytes + STEP_BYTES - 1) / STEP_BYTES;

  // Each thread copies the same chunk column of the same rows in every step.
  const u32 chunk = threadIdx.x % CHUNKS, first_row = threadIdx.x / CHUNKS;
  const u8 *x_from[X_COPIES], *w_from[W_COPIES];
  for (u32 i = 0; i < X_COPIES; i++) {
    u32 row = first_row + i * (THREADS / CHUNKS);
    x_from[i] = nullptr;
    if (row < tile.rows)
      x_from[i] = (const u8 *)a.x + ((u64)map.x(tile.row + row) * a.ldx + tile.stack * a.x_stack) * Kind::BYTES + chunk * 16;
  }
  const u8 *w = (const u8 *)a.w + (u64)tile.stack * a.n * a.ldw * Kind::BYTES + chunk * 16;
  for (u32 i = 0; i < W_COPIES; i++) {
    bool valid;
    u32 row = weight_row<BN>(a, tile, first_row + i * (THREADS / CHUNKS), valid);
    w_from[i] = valid ? w + (u64)row * a.ldw * Kind::BYTES : nullptr;
  }
  auto load = [&](u32 step) {
    u8 *stage = shared + step % STAGES * STAGE_BYTES + first_row * ROW_BYTES + chunk * 16;
    u32 at = step * STEP_BYTES, past = at + chunk * 16;
    u32 bytes = past < row_bytes ? min_of(16, row_bytes - past) : 0;
#pragma unroll
    for (u32 i = 0; i < X_COPIES; i++) {
      u32 valid = x_from[i] ? bytes : 0;
      copy_any(stage + i * (THREADS / CHUNKS) * ROW_BYTES, valid ? x_from[i] + at : (const u8 *)a.w, valid);
    }
    stage += BM * ROW_BYTES;
#pragma unroll
    for (u32 i = 0; i < W_COPIES; i++) {
      u32 valid = w_from[i] ? bytes : 0;
      copy_async(stage + i * (THREADS / CHUNKS) * ROW_BYTES, valid ? w_from[i] + at : (const u8 *)a.w, valid);
    }
  };

  typename Kind::Sum sums[TILES_M][TILES_N][4];
  float totals[Kind::PROMOTES ? TILES_M : 1][Kind::PROMOTES ? TILES_N : 1][4];
#pragma unroll
  for (u32 i = 0; i < TILES_M; i++)
#pragma unroll
    for (u32 j = 0; j < TILES_N; j++)
#pragma unroll
      for (u32 e = 0; e < 4; e++) {
        sums[i][j][e] = 0;
        if (Kind::PROMOTES) totals[i][j][e] = 0;
      }

  auto product_row = [&](u32 i, u32 e) { return (warp_m * TILES_M + i) * 16 + lane / 4 + (e >> 1) * 8; };
  auto tile_col = [&](u32 j, u32 e) { return (warp_n * TILES_N + j) * 8 + lane % 4 * 2 + (e & 1); };
  // Where the scales of a step are: those of a thread's rows of x, and of the gate's and the up rows of w.
  const u32 k_blocks = (a.k + 127) / 128;
  u32 x_scales[Kind::PROMOTES ? TILES_M : 1][2], w_scales[2] = {0, 0};
  if (Kind::PROMOTES && a.scale_block) {
    u32 halves = a.epilogue == EPILOGUE_GATED ? 2 : 1, n_blocks = (a.n / halves + 127) / 128;
    w_scales[0] = (tile.stack * halves * n_blocks + tile.col / 128) * k_blocks;
    w_scales[1] = w_scales[0] + (halves - 1) * n_blocks * k_blocks;
#pragma unroll
    for (u32 i = 0; i < TILES_M; i++)
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        u32 row = product_row(i, 2 * half);
        x_scales[i][half] = map.x(tile.row + (row < tile.rows ? row : 0)) * k_blocks;
      }
  }
  auto promote = [&](u32 step) {
    float w_scale[2] = {1.0f, 1.0f};
    if (a.scale_block) w_scale[0] = a.w_scale[w_scales[0] + step], w_scale[1] = a.w_scale[w_scales[1] + step];
#pragma unroll
    for (u32 i = 0; i < TILES_M; i++)
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        float x_scale = a.scale_block ? a.x_scale[x_scales[i][half] + step] : 1.0f;
#pragma unroll
        for (u32 j = 0; j < TILES_N; j++)
#pragma unroll
          for (u32 e = 2 * half; e < 2 * half + 2; e++) {
            totals[i][j][e] = fmaf((float)sums[i][j][e], x_scale * w_scale[j % 2], totals[i][j][e]);
            sums[i][j][e] = 0;
          }
      }
  };

  for (u32 step = 0; step + 1 < STAGES; step++) {
    if (step < steps) load(step);
    copy_commit();
  }
  const u32 x_row = warp_m * TILES_M * 16 + (lane & 15), x_byte = (lane >> 4) * 16;
  const u32 w_row = warp_n * TILES_N * 8 + (lane & 7) + (lane >> 4) * 8, w_byte = (lane >> 3 & 1) * 16;
  for (u32 step = 0; step < steps; step++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    if (step + STAGES - 1 < steps) load(step + STAGES - 1);
    copy_commit();
    const u8 *x_stage = shared + step % STAGES * STAGE_BYTES + x_row * ROW_BYTES + x_byte;
    const u8 *w_stage = shared + step % STAGES * STAGE_BYTES + (BM + w_row) * ROW_BYTES + w_byte;
    // Where 8-bit floats are widened in registers, one part at a time is all that fits.
#pragma unroll(Kind::PROMOTES ? 1 : 4)
    for (u32 part = 0; part < STEP_BYTES / 32; part++) {
      u32 x_parts[TILES_M][4], w_parts[TILES_N / 2][4];
#pragma unroll
      for (u32 i = 0; i < TILES_M; i++) ldmatrix(x_parts[i], x_stage + i * 16 * ROW_BYTES + part * 32);
#pragma unroll
      for (u32 j = 0; j < TILES_N / 2; j++) ldmatrix(w_parts[j], w_stage + j * 16 * ROW_BYTES + part * 32);
#pragma unroll
      for (u32 i = 0; i < TILES_M; i++)
#pragma unroll
        for (u32 j = 0; j < TILES_N; j++) Kind::mma(sums[i][j], x_parts[i], w_parts[j / 2][j % 2 * 2], w_parts[j / 2][j % 2 * 2 + 1]);
    }
    if (Kind::PROMOTES) promote(step);
  }

  // The sums go through shared memory: what follows is written once and not for each register.
  copy_wait<0>();
  __syncthreads();
  float *tile_sums = (float *)shared;
#pragma unroll
  for (u32 i = 0; i < TILES_M; i++)
#pragma unroll
    for (u32 j = 0; j < TILES_N; j++)
#pragma unroll
      for (u32 e = 0; e < 4; e += 2) {
        float *to = tile_sums + product_row(i, e) * SUMS_STRIDE(BN) + tile_col(j, e);
        if (Kind::PROMOTES) *(float2 *)to = make_float2(totals[i][j][e], totals[i][j][e + 1]);
        else *(float2 *)to = make_float2((float)sums[i][j][e], (float)sums[i][j][e + 1]);
      }
  __syncthreads();
  write_tile<BM, BN, THREADS>(a, tile, map, tile_sums);
}

template <class Kind, u32 BM, u32 BN, u32 WARPS_M, u32 WARPS_N, u32 STAGES>
DEVICE void multiply(const GemmArgs &a, u8 *shared) {
  u32 linear = blockIdx.y * gridDim.x + blockIdx.x, group = linear / (SWIZZLE_ROWS * gridDim.x);
  u32 within = linear - group * SWIZZLE_ROWS * gridDim.x;
  u32 rows = min_of(SWIZZLE_ROWS, gridDim.y - group * SWIZZLE_ROWS);
  u32 first = (group * SWIZZLE_ROWS + within % rows) * BM, col = within / rows;
  if (first >= a.m) return;
  Tile tile = {blockIdx.z, first, a.m - first, col * (a.epilogue == EPILOGUE_GATED ? BN / 2 : BN)};
  RowMap map = {nullptr, a.x_rows, 1};
  multiply_tile<Kind, BM, BN, WARPS_M, WARPS_N, STAGES>(a, tile, map, shared);
}

template <class Kind>
DEVICE void multiply_experts(const GemmArgs &a, u8 *shared) {
  if (blockIdx.y >= a.tiles[0]) return;
  const u32 *entry = a.tiles + 1 + 3 * blockIdx.y;
  Tile tile = {entry[0], entry[1], entry[2], blockIdx.x * (a.epilogue == EPILOGUE_GATED ? 32 : 64)};
  RowMap map = {a.pairs, nullptr, a.x_div};
  multiply_tile<Kind, 64, 64, 2, 2, 3>(a, tile, map, shared);
}

// The kernels of one kind of operand.
#define GEMM(name, kind)                                                \
  KERNEL(128) gemm_##name##_m16(GemmArgs a) {                           \
    DYNAMIC_SHARED(u8, shared);                                         \
    multiply<kind, 16, 64, 1, 4, 4>(a, shared);                         \
  }                                                                     \
  KERNEL(128) gemm_##name##_m64(GemmArgs a) {                           \
    DYNAMIC_SHARED(u8, shared);                                         \
    multiply<kind, 64, 64, 2, 2, 3>(a, shared);                         \
  }                                                                     \
  KERNEL(256) gemm_##name##_m128(GemmArgs a) {                          \
    DYNAMIC_SHARED(u8, shared);                                         \
    multiply<kind, 128, 128, 2, 4, 3>(a, shared);                       \
  }                                                                     \
  KERNEL(128) gemm_experts_##name(GemmArgs a) {                         \
    DYNAMIC_SHARED(u8, shared);                                         \
    multiply_experts<kind>(a, shared);                                  \
  }

// Grouped-query attention: decode items by warp, block items by block.
#pragma once
#include "attend.cuh"

// Grouped-query attention of a warp's 16 rows, heads of up to D values.
template <u32 D>
struct Warp {
  // Long heads leave no registers for the queries: they stay in shared memory.
  static const bool Q_SHARED = D > 128;
  static const u32 STRIDE = D + 8;

  u32 q[Q_SHARED ? 1 : D / 16][4];
  const u16 *q_shared;
  float acc[D / 8][4];
  Running running;
  Rows2 rows;

  DEVICE void clear() {
    restart(running);
#pragma unroll
    for (u32 i = 0; i < D / 8; i++)
#pragma unroll
      for (u32 e = 0; e < 4; e++) acc[i][e] = 0.0f;
  }

  // `shared` [16, STRIDE] of the warp is used where the queries stay there.
  DEVICE void load_queries(const AttendArgs &a, u16 *shared) {
    q_shared = shared;
    u32 row = lane_id() / 4, pair = lane_id() % 4 * 2;
#pragma unroll
    for (u32 k = 0; k < D / 16; k++)
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        u32 half = i & 1, col = k * 16 + (i >> 1) * 8 + pair;
        u32 value = query_pair(a, rows, half, col);
        if (Q_SHARED) *(u32 *)(shared + (row + 8 * half) * STRIDE + col) = value;
        else q[Q_SHARED ? 0 : k][i] = value;
      }
    if (Q_SHARED) __syncwarp();
  }

  DEVICE void score(float (&s)[KV_TILE / 8][4], const AttendArgs &a, const u16 *keys, u32 at) {
    u32 lane = lane_id(), steps = (a.dk + 15) / 16;
#pragma unroll
    for (u32 i = 0; i < KV_TILE / 8; i++)
#pragma unroll
      for (u32 e = 0; e < 4; e++) s[i][e] = 0.0f;
#pragma unroll
    for (u32 k = 0; k < D / 16; k++) {
      if (k >= steps) break;
      u32 left[4];
      if (Q_SHARED) {
        ldmatrix(left, q_shared + (lane & 15) * STRIDE + k * 16 + (lane >> 4) * 8);
      } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) left[i] = q[Q_SHARED ? 0 : k][i];
      }
#pragma unroll
      for (u32 i = 0; i < KV_TILE / 16; i++) {
        u32 right[4];
        ldmatrix(right, keys + (i * 16 + (lane & 7) + (lane >> 4) * 8) * STRIDE + k * 16 + (lane >> 3 & 1) * 8);
        mma_bf16(s[2 * i], left, right[0], right[1]);
        mma_bf16(s[2 * i + 1], left, right[2], right[3]);
      }
    }
#pragma unroll
    for (u32 i = 0; i < KV_TILE / 8; i++)
#pragma unroll
      for (u32 e = 0; e < 4; e++) s[i][e] = score_of(a, s[i][e], at + i * 8 + lane % 4 * 2 + (e & 1), rows.seen[e >> 1]);
  }

  DEVICE void scale_by(const float (&factor)[2]) {
    // A factor of one changes nothing, and a warp whose maxima stand has only such.
    if (__all_sync(ALL_LANES, factor[0] == 1.0f && factor[1] == 1.0f)) return;
#pragma unroll
    for (u32 i = 0; i < D / 8; i++)
#pragma unroll
      for (u32 e = 0; e < 4; e++) acc[i][e] = __fmul_rn(acc[i][e], factor[e >> 1]);
  }

  DEVICE void add_values(const AttendArgs &a, const float (&s)[KV_TILE / 8][4], const u16 *values) {
    u32 lane = lane_id(), pairs = (a.dv + 15) / 16;
#pragma unroll
    for (u32 part = 0; part < KV_TILE / 16; part++) {
      u32 left[4];
      weights_of(left, s, part);
#pragma unroll
      for (u32 i = 0; i < D / 16; i++) {
        if (i >= pairs) break;
        u32 right[4];
        ldmatrix_transposed(right, values + (part * 16 + (lane & 15)) * STRIDE + i * 16 + (lane >> 4) * 8);
        mma_bf16(acc[2 * i], left, right[0], right[1]);
        mma_bf16(acc[2 * i + 1], left, right[2], right[3]);
      }
    }
  }

  // Closes a split, and writes it as a partial result.
  DEVICE void write_partial(const AttendArgs &a, u32 split) {
    close_split(running);
    write_partial_sums(a, rows, running, split);
    u32 padded = round_up(a.dv, 16);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      if (rows.head[half] == 0xffffffffu || running.sum[half] == 0.0f) continue;
      float *to = a.part_acc + partial_of(a, rows, half, split) * padded + lane_id() % 4 * 2;
#pragma unroll
      for (u32 i = 0; i < D / 8; i++)
        if (i * 8 < padded) *(float2 *)(to + i * 8) = make_float2(acc[i][2 * half], acc[i][2 * half + 1]);
    }
  }
};

// Decode items: a warp takes item after item, one row's heads against one split.
// Shared memory of a warp: two stages of keys and values, then queries where they stay there.
template <u32 D, bool FP8>
DEVICE void attend_decode(const AttendArgs &a, u16 *shared) {
  const u32 STRIDE = D + 8, STAGE = 2 * KV_TILE * STRIDE;
  const u32 WARP_CELLS = 2 * STAGE + (Warp<D>::Q_SHARED ? 16 * STRIDE : 0);
  u32 group = a.q_heads / a.kv_heads, parts = (group + 15) / 16;
  u32 kv_head = blockIdx.y / parts, first_head = blockIdx.y % parts * 16;
  u32 warps = blockDim.x / 32, lane = lane_id();
  u16 *own = shared + warp_id() * WARP_CELLS;
  u32 count = a.counters[3], k_cols = round_up(a.dk, 16), v_cols = round_up(a.dv, 16);
  for (u32 item = blockIdx.x * warps + warp_id(); item < count; item += gridDim.x * warps) {
    u32 row = a.items[4 * item], sequence = a.items[4 * item + 1], split = a.items[4 * item + 2];
    Tokens tokens = tokens_of<FP8>(a, sequence, kv_head);
    Warp<D> warp;
    warp.rows = rows_of(a, kv_head, row, nullptr, first_head, group - first_head, tokens.len);
    warp.load_queries(a, own + 2 * STAGE);
    warp.clear();
    Seen seen = seen_from(a, a.q_pos[row], tokens.len);
    u32 first = max_of(split * SPLIT, seen.first / KV_TILE * KV_TILE), end = min_of(split * SPLIT + SPLIT, seen.end);
    auto load = [&](u32 at) {
      u16 *stage = own + at / KV_TILE % 2 * STAGE;
      load_tokens<FP8>(stage, STRIDE, tokens, true, k_cols, at, seen, lane, 32);
      load_tokens<FP8>(stage + KV_TILE * STRIDE, STRIDE, tokens, false, v_cols, at, seen, lane, 32);
    };
    if (first < end) load(first);
    copy_commit();
    for (u32 at = first; at < end; at += KV_TILE) {
      if (at + KV_TILE < end) load(at + KV_TILE);
      copy_commit();
      copy_wait<1>();
      __syncwarp();
      const u16 *stage = own + at / KV_TILE % 2 * STAGE;
      float s[KV_TILE / 8][4], factor[2];
      warp.score(s, a, stage, at);
      absorb(warp.running, s, factor);
      warp.scale_by(factor);
      warp.add_values(a, s, stage + KV_TILE * STRIDE);
      __syncwarp();
    }
    copy_wait<0>();
    warp.write_partial(a, split);
    __syncwarp();
  }
}

// What a warp's rows have come to over the splits so far. Each thread keeps its own values in shared memory: they are
// touched once a split.
template <u32 D, u32 THREADS>
struct Totals {
  float *values;
  float max[2], sum[2];

  DEVICE void clear() {
    max[0] = max[1] = -INFINITY_F;
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < D / 2; i++) values[i * THREADS + threadIdx.x] = 0.0f;
  }

  DEVICE void join_split(Warp<D> &warp) {
    close_split(warp.running);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      Join j = join(max[half], sum[half], warp.running.max[half], warp.running.sum[half]);
#pragma unroll
      for (u32 i = 0; i < D / 8; i++)
#pragma unroll
        for (u32 e = 2 * half; e < 2 * half + 2; e++) {
          float &total = values[(i * 4 + e) * THREADS + threadIdx.x];
          total = join_value(j, total, warp.acc[i][e]);
        }
    }
  }

  DEVICE void write(const AttendArgs &a, const Rows2 &rows) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      if (rows.head[half] == 0xffffffffu) continue;
      float factor = final_factor(a, max[half], sum[half], rows.head[half]);
#pragma unroll
      for (u32 i = 0; i < D / 8; i++) {
        const float *total = values + (i * 4 + 2 * half) * THREADS + threadIdx.x;
        write_pair(a, rows.row[half], rows.head[half], i * 8 + lane_id() % 4 * 2, __fmul_rn(total[0], factor),
                   __fmul_rn(total[THREADS], factor));
      }
    }
  }
};

// Block items: rows of a sequence, or of a share group, 16 a warp, against the same keys.
// Keys and values have one buffer each: the next keys load while values are added, the next values while scores are
// made. Shared memory: totals, keys, values, then queries where they stay there.
template <u32 D, bool FP8, u32 WARPS>
DEVICE void attend_block(const AttendArgs &a, u8 *shared) {
  const u32 STRIDE = D + 8, THREADS = 32 * WARPS;
  __shared__ u32 bounds[2 * WARPS];
  Totals<D, THREADS> totals;
  totals.values = (float *)shared;
  u16 *keys = (u16 *)(totals.values + THREADS * D / 2), *values = keys + KV_TILE * STRIDE;
  u16 *queries = values + KV_TILE * STRIDE + warp_id() * 16 * STRIDE;
  u32 kv_head = blockIdx.y, count = a.counters[4], lane = lane_id();
  u32 k_cols = round_up(a.dk, 16), v_cols = round_up(a.dv, 16);
  for (u32 at_item = blockIdx.x; at_item < count; at_item += gridDim.x) {
    const u32 *item = a.items + 8 * at_item;
    u32 flags = item[6], first_split = item[4], end_split = item[5];
    Tokens tokens = tokens_of<FP8>(a, item[3], kv_head);
    // A share group reads one member's pages, as far as all have them.
    if (flags & FLAG_INDIRECT) tokens.len = 0xffffffffu;
    Warp<D> warp;
    u32 before = warp_id() * 16;
    u32 rows = item[2] > before ? min_of(16, item[2] - before) : 0;
    warp.rows = rows_of(a, kv_head, item[0], flags & FLAG_INDIRECT ? a.row_list : nullptr, item[1] + before, rows, tokens.len);
    warp.load_queries(a, queries);
    warp.clear();
    Seen own = seen_by_warp(warp.rows);
    __syncthreads();
    if (lane == 0) bounds[2 * warp_id()] = own.first, bounds[2 * warp_id() + 1] = own.end;
    __syncthreads();
    Seen seen = {0xffffffffu, 0};
    for (u32 w = 0; w < WARPS; w++) seen = {min_of(seen.first, bounds[2 * w]), max_of(seen.end, bounds[2 * w + 1])};
    u32 first = max_of(first_split * SPLIT, seen.first / KV_TILE * KV_TILE), end = min_of(end_split * SPLIT, seen.end);
    totals.clear();
    auto load = [&](bool is_keys, u32 at) {
      load_tokens<FP8>(is_keys ? keys : values, STRIDE, tokens, is_keys, is_keys ? k_cols : v_cols, at, seen, threadIdx.x, THREADS);
    };
    if (first < end) load(true, first);
    copy_commit();
    if (first < end) load(false, first);
    copy_commit();
    if (first >= end && flags & FLAG_PARTIAL) write_partial_sums(a, warp.rows, warp.running, first_split);
    for (u32 at = first; at < end; at += KV_TILE) {
      bool more = at + KV_TILE < end, sees = own.first < at + KV_TILE && own.end > at;
      float s[KV_TILE / 8][4], factor[2];
      copy_wait<1>();
      __syncthreads();
      if (sees) warp.score(s, a, keys, at);
      __syncthreads();
      if (more) load(true, at + KV_TILE);
      copy_commit();
      if (sees) {
        absorb(warp.running, s, factor);
        warp.scale_by(factor);
      }
      copy_wait<1>();
      __syncthreads();
      if (sees) warp.add_values(a, s, values);
      __syncthreads();
      if (more) load(false, at + KV_TILE);
      copy_commit();
      if (more && (at + KV_TILE) % SPLIT) continue;
      if (flags & FLAG_PARTIAL) {
        warp.write_partial(a, at / SPLIT);
        continue;
      }
      totals.join_split(warp);
      warp.clear();
    }
    copy_wait<0>();
    if (!(flags & FLAG_PARTIAL)) totals.write(a, warp.rows);
    __syncthreads();
  }
}

#define ATTEND(kv, fp8)                                       \
  KERNEL(128) attend_decode_##kv##_64(AttendArgs a) {         \
    DYNAMIC_SHARED(u16, shared);                              \
    attend_decode<64, fp8>(a, shared);                        \
  }                                                           \
  KERNEL(128) attend_decode_##kv##_128(AttendArgs a) {        \
    DYNAMIC_SHARED(u16, shared);                              \
    attend_decode<128, fp8>(a, shared);                       \
  }                                                           \
  KERNEL(128) attend_decode_##kv##_256(AttendArgs a) {        \
    DYNAMIC_SHARED(u16, shared);                              \
    attend_decode<256, fp8>(a, shared);                       \
  }                                                           \
  KERNEL(128) attend_block_##kv##_64(AttendArgs a) {          \
    DYNAMIC_SHARED(u8, shared);                               \
    attend_block<64, fp8, 4>(a, shared);                      \
  }                                                           \
  KERNEL(128) attend_block_##kv##_128(AttendArgs a) {         \
    DYNAMIC_SHARED(u8, shared);                               \
    attend_block<128, fp8, 4>(a, shared);                     \
  }                                                           \
  KERNEL(64) attend_block_##kv##_256(AttendArgs a) {          \
    DYNAMIC_SHARED(u8, shared);                               \
    attend_block<256, fp8, 2>(a, shared);                     \
  }

// Latent attention (absorbed MLA): one shared head of keys, whose first `dv` values are the values too.
//
// A block holds 16 packed rows: heads are too long for one warp. Each of four warps makes the scores of 8 of a tile's
// 32 tokens, all take them in alike, and each adds its own quarter of the columns.
#pragma once
#include "attend.cuh"

#define LATENT_WARPS 4
// 16-column parts of a warp: 512 values over four warps.
#define LATENT_PARTS 8
#define SCORES_STRIDE 40

// What a block computes: rows, and splits of their sequence.
struct LatentWork {
  u32 base, packed, rows, sequence, first_split, end_split, flags;
};

DEVICE LatentWork latent_work(const AttendArgs &a, u32 list, u32 at) {
  u32 before = blockIdx.y * 16;
  if (list == 0) {
    const u32 *item = a.items + 4 * at;
    u32 rows = a.q_heads > before ? min_of(16, a.q_heads - before) : 0;
    return {item[0], before, rows, item[1], item[2], item[2] + 1, FLAG_PARTIAL};
  }
  const u32 *item = a.items + 8 * at;
  u32 rows = item[2] > before ? min_of(16, item[2] - before) : 0;
  return {item[0], item[1] + before, rows, item[3], item[4], item[5], item[6]};
}

template <bool FP8>
DEVICE void attend_latent(const AttendArgs &a, u32 list, u8 *shared) {
  const u32 THREADS = 32 * LATENT_WARPS;
  const u32 k_cols = round_up(a.dk, 16), v_cols = round_up(a.dv, 16), stride = k_cols + 8;
  const u32 steps = k_cols / 16, parts = v_cols / 16, lane = lane_id(), warp = warp_id();
  u16 *queries = (u16 *)shared, *stages = queries + 16 * stride;
  float *scores = (float *)(stages + 2 * KV_TILE * stride), *totals = scores + 16 * SCORES_STRIDE;
  u32 count = a.counters[list == 0 ? 3 : 4];
  for (u32 at_item = blockIdx.x; at_item < count; at_item += gridDim.x) {
    LatentWork work = latent_work(a, list, at_item);
    if (work.rows == 0) continue;
    Tokens tokens = tokens_of<FP8>(a, work.sequence, 0);
    if (work.flags & FLAG_INDIRECT) tokens.len = 0xffffffffu;
    Rows2 rows = rows_of(a, 0, work.base, work.flags & FLAG_INDIRECT ? a.row_list : nullptr, work.packed, work.rows, tokens.len);
    Seen seen = seen_by_warp(rows);
    __syncthreads();
    // Warps share the loading of queries: columns `2 * (4 * warp + lane % 4)` and on.
    for (u32 col = warp * 8 + lane % 4 * 2; col < k_cols; col += 8 * LATENT_WARPS)
      for (u32 half = 0; half < 2; half++) *(u32 *)(queries + (lane / 4 + 8 * half) * stride + col) = query_pair(a, rows, half, col);
    Running running;
    restart(running);
    float acc[2 * LATENT_PARTS][4];
    float total_max[2] = {-INFINITY_F, -INFINITY_F}, total_sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 i = 0; i < 2 * LATENT_PARTS; i++)
#pragma unroll
      for (u32 e = 0; e < 4; e++) {
        acc[i][e] = 0.0f;
        if (i / 2 * LATENT_WARPS < parts) totals[(i * 4 + e) * THREADS + threadIdx.x] = 0.0f;
      }
    u32 first = max_of(work.first_split * SPLIT, seen.first / KV_TILE * KV_TILE), end = min_of(work.end_split * SPLIT, seen.end);
    auto load = [&](u32 at) {
      load_tokens<FP8>(stages + at / KV_TILE % 2 * KV_TILE * stride, stride, tokens, true, k_cols, at, seen, threadIdx.x, THREADS);
    };
    if (first < end) load(first);
    copy_commit();
    if (first >= end && work.flags & FLAG_PARTIAL && warp == 0) write_partial_sums(a, rows, running, work.first_split);
    for (u32 at = first; at < end; at += KV_TILE) {
      bool more = at + KV_TILE < end;
      if (more) load(at + KV_TILE);
      copy_commit();
      copy_wait<1>();
      __syncthreads();
      const u16 *keys = stages + at / KV_TILE % 2 * KV_TILE * stride;
      float product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      for (u32 k = 0; k < steps; k += 2) {
        u32 left[4], right[4], col = k * 16 + (lane >> 3) * 8;
        // The second step may be past the end: its tiles are loaded from the start and not used.
        ldmatrix(right, keys + (warp * 8 + (lane & 7)) * stride + (col < k_cols ? col : 0));
        ldmatrix(left, queries + (lane & 15) * stride + k * 16 + (lane >> 4) * 8);
        mma_bf16(product, left, right[0], right[1]);
        if (k + 1 == steps) break;
        ldmatrix(left, queries + (lane & 15) * stride + (k + 1) * 16 + (lane >> 4) * 8);
        mma_bf16(product, left, right[2], right[3]);
      }
      for (u32 e = 0; e < 4; e++) {
        u32 token = warp * 8 + lane % 4 * 2 + (e & 1);
        scores[(lane / 4 + 8 * (e >> 1)) * SCORES_STRIDE + token] = score_of(a, product[e], at + token, rows.seen[e >> 1]);
      }
      __syncthreads();
      float s[KV_TILE / 8][4], factor[2];
#pragma unroll
      for (u32 i = 0; i < KV_TILE / 8; i++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) s[i][e] = scores[(lane / 4 + 8 * (e >> 1)) * SCORES_STRIDE + i * 8 + lane % 4 * 2 + (e & 1)];
      absorb(running, s, factor);
#pragma unroll
      for (u32 i = 0; i < 2 * LATENT_PARTS; i++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) acc[i][e] = __fmul_rn(acc[i][e], factor[e >> 1]);
#pragma unroll
      for (u32 part = 0; part < KV_TILE / 16; part++) {
        u32 left[4];
        weights_of(left, s, part);
#pragma unroll
        for (u32 i = 0; i < LATENT_PARTS; i++) {
          u32 own = i * LATENT_WARPS + warp;
          if (own >= parts) break;
          u32 right[4];
          ldmatrix_transposed(right, keys + (part * 16 + (lane & 15)) * stride + own * 16 + (lane >> 4) * 8);
          mma_bf16(acc[2 * i], left, right[0], right[1]);
          mma_bf16(acc[2 * i + 1], left, right[2], right[3]);
        }
      }
      __syncthreads();
      if (more && (at + KV_TILE) % SPLIT) continue;
      close_split(running);
      bool partial = work.flags & FLAG_PARTIAL;
      if (partial && warp == 0) write_partial_sums(a, rows, running, at / SPLIT);
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        if (partial && (rows.head[half] == 0xffffffffu || running.sum[half] == 0.0f)) continue;
        Join j = {1.0f, 0.0f};
        if (!partial) j = join(total_max[half], total_sum[half], running.max[half], running.sum[half]);
        u64 to = partial ? partial_of(a, rows, half, at / SPLIT) * v_cols : 0;
#pragma unroll
        for (u32 i = 0; i < 2 * LATENT_PARTS; i++) {
          u32 own = i / 2 * LATENT_WARPS + warp;
          if (own >= parts) break;
          if (partial) {
            *(float2 *)(a.part_acc + to + own * 16 + i % 2 * 8 + lane % 4 * 2) = make_float2(acc[i][2 * half], acc[i][2 * half + 1]);
            continue;
          }
#pragma unroll
          for (u32 e = 2 * half; e < 2 * half + 2; e++) {
            float &total = totals[(i * 4 + e) * THREADS + threadIdx.x];
            total = join_value(j, total, acc[i][e]);
          }
        }
      }
      restart(running);
#pragma unroll
      for (u32 i = 0; i < 2 * LATENT_PARTS; i++)
#pragma unroll
        for (u32 e = 0; e < 4; e++) acc[i][e] = 0.0f;
    }
    copy_wait<0>();
    if (work.flags & FLAG_PARTIAL) continue;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      if (rows.head[half] == 0xffffffffu) continue;
      float factor = final_factor(a, total_max[half], total_sum[half], rows.head[half]);
#pragma unroll
      for (u32 i = 0; i < 2 * LATENT_PARTS; i++) {
        u32 own = i / 2 * LATENT_WARPS + warp;
        if (own >= parts) break;
        const float *total = totals + (i * 4 + 2 * half) * THREADS + threadIdx.x;
        write_pair(a, rows.row[half], rows.head[half], own * 16 + i % 2 * 8 + lane % 4 * 2, __fmul_rn(total[0], factor),
                   __fmul_rn(total[THREADS], factor));
      }
    }
  }
}

// Attention: what decode, block, latent and merge kernels share.
//
// A warp holds 16 packed rows. Keys come in tiles of KV_TILE tokens; the running maximum, sum and accumulator start
// afresh at every SPLIT tokens, at absolute positions, and splits are merged in ascending order. All kernels do the
// same arithmetic for a row, so its bits do not depend on which of them computes it, nor on its neighbours.
// Every step of it that could be fused or not is spelled out.
#pragma once
#include "args.cuh"

#define PAGE_TOKENS 16
#define KV_TILE 32
#define SPLIT 256
#define LOG2_E 1.4426950408889634f
#define FLAG_INDIRECT 1
#define FLAG_PARTIAL 2

// Tokens that a query sees: first .. end.
struct Seen {
  u32 first, end;
};

// Reference: `visible` in scalar/attention.rs.
DEVICE Seen seen_from(const AttendArgs &a, u32 position, u32 len) {
  u32 window = a.window ? a.window : len;
  u32 first = position + 1 > window ? position + 1 - window : 0;
  u32 end = a.bidirectional ? (len - position < window ? len : position + window) : position + 1;
  return {first, min_of(end, len)};
}

// The tokens of one sequence for one KV head.
struct Tokens {
  const u8 *k, *v;        // pools, or this step's keys and values of the first token
  const u32 *pages;       // null: rows of this step
  u32 k_bytes, v_bytes;   // of a token: its padded row in a page, or its values
  u64 row_bytes;          // from token to token in this step's rows
  u64 head;               // KV head, for pages
  u32 heads;
  u32 len;                // tokens in the sequence
};

template <bool FP8>
DEVICE Tokens tokens_of(const AttendArgs &a, u32 sequence, u32 kv_head) {
  const u32 *s = a.sequences + 4 * sequence;
  Tokens t;
  t.head = kv_head, t.heads = a.kv_heads;
  if (a.k_pool) {
    const u32 value_bytes = FP8 ? 1 : 2;
    t.k = (const u8 *)a.k_pool, t.v = (const u8 *)a.v_pool;
    t.pages = a.pages + a.starts[sequence];
    t.k_bytes = round_up(a.dk, 16) * value_bytes, t.v_bytes = round_up(a.dv, 16) * value_bytes;
    t.row_bytes = 0;
    t.len = s[3];
  } else {
    const u16 *rows = a.qkv + (u64)s[1] * a.ldq;
    t.k = (const u8 *)(rows + (a.q_heads + kv_head) * a.dk);
    t.v = (const u8 *)(rows + (a.q_heads + a.kv_heads) * a.dk + kv_head * a.dv);
    t.pages = nullptr;
    t.k_bytes = 2 * a.dk, t.v_bytes = 2 * a.dv;
    t.row_bytes = 2ull * a.ldq;
    t.len = s[2];
  }
  return t;
}

DEVICE const u8 *token_at(const Tokens &t, const u8 *base, u32 bytes, u32 token) {
  if (!t.pages) return base + token * t.row_bytes;
  u64 row = ((u64)t.pages[token / PAGE_TOKENS] * t.heads + t.head) * PAGE_TOKENS + token % PAGE_TOKENS;
  return base + row * bytes;
}

// Loads the keys or values of tokens `at ..` into `to` [KV_TILE, stride] as bf16, `padded` values a row; what is not
// in `seen` is zeros, and is not read. `thread` of `threads` calls it.
template <bool FP8>
DEVICE void load_tokens(u16 *to, u32 stride, const Tokens &t, bool keys, u32 padded, u32 at, Seen seen, u32 thread, u32 threads) {
  const u8 *base = keys ? t.k : t.v;
  const u32 bytes = keys ? t.k_bytes : t.v_bytes, chunks = padded / 8;
  // Row and chunk move on by sums: a division for each copy would take longer than the copy.
  const u32 more_rows = threads / chunks, more_chunks = threads % chunks;
  u32 row = thread / chunks, chunk = thread % chunks;
  while (row < KV_TILE) {
    u32 token = at + row;
    bool valid = token >= seen.first && token < seen.end;
    u16 *cell = to + row * stride + chunk * 8;
    if (FP8 && t.pages) {
      uint2 word = {0, 0};
      if (valid) word = *(const uint2 *)(token_at(t, base, bytes, token) + chunk * 8);
      *(uint4 *)cell = make_uint4(bf16x2_of_e4m3(word.x & 0xff, word.x >> 8 & 0xff), bf16x2_of_e4m3(word.x >> 16 & 0xff, word.x >> 24),
                                  bf16x2_of_e4m3(word.y & 0xff, word.y >> 8 & 0xff), bf16x2_of_e4m3(word.y >> 16 & 0xff, word.y >> 24));
    } else if (t.pages) {
      copy_async(cell, valid ? token_at(t, base, bytes, token) + chunk * 16 : t.k, valid ? 16 : 0);
    } else {
      u32 past = chunk * 16;
      u32 filled = valid && past < bytes ? min_of(16, bytes - past) : 0;
      copy_any(cell, filled ? token_at(t, base, bytes, token) + past : t.k, filled);
    }
    row += more_rows, chunk += more_chunks;
    if (chunk >= chunks) chunk -= chunks, row++;
  }
}

// The two packed rows of a thread: accumulator rows lane / 4 and lane / 4 + 8 of its warp.
struct Rows2 {
  Seen seen[2];
  u32 row[2], head[2];   // step row and query head; head is 0xffffffff where there is no row
};

// Running maximum (base 2) and this thread's share of the sum, for two rows.
struct Running {
  float max[2], sum[2];
};

DEVICE void restart(Running &r) {
  r.max[0] = r.max[1] = -INFINITY_F;
  r.sum[0] = r.sum[1] = 0.0f;
}

// exp2 of differences to a maximum that may be that of nothing.
DEVICE float base_of(float max) { return max == -INFINITY_F ? 0.0f : max; }

// Turns products with keys into scores in base 2: scaled, capped, and masked.
DEVICE float score_of(const AttendArgs &a, float product, u32 token, Seen seen) {
  float score = __fmul_rn(product, __fmul_rn(a.scale, a.k_scale));
  if (a.softcap != 0.0f) score = __fmul_rn(a.softcap, tanhf(__fdiv_rn(score, a.softcap)));
  return token >= seen.first && token < seen.end ? __fmul_rn(score, LOG2_E) : -INFINITY_F;
}

// Takes the scores of a tile into the running state: they become weights; `factor` scales what was accumulated.
DEVICE void absorb(Running &r, float (&s)[KV_TILE / 8][4], float (&factor)[2]) {
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    float max = r.max[half];
#pragma unroll
    for (u32 i = 0; i < KV_TILE / 8; i++) max = fmaxf(max, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 1));
    max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, 2));
    float base = base_of(max), sum = 0.0f;
    factor[half] = exp2_fast(__fsub_rn(r.max[half], base));
#pragma unroll
    for (u32 i = 0; i < KV_TILE / 8; i++)
#pragma unroll
      for (u32 e = 2 * half; e < 2 * half + 2; e++) {
        s[i][e] = exp2_fast(__fsub_rn(s[i][e], base));
        sum = __fadd_rn(sum, s[i][e]);
      }
    r.sum[half] = fmaf(r.sum[half], factor[half], sum);
    r.max[half] = max;
  }
}

// The weights of 16 tokens as the left operand of the product with values.
DEVICE void weights_of(u32 (&w)[4], const float (&s)[KV_TILE / 8][4], u32 part) {
  w[0] = bf16x2_of(s[2 * part][0], s[2 * part][1]);
  w[1] = bf16x2_of(s[2 * part][2], s[2 * part][3]);
  w[2] = bf16x2_of(s[2 * part + 1][0], s[2 * part + 1][1]);
  w[3] = bf16x2_of(s[2 * part + 1][2], s[2 * part + 1][3]);
}

// Adds the four shares of a row's sum.
DEVICE void close_split(Running &r) {
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    r.sum[half] = __fadd_rn(r.sum[half], __shfl_xor_sync(ALL_LANES, r.sum[half], 1));
    r.sum[half] = __fadd_rn(r.sum[half], __shfl_xor_sync(ALL_LANES, r.sum[half], 2));
  }
}

// How a split joins those before it.
struct Join {
  float before, split;   // factors
};

// Joins a split's maximum and sum to the total's. One that saw nothing changes nothing.
DEVICE Join join(float &max, float &sum, float split_max, float split_sum) {
  if (split_sum == 0.0f) return {1.0f, 0.0f};
  float joined = fmaxf(max, split_max), base = base_of(joined);
  Join j = {exp2_fast(__fsub_rn(max, base)), exp2_fast(__fsub_rn(split_max, base))};
  sum = fmaf(split_sum, j.split, __fmul_rn(sum, j.before));
  max = joined;
  return j;
}

DEVICE float join_value(Join j, float total, float split) {
  return j.split == 0.0f && j.before == 1.0f ? total : fmaf(split, j.split, __fmul_rn(total, j.before));
}

// The factor that turns a total into an output: the sink counts in the sum alone.
DEVICE float final_factor(const AttendArgs &a, float max, float sum, u32 head) {
  float before = 1.0f;
  if (a.sinks) {
    float sink = __fmul_rn(a.sinks[head], LOG2_E), base = fmaxf(max, sink);
    before = exp2_fast(__fsub_rn(max, base));
    sum = fmaf(sum, before, exp2_fast(__fsub_rn(sink, base)));
  }
  return sum == 0.0f ? 0.0f : __fmul_rn(__fdiv_rn(before, sum), a.v_scale);
}

// Finds the rows of a thread in packed rows `packed ..` of which `count` are there.
DEVICE Rows2 rows_of(const AttendArgs &a, u32 kv_head, u32 base, const u32 *list, u32 packed, u32 count, u32 len) {
  u32 group = a.q_heads / a.kv_heads;
  Rows2 r;
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    u32 i = lane_id() / 4 + 8 * half;
    r.head[half] = 0xffffffffu;
    r.row[half] = 0;
    r.seen[half] = {0, 0};
    if (i >= count) continue;
    u32 p = packed + i;
    r.row[half] = list ? list[base + p / group] : base + p / group;
    r.head[half] = kv_head * group + p % group;
    r.seen[half] = seen_from(a, a.q_pos[r.row[half]], len);
  }
  return r;
}

// What any row of a warp sees.
DEVICE Seen seen_by_warp(const Rows2 &r) {
  u32 first = 0xffffffffu, end = 0;
  for (u32 half = 0; half < 2; half++)
    if (r.seen[half].end > r.seen[half].first) first = min_of(first, r.seen[half].first), end = max_of(end, r.seen[half].end);
  for (u32 o = 16; o; o >>= 1) {
    first = min_of(first, __shfl_xor_sync(ALL_LANES, first, o));
    end = max_of(end, __shfl_xor_sync(ALL_LANES, end, o));
  }
  return {first, end};
}

// The query values at columns `col` and `col + 1` of a row, zeros past the head.
DEVICE u32 query_pair(const AttendArgs &a, const Rows2 &r, u32 half, u32 col) {
  if (r.head[half] == 0xffffffffu || col >= a.dk) return 0;
  return *(const u32 *)(a.qkv + (u64)r.row[half] * a.ldq + r.head[half] * a.dk + col);
}

DEVICE u64 partial_of(const AttendArgs &a, const Rows2 &r, u32 half, u32 split) {
  return (u64)(a.part_base[r.row[half]] + split) * a.q_heads + r.head[half];
}

DEVICE void write_partial_sums(const AttendArgs &a, const Rows2 &r, const Running &running, u32 split) {
  for (u32 half = 0; half < 2; half++)
    if (r.head[half] != 0xffffffffu && lane_id() % 4 == 0) {
      float *ml = a.part_ml + 2 * partial_of(a, r, half, split);
      ml[0] = running.max[half], ml[1] = running.sum[half];
    }
}

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

// One row of one head out of a total: `value(i)` of the thread's columns.
DEVICE void write_pair(const AttendArgs &a, u32 row, u32 head, u32 col, float first, float second) {
  if (col >= a.dv) return;
  u16 *to = (u16 *)a.out + (u64)row * a.ldo + head * a.dv + col;
  to[0] = bf16_of(first);
  if (col + 1 < a.dv) to[1] = bf16_of(second);
}

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

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

// Two values of a head of the output.
DEVICE void write_pair(const AttendArgs &a, u32 row, u32 head, u32 col, float first, float second) {
  if (col >= a.dv) return;
  u16 *to = (u16 *)a.out + (u64)row * a.ldo + head * a.dv + col;
  to[0] = bf16_of(first);
  if (col + 1 < a.dv) to[1] = bf16_of(second);
}

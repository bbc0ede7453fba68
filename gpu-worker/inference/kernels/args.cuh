// The kernels' arguments that travel as structures: README.md says what each field is.
//
// The host's `repr(C)` twins have the same fields in the same order.
#pragma once
#include "prims.cuh"

struct NormArgs {
  float *x;
  const float *add;
  const float *gain;
  const float *bias;
  void *out;
  float *out_scale;
  u32 cols, ldx, lda, ldo;
  u32 kind;
  u32 out_type;
  u32 plus_one;
  u32 block;
  float eps;
  u32 zero;
};

struct GemmArgs {
  const void *x;
  const void *w;
  void *out;
  const float *bias;
  const float *x_scale;
  const float *w_scale;
  const u32 *x_rows;
  const u32 *tiles;
  const u32 *pairs;
  u32 m, n, k;
  u32 ldx, ldw, ldo;
  u32 x_stack, out_stack;
  u32 epilogue;
  u32 act;
  u32 out_type;
  u32 scale_block;
  float p0, p1;
  u32 x_div;
  u32 zero;
};

struct RopeArgs {
  u16 *qkv;
  void *k_pool, *v_pool;
  const float *cosines, *sines;
  const float *q_gain, *k_gain;
  const u32 *positions, *write_slots;
  u32 ldq, q_heads, kv_heads, dk, dv;
  u32 pairs, style;
  u32 latent;
  u32 q_gain_len, k_gain_len;
  u32 fp8;
  float q_eps, k_eps, k_scale, v_scale;
};

struct AttendArgs {
  const u16 *qkv;
  const void *k_pool, *v_pool;
  const float *sinks;
  const u32 *pages, *starts;
  const u32 *sequences, *q_pos, *counters, *part_base;
  const u32 *items;
  const u32 *row_list;
  float *part_acc;
  float *part_ml;
  void *out;
  u32 ldq, ldo, q_heads, kv_heads, dk, dv;
  u32 bidirectional;
  u32 window;
  float scale, softcap;
  float k_scale, v_scale;
};

struct RouteArgs {
  const void *x;
  const u16 *w;
  const float *bias;
  const float *choice_bias;
  u32 *experts;
  float *weights;
  const u32 *counters;
  u32 expert_count, k, ldx, ldw, top_k;
  u32 sigmoid, groups, groups_kept, renorm;
  float scale;
};

struct SampleRow {
  u32 slot, flags;
  u32 seed_low, seed_high, choice, position;
  u32 forced, top_n, top_k;
  float temperature, top_p, min_p, repetition, frequency, presence;
  u32 mask_at, mask_words;
  u32 bias_at, bias_count;
  u32 top_at;
};

struct SampleArgs {
  const float *logits;
  const SampleRow *rows;
  const u32 *runs;
  const u32 *masks;
  const u32 *biases;
  u32 *history;
  u32 *slots;
  float *adjusted, *weights;
  u32 *uses;
  u32 *out_tokens;
  float *out_logprobs;
  u32 *out_status;
  u32 *top_ids;
  float *top_logprobs;
  u32 run_count, ld, vocabulary, history_tokens;
};

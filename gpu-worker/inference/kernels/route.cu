// Mixtures of experts: which experts a row goes to, and the rows of each expert.
//
// Reference: `route`, `drop_groups`, `highest` in scalar/experts.rs.
// `route`: one block of 128 threads a row, a warp for each router row in turn; dynamic shared memory holds scores and
// choices of all experts, and of all groups. Bound by reading the router from the L2 cache.
// Tolerance: f32 sums in another order, 1e-6; equal scores go to the lower expert.
// `sort_pairs`: one block; exact, ascending pairs within an expert.
#include "args.cuh"

#define NO_EXPERT 0xffffffffu
#define TILE_ROWS 64
#define GROUPS_MAX 64

// Order of f32 as in `total_cmp`: greater keys are greater values, NaN on top.
DEVICE u32 key_of(float x) {
  u32 bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Returns the index of the highest of `values`, the lower of equals; a warp calls it.
DEVICE u32 highest(const float *values, u32 count) {
  u64 best = 0;
  for (u32 i = lane_id(); i < count; i += 32) {
    u64 key = (u64)key_of(values[i]) << 32 | (0xffffffffu - i);
    best = key > best ? key : best;
  }
  for (u32 o = 16; o; o >>= 1) {
    u64 other = __shfl_xor_sync(ALL_LANES, best, o);
    best = other > best ? other : best;
  }
  return 0xffffffffu - (u32)best;
}

// Takes all experts but those of the best groups out of the choice; a warp calls it.
DEVICE void drop_groups(const RouteArgs &a, float *choice, float *group_scores) {
  u32 size = a.expert_count / a.groups;
  for (u32 group = 0; group < a.groups; group++) {
    float *own = choice + group * size;
    u32 first = highest(own, size);
    float score = own[first];
    if (a.sigmoid && size > 1) {
      // The second best: the best steps aside for a moment.
      __syncwarp();
      if (lane_id() == 0) own[first] = -INFINITY_F;
      __syncwarp();
      float second = own[highest(own, size)];
      __syncwarp();
      if (lane_id() == 0) own[first] = score;
      score += second;
    }
    if (lane_id() == 0) group_scores[group] = score;
  }
  __syncwarp();
  u64 kept = 0;
  for (u32 i = 0; i < a.groups_kept; i++) {
    u32 best = highest(group_scores, a.groups);
    kept |= 1ull << best;
    __syncwarp();
    if (lane_id() == 0) group_scores[best] = -INFINITY_F;
    __syncwarp();
  }
  for (u32 e = lane_id(); e < a.expert_count; e += 32)
    if (!(kept >> e / size & 1)) choice[e] = -INFINITY_F;
  __syncwarp();
}

KERNEL(128) route(RouteArgs a) {
  DYNAMIC_SHARED(float, scores);
  float *choice = scores + a.expert_count, *group_scores = choice + a.expert_count;
  u32 row = blockIdx.x, lane = lane_id();
  u32 *experts = a.experts + (u64)row * a.top_k;
  float *weights = a.weights + (u64)row * a.top_k;
  if (row >= a.counters[0]) {
    for (u32 i = threadIdx.x; i < a.top_k; i += blockDim.x) experts[i] = NO_EXPERT, weights[i] = 0.0f;
    return;
  }
  const u16 *x = (const u16 *)a.x + (u64)row * a.ldx;
  for (u32 e = warp_id(); e < a.expert_count; e += blockDim.x / 32) {
    const u16 *w = a.w + (u64)e * a.ldw;
    float sum = 0;
    for (u32 i = lane; i < a.k; i += 32) sum = fmaf(f32_of_bf16(x[i]), f32_of_bf16(w[i]), sum);
    sum = warp_sum(sum);
    if (lane == 0) scores[e] = a.bias ? sum + a.bias[e] : sum;
  }
  __syncthreads();
  if (warp_id() != 0) return;
  if (a.sigmoid) {
    for (u32 e = lane; e < a.expert_count; e += 32) scores[e] = 1.0f / (1.0f + expf(-scores[e]));
  } else {
    float max = -INFINITY_F, sum = 0;
    for (u32 e = lane; e < a.expert_count; e += 32) max = fmaxf(max, scores[e]);
    max = warp_max(max);
    for (u32 e = lane; e < a.expert_count; e += 32) sum += scores[e] = expf(scores[e] - max);
    sum = warp_sum(sum);
    for (u32 e = lane; e < a.expert_count; e += 32) scores[e] /= sum;
  }
  for (u32 e = lane; e < a.expert_count; e += 32) choice[e] = scores[e] + (a.choice_bias ? a.choice_bias[e] : 0.0f);
  __syncwarp();
  if (a.groups) drop_groups(a, choice, group_scores);
  float sum = 0;
  for (u32 i = 0; i < a.top_k; i++) {
    u32 best = highest(choice, a.expert_count);
    sum += scores[best];
    if (lane == 0) experts[i] = best, weights[i] = scores[best];
    __syncwarp();
    // Lower than any score, infinite ones too: it is the NaN below all.
    if (lane == 0) choice[best] = __uint_as_float(0xffffffffu);
    __syncwarp();
  }
  float factor = a.renorm ? a.scale / (sum + 1e-20f) : a.scale;
  if (lane == 0)
    for (u32 i = 0; i < a.top_k; i++) weights[i] *= factor;
}

// experts [pair_count], NO_EXPERT left out; pairs [pair_count]; tiles [1 + 3 * tiles]: count, then expert, first place,
// rows. Dynamic shared memory: places [expert_count + 1], counts [expert_count + 1].
KERNEL(1024) sort_pairs(const u32 *experts, u32 *pairs, u32 *tiles, u32 pair_count, u32 expert_count) {
  DYNAMIC_SHARED(u32, first);
  u32 *counts = first + expert_count + 1;
  for (u32 e = threadIdx.x; e <= expert_count; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  for (u32 p = threadIdx.x; p < pair_count; p += blockDim.x)
    if (experts[p] < expert_count) atomicAdd(&counts[experts[p]], 1u);
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 place = 0, tile = 0;
    for (u32 e = 0; e < expert_count; e++) {
      first[e] = place;
      for (u32 done = 0; done < counts[e]; done += TILE_ROWS) {
        u32 *entry = tiles + 1 + 3 * tile++;
        entry[0] = e, entry[1] = place + done, entry[2] = min_of(TILE_ROWS, counts[e] - done);
      }
      place += counts[e];
    }
    tiles[0] = tile;
  }
  __syncthreads();
  // A warp gathers the pairs of an expert in their order.
  for (u32 e = warp_id(); e < expert_count; e += blockDim.x / 32) {
    u32 place = first[e], left = counts[e];
    for (u32 base = 0; left && base < pair_count; base += 32) {
      u32 p = base + lane_id();
      bool own = p < pair_count && experts[p] == e;
      u32 all = __ballot_sync(ALL_LANES, own);
      if (own) pairs[place + __popc(all & ((1u << lane_id()) - 1))] = p;
      place += __popc(all);
      left -= __popc(all);
    }
  }
}

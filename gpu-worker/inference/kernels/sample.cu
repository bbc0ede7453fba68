// Draws one token for each live logit row, and appends it to its slot's history.
//
// Shapes: README.md. Geometry: a block of 512 threads takes the rows of one slot after another, then the next slot.
// Reference: sampling.rs. The order of operations is `SampleParams`'; sets are exact: thresholds are found by radix
// selection over the bits of a logit, ties go to the lower id. Masses are counted in fixed point, so that their sums
// do not depend on the order of threads: a weight of at most 1 in units of 2^-43, exact from 2^-19 up.
// The exponential is exp.rs, step by step, never fused.
// Bound by reading logits from the L2 cache: once for plain greedy rows, about a dozen times for the rest.
// Tolerance: tokens equal the reference's where logits are equal; log-probabilities within 1e-6.
#include "args.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
#define BINS 2048
#define SEEN 0x80000000u
#define FLAG_LIVE 1
#define FLAG_FORCED 2
#define FLAG_MASK 4
#define FLAG_LOGPROBS 8
#define NO_ID 0xffffffffu
#define LARGEST 3.402823466e38f
#define FIXED_ONE 0x1p43f

enum Status { STATUS_DEAD, STATUS_TOKEN, STATUS_BAD };

// What the threads of a block share.
struct Shared {
  u64 bins[BINS];
  u64 totals[WARPS];
  double sums[WARPS];
  float parts[WARPS];
  u32 ids[WARPS];
  u32 counts[WARPS];
  // Results of one thread for all.
  u64 above;
  u32 bin;
  u32 id;
  u32 cursor;
};

// exp.rs.
DEVICE float exp_exact(float x) {
  float clamped = x > 88.0f ? 88.0f : x;
  float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504088896341f), 12582912.0f);
  float n = __fsub_rn(shifted, 12582912.0f);
  float r = __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, -2.1219444e-4f));
  float p = 1.9875691e-4f;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.333452e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665796e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665e-1f);
  p = __fadd_rn(__fmul_rn(p, r), 0.5f);
  float mantissa = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
  float scaled = __uint_as_float(__float_as_uint(mantissa) + (__float_as_uint(shifted) << 23));
  float result = x < -87.0f ? 0.0f : scaled;
  return x != x ? x : result;
}

// philox.rs: a number in [0, 1) with 53 random bits.
DEVICE double uniform(const SampleRow &row) {
  u32 c0 = row.choice, c1 = row.position, c2 = 0, c3 = 0, k0 = row.seed_low, k1 = row.seed_high;
#pragma unroll 1
  for (u32 round = 0; round < 10; round++) {
    u32 a_high = __umulhi(c0, 0xD2511F53u), a_low = c0 * 0xD2511F53u;
    u32 b_high = __umulhi(c2, 0xCD9E8D57u), b_low = c2 * 0xCD9E8D57u;
    c0 = b_high ^ c1 ^ k0, c1 = b_low, c2 = a_high ^ c3 ^ k1, c3 = a_low;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  u64 bits = (u64)c0 << 32 | c1;
  return (double)(bits >> 11) * 0x1p-53;
}

// Greater keys are more likely; no key of a number is 0.
DEVICE u32 key_of(float x) {
  u32 bits = __float_as_uint(x == 0.0f ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE u64 fixed_of(float weight) { return (u64)__fmul_rn(weight, FIXED_ONE); }

// Keeps a sum of user-given numbers comparable.
DEVICE float finite(float x) { return x != x ? -LARGEST : fminf(fmaxf(x, -LARGEST), LARGEST); }

DEVICE u64 block_total(u64 x, Shared &s) {
  for (u32 o = 16; o; o >>= 1) x += __shfl_xor_sync(ALL_LANES, x, o);
  __syncthreads();
  if (lane_id() == 0) s.totals[warp_id()] = x;
  __syncthreads();
  u64 sum = 0;
  for (u32 i = 0; i < WARPS; i++) sum += s.totals[i];
  return sum;
}

// Returns the lowest id of those that threads give; NO_ID if none does.
DEVICE u32 block_lowest(u32 id, Shared &s) {
  for (u32 o = 16; o; o >>= 1) id = min_of(id, __shfl_xor_sync(ALL_LANES, id, o));
  __syncthreads();
  if (lane_id() == 0) s.ids[warp_id()] = id;
  __syncthreads();
  id = NO_ID;
  for (u32 i = 0; i < WARPS; i++) id = min_of(id, s.ids[i]);
  return id;
}

// Returns the greatest of `x`, and in `id` the lowest id that has it.
DEVICE float greatest(const float *x, u32 count, u32 &id, Shared &s) {
  float max = -INFINITY_F;
  for (u32 i = threadIdx.x; i < count; i += THREADS) max = fmaxf(max, x[i]);
  max = block_max(max, s.parts);
  u32 own = NO_ID;
  for (u32 i = threadIdx.x; i < count && own == NO_ID; i += THREADS)
    if (x[i] == max) own = i;
  id = block_lowest(own, s);
  return max;
}

// Where a set ends: all keys above `key`, and of the equal ones ids up to `id`.
struct Cut {
  u32 key, id;
  DEVICE bool keeps(u32 key_, u32 id_) const { return key_ > key || (key_ == key && id_ <= id); }
};

// The lowest `need` ids of those with `key`: returns the last of them.
template <class Key>
DEVICE u32 tie_cut(const Key &key_at, u32 count, u32 key, u64 need, Shared &s) {
  u32 share = (count + WARPS - 1) / WARPS, from = warp_id() * share, to = min_of(count, from + share);
  u32 own = 0;
  for (u32 base = from; base < to; base += 32) {
    u32 i = base + lane_id();
    own += __popc(__ballot_sync(ALL_LANES, i < to && key_at(i) == key));
  }
  __syncthreads();
  if (lane_id() == 0) s.counts[warp_id()] = own;
  if (threadIdx.x == 0) s.id = NO_ID;
  __syncthreads();
  u64 before = 0;
  for (u32 w = 0; w < warp_id(); w++) before += s.counts[w];
  if (before < need && need <= before + own) {
    for (u32 base = from; base < to; base += 32) {
      u32 i = base + lane_id();
      u32 ties = __ballot_sync(ALL_LANES, i < to && key_at(i) == key);
      u32 rank = before + __popc(ties & ((2u << lane_id()) - 1));
      if ((ties >> lane_id() & 1) && rank == need) s.id = i;
      before += __popc(ties);
    }
  }
  __syncthreads();
  return s.id;
}

// Finds the shortest prefix, in order of likelihood, whose mass reaches `target`; all if none does.
//
// `key_at(i)` is 0 for ids out of the set; `mass_at(i)` is the same for equal keys.
template <class Key, class Mass>
DEVICE Cut select(const Key &key_at, const Mass &mass_at, u32 count, double target, Shared &s) {
  u32 prefix = 0, known = 0;
  u64 above = 0;
  // Digits of 11, 11 and 10 bits, the most significant first.
  for (u32 digit = 0; digit < 3; digit++) {
    u32 bits = digit == 2 ? 10 : 11, shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) s.bins[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
      u32 key = key_at(i);
      if (key && (known == 0 || key >> (32 - known) == prefix)) atomicAdd(&s.bins[key >> shift & ((1u << bits) - 1)], mass_at(i));
    }
    __syncthreads();
    // The first warp walks the bins from the top, 32 at a time.
    if (warp_id() == 0) {
      bool found = false;
      u64 sum = above;
      for (u32 top = 1u << bits; top && !found; top -= 32) {
        u64 own = s.bins[top - 1 - lane_id()], running = own;
        for (u32 o = 1; o < 32; o <<= 1) {
          u64 other = __shfl_up_sync(ALL_LANES, running, o);
          if (lane_id() >= o) running += other;
        }
        u32 reached = __ballot_sync(ALL_LANES, own && (double)(sum + running) >= target);
        if (reached) {
          u32 at = __ffs(reached) - 1;
          if (lane_id() == at) s.above = sum + running - own, s.bin = top - 1 - at;
          found = true;
        }
        sum += __shfl_sync(ALL_LANES, running, 31);
      }
      if (!found && lane_id() == 0) s.bin = NO_ID;
    }
    __syncthreads();
    if (s.bin == NO_ID) return {0, NO_ID};
    above = s.above;
    prefix = prefix << bits | s.bin;
    known += bits;
  }
  // Equal keys have equal masses: so many of them are needed.
  u32 tie = NO_ID;
  for (u32 i = threadIdx.x; i < count && tie == NO_ID; i += THREADS)
    if (key_at(i) == prefix) tie = i;
  tie = block_lowest(tie, s);
  u64 mass = mass_at(tie);
  u64 need = 1;
  if (mass && target > (double)above) {
    need = (u64)((target - (double)above) / (double)mass);
    need = need > 1 ? need - 1 : 1;
    while ((double)(above + need * mass) < target) need++;
  }
  return {prefix, tie_cut(key_at, count, prefix, need, s)};
}

// Adds biases and penalties to `adjusted`; masks last, which nothing can lift.
DEVICE void adjust(const SampleArgs &a, const SampleRow &row, const float *logits, float *adjusted, u32 *uses) {
  for (u32 i = threadIdx.x; i < a.vocabulary; i += THREADS) adjusted[i] = logits[i];
  __syncthreads();
  // In order: the same id may come twice.
  if (threadIdx.x == 0)
    for (u32 i = 0; i < row.bias_count; i++) {
      const u32 *entry = a.biases + 2 * (u64)(row.bias_at + i);
      if (entry[0] < a.vocabulary) adjusted[entry[0]] = finite(__fadd_rn(adjusted[entry[0]], __uint_as_float(entry[1])));
    }
  if (row.repetition != 1.0f || row.frequency != 0.0f || row.presence != 0.0f) {
    const u32 *history = a.history + (u64)row.slot * a.history_tokens;
    u32 prompt = a.slots[4 * row.slot], total = a.slots[4 * row.slot + 1];
    __syncthreads();
    for (u32 i = threadIdx.x; i < total; i += THREADS)
      if (history[i] < a.vocabulary) {
        atomicOr(&uses[history[i]], SEEN);
        if (i >= prompt) atomicAdd(&uses[history[i]], 1u);
      }
    __syncthreads();
    for (u32 i = threadIdx.x; i < total; i += THREADS) {
      // The first thread to take a token's count has it: the others find nothing.
      u32 used = history[i] < a.vocabulary ? atomicExch(&uses[history[i]], 0u) : 0;
      if (!used) continue;
      float x = adjusted[history[i]];
      x = x > 0.0f ? __fdiv_rn(x, row.repetition) : __fmul_rn(x, row.repetition);
      if (used &= ~SEEN) x = __fsub_rn(x, __fadd_rn(__fmul_rn(row.frequency, (float)used), row.presence));
      adjusted[history[i]] = finite(x);
    }
  }
  __syncthreads();
  if (row.flags & FLAG_MASK) {
    const u32 *mask = a.masks + row.mask_at;
    for (u32 i = threadIdx.x; i < a.vocabulary; i += THREADS) {
      u32 word = i / 32 < row.mask_words ? mask[i / 32] : 0;
      if (!(word >> (i % 32) & 1)) adjusted[i] = -INFINITY_F;
    }
    __syncthreads();
  }
}

// Draws from `weights` (0 where not in the set) by ascending id.
DEVICE u32 draw(const float *weights, u32 count, double random, Shared &s) {
  u32 share = (count + WARPS - 1) / WARPS, from = warp_id() * share, to = min_of(count, from + share);
  u64 own = 0;
  for (u32 i = from + lane_id(); i < to; i += 32) own += fixed_of(weights[i]);
  for (u32 o = 16; o; o >>= 1) own += __shfl_xor_sync(ALL_LANES, own, o);
  __syncthreads();
  if (lane_id() == 0) s.totals[warp_id()] = own;
  if (threadIdx.x == 0) s.id = NO_ID;
  __syncthreads();
  u64 total = 0, before = 0;
  for (u32 w = 0; w < WARPS; w++) {
    if (w < warp_id()) before += s.totals[w];
    total += s.totals[w];
  }
  double target = __dmul_rn(random, (double)total);
  if ((double)before <= target && (double)(before + own) > target) {
    for (u32 base = from; base < to; base += 32) {
      u32 i = base + lane_id();
      u64 running = i < to ? fixed_of(weights[i]) : 0;
      for (u32 o = 1; o < 32; o <<= 1) {
        u64 other = __shfl_up_sync(ALL_LANES, running, o);
        if (lane_id() >= o) running += other;
      }
      u32 past = __ballot_sync(ALL_LANES, (double)(before + running) > target);
      if (past) {
        if (lane_id() == 0) s.id = base + __ffs(past) - 1;
        break;
      }
      before += __shfl_sync(ALL_LANES, running, 31);
    }
  }
  __syncthreads();
  return s.id;
}

// Chooses a token from adjusted logits; NO_ID if the mask allows none.
DEVICE u32 choose(const SampleArgs &a, const SampleRow &row, const float *adjusted, float *weights, Shared &s) {
  u32 best, count = a.vocabulary;
  float max = greatest(adjusted, count, best, s);
  if (max == -INFINITY_F) return NO_ID;
  if (!(row.temperature > 0.0f)) return best;
  for (u32 i = threadIdx.x; i < count; i += THREADS) {
    float x = adjusted[i], weight = exp_exact(__fdiv_rn(__fsub_rn(x, max), row.temperature));
    bool kept = x > -INFINITY_F && (weight >= row.min_p || x == max);
    // Those that are out have a negative weight: a zero may still be in the set.
    weights[i] = kept ? weight : -1.0f;
  }
  __syncthreads();
  auto key_at = [&](u32 i) { return weights[i] < 0.0f ? 0u : key_of(adjusted[i]); };
  auto restrict_to = [&](Cut cut) {
    for (u32 i = threadIdx.x; i < count; i += THREADS)
      if (weights[i] >= 0.0f && !cut.keeps(key_of(adjusted[i]), i)) weights[i] = -1.0f;
    __syncthreads();
  };
  if (row.top_k && row.top_k < count) {
    restrict_to(select(key_at, [](u32) { return 1ull; }, count, (double)row.top_k, s));
  }
  if (row.top_p < 1.0f) {
    u64 own = 0;
    for (u32 i = threadIdx.x; i < count; i += THREADS)
      if (weights[i] > 0.0f) own += fixed_of(weights[i]);
    double target = __dmul_rn((double)row.top_p, (double)block_total(own, s));
    restrict_to(select(key_at, [&](u32 i) { return fixed_of(weights[i]); }, count, target, s));
  }
  for (u32 i = threadIdx.x; i < count; i += THREADS)
    if (weights[i] < 0.0f) weights[i] = 0.0f;
  __syncthreads();
  u32 id = draw(weights, count, uniform(row), s);
  return id == NO_ID ? best : id;
}

// ln of the sum of e^x, in one order.
DEVICE double log_sum_exp(const float *x, u32 count, float max, Shared &s) {
  double sum = 0;
  for (u32 i = threadIdx.x; i < count; i += THREADS) sum += (double)exp_exact(__fsub_rn(x[i], max));
  for (u32 o = 16; o; o >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
  __syncthreads();
  if (lane_id() == 0) s.sums[warp_id()] = sum;
  __syncthreads();
  sum = 0;
  for (u32 i = 0; i < WARPS; i++) sum += s.sums[i];
  return (double)max + log(sum);
}

// Writes the `top_n` most likely tokens in their order.
DEVICE void write_top(const SampleArgs &a, const SampleRow &row, const float *logits, double log_sum, Shared &s) {
  u32 wanted = min_of(row.top_n, a.vocabulary);
  if (!wanted) return;
  auto key_at = [&](u32 i) { return key_of(logits[i]); };
  Cut cut = select(key_at, [](u32) { return 1ull; }, a.vocabulary, (double)wanted, s);
  u32 *ids = a.top_ids + row.top_at;
  float *logprobs = a.top_logprobs + row.top_at;
  if (threadIdx.x == 0) s.cursor = 0;
  __syncthreads();
  for (u32 i = threadIdx.x; i < a.vocabulary; i += THREADS)
    if (cut.keeps(key_of(logits[i]), i)) ids[atomicAdd(&s.cursor, 1u)] = i;
  __syncthreads();
  // The place of an entry is the number of those before it.
  for (u32 base = 0; base < wanted; base += THREADS) {
    u32 i = base + threadIdx.x, id = i < wanted ? ids[i] : 0, place = 0;
    for (u32 j = 0; i < wanted && j < wanted; j++) {
      u32 other = ids[j];
      if (logits[other] > logits[id] || (logits[other] == logits[id] && other < id)) place++;
    }
    if (i < wanted) logprobs[place] = __uint_as_float(id);
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < wanted; i += THREADS) {
    u32 id = __float_as_uint(logprobs[i]);
    ids[i] = id;
    logprobs[i] = (float)((double)logits[id] - log_sum);
  }
  __syncthreads();
}

DEVICE void sample_row(const SampleArgs &a, u32 index, Shared &s) {
  const SampleRow &row = a.rows[index];
  if (threadIdx.x == 0) a.out_tokens[index] = 0, a.out_logprobs[index] = 0.0f, a.out_status[index] = STATUS_DEAD;
  if (!(row.flags & FLAG_LIVE)) return;
  const float *logits = a.logits + (u64)index * a.ld;
  bool bad = a.vocabulary == 0;
  for (u32 i = threadIdx.x; i < a.vocabulary; i += THREADS) bad |= !is_finite(logits[i]);
  bad = __syncthreads_or(bad);
  u32 id = NO_ID, best = 0;
  float max = 0;
  if (!bad) {
    max = greatest(logits, a.vocabulary, best, s);
    bool plain = !(row.temperature > 0.0f) && row.repetition == 1.0f && row.frequency == 0.0f && row.presence == 0.0f &&
                 !(row.flags & FLAG_MASK) && row.bias_count == 0;
    if (row.flags & FLAG_FORCED) {
      id = row.forced;
    } else if (plain) {
      id = best;
    } else {
      float *adjusted = a.adjusted + (u64)blockIdx.x * a.vocabulary;
      adjust(a, row, logits, adjusted, a.uses + (u64)blockIdx.x * a.vocabulary);
      id = choose(a, row, adjusted, a.weights + (u64)blockIdx.x * a.vocabulary, s);
    }
  }
  if (id == NO_ID) {
    if (threadIdx.x == 0) a.out_status[index] = STATUS_BAD;
    return;
  }
  float logprob = 0.0f;
  if (row.flags & FLAG_LOGPROBS) {
    double log_sum = log_sum_exp(logits, a.vocabulary, max, s);
    logprob = id < a.vocabulary ? (float)((double)logits[id] - log_sum) : -INFINITY_F;
    write_top(a, row, logits, log_sum, s);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    a.out_tokens[index] = id, a.out_logprobs[index] = logprob, a.out_status[index] = STATUS_TOKEN;
    u32 *slot = a.slots + 4 * row.slot;
    slot[2] = id;
    if (slot[1] < a.history_tokens) a.history[(u64)row.slot * a.history_tokens + slot[1]++] = id;
  }
  __syncthreads();
}

KERNEL(512) sample(SampleArgs a) {
  __shared__ Shared shared;
  for (u32 run = blockIdx.x; run < a.run_count; run += gridDim.x)
    for (u32 index = a.runs[run]; index < a.runs[run + 1]; index++) {
      sample_row(a, index, shared);
      __syncthreads();
    }
}

// Begins a step: slots that start again, and tokens that only the device knows.
//
// Reference: `StepState::begin` in state.rs. Bound by launch time. Exact.
#include "prims.cuh"

#define LAST_TOKEN 0x80000000u

// history [slots, history_tokens]; slots [slots, 4]: prompt length, total length, last token, 0.
// resets [grid, 4]: slot, prompt length, output length, offset in reset_tokens. Grid (resets).
KERNEL(128) reset_slots(u32 *history, u32 *slots, const u32 *resets, const u32 *reset_tokens, u32 history_tokens) {
  const u32 *reset = resets + 4 * blockIdx.x;
  u32 slot = reset[0], prompt = reset[1], total = reset[1] + reset[2];
  const u32 *tokens = reset_tokens + reset[3];
  u32 kept = min_of(total, history_tokens);
  u32 *own = history + (u64)slot * history_tokens;
  for (u32 i = threadIdx.x; i < kept; i += blockDim.x) own[i] = tokens[i];
  if (threadIdx.x == 0) {
    slots[4 * slot] = min_of(prompt, kept);
    slots[4 * slot + 1] = kept;
    slots[4 * slot + 2] = total ? tokens[total - 1] : 0;
    slots[4 * slot + 3] = 0;
  }
}

// tokens [rows]. Grid (ceil(rows / 256)).
KERNEL(256) resolve_tokens(u32 *tokens, const u32 *slots, u32 rows) {
  u32 row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  u32 token = tokens[row];
  if (token & LAST_TOKEN) tokens[row] = slots[4 * (token & ~LAST_TOKEN) + 2];
}

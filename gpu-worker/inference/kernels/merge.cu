// Joins the partial results of a row's splits, in ascending order, and writes the output row.
//
// Shapes: items [merge rows] step rows; part_acc [slots, q_heads, dvp], part_ml [slots, q_heads, 2]; out bf16 [R, ldo].
// Geometry: grid (R, q_heads), block 128, a thread for each value of the head. Reference: `attend_one` in
// scalar/attention.rs. Bound by reading the partial results. Tolerance: that of the splits.
#include "attend.cuh"

KERNEL(128) attend_merge(AttendArgs a) {
  if (blockIdx.x >= a.counters[5]) return;
  u32 row = a.items[blockIdx.x], head = blockIdx.y, padded = round_up(a.dv, 16);
  // Only rows that are alone in their step have partials: they see what is before them.
  u32 splits = (a.q_pos[row] + SPLIT) / SPLIT;
  u64 first = (u64)a.part_base[row] * a.q_heads + head;
  for (u32 col = 2 * threadIdx.x; col < a.dv; col += 2 * blockDim.x) {
    float max = -INFINITY_F, sum = 0.0f, total[2] = {0.0f, 0.0f};
    for (u32 split = 0; split < splits; split++) {
      u64 at = first + (u64)split * a.q_heads;
      Join j = join(max, sum, a.part_ml[2 * at], a.part_ml[2 * at + 1]);
      if (a.part_ml[2 * at + 1] == 0.0f) continue;
      float2 value = *(const float2 *)(a.part_acc + at * padded + col);
      total[0] = join_value(j, total[0], value.x);
      total[1] = join_value(j, total[1], value.y);
    }
    float factor = final_factor(a, max, sum, head);
    write_pair(a, row, head, col, __fmul_rn(total[0], factor), __fmul_rn(total[1], factor));
  }
}

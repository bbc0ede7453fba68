// Latent attention over bf16 pages.
//
// Shapes and order of sums: latent.cuh, attend.cuh and README.md. Geometry: grid (any, 16-row parts), block 128;
// `list` 0 takes decode items, 1 block items. Reference: `attend` in scalar/attention.rs with a latent rank.
// Bound by reading the latent once for each 16 rows. Tolerance: as attend_bf16.cu.
#include "latent.cuh"

KERNEL(128) attend_latent_bf16(AttendArgs a, u32 list) {
  DYNAMIC_SHARED(u8, shared);
  attend_latent<false>(a, list, shared);
}

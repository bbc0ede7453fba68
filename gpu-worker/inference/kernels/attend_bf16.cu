// Grouped-query attention over keys and values in bf16 pages, or in this step's rows.
//
// Shapes, geometry and the order of sums: grouped.cuh, attend.cuh and README.md. Reference: `attend` in scalar/attention.rs.
// Decode is bound by reading keys and values once, blocks by the matrix unit.
// Tolerance: weights rounded to bf16, 1e-2 of the greatest value.
#include "grouped.cuh"

ATTEND(bf16, false)

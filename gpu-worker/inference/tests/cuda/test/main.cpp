// Checks the kernels against plain loops, in the shim, under several orders of threads.
//
//     kernel-test [FIRST_SEED LAST_SEED]
//
// Every case runs once for each seed: results are close to the reference's, and the same bits under all seeds.
#include "harness.hpp"

int main(int count, char **arguments) {
  uint64_t first = count > 2 ? strtoull(arguments[1], nullptr, 10) : 1, last = count > 2 ? strtoull(arguments[2], nullptr, 10) : 3;
  for (seed = first; seed <= last; seed++) {
    test_rows();
    test_products();
    test_routes();
    test_attention();
    test_samples();
    test_cublaslt();
  }
  printf("%u checks passed under seeds %llu to %llu\n", checks, (unsigned long long)first, (unsigned long long)last);
}

// What the tests of kernels share: launches, poisoned buffers, comparisons.
#pragma once

#include "shim.hpp"

#include "args.cuh"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#include <algorithm>
#include <map>
#include <random>
#include <string>

extern "C" int fake_cuda_run(const char *name, const unsigned *grid, const unsigned *block, unsigned shared_bytes, uint64_t seed, void **arguments);

// The groups of cases: one file each.
void test_products();
void test_rows();
void test_routes();
void test_attention();
void test_samples();
void test_cublaslt();

inline uint64_t seed = 1;
inline std::string current;
inline unsigned checks = 0;

[[noreturn]] inline void wrong(const std::string &what) {
  fprintf(stderr, "%s (seed %llu): %s\n", current.c_str(), (unsigned long long)seed, what.c_str());
  exit(1);
}

template <class... A>
void launch(const char *name, dim3 grid, unsigned block, unsigned shared_bytes, A... arguments) {
  void *at[] = {(void *)&arguments...};
  unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block, 1, 1};
  if (fake_cuda_run(name, g, b, shared_bytes, seed, at)) wrong(std::string("no kernel ") + name);
}

// Memory that is 0xFF when it is new, and 256-byte aligned as the device's.
template <class T>
struct Buffer {
  T *at;
  size_t count;
  explicit Buffer(size_t count) : count(count) {
    // Not a byte more than asked for: AddressSanitizer sees the end.
    if (posix_memalign((void **)&at, 256, count * sizeof(T) + (count == 0))) abort();
    memset((void *)at, 0xff, count * sizeof(T));
  }
  Buffer(std::initializer_list<T> values) : Buffer(values.size()) { std::copy(values.begin(), values.end(), at); }
  explicit Buffer(const std::vector<T> &values) : Buffer(values.size()) { std::copy(values.begin(), values.end(), at); }
  Buffer(const Buffer &) = delete;
  ~Buffer() { free(at); }
  T &operator[](size_t i) {
    if (i >= count) wrong("index out of range in the test");
    return at[i];
  }
};

struct Random {
  std::mt19937_64 engine;
  explicit Random(uint64_t seed) : engine(seed) {}
  float unit() { return (float)(engine() >> 40) / (1 << 23) - 1.0f; }
  u32 below(u32 count) { return (u32)(engine() % count); }
};

inline u32 up(u32 x, u32 unit) { return (x + unit - 1) / unit * unit; }
inline u32 parts(u32 x, u32 unit) { return (x + unit - 1) / unit; }

inline void near(double got, double want, double tolerance, const std::string &where) {
  checks++;
  if (!(std::abs(got - want) <= tolerance)) wrong(where + ": " + std::to_string(got) + " is not close to " + std::to_string(want));
}

inline std::string at(const char *name, u32 i, u32 j) { return std::string(name) + " [" + std::to_string(i) + ", " + std::to_string(j) + "]"; }

// Results by case: the bits must be those of the first seed.
inline std::map<std::string, std::vector<char>> first_bits;

inline void same_bits(const void *data, size_t bytes) {
  std::vector<char> now((const char *)data, (const char *)data + bytes);
  auto [entry, is_new] = first_bits.try_emplace(current, now);
  if (!is_new && entry->second != now) wrong("other bits than under the first seed");
}

// Writes a random value, and returns what it stands for.
inline float put(const char *kind, u8 *to, Random &random) {
  float x = random.unit();
  if (!strcmp(kind, "bf16")) {
    *(u16 *)to = bf16_of(x);
    return f32_of_bf16(*(u16 *)to);
  }
  if (!strcmp(kind, "s8")) {
    *(signed char *)to = (signed char)rintf(x * 127);
    return *(signed char *)to;
  }
  *to = e4m3_of(x * 4);
  return f32_of_e4m3(*to);
}

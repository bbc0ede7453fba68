// Runs CUDA C++ kernels on the CPU: one fiber for each thread of a block, block after block.
//
// Included before a kernel's source, which stays the text that NVRTC sees. It is made to fail loudly:
// - shared memory is filled with 0xFF before each block,
// - threads of a block and blocks of a grid run in an order that a seed gives,
// - an asynchronous copy lands when it is waited for and not before,
// - a barrier or a warp operation that some thread never reaches ends the process with its place.
// One launch at a time: the host side serialises.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define CUDA_SHIM 1
#define __device__
#define __global__
#define __forceinline__ inline
#ifdef SHIM_LIST
// For the list of kernels, which is read from preprocessed text.
#define __launch_bounds__(threads, blocks) SHIM_KERNEL threads
#else
#define __launch_bounds__(threads, blocks)
#endif
#define __align__(n) alignas(n)
#define __shared__ static __attribute__((section("shim_shared")))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

extern char __start_shim_shared[] __attribute__((weak));
extern char __stop_shim_shared[] __attribute__((weak));

// Keeps the callee-saved registers on the stack that is left, and takes them from the one that is entered.
extern "C" void shim_switch(void **left, void *entered);
#ifdef SHIM_MAIN
asm(R"(.text
.globl shim_switch
.type shim_switch, @function
shim_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size shim_switch, .-shim_switch
)");
#endif

namespace shim {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t STACK_BYTES = 256 << 10;
#else
constexpr size_t STACK_BYTES = 96 << 10;
#endif
constexpr unsigned THREADS_MAX = 1024;

enum class State : uint8_t { RUNS, AT_BARRIER, IN_WARP, DONE };

struct Copy {
  void *to;
  const void *from;
  unsigned bytes;
  unsigned group;
};

struct Fiber {
  void *sp = nullptr;
  char *stack = nullptr;
  void *fake_stack = nullptr;
  uint3 tid{};
  unsigned index = 0;
  std::vector<Copy> copies;
  unsigned group = 0;
};

// A warp operation that waits for lanes.
struct Meeting {
  unsigned mask = 0;
  unsigned arrived = 0;
  void (*run)(void **, unsigned) = nullptr;
  void *lanes[32] = {};
};

struct Machine {
  Fiber fibers[THREADS_MAX];
  State states[THREADS_MAX];
  Meeting meetings[THREADS_MAX / 32];
  unsigned order[THREADS_MAX];
  unsigned place[THREADS_MAX];
  unsigned threads = 0;
  unsigned at_barrier = 0;
  unsigned done = 0;
  // What threads have voted for in a barrier with a vote.
  bool any = false;
  Fiber *current = nullptr;
  void *home = nullptr;
  void *home_fake_stack = nullptr;
  const void *home_stack = nullptr;
  size_t home_stack_bytes = 0;
  void (*body)(void *) = nullptr;
  void *body_argument = nullptr;
  const char *kernel = "";
  uint3 bid{};
  dim3 block_dim, grid_dim;
  char *dynamic = nullptr;
  size_t dynamic_bytes = 0;
  uint64_t random = 1;

  uint64_t next_random() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
};

inline Machine machine;

inline void *dynamic_shared() { return machine.dynamic; }

[[noreturn]] inline void fail(const char *what) {
  unsigned thread = machine.current ? machine.current->index : 0;
  fprintf(stderr, "cuda shim: %s: %s (block %u,%u,%u thread %u)\n", machine.kernel, what, machine.bid.x, machine.bid.y,
          machine.bid.z, thread);
  abort();
}

inline void require_aligned(const void *address, size_t bytes) {
  if ((uintptr_t)address % bytes) fail("address is not aligned");
}

// `left_fake` is null where the stack that is left ends for good; `stack` is the one that is entered.
inline void switch_to(void **left, void *entered, [[maybe_unused]] void **left_fake, [[maybe_unused]] const void *stack,
                      [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(left_fake, stack, bytes);
#endif
  shim_switch(left, entered);
}

inline void arrived([[maybe_unused]] void *fake) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

// Leaves the current fiber for the next that can run, or for the scheduler if none can.
inline void leave() {
  Machine &m = machine;
  Fiber &from = *m.current;
  unsigned at = m.place[from.index];
  bool last = m.states[from.index] == State::DONE;
  for (unsigned i = 1; i < m.threads; i++) {
    unsigned next = at + i < m.threads ? at + i : at + i - m.threads;
    unsigned index = m.order[next];
    if (m.states[index] == State::RUNS && m.fibers[index].sp) {
      Fiber &to = m.fibers[index];
      m.current = &to;
      switch_to(&from.sp, to.sp, last ? nullptr : &from.fake_stack, to.stack, STACK_BYTES);
      arrived(from.fake_stack);
      return;
    }
  }
  if (m.states[from.index] == State::RUNS) return;
  switch_to(&from.sp, m.home, last ? nullptr : &from.fake_stack, m.home_stack, m.home_stack_bytes);
  arrived(from.fake_stack);
}

inline void enter() {
  arrived(nullptr);
  machine.body(machine.body_argument);
  machine.states[machine.current->index] = State::DONE;
  machine.done++;
  if (!machine.current->copies.empty()) fail("a thread ends with copies under way");
  leave();
  __builtin_unreachable();
}

inline void release_barrier() {
  Machine &m = machine;
  m.at_barrier = 0;
  for (unsigned i = 0; i < m.threads; i++)
    if (m.states[i] == State::AT_BARRIER) m.states[i] = State::RUNS;
}

inline void barrier() {
  Machine &m = machine;
  m.states[m.current->index] = State::AT_BARRIER;
  if (++m.at_barrier + m.done == m.threads) release_barrier();
  leave();
}

// Lanes named in `mask` meet; the last to come runs `run` over what they left.
inline void collective(unsigned mask, void *own, void (*run)(void **, unsigned)) {
  Machine &m = machine;
  unsigned index = m.current->index, lane = index & 31;
  Meeting &meeting = m.meetings[index >> 5];
  unsigned here = m.threads - (index & ~31u);
  if (here < 32) mask &= (1u << here) - 1;
  if (!(mask >> lane & 1)) fail("a lane is not in the mask of its own warp operation");
  if (meeting.arrived && (meeting.mask != mask || meeting.run != run)) fail("lanes of a warp meet in different operations");
  meeting.mask = mask, meeting.run = run, meeting.arrived |= 1u << lane, meeting.lanes[lane] = own;
  if (meeting.arrived == mask) {
    run(meeting.lanes, mask);
    meeting.arrived = 0;
    for (unsigned l = 0; l < 32; l++)
      if (mask >> l & 1) m.states[(index & ~31u) + l] = State::RUNS;
    if (m.next_random() & 1) leave();
    return;
  }
  m.states[index] = State::IN_WARP;
  leave();
}

template <class T>
struct Exchange {
  T value;
  T result;
  unsigned from;
};

template <class T>
T exchange(unsigned mask, T value, unsigned from) {
  Exchange<T> own{value, value, from};
  collective(mask, &own, [](void **lanes, unsigned present) {
    for (unsigned l = 0; l < 32; l++) {
      if (!(present >> l & 1)) continue;
      auto &mine = *(Exchange<T> *)lanes[l];
      if (mine.from >= 32) continue;
      if (!(present >> mine.from & 1)) fail("a shuffle reads a lane that is not there");
      mine.result = ((Exchange<T> *)lanes[mine.from])->value;
    }
  });
  return own.result;
}

inline unsigned lane() { return machine.current->index & 31; }

inline unsigned ballot(unsigned mask, bool vote) {
  struct Vote { bool vote; unsigned result; } own{vote, 0};
  collective(mask, &own, [](void **lanes, unsigned present) {
    unsigned result = 0;
    for (unsigned l = 0; l < 32; l++) result |= unsigned((present >> l & 1) && ((Vote *)lanes[l])->vote) << l;
    for (unsigned l = 0; l < 32; l++)
      if (present >> l & 1) ((Vote *)lanes[l])->result = result;
  });
  return own.result;
}

inline void copy_start(void *to, const void *from, unsigned bytes) {
  require_aligned(to, 16);
  require_aligned(from, 16);
  if (bytes > 16) fail("a copy of more than 16 bytes");
  memset(to, 0xff, 16);
  machine.current->copies.push_back({to, from, bytes, machine.current->group});
}

inline void copy_commit() { machine.current->group++; }

inline void copy_wait(unsigned open) {
  Fiber &fiber = *machine.current;
  size_t kept = 0;
  for (Copy &copy : fiber.copies) {
    if (copy.group + open < fiber.group) {
      memset(copy.to, 0, 16);
      memcpy(copy.to, copy.from, copy.bytes);
    } else {
      fiber.copies[kept++] = copy;
    }
  }
  fiber.copies.resize(kept);
}

inline void prepare_fiber(unsigned index) {
  Machine &m = machine;
  Fiber &fiber = m.fibers[index];
  if (!fiber.stack) fiber.stack = (char *)aligned_alloc(64, STACK_BYTES);
#if defined(__SANITIZE_ADDRESS__)
  // A fiber's last frames never return: their marks are still there.
  __asan_unpoison_memory_region(fiber.stack, STACK_BYTES);
#endif
  void **top = (void **)(fiber.stack + STACK_BYTES) - 3;
  *--top = (void *)enter;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  fiber.sp = top;
  fiber.fake_stack = nullptr;
  fiber.index = index;
  fiber.group = 0;
  fiber.tid = {index % m.block_dim.x, index / m.block_dim.x % m.block_dim.y, index / m.block_dim.x / m.block_dim.y};
  m.states[index] = State::RUNS;
}

template <class T>
void shuffle(T *values, unsigned count) {
  for (unsigned i = count; i > 1; i--) std::swap(values[i - 1], values[machine.next_random() % i]);
}

inline void run_block() {
  Machine &m = machine;
  if (__start_shim_shared) memset(__start_shim_shared, 0xff, __stop_shim_shared - __start_shim_shared);
  if (m.dynamic_bytes) memset(m.dynamic, 0xff, m.dynamic_bytes);
  m.at_barrier = m.done = 0, m.any = false;
  for (unsigned i = 0; i < m.threads; i++) prepare_fiber(i), m.order[i] = i;
  shuffle(m.order, m.threads);
  for (unsigned i = 0; i < m.threads; i++) m.place[m.order[i]] = i;
  for (Meeting &meeting : m.meetings) meeting.arrived = 0;
  while (m.done < m.threads) {
    unsigned i = 0;
    while (i < m.threads && m.states[m.order[i]] != State::RUNS) i++;
    if (i == m.threads) {
      // Threads that have ended do not hold a barrier up.
      if (m.at_barrier && m.at_barrier + m.done == m.threads) {
        release_barrier();
        continue;
      }
      for (unsigned t = 0; t < m.threads; t++)
        if (m.states[t] != State::DONE) {
          m.current = &m.fibers[t];
          fail(m.states[t] == State::AT_BARRIER ? "not every thread comes to a barrier" : "not every lane comes to a warp operation");
        }
    }
    m.current = &m.fibers[m.order[i]];
    switch_to(&m.home, m.current->sp, &m.home_fake_stack, m.current->stack, STACK_BYTES);
    arrived(m.home_fake_stack);
  }
}

// Runs `call` as every thread of the grid.
template <class F>
void run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, uint64_t seed, F &call) {
  Machine &m = machine;
  m.kernel = kernel;
  m.grid_dim = grid, m.block_dim = block;
  m.threads = block.x * block.y * block.z;
  m.random = seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  m.dynamic_bytes = shared_bytes;
  // An own allocation, so that AddressSanitizer sees its end.
  if (posix_memalign((void **)&m.dynamic, 128, shared_bytes + (shared_bytes == 0))) abort();
  m.body = [](void *argument) { (*(F *)argument)(); };
  m.body_argument = &call;
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  void *stack;
  pthread_attr_getstack(&attributes, &stack, &m.home_stack_bytes);
  m.home_stack = stack;
  pthread_attr_destroy(&attributes);
#endif
  uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
  std::vector<uint32_t> order(blocks);
  for (uint64_t i = 0; i < blocks; i++) order[i] = (uint32_t)i;
  shuffle(order.data(), (unsigned)blocks);
  for (uint32_t at : order) {
    m.bid = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
    run_block();
  }
  free(m.dynamic);
  m.dynamic = nullptr, m.current = nullptr;
}

}  // namespace shim

#define threadIdx (shim::machine.current->tid)
#define blockIdx (shim::machine.bid)
#define blockDim (shim::machine.block_dim)
#define gridDim (shim::machine.grid_dim)

inline void __syncthreads() { shim::barrier(); }
inline void __syncwarp(unsigned mask = ~0u) {
  int nothing = 0;
  shim::collective(mask, &nothing, [](void **, unsigned) {});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned bits) { return shim::exchange(mask, value, shim::lane() ^ bits); }
template <class T>
T __shfl_sync(unsigned mask, T value, unsigned from) { return shim::exchange(mask, value, from & 31); }
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) { return shim::exchange(mask, value, shim::lane() < by ? 99 : shim::lane() - by); }
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) { return shim::exchange(mask, value, shim::lane() + by); }
inline unsigned __ballot_sync(unsigned mask, bool vote) { return shim::ballot(mask, vote); }
inline bool __any_sync(unsigned mask, bool vote) { return shim::ballot(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return shim::ballot(mask, !vote) == 0; }
inline int __syncthreads_or(int vote) {
  if (vote) shim::machine.any = true;
  shim::barrier();
  int any = shim::machine.any;
  shim::barrier();
  shim::machine.any = false;
  shim::barrier();
  return any;
}

inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
template <class T>
T atomicAdd(T *at, std::type_identity_t<T> value) { T old = *at; *at = old + value; return old; }
template <class T>
T atomicMax(T *at, std::type_identity_t<T> value) { T old = *at; if (value > old) *at = value; return old; }
template <class T>
T atomicMin(T *at, std::type_identity_t<T> value) { T old = *at; if (value < old) *at = value; return old; }
template <class T>
T atomicOr(T *at, std::type_identity_t<T> value) { T old = *at; *at = old | value; return old; }
template <class T>
T atomicExch(T *at, std::type_identity_t<T> value) { T old = *at; *at = value; return old; }
template <class T>
T __ldg(const T *at) { return *at; }

// The state of the fake driver.
#pragma once

#include "../enqueue.hpp"
#include "../registry.hpp"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#define API extern "C" __attribute__((visibility("default")))

namespace fake {

enum Code {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  NO_BINARY_FOR_GPU = 209,
  UNSUPPORTED_PTX_VERSION = 222,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
};

inline uint64_t setting(const char *name, uint64_t otherwise) {
  const char *value = getenv(name);
  return value && *value ? strtoull(value, nullptr, 10) : otherwise;
}

using Work = std::function<void()>;
using Device = unsigned long long;

struct Event {
  uint64_t recorded = 0;   // records that were given to a stream
  uint64_t done = 0;       // the last of them that ran
  std::chrono::steady_clock::time_point at{};
  struct Graph *captured_by = nullptr;
};

// One entry of a stream: work, or a wait for an event.
struct Item {
  Work work;
  std::shared_ptr<Event> waits_for;
  uint64_t record = 0;
};

struct Graph {
  std::vector<Work> work;
  bool invalid = false;
};

struct Stream {
  std::deque<Item> items;
  Graph *capture = nullptr;
  bool began_capture = false;
};

struct Module {
  std::vector<char> image;
};

struct Memory {
  std::map<uintptr_t, size_t> device, pinned;
  size_t used = 0;

  static bool holds(const std::map<uintptr_t, size_t> &ranges, const void *at) {
    auto after = ranges.upper_bound((uintptr_t)at);
    if (after == ranges.begin()) return false;
    --after;
    return (uintptr_t)at < after->first + after->second;
  }
};

inline std::recursive_mutex lock;
inline std::set<Stream *> streams;
inline Stream null_stream;
inline Memory memory;
inline std::map<void *, std::shared_ptr<Event>> events;
inline int sticky = SUCCESS;
inline uint64_t launches = 0, random_state = 0;
inline thread_local void *current_context = nullptr;
inline thread_local Graph *capturing_here = nullptr;

inline uint64_t next_random() {
  if (!random_state) random_state = setting("FAKE_CUDA_SEED", 1) * 0x9E3779B97F4A7C15ull + 1;
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

inline Stream *stream_of(void *handle) {
  // 0, and the names of the legacy and the per-thread default stream.
  if ((uintptr_t)handle <= 2) return &null_stream;
  return streams.count((Stream *)handle) ? (Stream *)handle : nullptr;
}

// Runs all that a stream has been given, or all that all have; returns the device's error.
int run_stream(Stream *stream);
int run_all();

// Runs work until `done`, as little as its order allows; now and then some that nobody asked for.
int run_until(Stream *wanted, const std::function<bool()> &done);

// Gives work to a stream, or to the graph that captures it.
int submit(void *handle, Work work);

// What a thread may not call while it captures: the capture is lost.
int refuse_in_capture();

struct Lock {
  std::lock_guard<std::recursive_mutex> guard{lock};
};

}  // namespace fake

// A libcuda.so.1 without a GPU: host code runs against it unchanged, kernels run in the shim.
//
// It shows what real hardware hides most of the time:
// - work runs at the last moment that stream order allows: when somebody waits for it;
// - streams that nothing orders are interleaved as a seed says;
// - copies from pinned memory read it when they run, and device and pinned memory is 0xFF when it is new or freed;
// - what a capturing thread may not do fails, and a graph replays with the arguments that it captured.
// Known by environment: FAKE_CUDA_SEED, FAKE_CUDA_DEVICES (0: none), FAKE_CUDA_DRIVER_VERSION, FAKE_CUDA_SM (90),
// FAKE_CUDA_MEMORY_BYTES, FAKE_CUDA_FAIL_LAUNCH (the launch that ends in an illegal address).
// Source of names, codes and rules: NVIDIA, CUDA Driver API reference.
#define SHIM_MAIN
#include "driver.hpp"
#include "registry.hpp"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <set>

#define API extern "C" __attribute__((visibility("default")))

namespace {

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

const std::map<int, std::pair<const char *, const char *>> NAMES = {
    {SUCCESS, {"CUDA_SUCCESS", "no error"}},
    {INVALID_VALUE, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {NO_DEVICE, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {INVALID_DEVICE, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {INVALID_IMAGE, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {NO_BINARY_FOR_GPU, {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"}},
    {UNSUPPORTED_PTX_VERSION, {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."}},
    {INVALID_HANDLE, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {NOT_FOUND, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {NOT_READY, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {ILLEGAL_ADDRESS, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {CAPTURE_UNSUPPORTED, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {CAPTURE_INVALIDATED, {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"}},
};

uint64_t setting(const char *name, uint64_t otherwise) {
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

std::recursive_mutex lock;
std::set<Stream *> streams;
Stream null_stream;
Memory memory;
std::map<void *, std::shared_ptr<Event>> events;
int sticky = SUCCESS;
uint64_t launches = 0, random_state = 0;
thread_local void *current_context = nullptr;
thread_local Graph *capturing_here = nullptr;
char context_object;

uint64_t next_random() {
  if (!random_state) random_state = setting("FAKE_CUDA_SEED", 1) * 0x9E3779B97F4A7C15ull + 1;
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

Stream *stream_of(void *handle) {
  // 0, and the names of the legacy and the per-thread default stream.
  if ((uintptr_t)handle <= 2) return &null_stream;
  return streams.count((Stream *)handle) ? (Stream *)handle : nullptr;
}

bool is_blocked(const Stream &stream) {
  const Item &item = stream.items.front();
  return item.waits_for && item.waits_for->done < item.record;
}

void run_one(Stream &stream) {
  Item item = std::move(stream.items.front());
  stream.items.pop_front();
  if (item.work) item.work();
}

// Runs work until `done`, as little as its order allows; now and then some that nobody asked for.
int run_until(Stream *wanted, const std::function<bool()> &done) {
  while (!done()) {
    std::vector<Stream *> ready, needed;
    auto consider = [&](Stream *stream) {
      if (!stream->items.empty() && !is_blocked(*stream)) ready.push_back(stream);
    };
    consider(&null_stream);
    for (Stream *stream : streams) consider(stream);
    if (ready.empty()) {
      fprintf(stderr, "fake cuda: a wait for work that was never given\n");
      abort();
    }
    Stream *next = ready[next_random() % ready.size()];
    if (wanted && !wanted->items.empty() && !is_blocked(*wanted) && next_random() % 4) next = wanted;
    run_one(*next);
  }
  return sticky;
}

int run_stream(Stream *stream) {
  return run_until(stream, [stream] { return stream->items.empty(); });
}

int run_all() {
  return run_until(nullptr, [] {
    for (Stream *stream : streams)
      if (!stream->items.empty()) return false;
    return null_stream.items.empty();
  });
}

int submit(void *handle, Work work) {
  if (sticky) return sticky;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (stream->capture) stream->capture->work.push_back(std::move(work));
  else stream->items.push_back({std::move(work), nullptr, 0});
  return SUCCESS;
}

// What a thread may not call while it captures: the capture is lost.
int refuse_in_capture() {
  if (!capturing_here) return SUCCESS;
  capturing_here->invalid = true;
  return CAPTURE_UNSUPPORTED;
}

// Bytes of an ELF image: its section headers come last.
size_t image_bytes(const char *image) {
  uint64_t headers;
  uint16_t size, count;
  memcpy(&headers, image + 0x28, 8);
  memcpy(&size, image + 0x3a, 2);
  memcpy(&count, image + 0x3c, 2);
  size_t end = headers + (size_t)size * count;
  for (unsigned i = 0; i < count; i++) {
    const char *section = image + headers + (size_t)i * size;
    uint32_t type;
    uint64_t offset, bytes;
    memcpy(&type, section + 4, 4), memcpy(&offset, section + 0x18, 8), memcpy(&bytes, section + 0x20, 8);
    if (type != 8 && offset + bytes > end) end = offset + bytes;
  }
  return end;
}

struct Lock {
  std::lock_guard<std::recursive_mutex> guard{lock};
};

}  // namespace

int fake_cuda_enqueue(void *stream, std::function<void()> *work) {
  Lock held;
  return submit(stream, *work);
}

API int cuInit(unsigned) { return setting("FAKE_CUDA_DEVICES", 1) ? SUCCESS : NO_DEVICE; }

API int cuDriverGetVersion(int *version) {
  *version = (int)setting("FAKE_CUDA_DRIVER_VERSION", 13000);
  return SUCCESS;
}

API int cuGetErrorName(int code, const char **text) {
  auto found = NAMES.find(code);
  *text = found == NAMES.end() ? nullptr : found->second.first;
  return found == NAMES.end() ? INVALID_VALUE : SUCCESS;
}

API int cuGetErrorString(int code, const char **text) {
  auto found = NAMES.find(code);
  *text = found == NAMES.end() ? nullptr : found->second.second;
  return found == NAMES.end() ? INVALID_VALUE : SUCCESS;
}

API int cuDeviceGetCount(int *count) {
  *count = (int)setting("FAKE_CUDA_DEVICES", 1);
  return SUCCESS;
}

API int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < (int)setting("FAKE_CUDA_DEVICES", 1) ? SUCCESS : INVALID_DEVICE;
}

API int cuDeviceGetName(char *name, int bytes, int) {
  snprintf(name, bytes, "fake device (CPU)");
  return SUCCESS;
}

API int cuDeviceGetUuid_v2(char *uuid, int device) {
  memset(uuid, 0, 16);
  uuid[0] = (char)device;
  return SUCCESS;
}
API int cuDeviceGetUuid(char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

API int cuDeviceGetAttribute(int *value, int attribute, int) {
  int sm = (int)setting("FAKE_CUDA_SM", 90);
  static const std::map<int, int> VALUES = {
      {1, 1024},     {2, 1024},   {3, 1024},        {4, 64},        {5, 2147483647}, {6, 65535}, {7, 65535},
      {8, 48 << 10}, {10, 32},    {12, 65536},      {13, 1980000},  {16, 4},         {36, 3201000}, {37, 5120},
      {38, 50 << 20}, {39, 2048}, {81, 233472},     {82, 65536},    {97, 232448},    {106, 32},  {115, 1},
  };
  if (attribute == 75) *value = sm / 10;
  else if (attribute == 76) *value = sm % 10;
  else *value = VALUES.count(attribute) ? VALUES.at(attribute) : 1;
  // Shared memory that a block may ask for: 99 KiB on sm_86 and sm_89, 163 KiB on sm_80.
  if (attribute == 97 && sm < 90) *value = sm == 80 ? 166912 : 101376;
  return SUCCESS;
}

API int cuDeviceTotalMem_v2(size_t *bytes, int) {
  *bytes = setting("FAKE_CUDA_MEMORY_BYTES", 4ull << 30);
  return SUCCESS;
}

API int cuDevicePrimaryCtxRetain(void **context, int) {
  *context = &context_object;
  return SUCCESS;
}
API int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API int cuCtxSetCurrent(void *context) {
  current_context = context;
  return SUCCESS;
}
API int cuCtxGetCurrent(void **context) {
  *context = current_context;
  return SUCCESS;
}
API int cuCtxSetFlags(unsigned) { return SUCCESS; }
API int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0, *greatest = -5;
  return SUCCESS;
}
API int cuCtxSynchronize() {
  Lock held;
  if (int code = refuse_in_capture()) return code;
  return run_all();
}

API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  Lock held;
  *total = setting("FAKE_CUDA_MEMORY_BYTES", 4ull << 30);
  *free_bytes = *total - memory.used;
  return sticky;
}

namespace {
int allocate(Device *at, size_t bytes) {
  if (sticky) return sticky;
  if (!bytes) return INVALID_VALUE;
  if (memory.used + bytes > setting("FAKE_CUDA_MEMORY_BYTES", 4ull << 30)) return OUT_OF_MEMORY;
  void *block = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!block) return OUT_OF_MEMORY;
  memset(block, 0xff, bytes);
  memory.device[(uintptr_t)block] = bytes, memory.used += bytes;
  *at = (Device)block;
  return SUCCESS;
}

int release(Device at) {
  auto found = memory.device.find(at);
  if (found == memory.device.end()) return INVALID_VALUE;
  memory.used -= found->second;
  memset((void *)at, 0xff, found->second);
  memory.device.erase(found);
  free((void *)at);
  return SUCCESS;
}

// Whether [at, at + bytes) lies in one allocation of the device.
bool is_device(Device at, size_t bytes) {
  auto after = memory.device.upper_bound(at);
  if (after == memory.device.begin()) return false;
  --after;
  return at + bytes <= after->first + after->second;
}
}  // namespace

API int cuMemAlloc_v2(Device *at, size_t bytes) {
  Lock held;
  if (int code = refuse_in_capture()) return code;
  return allocate(at, bytes);
}
API int cuMemAllocAsync(Device *at, size_t bytes, void *) {
  Lock held;
  // Legal in a capture on the real driver, which then makes memory nodes; no graph of ours may have them.
  if (int code = refuse_in_capture()) return code;
  return allocate(at, bytes);
}
API int cuMemFree_v2(Device at) {
  Lock held;
  if (int code = refuse_in_capture()) return code;
  run_all();
  return release(at);
}
API int cuMemFreeAsync(Device at, void *stream) {
  Lock held;
  if (!memory.device.count(at)) return INVALID_VALUE;
  return submit(stream, [at] { release(at); });
}
API int cuMemHostAlloc(void **at, size_t bytes, unsigned) {
  Lock held;
  if (int code = refuse_in_capture()) return code;
  *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*at) return OUT_OF_MEMORY;
  memset(*at, 0xff, bytes);
  memory.pinned[(uintptr_t)*at] = bytes;
  return SUCCESS;
}
API int cuMemFreeHost(void *at) {
  Lock held;
  auto found = memory.pinned.find((uintptr_t)at);
  if (found == memory.pinned.end()) return INVALID_VALUE;
  // Copies that still read it are the caller's mistake: they will read 0xFF.
  memset(at, 0xff, found->second);
  memory.pinned.erase(found);
  free(at);
  return SUCCESS;
}
API int cuMemHostRegister_v2(void *at, size_t bytes, unsigned) {
  Lock held;
  memory.pinned[(uintptr_t)at] = bytes;
  return SUCCESS;
}
API int cuMemHostUnregister(void *at) {
  Lock held;
  return memory.pinned.erase((uintptr_t)at) ? SUCCESS : INVALID_VALUE;
}
API int cuMemHostGetFlags(unsigned *flags, void *at) {
  Lock held;
  *flags = 0;
  return Memory::holds(memory.pinned, at) ? SUCCESS : INVALID_VALUE;
}

API int cuMemcpyHtoDAsync_v2(Device to, const void *from, size_t bytes, void *stream) {
  Lock held;
  if (!is_device(to, bytes)) return INVALID_VALUE;
  if (Memory::holds(memory.pinned, from)) return submit(stream, [=] { memcpy((void *)to, from, bytes); });
  // Pageable memory is staged before the call returns.
  auto staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
  return submit(stream, [=] { memcpy((void *)to, staged->data(), staged->size()); });
}
API int cuMemcpyDtoHAsync_v2(void *to, Device from, size_t bytes, void *stream) {
  Lock held;
  if (!is_device(from, bytes)) return INVALID_VALUE;
  int code = submit(stream, [=] { memcpy(to, (void *)from, bytes); });
  Stream *own = stream_of(stream);
  // Pageable memory: the call returns when the copy is done.
  if (!code && !own->capture && !Memory::holds(memory.pinned, to)) code = run_stream(own);
  return code;
}
API int cuMemcpyDtoDAsync_v2(Device to, Device from, size_t bytes, void *stream) {
  Lock held;
  if (!is_device(to, bytes) || !is_device(from, bytes)) return INVALID_VALUE;
  return submit(stream, [=] { memmove((void *)to, (void *)from, bytes); });
}
API int cuMemcpyHtoD_v2(Device to, const void *from, size_t bytes) {
  Lock held;
  if (int code = refuse_in_capture()) return code;
  int code = cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
  return code ? code : run_stream(&null_stream);
}
API int cuMemcpyDtoH_v2(void *to, Device from, size_t bytes) {
  Lock held;
  if (int code = refuse_in_capture()) return code;
  int code = cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
  return code ? code : run_stream(&null_stream);
}
API int cuMemcpyDtoD_v2(Device to, Device from, size_t bytes) { return cuMemcpyDtoDAsync_v2(to, from, bytes, nullptr); }
API int cuMemsetD8Async(Device to, unsigned char value, size_t bytes, void *stream) {
  Lock held;
  if (!is_device(to, bytes)) return INVALID_VALUE;
  return submit(stream, [=] { memset((void *)to, value, bytes); });
}
API int cuMemsetD8_v2(Device to, unsigned char value, size_t bytes) { return cuMemsetD8Async(to, value, bytes, nullptr); }
API int cuMemsetD32Async(Device to, unsigned value, size_t count, void *stream) {
  Lock held;
  if (!is_device(to, 4 * count)) return INVALID_VALUE;
  return submit(stream, [=] {
    for (size_t i = 0; i < count; i++) ((unsigned *)to)[i] = value;
  });
}

API int cuStreamCreate(void **stream, unsigned) {
  Lock held;
  if (int code = refuse_in_capture()) return code;
  Stream *made = new Stream;
  streams.insert(made);
  *stream = made;
  return SUCCESS;
}
API int cuStreamCreateWithPriority(void **stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
API int cuStreamDestroy_v2(void *handle) {
  Lock held;
  Stream *stream = stream_of(handle);
  if (!stream || stream == &null_stream) return INVALID_HANDLE;
  run_stream(stream);
  streams.erase(stream);
  delete stream;
  return SUCCESS;
}
API int cuStreamSynchronize(void *handle) {
  Lock held;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (stream->capture) {
    stream->capture->invalid = true;
    return CAPTURE_UNSUPPORTED;
  }
  return run_stream(stream);
}
API int cuStreamQuery(void *handle) {
  Lock held;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (sticky || stream->items.empty()) return sticky;
  // Who asks again and again gets an answer in the end.
  if (next_random() % 8 == 0) run_stream(stream);
  return NOT_READY;
}
API int cuStreamWaitEvent(void *handle, void *event, unsigned) {
  Lock held;
  Stream *stream = stream_of(handle);
  auto found = events.find(event);
  if (!stream || found == events.end()) return INVALID_HANDLE;
  if (found->second->captured_by) {
    // The stream joins the capture; the order of recording is an order of the graph.
    stream->capture = found->second->captured_by;
    return SUCCESS;
  }
  if (stream->capture) return SUCCESS;
  stream->items.push_back({nullptr, found->second, found->second->recorded});
  return SUCCESS;
}

API int cuEventCreate(void **event, unsigned) {
  Lock held;
  auto made = std::make_shared<Event>();
  *event = made.get();
  events[*event] = made;
  return SUCCESS;
}
API int cuEventDestroy_v2(void *event) {
  Lock held;
  return events.erase(event) ? SUCCESS : INVALID_HANDLE;
}
API int cuEventRecord(void *handle, void *stream_handle) {
  Lock held;
  auto found = events.find(handle);
  Stream *stream = stream_of(stream_handle);
  if (!stream || found == events.end()) return INVALID_HANDLE;
  std::shared_ptr<Event> event = found->second;
  if (stream->capture) {
    event->captured_by = stream->capture;
    return SUCCESS;
  }
  event->captured_by = nullptr;
  uint64_t record = ++event->recorded;
  return submit(stream_handle, [event, record] {
    event->done = record;
    event->at = std::chrono::steady_clock::now();
  });
}
API int cuEventSynchronize(void *handle) {
  Lock held;
  auto found = events.find(handle);
  if (found == events.end()) return INVALID_HANDLE;
  std::shared_ptr<Event> event = found->second;
  uint64_t record = event->recorded;
  return run_until(nullptr, [=] { return event->done >= record; });
}
API int cuEventQuery(void *handle) {
  Lock held;
  auto found = events.find(handle);
  if (found == events.end()) return INVALID_HANDLE;
  std::shared_ptr<Event> event = found->second;
  if (sticky || event->done >= event->recorded) return sticky;
  if (next_random() % 8 == 0) cuEventSynchronize(handle);
  return NOT_READY;
}
API int cuEventElapsedTime_v2(float *ms, void *start, void *end) {
  Lock held;
  if (!events.count(start) || !events.count(end)) return INVALID_HANDLE;
  *ms = std::chrono::duration<float, std::milli>(events[end]->at - events[start]->at).count();
  return SUCCESS;
}
API int cuEventElapsedTime(float *ms, void *start, void *end) { return cuEventElapsedTime_v2(ms, start, end); }

API int cuModuleLoadData(void **module, const void *image) {
  Lock held;
  if (memcmp(image, "\x7f" "ELF", 4)) return INVALID_IMAGE;
  // The version of the toolkit that wrote a cubin must not be newer, by major version, than the driver's.
  if (setting("FAKE_CUDA_DRIVER_VERSION", 13000) < 12000) return UNSUPPORTED_PTX_VERSION;
  auto *made = new Module;
  made->image.assign((const char *)image, (const char *)image + image_bytes((const char *)image));
  *module = made;
  return SUCCESS;
}
API int cuModuleUnload(void *module) {
  Lock held;
  delete (Module *)module;
  return SUCCESS;
}
API int cuModuleGetFunction(void **function, void *module, const char *name) {
  Lock held;
  const std::vector<char> &image = ((Module *)module)->image;
  std::string section = std::string(".text.") + name;
  const char *last = section.c_str();
  bool in_image = std::search(image.begin(), image.end(), last, last + section.size() + 1) != image.end();
  auto found = registry::kernels().find(name);
  if (!in_image || found == registry::kernels().end()) return NOT_FOUND;
  *function = &found->second;
  return SUCCESS;
}
API int cuFuncSetAttribute(void *function, int attribute, int value) {
  Lock held;
  int most;
  cuDeviceGetAttribute(&most, 97, 0);
  if (attribute == 8 && value > most) return INVALID_VALUE;
  if (attribute == 8) ((registry::Kernel *)function)->dynamic_shared_max = value;
  return SUCCESS;
}
API int cuFuncGetAttribute(int *value, int attribute, void *function) {
  auto *kernel = (registry::Kernel *)function;
  *value = attribute == 0 ? (int)kernel->threads_max : attribute == 8 ? (int)kernel->dynamic_shared_max : 0;
  return SUCCESS;
}
API int cuFuncSetCacheConfig(void *, int) { return SUCCESS; }
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *, int, size_t) {
  *blocks = 2;
  return SUCCESS;
}
API int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void *, int, size_t, unsigned) {
  *blocks = 2;
  return SUCCESS;
}

API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared_bytes, void *stream, void **arguments, void **) {
  Lock held;
  auto *kernel = (registry::Kernel *)function;
  uint64_t threads = (uint64_t)bx * by * bz;
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || !threads || threads > kernel->threads_max ||
      shared_bytes > kernel->dynamic_shared_max) {
    fprintf(stderr, "fake cuda: %s does not launch: grid %u,%u,%u block %u,%u,%u shared %u (at most %u threads, %zu bytes)\n",
            kernel->name.c_str(), gx, gy, gz, bx, by, bz, shared_bytes, kernel->threads_max, kernel->dynamic_shared_max);
    return INVALID_VALUE;
  }
  // Arguments are taken now, as the driver does, each at an address fit for its type.
  struct Cell {
    alignas(16) char bytes[512];
  };
  auto values = std::make_shared<std::vector<Cell>>(kernel->argument_bytes.size());
  for (size_t i = 0; i < values->size(); i++) memcpy((*values)[i].bytes, arguments[i], kernel->argument_bytes[i]);
  return submit(stream, [=] {
    if (sticky) return;
    if (++launches == setting("FAKE_CUDA_FAIL_LAUNCH", 0)) {
      sticky = ILLEGAL_ADDRESS;
      return;
    }
    std::vector<char *> at;
    for (Cell &cell : *values) at.push_back(cell.bytes);
    kernel->run(*kernel, {gx, gy, gz}, {bx, by, bz}, shared_bytes, next_random(), at.data());
  });
}
API int cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
  Lock held;
  return submit(stream, [=] { function(argument); });
}

API int cuStreamIsCapturing(void *handle, int *status) {
  Lock held;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
  return SUCCESS;
}
API int cuStreamBeginCapture_v2(void *handle, int) {
  Lock held;
  Stream *stream = stream_of(handle);
  // The default stream cannot be captured.
  if (!stream || stream == &null_stream || stream->capture) return CAPTURE_UNSUPPORTED;
  capturing_here = stream->capture = new Graph;
  stream->began_capture = true;
  return SUCCESS;
}
API int cuStreamEndCapture(void *handle, void **graph) {
  Lock held;
  Stream *stream = stream_of(handle);
  *graph = nullptr;
  if (!stream || !stream->capture || !stream->began_capture) return CAPTURE_UNSUPPORTED;
  Graph *made = stream->capture;
  for (Stream *other : streams)
    if (other->capture == made) other->capture = nullptr;
  stream->began_capture = false;
  capturing_here = nullptr;
  if (made->invalid) {
    delete made;
    return CAPTURE_INVALIDATED;
  }
  *graph = made;
  return SUCCESS;
}
API int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) {
  Lock held;
  *executable = new Graph(*(Graph *)graph);
  return SUCCESS;
}
API int cuGraphUpload(void *, void *) { return SUCCESS; }
API int cuGraphLaunch(void *executable, void *stream) {
  Lock held;
  // Copies of the work: the executable may be gone when it runs.
  for (const Work &work : ((Graph *)executable)->work)
    if (int code = submit(stream, work)) return code;
  return SUCCESS;
}
API int cuGraphExecDestroy(void *executable) {
  delete (Graph *)executable;
  return SUCCESS;
}
API int cuGraphDestroy(void *graph) {
  delete (Graph *)graph;
  return SUCCESS;
}

// Memory pools: one, which gives nothing back.
API int cuDeviceGetDefaultMemPool(void **pool, int) {
  *pool = &context_object;
  return SUCCESS;
}
API int cuDeviceGetMemPool(void **pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
API int cuMemPoolSetAttribute(void *, int, void *) { return SUCCESS; }
API int cuMemPoolTrimTo(void *, size_t) { return SUCCESS; }

// Runs a kernel by name and at once, for tests of kernels alone.
API int fake_cuda_run(const char *name, const unsigned *grid, const unsigned *block, unsigned shared_bytes, uint64_t seed, void **arguments) {
  Lock held;
  auto found = registry::kernels().find(name);
  if (found == registry::kernels().end()) return NOT_FOUND;
  found->second.run(found->second, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes, seed, (char *const *)arguments);
  return SUCCESS;
}

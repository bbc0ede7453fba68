// Device and pinned memory, and copies between them.
#include "state.hpp"

using namespace fake;

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
  // Not a byte more than asked for: AddressSanitizer sees the end.
  void *block;
  if (posix_memalign(&block, 256, bytes)) return OUT_OF_MEMORY;
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
  if (posix_memalign(at, 4096, bytes)) return OUT_OF_MEMORY;
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

// Memory pools: one, which gives nothing back.
API int cuDeviceGetDefaultMemPool(void **pool, int) {
  *pool = &fake::streams;
  return SUCCESS;
}
API int cuDeviceGetMemPool(void **pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
API int cuMemPoolSetAttribute(void *, int, void *) { return SUCCESS; }
API int cuMemPoolTrimTo(void *, size_t) { return SUCCESS; }


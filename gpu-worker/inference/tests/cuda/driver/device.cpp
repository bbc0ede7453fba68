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
#include "state.hpp"

#include <algorithm>

using namespace fake;

namespace {

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

char context_object;

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

}  // namespace

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
API int cuModuleLoadData(void **module, const void *image) {
  Lock held;
  if (memcmp(image, "\x7f" "ELF", 4)) return INVALID_IMAGE;
  // A cubin runs on its own major version, from its own minor version on.
  uint32_t flags;
  memcpy(&flags, (const char *)image + 0x30, 4);
  unsigned own = (unsigned)setting("FAKE_CUDA_SM", 90), of_image = (flags >> 24 ? flags >> 8 : flags) & 0xff;
  // An image that names none (a stand-in for a cubin) runs on all.
  if (of_image && (of_image / 10 != own / 10 || of_image > own)) return NO_BINARY_FOR_GPU;
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
// Runs a kernel by name and at once, for tests of kernels alone.
API int fake_cuda_run(const char *name, const unsigned *grid, const unsigned *block, unsigned shared_bytes, uint64_t seed, void **arguments) {
  Lock held;
  auto found = registry::kernels().find(name);
  if (found == registry::kernels().end()) return NOT_FOUND;
  found->second.run(found->second, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes, seed, (char *const *)arguments);
  return SUCCESS;
}

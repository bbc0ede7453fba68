// A libcublasLt without a GPU: descriptors are read as the library reads them, products are plain loops.
//
// What the real one refuses is refused here (8-bit operands that are not K-major or not aligned, a workspace that is
// too small), and as there a result's last bits depend on how many rows are multiplied together.
// Types: bf16, fp16 out of bf16, f32, int8 with i32 sums, e4m3 with scalar, per-row and per-block scales.
// Source of names, codes, layouts of scales: NVIDIA, cuBLAS library reference, "Using the cuBLASLt API".
#include "../enqueue.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum Status { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum Type { F32 = 0, S8 = 3, S32 = 10, BF16 = 14, E4M3 = 28 };
enum Epilogue { DEFAULT = 1, RELU = 2, BIAS = 4, GELU = 32 };
enum ScaleMode { SCALAR = 0, OUTER = 3, VEC128 = 4, BLOCK128 = 5 };

// Attribute numbers are the library's.
enum DescAttribute {
  COMPUTE_TYPE = 0, SCALE_TYPE = 1, POINTER_MODE = 2, TRANS_A = 3, TRANS_B = 4, EPILOGUE = 7, BIAS_POINTER = 8, BIAS_BATCH_STRIDE = 10,
  A_SCALE = 17, B_SCALE = 18, C_SCALE = 19, D_SCALE = 20, BIAS_TYPE = 26, A_SCALE_MODE = 31, B_SCALE_MODE = 32,
};
enum LayoutAttribute { TYPE = 0, ORDER = 1, ROWS = 2, COLS = 3, LD = 4, BATCH_COUNT = 5, BATCH_STRIDE = 6 };

// What every product needs of its workspace.
constexpr size_t WORKSPACE_BYTES = 4096;

struct Desc {
  int32_t compute = 68, scale_type = F32, pointer_mode = 0, trans_a = 0, trans_b = 0;
  uint32_t epilogue = DEFAULT;
  const void *bias = nullptr;
  int64_t bias_stride = 0;
  int32_t bias_type = -1;
  const float *a_scale = nullptr, *b_scale = nullptr, *c_scale = nullptr, *d_scale = nullptr;
  int32_t a_mode = SCALAR, b_mode = SCALAR;
};

struct Layout {
  uint32_t type = 0;
  int32_t order = 0;
  uint64_t rows = 0, cols = 0;
  int64_t ld = 0;
  int32_t batches = 1;
  int64_t stride = 0;
};

struct Preference {
  uint64_t workspace_bytes = 0;
};

// A field of a descriptor by its attribute.
struct Field {
  void *at;
  size_t bytes;
};

Field field_of(Desc &d, int attribute) {
  switch (attribute) {
    case COMPUTE_TYPE: return {&d.compute, 4};
    case SCALE_TYPE: return {&d.scale_type, 4};
    case POINTER_MODE: return {&d.pointer_mode, 4};
    case TRANS_A: return {&d.trans_a, 4};
    case TRANS_B: return {&d.trans_b, 4};
    case EPILOGUE: return {&d.epilogue, 4};
    case BIAS_POINTER: return {&d.bias, 8};
    case BIAS_BATCH_STRIDE: return {&d.bias_stride, 8};
    case BIAS_TYPE: return {&d.bias_type, 4};
    case A_SCALE: return {&d.a_scale, 8};
    case B_SCALE: return {&d.b_scale, 8};
    case C_SCALE: return {&d.c_scale, 8};
    case D_SCALE: return {&d.d_scale, 8};
    case A_SCALE_MODE: return {&d.a_mode, 4};
    case B_SCALE_MODE: return {&d.b_mode, 4};
    default: return {nullptr, 0};
  }
}

Field field_of(Layout &l, int attribute) {
  switch (attribute) {
    case TYPE: return {&l.type, 4};
    case ORDER: return {&l.order, 4};
    case ROWS: return {&l.rows, 8};
    case COLS: return {&l.cols, 8};
    case LD: return {&l.ld, 8};
    case BATCH_COUNT: return {&l.batches, 4};
    case BATCH_STRIDE: return {&l.stride, 8};
    default: return {nullptr, 0};
  }
}

template <class T>
int set(T &object, int attribute, const void *from, size_t bytes) {
  Field field = field_of(object, attribute);
  // Hints that change no result are taken and forgotten.
  if (!field.at) return SUCCESS;
  if (bytes != field.bytes) return INVALID_VALUE;
  memcpy(field.at, from, bytes);
  return SUCCESS;
}

size_t bytes_of(uint32_t type) { return type == F32 || type == S32 ? 4 : type == BF16 ? 2 : 1; }

double read(uint32_t type, const void *base, int64_t at) {
  switch (type) {
    case F32: return ((const float *)base)[at];
    case S32: return ((const int32_t *)base)[at];
    case S8: return ((const int8_t *)base)[at];
    case BF16: {
      uint32_t bits = (uint32_t)((const uint16_t *)base)[at] << 16;
      float x;
      memcpy(&x, &bits, 4);
      return x;
    }
    default: {
      uint8_t code = ((const uint8_t *)base)[at];
      if ((code & 0x7f) == 0x7f) return NAN;
      int exponent = code >> 3 & 15;
      double value = exponent ? ldexp(1 + (code & 7) / 8.0, exponent - 7) : ldexp((code & 7) / 8.0, -6);
      return code & 0x80 ? -value : value;
    }
  }
}

void write(uint32_t type, void *base, int64_t at, double value) {
  if (type == F32) ((float *)base)[at] = (float)value;
  if (type == S32) ((int32_t *)base)[at] = (int32_t)value;
  if (type == BF16) {
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    ((uint16_t *)base)[at] = x != x ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

// The scale of element `k` of outer index `outer`, of `outers`.
double scale_of(const float *scales, int mode, int64_t outer, int64_t outers, int64_t k, int64_t depth) {
  if (!scales) return 1;
  switch (mode) {
    case SCALAR: return scales[0];
    case OUTER: return scales[outer];
    case VEC128: return scales[k / 128 * outers + outer];
    default: {
      int64_t row = ((depth + 127) / 128 + 3) / 4 * 4;
      return scales[outer / 128 * row + k / 128];
    }
  }
}

struct Matmul {
  Desc desc;
  Layout a, b, c, d;
  const void *a_at, *b_at, *c_at;
  void *d_at;
  double alpha, beta;

  int64_t depth() const { return desc.trans_a ? a.rows : a.cols; }

  // Whether the library has a kernel for it.
  bool is_supported() const {
    int64_t m = desc.trans_a ? a.cols : a.rows, n = desc.trans_b ? b.rows : b.cols;
    int64_t other = desc.trans_b ? b.cols : b.rows;
    if (depth() != other || (int64_t)d.rows != m || (int64_t)d.cols != n) return false;
    if (a.order || b.order || d.order || a.type != b.type) return false;
    if (a.type != S8 && a.type != E4M3) return a.type == BF16 ? d.type == BF16 || d.type == F32 : a.type == F32 && d.type == F32;
    // 8-bit operands are K-major, and all rows are aligned to 16 bytes.
    bool k_major = desc.trans_a == 1 && desc.trans_b == 0;
    bool aligned = a.ld % 16 == 0 && b.ld % 16 == 0 && depth() % 16 == 0 && m % (a.type == S8 ? 4 : 16) == 0;
    if (a.type == S8) return k_major && aligned && desc.compute == 72 && d.type == S32 && desc.scale_type == S32;
    return k_major && aligned && desc.compute == 68 && (d.type == BF16 || d.type == F32);
  }

  void run() const {
    int64_t m = d.rows, n = d.cols, k = depth();
    for (int batch = 0; batch < d.batches; batch++) {
      const char *a_base = (const char *)a_at + batch * a.stride * bytes_of(a.type);
      const char *b_base = (const char *)b_at + batch * b.stride * bytes_of(b.type);
      const char *c_base = (const char *)c_at + batch * c.stride * bytes_of(c.type);
      char *d_base = (char *)d_at + batch * d.stride * bytes_of(d.type);
      std::vector<float> left((size_t)m * k), right((size_t)n * k);
      for (int64_t i = 0; i < m; i++)
        for (int64_t t = 0; t < k; t++)
          left[i * k + t] = (float)(read(a.type, a_base, desc.trans_a ? i * a.ld + t : t * a.ld + i) * scale_of(desc.a_scale, desc.a_mode, i, m, t, k));
      for (int64_t j = 0; j < n; j++)
        for (int64_t t = 0; t < k; t++)
          right[j * k + t] = (float)(read(b.type, b_base, desc.trans_b ? t * b.ld + j : j * b.ld + t) * scale_of(desc.b_scale, desc.b_mode, j, n, t, k));
      for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) {
          // Another order for many columns than for few.
          float sum = 0;
          double whole = 0;
          for (int64_t t = 0; t < k; t++) {
            int64_t at = n > 16 ? k - 1 - t : t;
            if (a.type == S8) whole += (double)left[i * k + at] * right[j * k + at];
            else sum += left[i * k + at] * right[j * k + at];
          }
          double value = alpha * (a.type == S8 ? whole : sum);
          if (beta != 0) value += beta * read(c.type, c_base, j * c.ld + i);
          if (desc.epilogue & BIAS) {
            uint32_t type = desc.bias_type >= 0 ? desc.bias_type : d.type;
            value += read(type, desc.bias, batch * desc.bias_stride + i);
          }
          if (desc.epilogue & RELU) value = std::max(value, 0.0);
          if (desc.epilogue & GELU) value = 0.5 * value * (1 + tanh(0.7978845608028654 * (value + 0.044715 * value * value * value)));
          if (desc.d_scale) value *= desc.d_scale[0];
          write(d.type, d_base, j * d.ld + i, value);
        }
    }
  }
};

}  // namespace

API size_t cublasLtGetVersion() { return 130000; }
API size_t cublasLtGetCudartVersion() { return 13000; }
API const char *cublasLtGetStatusName(int status) {
  return status == SUCCESS ? "CUBLAS_STATUS_SUCCESS" : status == INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_EXECUTION_FAILED";
}
API const char *cublasLtGetStatusString(int status) { return cublasLtGetStatusName(status); }

API int cublasLtCreate(void **handle) {
  *handle = new char;
  return SUCCESS;
}
API int cublasLtDestroy(void *handle) {
  delete (char *)handle;
  return SUCCESS;
}

API int cublasLtMatrixLayoutCreate(Layout **layout, uint32_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = new Layout{type, 0, rows, cols, ld, 1, 0};
  return SUCCESS;
}
API int cublasLtMatrixLayoutDestroy(Layout *layout) {
  delete layout;
  return SUCCESS;
}
API int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *from, size_t bytes) { return set(*layout, attribute, from, bytes); }

API int cublasLtMatmulDescCreate(Desc **desc, int compute, int scale_type) {
  *desc = new Desc;
  (*desc)->compute = compute, (*desc)->scale_type = scale_type;
  return SUCCESS;
}
API int cublasLtMatmulDescDestroy(Desc *desc) {
  delete desc;
  return SUCCESS;
}
API int cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *from, size_t bytes) { return set(*desc, attribute, from, bytes); }

API int cublasLtMatmulPreferenceCreate(Preference **preference) {
  *preference = new Preference;
  return SUCCESS;
}
API int cublasLtMatmulPreferenceDestroy(Preference *preference) {
  delete preference;
  return SUCCESS;
}
API int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *from, size_t bytes) {
  if (attribute == 1 && bytes == 8) memcpy(&preference->workspace_bytes, from, 8);
  return SUCCESS;
}

namespace {
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
constexpr uint64_t MARK = 0x6e69676874736866;
}  // namespace

API int cublasLtMatmulAlgoGetHeuristic(void *, Desc *desc, Layout *a, Layout *b, Layout *c, Layout *d, Preference *preference, int wanted, Heuristic *results, int *found) {
  *found = 0;
  Matmul product{*desc, *a, *b, *c, *d, nullptr, nullptr, nullptr, nullptr, 1, 0};
  if (!product.is_supported() || (preference && preference->workspace_bytes < WORKSPACE_BYTES)) return NOT_SUPPORTED;
  for (int i = 0; i < std::min(wanted, 2); i++) {
    results[i] = {};
    results[i].algorithm.data[0] = MARK + i;
    results[i].workspace_bytes = WORKSPACE_BYTES, results[i].waves = 1;
    ++*found;
  }
  return SUCCESS;
}

API int cublasLtMatmul(void *, Desc *desc, const void *alpha, const void *a_at, Layout *a, const void *b_at, Layout *b, const void *beta, const void *c_at, Layout *c,
                       void *d_at, Layout *d, const Algorithm *algorithm, void *workspace, size_t workspace_bytes, void *stream) {
  Matmul product{*desc, *a, *b, *c, *d, a_at, b_at, c_at, d_at, 1, 0};
  if (!product.is_supported()) return NOT_SUPPORTED;
  if (algorithm && (algorithm->data[0] < MARK || algorithm->data[0] > MARK + 1)) return INVALID_VALUE;
  if (algorithm && (!workspace || workspace_bytes < WORKSPACE_BYTES)) return INVALID_VALUE;
  for (const void *at : {a_at, b_at, (const void *)d_at})
    if ((uintptr_t)at % 16) return NOT_SUPPORTED;
  if (desc->pointer_mode != 0) return NOT_SUPPORTED;
  product.alpha = read(desc->scale_type == S32 ? S32 : F32, alpha, 0);
  product.beta = read(desc->scale_type == S32 ? S32 : F32, beta, 0);
  std::function<void()> work = [product, workspace, workspace_bytes] {
    // The workspace is the product's own while it runs.
    if (workspace) memset(workspace, 0xff, workspace_bytes);
    product.run();
  };
  return fake_cuda_enqueue(stream, &work) ? EXECUTION_FAILED : SUCCESS;
}

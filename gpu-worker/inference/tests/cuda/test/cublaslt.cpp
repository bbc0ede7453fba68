// The fake cuBLASLt itself: row-major products through its column-major interface.
#include "harness.hpp"

extern "C" {
int cublasLtMatrixLayoutCreate(void **, u32 type, uint64_t rows, uint64_t cols, int64_t ld);
int cublasLtMatrixLayoutDestroy(void *);
int cublasLtMatmulDescCreate(void **, int compute, int scale_type);
int cublasLtMatmulDescDestroy(void *);
int cublasLtMatmulDescSetAttribute(void *, int attribute, const void *, size_t);
int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *, void *, void *, const void *, void *, size_t, void *);
int cuCtxSynchronize();
}

namespace {

// out[m, n] = x[m, k] w[n, k]^T + bias, as the host asks for it: D^T = w x^T, w transposed.
void product(u32 type, bool row_scales) {
  current = "cublaslt type " + std::to_string(type) + (row_scales ? " with row scales" : "");
  const u32 m = 19, n = 32, k = 48;
  const char *kind = type == 14 ? "bf16" : type == 3 ? "s8" : "e4m3";
  u32 bytes = type == 14 ? 2 : 1, out_type = type == 3 ? 10 : 0;
  Random random(type);
  Buffer<u8> x(m * k * bytes), w(n * k * bytes);
  std::vector<float> xs(m * k), ws(n * k);
  for (u32 i = 0; i < m * k; i++) xs[i] = put(kind, x.at + i * bytes, random);
  for (u32 i = 0; i < n * k; i++) ws[i] = put(kind, w.at + i * bytes, random);
  Buffer<float> out(m * n), bias(n), x_scale(m), w_scale(n);
  for (u32 i = 0; i < n; i++) bias[i] = random.unit(), w_scale[i] = 1 + random.unit() / 2;
  for (u32 i = 0; i < m; i++) x_scale[i] = 1 + random.unit() / 2;
  void *desc, *a, *b, *d;
  int transposed = 1, epilogue = type == 3 ? 1 : 4, outer = 3;
  const float *places[] = {w_scale.at, x_scale.at, bias.at};
  cublasLtMatmulDescCreate(&desc, type == 3 ? 72 : 68, out_type);
  cublasLtMatmulDescSetAttribute(desc, 3, &transposed, 4);
  cublasLtMatmulDescSetAttribute(desc, 7, &epilogue, 4);
  cublasLtMatmulDescSetAttribute(desc, 8, &places[2], 8);
  if (row_scales) {
    cublasLtMatmulDescSetAttribute(desc, 17, &places[0], 8);
    cublasLtMatmulDescSetAttribute(desc, 18, &places[1], 8);
    cublasLtMatmulDescSetAttribute(desc, 31, &outer, 4);
    cublasLtMatmulDescSetAttribute(desc, 32, &outer, 4);
  }
  cublasLtMatrixLayoutCreate(&a, type, k, n, k);
  cublasLtMatrixLayoutCreate(&b, type, k, m, k);
  cublasLtMatrixLayoutCreate(&d, out_type, n, m, n);
  float one = 1, zero = 0;
  int whole_one = 1, whole_zero = 0;
  const void *alpha = type == 3 ? (const void *)&whole_one : &one, *beta = type == 3 ? (const void *)&whole_zero : &zero;
  if (cublasLtMatmul(nullptr, desc, alpha, w.at, a, x.at, b, beta, out.at, d, out.at, d, nullptr, nullptr, 0, nullptr)) wrong("refused");
  cuCtxSynchronize();
  for (u32 i = 0; i < m; i++)
    for (u32 j = 0; j < n; j++) {
      double want = 0;
      for (u32 t = 0; t < k; t++) want += (double)xs[i * k + t] * ws[j * k + t];
      if (row_scales) want *= (double)x_scale[i] * w_scale[j];
      if (type != 3) want += bias[j];
      near(type == 3 ? ((int *)out.at)[i * n + j] : out[i * n + j], want, 1e-4, at("product", i, j));
    }
  cublasLtMatrixLayoutDestroy(a), cublasLtMatrixLayoutDestroy(b), cublasLtMatrixLayoutDestroy(d);
  cublasLtMatmulDescDestroy(desc);
}

}  // namespace

void test_cublaslt() {
  for (u32 type : {14u, 3u, 28u}) product(type, false);
  product(28, true);
}

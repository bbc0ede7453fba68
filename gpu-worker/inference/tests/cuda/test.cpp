// Checks the kernels against plain loops, in the shim, under several orders of threads.
//
// Built by `build`, run as `kernel-test [FIRST_SEED LAST_SEED]`. Every case runs once for each seed: results must be
// close to the reference's, and the same bits under all seeds.
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

namespace {

uint64_t seed = 1;
std::string current;
unsigned checks = 0;

[[noreturn]] void wrong(const std::string &what) {
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
    at = (T *)aligned_alloc(256, (count * sizeof(T) + 255) / 256 * 256 + 256);
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

u32 up(u32 x, u32 unit) { return (x + unit - 1) / unit * unit; }
u32 parts(u32 x, u32 unit) { return (x + unit - 1) / unit; }

void near(double got, double want, double tolerance, const std::string &where) {
  checks++;
  if (!(std::abs(got - want) <= tolerance)) wrong(where + ": " + std::to_string(got) + " is not close to " + std::to_string(want));
}

std::string at(const char *name, u32 i, u32 j) { return std::string(name) + " [" + std::to_string(i) + ", " + std::to_string(j) + "]"; }

// Results by case: the bits must be those of the first seed.
std::map<std::string, std::vector<char>> first_bits;

void same_bits(const void *data, size_t bytes) {
  std::vector<char> now((const char *)data, (const char *)data + bytes);
  auto [entry, is_new] = first_bits.try_emplace(current, now);
  if (!is_new && entry->second != now) wrong("other bits than under the first seed");
}

// ---- Products. ----

double plain_activation(u32 act, double x, double alpha, double limit) {
  switch (act) {
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_GELU_ERF: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ACT_CLAMPED: return std::min(x, limit) / (1 + exp(-alpha * std::min(x, limit)));
    default: return x;
  }
}

struct GemmCase {
  const char *kind;
  u32 m, n, k;
  u32 epilogue = 0, act = 0;
  u32 out_type = OUT_F32;
  bool bias = false, gather = false;
  u32 stacks = 1;
  u32 scale_block = 0;
  // Experts: pairs are rows; 0 for a plain product.
  u32 experts = 0, top_k = 1;
  bool down = false;
};

u32 value_bytes(const char *kind) { return strcmp(kind, "bf16") ? 1 : 2; }

// Writes a random value, and returns what it stands for.
float put(const char *kind, u8 *to, Random &random) {
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

void gemm(const GemmCase &c, const char *tile) {
  current = std::string("gemm ") + c.kind + " " + tile + " " + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
            " epilogue " + std::to_string(c.epilogue) + " act " + std::to_string(c.act) + " stacks " + std::to_string(c.stacks) + " block " +
            std::to_string(c.scale_block) + " experts " + std::to_string(c.experts) + (c.down ? " down" : "");
  Random random(c.m * 7919 + c.n * 31 + c.k);
  u32 bytes = value_bytes(c.kind), unit = 16 / bytes, stacks = std::max(c.stacks, c.experts);
  bool scaled = bytes == 1;
  u32 x_rows = c.experts && !c.down ? c.m / c.top_k : c.gather ? c.m + 5 : c.m;
  u32 x_width = c.stacks * c.k, ldx = up(x_width, unit), ldw = up(c.k, unit) + unit;
  u32 n_out = c.epilogue == 2 ? c.n / 2 : c.n, ldo = up(c.stacks * n_out, 8);
  u32 k_blocks = parts(c.k, 128), n_blocks = c.epilogue == 2 ? 2 * parts(c.n / 2, 128) : parts(c.n, 128);
  Buffer<u8> x((size_t)x_rows * ldx * bytes), w((size_t)stacks * c.n * ldw * bytes);
  std::vector<float> xs((size_t)x_rows * x_width), ws((size_t)stacks * c.n * c.k);
  for (u32 i = 0; i < x_rows; i++)
    for (u32 j = 0; j < x_width; j++) xs[(size_t)i * x_width + j] = put(c.kind, x.at + ((size_t)i * ldx + j) * bytes, random);
  for (u32 i = 0; i < stacks * c.n; i++)
    for (u32 j = 0; j < c.k; j++) ws[(size_t)i * c.k + j] = put(c.kind, w.at + ((size_t)i * ldw + j) * bytes, random);
  Buffer<float> bias(stacks * c.n), x_scale((size_t)x_rows * (c.scale_block ? k_blocks : 1)),
      w_scale((size_t)stacks * (c.scale_block ? n_blocks * k_blocks : c.n));
  for (u32 i = 0; i < bias.count; i++) bias[i] = random.unit();
  for (u32 i = 0; i < x_scale.count; i++) x_scale[i] = 0.02f + 0.01f * random.unit();
  for (u32 i = 0; i < w_scale.count; i++) w_scale[i] = 0.02f + 0.01f * random.unit();
  Buffer<u32> gather(c.m);
  for (u32 i = 0; i < c.m; i++) gather[i] = random.below(x_rows);
  Buffer<float> out((size_t)c.m * ldo);
  std::vector<float> before(out.count, 0.0f);
  if (c.epilogue == 1)
    for (size_t i = 0; i < out.count; i++) before[i] = out[i] = random.unit();

  std::vector<u32> expert_of(c.m, 0);
  Buffer<u32> experts(c.m), pairs(c.m), tiles(1 + 3 * (parts(c.m, 64) + std::min(c.experts, c.m)) + 3);
  if (c.experts) {
    // A tenth of the rows are padding without an expert.
    for (u32 i = 0; i < c.m; i++) experts[i] = expert_of[i] = random.below(10) == 0 ? 0xffffffffu : random.below(c.experts);
    launch("sort_pairs", {1, 1, 1}, 1024, 8 * (c.experts + 1), (const u32 *)experts.at, pairs.at, tiles.at, c.m, c.experts);
    u32 placed = 0;
    for (u32 t = 0; t < tiles[0]; t++)
      for (u32 i = 0; i < tiles[3 + 3 * t]; i++, placed++) {
        u32 place = tiles[2 + 3 * t] + i;
        if (expert_of[pairs[place]] != tiles[1 + 3 * t]) wrong("a pair in a tile of another expert");
        if (i && pairs[place] <= pairs[place - 1]) wrong("pairs of an expert out of order");
      }
    if (placed != (u32)std::count_if(expert_of.begin(), expert_of.end(), [](u32 e) { return e != 0xffffffffu; })) wrong("pairs lost");
  }
  GemmArgs a = {};
  a.x = x.at, a.w = w.at, a.out = out.at, a.bias = c.bias ? bias.at : nullptr;
  a.x_scale = scaled ? x_scale.at : nullptr, a.w_scale = scaled ? w_scale.at : nullptr;
  a.x_rows = c.gather ? gather.at : nullptr;
  a.m = c.m, a.n = c.n, a.k = c.k, a.ldx = ldx, a.ldw = ldw, a.ldo = ldo;
  a.x_stack = c.stacks > 1 ? c.k : 0, a.out_stack = c.stacks > 1 ? n_out : 0;
  a.epilogue = c.epilogue, a.act = c.act, a.out_type = c.out_type, a.scale_block = c.scale_block;
  a.p0 = c.epilogue == 4 ? 5.0f : 1.702f, a.p1 = 1.0f, a.x_div = 1;
  u32 bm = !strcmp(tile, "m16") ? 16 : !strcmp(tile, "m128") ? 128 : 64, bn = bm == 128 ? 128 : 64;
  u32 shared = bm == 16 ? 46080 : bm == 64 ? 55296 : 110592;
  if (c.experts) {
    a.tiles = tiles.at, a.pairs = pairs.at, a.x_div = c.down ? 1 : c.top_k;
    launch((std::string("gemm_experts_") + c.kind).c_str(), {parts(c.n, 64), parts(c.m, 64) + std::min(c.experts, c.m), 1}, 128, shared, a);
  } else {
    launch((std::string("gemm_") + c.kind + "_" + tile).c_str(), {parts(c.n, bn), parts(c.m, bm), c.stacks}, bm == 128 ? 256 : 128, shared, a);
  }
  for (u32 i = 0; i < c.m; i++) {
    if (c.experts && expert_of[i] == 0xffffffffu) continue;
    u32 from = c.experts ? (c.down ? i : i / c.top_k) : c.gather ? gather[i] : i;
    for (u32 stack = 0; stack < c.stacks; stack++) {
      u32 matrix = c.experts ? expert_of[i] : stack;
      double magnitude = 0;
      auto product = [&](u32 j) {
        double sum = 0;
        u32 n_block = c.epilogue == 2 && j >= c.n / 2 ? n_blocks / 2 + (j - c.n / 2) / 128 : j / 128;
        for (u32 kk = 0; kk < c.k; kk++) {
          double term = (double)xs[(size_t)from * x_width + stack * c.k + kk] * ws[((size_t)matrix * c.n + j) * c.k + kk];
          if (c.scale_block) term *= (double)x_scale[from * k_blocks + kk / 128] * w_scale[(matrix * n_blocks + n_block) * k_blocks + kk / 128];
          sum += term, magnitude += std::abs(term);
        }
        if (scaled && !c.scale_block) {
          double scale = (double)x_scale[from] * w_scale[matrix * c.n + j];
          sum *= scale, magnitude *= scale;
        }
        return sum + (c.bias ? bias[matrix * c.n + j] : 0.0f);
      };
      for (u32 j = 0; j < n_out; j++) {
        magnitude = 1;
        double want = product(j);
        if (c.epilogue == 2) {
          double other = product(n_out + j);
          if (c.act == ACT_CLAMPED) other = std::clamp(other, -1.0, 1.0) + 1;
          want = plain_activation(c.act, want, a.p0, a.p1) * other;
          magnitude *= 10;
        }
        if (c.epilogue == 3) want = plain_activation(c.act, want, a.p0, a.p1);
        if (c.epilogue == 4) want = a.p0 * tanh(want / a.p0);
        size_t place = (size_t)i * ldo + stack * n_out + j;
        want += before[place];
        float got = c.out_type == OUT_BF16 ? f32_of_bf16(((u16 *)out.at)[place]) : out[place];
        near(got, want, 2e-6 * (1 + magnitude) + (c.out_type == OUT_BF16 ? std::abs(want) / 200 : 0), at(tile, i, j));
      }
    }
  }
  // Padding columns are no result.
  if (!c.experts && ldo == c.stacks * n_out && c.out_type == OUT_F32) same_bits(out.at, out.count * 4);
}

void products() {
  for (const char *kind : {"bf16", "s8", "e4m3"})
    for (const char *tile : {"m16", "m64", "m128"}) {
      gemm({kind, 1, 8, 16}, tile);
      gemm({kind, 19, 40, 33, 1, 0, OUT_F32, true}, tile);
      gemm({kind, 70, 200, 300, 0, 0, OUT_BF16, false, true}, tile);
      gemm({kind, 18, 90, 70, 2, ACT_SILU, OUT_BF16, true}, tile);
      gemm({kind, 5, 37, 129, 4}, tile);
    }
  for (u32 act : {ACT_SILU, ACT_GELU_TANH, ACT_GELU_ERF, ACT_CLAMPED}) {
    gemm({"bf16", 9, 48, 40, 2, act, OUT_F32, true}, "m16");
    gemm({"bf16", 9, 45, 40, 3, act, OUT_F32, true}, "m16");
  }
  gemm({"e4m3", 20, 300, 300, 0, 0, OUT_F32, true, false, 1, 128}, "m64");
  gemm({"e4m3", 20, 280, 260, 2, ACT_SILU, OUT_F32, false, false, 1, 128}, "m128");
  gemm({"e4m3", 99, 280, 260, 2, ACT_SILU, OUT_BF16, true, false, 1, 128, 8, 3}, "m64");
  gemm({"bf16", 21, 12, 16, 0, 0, OUT_BF16, false, false, 4}, "m64");
  gemm({"bf16", 3, 20, 12, 0, 0, OUT_F32, false, false, 3}, "m16");
  for (const char *kind : {"bf16", "s8", "e4m3"}) {
    gemm({kind, 99, 48, 40, 2, ACT_SILU, OUT_BF16, true, false, 1, 0, 8, 3}, "m64");
    gemm({kind, 99, 40, 24, 0, 0, OUT_F32, true, false, 1, 0, 5, 3, true}, "m64");
  }
  gemm({"bf16", 300, 70, 40, 0, 0, OUT_F32, false, false, 1, 0, 2, 1, true}, "m64");
}

// Rows alone have the bits that they have among others, in any tile.
void rows_alone() {
  current = "rows alone";
  const u32 n = 72, k = 200;
  Random random(5);
  Buffer<u16> x(130 * k), w(n * k);
  for (u32 i = 0; i < x.count; i++) x[i] = bf16_of(random.unit());
  for (u32 i = 0; i < w.count; i++) w[i] = bf16_of(random.unit());
  std::vector<float> want;
  for (auto [tile, m] : {std::pair{"m16", 1u}, {"m16", 16u}, {"m64", 64u}, {"m128", 130u}}) {
    Buffer<float> out(m * n);
    GemmArgs a = {};
    a.x = x.at, a.w = w.at, a.out = out.at, a.m = m, a.n = n, a.k = k, a.ldx = k, a.ldw = k, a.ldo = n, a.x_div = 1;
    u32 bm = m <= 16 ? 16 : m == 64 ? 64 : 128, bn = bm == 128 ? 128 : 64;
    launch((std::string("gemm_bf16_") + tile).c_str(), {parts(n, bn), parts(m, bm), 1}, bm == 128 ? 256 : 128,
           bm == 16 ? 46080 : bm == 64 ? 55296 : 110592, a);
    if (want.empty()) want.assign(out.at, out.at + n);
    if (memcmp(want.data(), out.at, n * 4)) wrong(std::string("the first row differs in ") + tile);
  }
  checks++;
}

// ---- Norms. ----

void norms() {
  for (u32 cols : {16u, 33u, 300u})
    for (u32 kind : {0u, 1u})
      for (u32 type : {OUT_F32, OUT_BF16, OUT_S8, OUT_E4M3})
        for (u32 block : {0u, 128u}) {
          if (block && type != OUT_E4M3) continue;
          current = "norm " + std::to_string(cols) + " kind " + std::to_string(kind) + " type " + std::to_string(type) + " block " + std::to_string(block);
          Random random(cols);
          const u32 rows = 3;
          u32 ld = up(cols, 16);
          Buffer<float> x(rows * ld), add(rows * ld), gain(cols), bias(cols), scales(rows * parts(cols, 128));
          Buffer<u8> out(rows * ld * 4);
          std::vector<float> sum(rows * ld);
          for (u32 r = 0; r < rows; r++)
            for (u32 i = 0; i < cols; i++) {
              x[r * ld + i] = random.unit(), add[r * ld + i] = random.unit();
              sum[r * ld + i] = x[r * ld + i] + add[r * ld + i];
            }
          for (u32 i = 0; i < cols; i++) gain[i] = random.unit(), bias[i] = random.unit();
          NormArgs a = {x.at, add.at, gain.at, bias.at, out.at, scales.at, cols, ld, ld, ld, kind, type, cols % 2, block, 1e-5f, 0};
          launch("norm_rows", {rows, 1, 1}, 256, 4 * cols, a);
          for (u32 r = 0; r < rows; r++) {
            double mean = 0, variance = 0;
            for (u32 i = 0; i < cols; i++) mean += kind ? sum[r * ld + i] / (double)cols : 0;
            for (u32 i = 0; i < cols; i++) variance += (sum[r * ld + i] - mean) * (sum[r * ld + i] - mean) / cols;
            for (u32 i = 0; i < cols; i++) {
              near(x[r * ld + i], sum[r * ld + i], 0, at("residual", r, i));
              double want = (sum[r * ld + i] - mean) / sqrt(variance + 1e-5) * (cols % 2 + gain[i]) + bias[i];
              float scale = type >= OUT_S8 ? scales[block ? r * parts(cols, 128) + i / 128 : r] : 1;
              float got = type == OUT_F32    ? ((float *)out.at)[r * ld + i]
                          : type == OUT_BF16 ? f32_of_bf16(((u16 *)out.at)[r * ld + i])
                          : type == OUT_S8   ? (signed char)out[r * ld + i] * scale
                                             : f32_of_e4m3(out[r * ld + i]) * scale;
              double tolerance = type == OUT_F32 ? 1e-5 : type == OUT_BF16 ? 1e-5 + std::abs(want) / 200 : type == OUT_S8 ? scale * 0.51 : std::abs(want) / 15 + scale / 500;
              near(got, want, tolerance, at("norm", r, i));
            }
          }
        }
}

// ---- Attention. ----

struct AttendCase {
  const char *name;
  u32 q_heads, kv_heads, dk, dv;
  bool fp8 = false, latent = false, this_step = false, bidirectional = false;
  u32 window = 0;
  float softcap = 0;
  bool sinks = false;
  bool shared_prefix = false;
};

struct Sequence {
  u32 q_len, kv_len;
};

u32 head_class(const AttendCase &c) {
  u32 d = std::max(c.dk, c.dv);
  return d <= 64 ? 64 : d <= 128 ? 128 : 256;
}

// The items of a step, as README.md says; `decode` false sends every row through blocks.
struct Items {
  std::vector<u32> decode, block, rows, merge, part_base;
  u32 slots = 0;

  Items(const std::vector<Sequence> &sequences, const std::vector<u32> &starts, u32 rows_count, u32 group, u32 block_rows, bool causal,
        bool decodes, u32 shared_splits) : part_base(rows_count, 0xffffffffu) {
    std::vector<u32> members;
    u32 member_sequence = 0;
    for (u32 s = 0; s < sequences.size(); s++) {
      auto [q_len, keys] = sequences[s];
      u32 splits = parts(keys, 256);
      if (q_len == 1 && decodes) {
        part_base[starts[s]] = slots, slots += splits;
        merge.push_back(starts[s]);
        if (shared_splits) members.push_back(starts[s]), member_sequence = s;
        for (u32 split = shared_splits; split < splits; split++) decode.insert(decode.end(), {starts[s], s, split, 0});
        continue;
      }
      for (u32 p = 0; p < q_len * group; p += block_rows) {
        u32 count = std::min(block_rows, q_len * group - p), last = (p + count - 1) / group;
        u32 end = causal ? parts(keys - q_len + last + 1, 256) : splits;
        block.insert(block.end(), {starts[s], p, count, s, 0, end, 0, 0});
      }
    }
    rows = members;
    u32 packed = (u32)members.size() * group;
    for (u32 split = 0; split < shared_splits; split++)
      for (u32 p = 0; p < packed; p += block_rows)
        block.insert(block.end(), {0, p, std::min(block_rows, packed - p), member_sequence, split, split + 1, 3, 0});
    rows.push_back(0), merge.push_back(0), decode.push_back(0), block.push_back(0);
  }
};

void attend(const AttendCase &c, const std::vector<Sequence> &sequences) {
  const float scale = 0.3f, k_scale = c.fp8 ? 0.5f : 1, v_scale = c.fp8 ? (c.latent ? 0.5f : 0.25f) : 1;
  current = std::string("attend ") + c.name;
  u32 group = c.q_heads / c.kv_heads, dkp = up(c.dk, 16), dvp = up(c.dv, 16);
  u32 width = c.q_heads * c.dk + c.kv_heads * (c.dk + (c.latent ? 0 : c.dv)), ldq = up(width, 8), ldo = up(c.q_heads * c.dv, 8);
  Random random(c.dk * 131 + c.q_heads);
  std::vector<u32> starts, page_starts{0};
  u32 rows = 0, pages = 0;
  for (auto s : sequences) {
    starts.push_back(rows), rows += s.q_len;
    pages += parts(s.kv_len, 16), page_starts.push_back(pages);
  }
  u32 shared_splits = c.shared_prefix ? 1 : 0, shared_pages = 16 * shared_splits;
  std::vector<u32> page_ids(pages);
  for (u32 i = 0; i < pages; i++) page_ids[i] = i;
  std::shuffle(page_ids.begin(), page_ids.end(), random.engine);
  for (u32 s = 1; s < sequences.size() && shared_splits; s++)
    for (u32 p = 0; p < shared_pages; p++) page_ids[page_starts[s] + p] = page_ids[p];
  Buffer<u16> qkv((size_t)rows * ldq), out((size_t)rows * ldo);
  for (u32 r = 0; r < rows; r++)
    for (u32 i = 0; i < width; i++) qkv[r * ldq + i] = bf16_of(random.unit());
  // Pages: what lies past a sequence's end stays 0xFF, which is NaN.
  u32 bytes = c.fp8 ? 1 : 2;
  Buffer<u8> k_pool((size_t)pages * c.kv_heads * 16 * dkp * bytes), v_pool((size_t)pages * c.kv_heads * 16 * dvp * bytes);
  std::vector<std::vector<float>> ks(sequences.size()), vs(sequences.size());
  auto put_value = [&](Buffer<u8> &pool, u32 padded, u32 page, u32 head, u32 offset, u32 i, float x, float by) {
    size_t place = (((size_t)page * c.kv_heads + head) * 16 + offset) * padded + i;
    if (c.fp8) {
      pool[place] = e4m3_of(x / by);
      return f32_of_e4m3(pool[place]) * by;
    }
    ((u16 *)pool.at)[place] = bf16_of(x);
    return f32_of_bf16(((u16 *)pool.at)[place]);
  };
  for (u32 s = 0; s < sequences.size(); s++) {
    u32 len = c.this_step ? sequences[s].q_len : sequences[s].kv_len;
    for (u32 t = 0; t < len; t++)
      for (u32 h = 0; h < c.kv_heads; h++) {
        if (c.this_step) {
          const u16 *row = qkv.at + (starts[s] + t) * ldq;
          for (u32 i = 0; i < c.dk; i++) ks[s].push_back(f32_of_bf16(row[(c.q_heads + h) * c.dk + i]));
          for (u32 i = 0; i < c.dv; i++) vs[s].push_back(f32_of_bf16(row[(c.q_heads + c.kv_heads) * c.dk + h * c.dv + i]));
          continue;
        }
        u32 page = page_ids[page_starts[s] + t / 16];
        bool is_copy = s > 0 && t / 16 < shared_pages;
        Random own(t * 1000003 + h * 1009 + (is_copy ? 0 : s) + 7);
        if (t / 16 < shared_pages) own = Random(t * 1000003 + h * 1009 + 7);
        for (u32 i = 0; i < dkp; i++) {
          float x = put_value(k_pool, dkp, page, h, t % 16, i, i < c.dk ? own.unit() : 0, k_scale);
          if (i < c.dk) ks[s].push_back(x);
          if (c.latent && i < c.dv) vs[s].push_back(x);
        }
        for (u32 i = 0; i < dvp && !c.latent; i++) {
          float x = put_value(v_pool, dvp, page, h, t % 16, i, i < c.dv ? own.unit() : 0, v_scale);
          if (i < c.dv) vs[s].push_back(x);
        }
      }
  }
  Buffer<float> sinks(c.q_heads);
  for (u32 i = 0; i < c.q_heads; i++) sinks[i] = random.unit() * 2;
  std::vector<u32> sequence_words, positions;
  for (u32 s = 0; s < sequences.size(); s++) {
    auto [q_len, kv_len] = sequences[s];
    sequence_words.insert(sequence_words.end(), {s, starts[s], q_len, kv_len});
    for (u32 i = 0; i < q_len; i++) positions.push_back((c.this_step ? 0 : kv_len - q_len) + i);
  }
  u32 d = head_class(c), block_rows = c.latent || d <= 128 ? 64 : 32;
  std::vector<Sequence> lengths = sequences;
  if (c.this_step)
    for (auto &s : lengths) s.kv_len = s.q_len;

  std::vector<u16> decoded;
  for (bool decodes : {true, false}) {
    Items items(lengths, starts, rows, group, block_rows, !c.bidirectional, decodes, decodes ? shared_splits : 0);
    Buffer<u32> decode(items.decode), block(items.block), list(items.rows), merge(items.merge), base(items.part_base), words(sequence_words),
        q_pos(positions), page_table(page_ids), first_pages(page_starts);
    Buffer<u32> counters{rows, (u32)sequences.size(), 0, (u32)decode.count / 4, (u32)block.count / 8, (u32)merge.count - 1, 0, 0};
    Buffer<float> part_acc((size_t)(items.slots + 1) * c.q_heads * dvp), part_ml((size_t)(items.slots + 1) * c.q_heads * 2);
    memset(out.at, 0xff, out.count * 2);
    AttendArgs a = {};
    a.qkv = qkv.at, a.k_pool = c.this_step ? nullptr : k_pool.at, a.v_pool = c.this_step || c.latent ? nullptr : v_pool.at;
    a.sinks = c.sinks ? sinks.at : nullptr, a.pages = page_table.at, a.starts = first_pages.at, a.sequences = words.at;
    a.q_pos = q_pos.at, a.counters = counters.at, a.part_base = base.at, a.row_list = list.at, a.part_acc = part_acc.at, a.part_ml = part_ml.at;
    a.out = out.at, a.ldq = ldq, a.ldo = ldo, a.q_heads = c.q_heads, a.kv_heads = c.kv_heads, a.dk = c.dk, a.dv = c.dv;
    a.bidirectional = c.bidirectional, a.window = c.window, a.scale = scale, a.softcap = c.softcap, a.k_scale = k_scale, a.v_scale = v_scale;
    std::string kv = c.fp8 ? "fp8" : "bf16", size = std::to_string(d);
    AttendArgs of_decode = a, of_block = a, of_merge = a;
    of_decode.items = decode.at, of_block.items = block.at, of_merge.items = merge.at;
    if (c.latent) {
      u32 shared = (16 + 64) * (dkp + 8) * 2 + 16 * 40 * 4 + 4096 * parts(dvp, 64);
      launch(("attend_latent_" + kv).c_str(), {2, parts(c.q_heads, 16), 1}, 128, shared, of_decode, 0u);
      launch(("attend_latent_" + kv).c_str(), {3, 4, 1}, 128, shared, of_block, 1u);
    } else {
      u32 warps = d == 256 ? 1 : 2 + 2 * (seed % 2), per_warp = d == 64 ? 18432 : d == 128 ? 34816 : 76032;
      launch(("attend_decode_" + kv + "_" + size).c_str(), {2, c.kv_heads * parts(group, 16), 1}, 32 * warps, warps * per_warp, of_decode);
      u32 shared = d == 64 ? 25600 : d == 128 ? 50176 : 83456;
      launch(("attend_block_" + kv + "_" + size).c_str(), {3, c.kv_heads, 1}, d == 256 ? 64 : 128, shared, of_block);
    }
    launch("attend_merge", {rows, c.q_heads, 1}, 128, 0, of_merge);
    if (decodes) {
      decoded.assign(out.at, out.at + out.count);
      current += " in blocks";
    }
  }
  current = std::string("attend ") + c.name;
  for (u32 s = 0; s < sequences.size(); s++) {
    u32 q_len = lengths[s].q_len, len = lengths[s].kv_len;
    for (u32 i = 0; i < q_len; i++)
      for (u32 h = 0; h < c.q_heads; h++) {
        u32 row = starts[s] + i, position = len - q_len + i, kv_head = h / group;
        u32 window = c.window ? c.window : len, first = position + 1 > window ? position + 1 - window : 0;
        u32 end = c.bidirectional ? std::min(len, position + window) : position + 1;
        std::vector<double> scores;
        double max = c.sinks ? sinks[h] : -INFINITY, sum = 0;
        for (u32 t = first; t < end; t++) {
          double score = 0;
          for (u32 j = 0; j < c.dk; j++)
            score += (double)f32_of_bf16(qkv[row * ldq + h * c.dk + j]) * ks[s][(t * c.kv_heads + kv_head) * c.dk + j];
          score *= scale;
          if (c.softcap) score = c.softcap * tanh(score / c.softcap);
          scores.push_back(score), max = std::max(max, score);
        }
        for (double x : scores) sum += exp(x - max);
        if (c.sinks) sum += exp(sinks[h] - max);
        for (u32 j = 0; j < c.dv; j++) {
          double want = 0;
          for (u32 t = first; t < end; t++) want += exp(scores[t - first] - max) / sum * vs[s][(t * c.kv_heads + kv_head) * c.dv + j];
          size_t place = (size_t)row * ldo + h * c.dv + j;
          near(f32_of_bf16(out[place]), want, 1e-2, at("head row", row, h));
          if (out[place] != decoded[place]) wrong(at("a decoded row has other bits than in a block", row, h));
        }
      }
  }
  if (ldo == c.q_heads * c.dv) same_bits(out.at, out.count * 2);
}

void attentions() {
  const std::vector<Sequence> mixed = {{1, 300}, {7, 7}, {1, 1}, {40, 290}, {1, 32}, {3, 530}};
  attend({"grouped", 6, 2, 64, 64}, mixed);
  attend({"window", 4, 1, 32, 32, false, false, false, false, 20}, mixed);
  attend({"window of many splits", 4, 1, 32, 32, false, false, false, false, 270}, mixed);
  attend({"odd heads", 3, 1, 18, 18}, mixed);
  attend({"80", 2, 1, 80, 80}, mixed);
  attend({"128", 8, 1, 128, 128}, mixed);
  attend({"256", 2, 1, 256, 256}, {{1, 300}, {20, 260}});
  attend({"many heads", 40, 1, 16, 16}, mixed);
  attend({"key and value sizes differ", 4, 2, 24, 16}, mixed);
  attend({"cap and sinks", 8, 2, 16, 16, false, false, false, false, 16, 5.0f, true}, mixed);
  attend({"fp8", 6, 2, 64, 64, true}, mixed);
  attend({"encoder", 4, 2, 12, 12, false, false, true, true}, {{19, 19}, {1, 1}, {70, 70}});
  attend({"encoder with a window", 4, 4, 32, 32, false, false, true, true, 9}, {{19, 19}, {1, 1}, {300, 300}});
  attend({"shared prefix", 6, 2, 64, 64, false, false, false, false, 0, 0, false, true}, {{1, 300}, {1, 257}, {1, 530}});
  attend({"shared prefix in fp8", 40, 1, 16, 16, true, false, false, false, 0, 0, false, true}, {{1, 300}, {1, 257}, {1, 530}});
  attend({"shared prefix in a window", 6, 2, 64, 64, false, false, false, false, 100, 0, true, true}, {{1, 300}, {1, 257}, {1, 530}});
  attend({"latent", 4, 1, 24, 16, false, true}, mixed);
  attend({"latent of many heads", 20, 1, 80, 72, false, true}, mixed);
  attend({"latent in fp8", 20, 1, 80, 64, true, true}, mixed);
  attend({"latent shared", 16, 1, 192, 128, false, true, false, false, 0, 0, false, true}, {{1, 300}, {1, 257}, {1, 530}});
  attend({"latent of DeepSeek", 16, 1, 576, 512, false, true}, {{1, 270}, {3, 40}});
}

// ---- Rotation. ----

void ropes() {
  for (u32 style : {0u, 1u})
    for (bool fp8 : {false, true})
      for (u32 latent : {0u, 12u}) {
        current = "rope style " + std::to_string(style) + (fp8 ? " fp8" : "") + (latent ? " latent" : "");
        const u32 rows = 5, q_heads = 3, kv_heads = latent ? 1 : 2, dk = 20, dv = latent ? 12 : 18, pairs_of = 4, positions_max = 40;
        u32 width = q_heads * dk + kv_heads * (dk + (latent ? 0 : dv)), ld = up(width, 8), dkp = up(dk, 16), dvp = up(dv, 16);
        Random random(style + 2 * latent);
        Buffer<u16> qkv(rows * ld);
        std::vector<float> x(rows * width);
        for (u32 r = 0; r < rows; r++)
          for (u32 i = 0; i < width; i++) qkv[r * ld + i] = bf16_of(random.unit()), x[r * width + i] = f32_of_bf16(qkv[r * ld + i]);
        Buffer<float> cosines(positions_max * pairs_of), sines(positions_max * pairs_of), gain(dk);
        for (u32 i = 0; i < cosines.count; i++) cosines[i] = cosf(i * 0.37f), sines[i] = sinf(i * 0.37f);
        for (u32 i = 0; i < dk; i++) gain[i] = 1 + 0.3f * random.unit();
        Buffer<u32> positions{3, 0, 39, 7, 11}, slots{17, 0, 0xffffffffu, 5, 40};
        u32 bytes = fp8 ? 1 : 2;
        Buffer<u8> k_pool(3 * kv_heads * 16 * dkp * bytes), v_pool(3 * kv_heads * 16 * dvp * bytes);
        RopeArgs a = {qkv.at, k_pool.at, latent ? nullptr : v_pool.at, cosines.at, sines.at, latent ? nullptr : gain.at, gain.at, positions.at, slots.at,
                      ld, q_heads, kv_heads, dk, dv, pairs_of, style, latent, dk, latent ? latent : dk, fp8, 1e-6f, 1e-5f, 0.5f, 0.25f};
        launch("rope_store", {rows, 1, 1}, 128, 0, a);
        auto stored = [&](Buffer<u8> &pool, u32 padded, u32 slot, u32 head, u32 i, float by) {
          size_t place = ((size_t)(slot / 16 * kv_heads + head) * 16 + slot % 16) * padded + i;
          return fp8 ? f32_of_e4m3(pool[place]) * by : f32_of_bf16(((u16 *)pool.at)[place]);
        };
        for (u32 r = 0; r < rows; r++) {
          for (u32 h = 0; h < q_heads + kv_heads; h++) {
            bool is_key = h >= q_heads;
            std::vector<double> head(dk);
            double squares = 0;
            u32 normed = is_key && latent ? latent : dk;
            for (u32 i = 0; i < dk; i++) head[i] = x[r * width + h * dk + i];
            for (u32 i = 0; i < normed; i++) squares += head[i] * head[i] / normed;
            for (u32 i = 0; i < normed && (is_key || !latent); i++) head[i] *= gain[i] / sqrt(squares + (is_key ? 1e-5 : 1e-6));
            u32 from = latent ? dk - 2 * pairs_of : 0;
            for (u32 i = 0; i < pairs_of; i++) {
              u32 first = from + (style ? 2 * i : i), second = from + (style ? 2 * i + 1 : pairs_of + i);
              double cosine = cosines[positions[r] * pairs_of + i], sine = sines[positions[r] * pairs_of + i], p = head[first], q = head[second];
              head[first] = p * cosine - q * sine, head[second] = q * cosine + p * sine;
            }
            for (u32 i = 0; i < dk; i++) {
              near(f32_of_bf16(qkv[r * ld + h * dk + i]), head[i], std::abs(head[i]) / 200 + 1e-6, at("head", r, h));
              if (is_key && slots[r] != 0xffffffffu)
                near(stored(k_pool, dkp, slots[r], h - q_heads, i, 0.5f), head[i], std::abs(head[i]) / (fp8 ? 15 : 200) + 1e-3, at("key", r, h));
            }
            for (u32 i = dk; i < dkp && is_key && slots[r] != 0xffffffffu; i++) near(stored(k_pool, dkp, slots[r], h - q_heads, i, 1), 0, 0, at("padding", r, h));
          }
          for (u32 h = 0; h < kv_heads && !latent && slots[r] != 0xffffffffu; h++)
            for (u32 i = 0; i < dvp; i++) {
              float want = i < dv ? x[r * width + (q_heads + kv_heads) * dk + h * dv + i] : 0;
              near(stored(v_pool, dvp, slots[r], h, i, 0.25f), want, std::abs(want) / (fp8 ? 15 : 10000) + (fp8 ? 1e-3 : 0), at("value", r, h));
            }
        }
      }
}

// ---- Routing. ----

void routes() {
  for (u32 variant = 0; variant < 4; variant++) {
    current = "route " + std::to_string(variant);
    const u32 rows = 6, experts = 8, k = 33, ldx = 40, ldw = 40, top_k = 3;
    bool sigmoid = variant >= 2;
    u32 groups = variant == 1 ? 4 : variant == 2 ? 2 : 0, kept = variant == 1 ? 2 : 1;
    Random random(variant);
    Buffer<u16> x(rows * ldx), w(experts * ldw);
    for (u32 i = 0; i < x.count; i++) x[i] = bf16_of(random.unit());
    for (u32 i = 0; i < w.count; i++) w[i] = bf16_of(random.unit());
    // Two experts are equal: the lower one wins.
    for (u32 i = 0; i < ldw; i++) w[5 * ldw + i] = w[4 * ldw + i];
    Buffer<float> bias(experts), choice(experts), weights(rows * top_k);
    for (u32 i = 0; i < experts; i++) bias[i] = i == 5 ? bias[4] : random.unit(), choice[i] = random.unit();
    Buffer<u32> chosen(rows * top_k), counters{rows - 1, 1, 0, 0, 0, 0, 0, 0};
    RouteArgs a = {x.at, w.at, variant == 1 ? bias.at : nullptr, variant == 2 ? choice.at : nullptr, chosen.at, weights.at, counters.at, experts, k, ldx, ldw, top_k,
                   sigmoid, groups, kept, variant % 2 == 0, 2.5f};
    launch("route", {rows, 1, 1}, 128, 4 * (2 * experts + groups), a);
    for (u32 r = 0; r < rows; r++) {
      if (r == rows - 1) {
        for (u32 i = 0; i < top_k; i++)
          if (chosen[r * top_k + i] != 0xffffffffu || weights[r * top_k + i] != 0) wrong("a padding row has experts");
        continue;
      }
      std::vector<double> scores(experts), choices;
      double max = -INFINITY, sum = 0;
      for (u32 e = 0; e < experts; e++) {
        for (u32 i = 0; i < k; i++) scores[e] += (double)f32_of_bf16(x[r * ldx + i]) * f32_of_bf16(w[e * ldw + i]);
        if (variant == 1) scores[e] += bias[e];
        max = std::max(max, scores[e]);
      }
      for (auto &s : scores) s = sigmoid ? 1 / (1 + exp(-s)) : exp(s - max), sum += s;
      for (auto &s : scores) s /= sigmoid ? 1 : sum;
      choices = scores;
      for (u32 e = 0; e < experts && variant == 2; e++) choices[e] += choice[e];
      if (groups) {
        u32 size = experts / groups;
        std::vector<std::pair<double, u32>> order;
        for (u32 g = 0; g < groups; g++) {
          std::vector<double> own(choices.begin() + g * size, choices.begin() + (g + 1) * size);
          std::sort(own.rbegin(), own.rend());
          order.push_back({-(own[0] + (sigmoid ? own[1] : 0)), g});
        }
        std::sort(order.begin(), order.end());
        for (u32 i = kept; i < groups; i++)
          for (u32 e = 0; e < size; e++) choices[order[i].second * size + e] = -INFINITY;
      }
      std::vector<u32> order(experts);
      for (u32 e = 0; e < experts; e++) order[e] = e;
      std::stable_sort(order.begin(), order.end(), [&](u32 p, u32 q) { return choices[p] > choices[q] + 1e-9; });
      double total = 0;
      for (u32 i = 0; i < top_k; i++) total += scores[order[i]];
      for (u32 i = 0; i < top_k; i++) {
        if (chosen[r * top_k + i] != order[i]) wrong(at("expert", r, i));
        near(weights[r * top_k + i], scores[order[i]] * 2.5 / (variant % 2 == 0 ? total : 1), 1e-5, at("weight", r, i));
      }
    }
  }
}

// ---- Sampling. ----

// sampling.rs in doubles where the bits do not matter.
struct Drawn {
  u32 status = 0, id = 0;
};

double philox(u64 key, u32 choice, u32 position) {
  u32 c[4] = {choice, position, 0, 0}, k[2] = {(u32)key, (u32)(key >> 32)};
  for (int i = 0; i < 10; i++) {
    u64 a = (u64)c[0] * 0xD2511F53u, b = (u64)c[2] * 0xCD9E8D57u;
    u32 next[4] = {(u32)(b >> 32) ^ c[1] ^ k[0], (u32)b, (u32)(a >> 32) ^ c[3] ^ k[1], (u32)a};
    memcpy(c, next, 16);
    k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
  }
  return (double)(((u64)c[0] << 32 | c[1]) >> 11) / (double)(1ull << 53);
}

Drawn reference_draw(const float *logits, u32 vocabulary, const SampleRow &row, const u32 *masks, const u32 *biases, const std::vector<u32> &history, u32 prompt) {
  if (!(row.flags & 1)) return {0, 0};
  for (u32 i = 0; i < vocabulary; i++)
    if (!std::isfinite(logits[i])) return {2, 0};
  if (row.flags & 2) return {1, row.forced};
  std::vector<float> x(logits, logits + vocabulary);
  for (u32 i = 0; i < row.bias_count; i++)
    if (biases[2 * (row.bias_at + i)] < vocabulary) x[biases[2 * (row.bias_at + i)]] += __uint_as_float(biases[2 * (row.bias_at + i) + 1]);
  std::map<u32, u32> uses;
  for (u32 i = 0; i < history.size(); i++) uses[history[i]] += i >= prompt;
  if (row.repetition != 1 || row.frequency != 0 || row.presence != 0)
    for (auto [id, count] : uses) {
      if (id >= vocabulary) continue;
      x[id] = x[id] > 0 ? x[id] / row.repetition : x[id] * row.repetition;
      if (count) x[id] -= row.frequency * (float)count + row.presence;
    }
  if (row.flags & 4)
    for (u32 i = 0; i < vocabulary; i++)
      if (!(i / 32 < row.mask_words && masks[row.mask_at + i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
  float max = *std::max_element(x.begin(), x.end());
  if (max == -INFINITY) return {2, 0};
  u32 best = (u32)(std::find(x.begin(), x.end(), max) - x.begin());
  if (!(row.temperature > 0)) return {1, best};
  std::vector<std::pair<float, u32>> kept;
  auto weight = [&](u32 id) { return exp((double)(x[id] - max) / row.temperature); };
  for (u32 i = 0; i < vocabulary; i++)
    if (x[i] > -INFINITY && ((float)weight(i) >= row.min_p || x[i] == max)) kept.push_back({-x[i], i});
  std::sort(kept.begin(), kept.end());
  if (row.top_k && row.top_k < kept.size()) kept.resize(row.top_k);
  double total = 0, sum = 0;
  for (auto entry : kept) total += weight(entry.second);
  if (row.top_p < 1) {
    size_t count = 0;
    while (count < kept.size()) {
      sum += weight(kept[count++].second);
      if (sum >= row.top_p * total) break;
    }
    kept.resize(count);
  }
  std::sort(kept.begin(), kept.end(), [](auto a, auto b) { return a.second < b.second; });
  total = 0, sum = 0;
  for (auto entry : kept) total += weight(entry.second);
  double target = philox((u64)row.seed_high << 32 | row.seed_low, row.choice, row.position) * total;
  for (auto entry : kept)
    if ((sum += weight(entry.second)) > target) return {1, entry.second};
  return {1, kept.back().second};
}

void samples() {
  for (u32 vocabulary : {50u, 1500u, 5003u}) {
    current = "sample from " + std::to_string(vocabulary);
    const u32 rows = 40, ld = up(vocabulary, 4) + 4, history_tokens = 64, blocks = 3;
    Random random(vocabulary);
    Buffer<float> logits(rows * ld), adjusted(blocks * vocabulary), weights(blocks * vocabulary), logprobs(rows), top_logprobs(rows * 60);
    Buffer<u32> uses(blocks * vocabulary), tokens(rows), status(rows), top_ids(rows * 60);
    memset(uses.at, 0, uses.count * 4);
    for (u32 r = 0; r < rows; r++)
      for (u32 i = 0; i < vocabulary; i++) logits[r * ld + i] = rintf(random.unit() * 40) / 8 + (r % 3 ? random.unit() : 0);
    logits[7 * ld + 3] = NAN, logits[8 * ld + 4] = INFINITY;
    Buffer<u32> history(rows * history_tokens), slots(rows * 4), masks(2 * parts(vocabulary, 32)), biases{3, __float_as_uint(2.0f), 11, __float_as_uint(-100.0f), 3, __float_as_uint(0.5f), 99999, 0};
    std::vector<std::vector<u32>> histories(rows);
    for (u32 s = 0; s < rows; s++) {
      for (u32 i = 0; i < 30; i++) histories[s].push_back(i < 20 ? (i * 13 + s) % vocabulary : (i * i + 3 * s) % vocabulary);
      for (u32 i = 0; i < 30; i++) history[s * history_tokens + i] = histories[s][i];
      slots[4 * s] = 20, slots[4 * s + 1] = 30, slots[4 * s + 2] = histories[s].back(), slots[4 * s + 3] = 0;
    }
    for (u32 i = 0; i < masks.count; i++) masks[i] = i < masks.count / 2 ? 0x92492492u << (i % 3) : 0;
    std::vector<SampleRow> all(rows);
    std::vector<u32> runs;
    for (u32 r = 0; r < rows; r++) {
      SampleRow &row = all[r];
      row = {};
      row.slot = r >= 30 ? 30 + (r - 30) / 5 : r, row.flags = 1 | (r % 2 ? 8 : 0);
      row.seed_low = r * 77, row.seed_high = r, row.choice = r % 3, row.position = r, row.top_n = r % 7 == 5 ? 60 : r % 7, row.top_at = 60 * r;
      row.temperature = r % 4 == 0 ? 0 : 0.5f + r % 5, row.top_p = 1, row.repetition = 1;
      if (r % 5 == 1) row.top_p = 0.6f;
      if (r % 5 == 2) row.top_k = 1 + r;
      if (r % 5 == 3) row.min_p = 0.05f, row.top_p = 0.9f, row.top_k = 100;
      if (r % 6 == 4) row.repetition = 1.3f, row.frequency = 0.4f, row.presence = -0.3f;
      if (r % 6 == 5) row.flags |= 4, row.mask_at = 0, row.mask_words = parts(vocabulary, 32);
      if (r % 7 == 6) row.bias_at = 0, row.bias_count = 4;
      if (r == 13) row.flags |= 2, row.forced = 5;
      if (r == 14) row.flags |= 2, row.forced = 1 << 20;
      if (r == 15) row.flags &= ~1u;
      if (r == 16) row.flags |= 4, row.mask_at = parts(vocabulary, 32), row.mask_words = parts(vocabulary, 32);
      if (r == 17) row.top_p = 0;
      if (r == 18) row.top_k = 1;
      if (r >= 30) row.presence = 100;
      if (r == 0 || row.slot != all[r - 1].slot) runs.push_back(r);
    }
    runs.push_back(rows);
    Buffer<SampleRow> rows_at(all);
    Buffer<u32> runs_at(runs);
    SampleArgs a = {logits.at, rows_at.at, runs_at.at, masks.at, biases.at, history.at, slots.at, adjusted.at, weights.at, uses.at, tokens.at, logprobs.at, status.at,
                    top_ids.at, top_logprobs.at, (u32)runs.size() - 1, ld, vocabulary, history_tokens};
    launch("sample", {blocks, 1, 1}, 512, 0, a);
    for (u32 i = 0; i < uses.count; i++)
      if (uses[i]) wrong("uses are not left zero");
    for (u32 r = 0; r < rows; r++) {
      const SampleRow &row = all[r];
      const float *own = logits.at + r * ld;
      Drawn want = reference_draw(own, vocabulary, row, masks.at, biases.at, histories[row.slot], 20);
      checks++;
      if (status[r] != want.status || tokens[r] != want.id)
        wrong(at("row", r, tokens[r]) + " status " + std::to_string(status[r]) + ", wanted " + std::to_string(want.id) + " status " + std::to_string(want.status));
      if (want.status != 1) continue;
      histories[row.slot].push_back(want.id);
      if (!(row.flags & 8)) {
        near(logprobs[r], 0, 0, at("no log-probability", r, 0));
        continue;
      }
      double sum = 0;
      for (u32 i = 0; i < vocabulary; i++) sum += exp((double)own[i]);
      if (want.id < vocabulary) near(logprobs[r], own[want.id] - log(sum), 1e-5, at("log-probability", r, 0));
      else if (logprobs[r] != -INFINITY) wrong("a token out of the vocabulary has a log-probability");
      std::vector<u32> order(vocabulary);
      for (u32 i = 0; i < vocabulary; i++) order[i] = i;
      std::stable_sort(order.begin(), order.end(), [&](u32 p, u32 q) { return own[p] > own[q]; });
      for (u32 i = 0; i < std::min(row.top_n, vocabulary); i++) {
        if (top_ids[row.top_at + i] != order[i]) wrong(at("top", r, i));
        near(top_logprobs[row.top_at + i], own[order[i]] - log(sum), 1e-5, at("top log-probability", r, i));
      }
    }
    for (u32 s = 0; s < rows; s++)
      for (u32 i = 0; i < histories[s].size(); i++)
        if (history[s * history_tokens + i] != histories[s][i] || slots[4 * s + 1] != histories[s].size()) wrong(at("history", s, i));
  }
}

// ---- The rest. ----

void small_ones() {
  current = "step";
  {
    Buffer<u32> history(3 * 8), slots(12), resets{2, 3, 2, 1, 0, 0, 0, 0, 1, 9, 9, 0}, blob{9, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    launch("reset_slots", {3, 1, 1}, 128, 0, history.at, slots.at, (const u32 *)resets.at, (const u32 *)blob.at, 8u);
    if (slots[8] != 3 || slots[9] != 5 || slots[10] != 8 || history[16 + 4] != 8) wrong("slot 2");
    if (slots[0] != 0 || slots[1] != 0 || slots[2] != 0) wrong("slot 0");
    if (slots[4] != 8 || slots[5] != 8 || slots[6] != 12) wrong("slot 1 is cut");
    Buffer<u32> tokens{5, 0x80000002u, 0x80000001u};
    launch("resolve_tokens", {1, 1, 1}, 256, 0, tokens.at, (const u32 *)slots.at, 3u);
    if (tokens[0] != 5 || tokens[1] != 8 || tokens[2] != 12) wrong("tokens");
  }
  current = "embed";
  {
    Random random(1);
    Buffer<u16> table(7 * 24), positions(9 * 24), types(2 * 24);
    for (auto *t : {&table, &positions, &types})
      for (u32 i = 0; i < t->count; i++) (*t)[i] = bf16_of(random.unit());
    Buffer<u32> tokens{6, 0}, at_position{8, 1}, type{1, 0};
    Buffer<float> out(2 * 24);
    launch("embed", {2, 1, 1}, 128, 0, out.at, 24u, (const u16 *)table.at, 24u, (const u16 *)positions.at, 24u, (const u16 *)types.at, 24u, (const u32 *)tokens.at, (const u32 *)at_position.at, (const u32 *)type.at, 19u, 1.5f);
    for (u32 r = 0; r < 2; r++)
      for (u32 i = 0; i < 19; i++)
        near(out[r * 24 + i], f32_of_bf16(table[tokens[r] * 24 + i]) * 1.5 + f32_of_bf16(positions[at_position[r] * 24 + i]) + f32_of_bf16(types[type[r] * 24 + i]), 1e-6, at("embed", r, i));
  }
  current = "pool";
  for (u32 kind : {0u, 1u, 2u}) {
    Random random(2);
    Buffer<float> x(9 * 12), out(3 * 12);
    for (u32 i = 0; i < x.count; i++) x[i] = random.unit();
    Buffer<u32> sequences{0, 0, 4, 4, 1, 4, 0, 0, 2, 4, 5, 5}, counters{9, 3, 0, 0, 0, 0, 0, 0};
    launch("pool", {4, 1, 1}, 256, 4 * 11, out.at, 12u, (const float *)x.at, 12u, (const u32 *)sequences.at, (const u32 *)counters.at, 11u, 8u, kind, 1u);
    for (u32 s : {0u, 2u}) {
      u32 start = s ? 4 : 0, len = s ? 5 : 4;
      double want[8], length = 0;
      for (u32 i = 0; i < 8; i++) {
        want[i] = 0;
        for (u32 r = 0; r < len; r++)
          if (kind == 0 || r == (kind == 1 ? 0 : len - 1)) want[i] += x[(start + r) * 12 + i] / (kind == 0 ? len : 1.0);
        length += want[i] * want[i];
      }
      for (u32 i = 0; i < 8; i++) near(out[s * 12 + i], want[i] / sqrt(length), 1e-6, at("pool", s, i));
    }
  }
  current = "combine";
  {
    Random random(3);
    Buffer<float> out(2 * 8), products(6 * 8), weights(6);
    for (u32 i = 0; i < products.count; i++) products[i] = random.unit();
    for (u32 i = 0; i < 6; i++) weights[i] = random.unit();
    Buffer<u32> counters{2, 1, 0, 0, 0, 0, 0, 0};
    launch("combine_experts", {3, 1, 1}, 128, 0, out.at, 8u, (const float *)products.at, 8u, (const float *)weights.at, (const u32 *)counters.at, 7u, 3u);
    for (u32 i = 0; i < 14; i++) {
      u32 r = i / 7, c = i % 7;
      double want = 0;
      for (u32 j = 0; j < 3; j++) want += weights[r * 3 + j] * products[(r * 3 + j) * 8 + c];
      near(out[r * 8 + c], want, 1e-6, at("combine", r, c));
    }
  }
  current = "e4m3";
  for (u32 code = 0; code < 256; code++) {
    float x = f32_of_e4m3((u8)code);
    if (x == x && e4m3_of(x) != code) wrong("code " + std::to_string(code) + " does not come back");
    checks++;
  }
}

}  // namespace

int main(int count, char **arguments) {
  uint64_t first = count > 2 ? strtoull(arguments[1], nullptr, 10) : 1, last = count > 2 ? strtoull(arguments[2], nullptr, 10) : 3;
  for (seed = first; seed <= last; seed++) {
    small_ones();
    norms();
    products();
    rows_alone();
    ropes();
    routes();
    attentions();
    samples();
  }
  printf("%u checks passed under seeds %llu to %llu\n", checks, (unsigned long long)first, (unsigned long long)last);
}

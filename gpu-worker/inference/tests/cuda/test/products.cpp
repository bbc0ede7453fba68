// Products with weights, in every kind, tile and epilogue.
#include "harness.hpp"

namespace {

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

}  // namespace

void test_products() {
  products();
  rows_alone();
}

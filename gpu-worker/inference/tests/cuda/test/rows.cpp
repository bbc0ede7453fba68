// Kernels that take row after row: steps, embeddings, norms, rotation, pools.
#include "harness.hpp"

namespace {

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

}  // namespace

void test_rows() {
  small_ones();
  norms();
  ropes();
}

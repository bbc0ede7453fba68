// Attention of every kind, decoded, in blocks, and in share groups.
#include "harness.hpp"

namespace {

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

}  // namespace

void test_attention() {
  attentions();
}

// Draws against sampling.rs, in doubles where the bits do not matter.
#include "harness.hpp"

namespace {

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

}  // namespace

void test_samples() {
  samples();
}

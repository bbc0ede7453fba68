// Choices of experts.
#include "harness.hpp"

namespace {

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

}  // namespace

void test_routes() {
  routes();
}

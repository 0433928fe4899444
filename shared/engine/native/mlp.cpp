// The MLPs of a model: dense ones, and sparse ones whose rows go to different experts.
#include <algorithm>
#include <cmath>

#include "model.h"

namespace penstock {

namespace {
constexpr float LEAST_SUM = 1e-20f;  // scores are divided by their sum and this: all of them may be zero
}

__m512 Model::activated(__m512 gate, __m512 up) const {
  switch (static_cast<Activation>(shape_.activation)) {
    case Activation::SILU:
      return _mm512_mul_ps(silu(gate), up);
    case Activation::GELU_TANH:
      return _mm512_mul_ps(gelu_tanh(gate), up);
    case Activation::CLAMPED_SWIGLU:
      break;
  }
  // A NaN is the second operand, which the minimum and the maximum then are.
  const __m512 most = _mm512_set1_ps(shape_.swiglu_limit), least = _mm512_set1_ps(-shape_.swiglu_limit);
  gate = _mm512_min_ps(most, gate);
  up = _mm512_max_ps(least, _mm512_min_ps(most, up));
  const __m512 glu = _mm512_mul_ps(gate, sigmoid(_mm512_mul_ps(gate, _mm512_set1_ps(shape_.swiglu_slope))));
  return _mm512_mul_ps(glu, _mm512_add_ps(up, _mm512_set1_ps(1.0f)));
}

// projected[row] = down(act(gate) * up), with `shares` times shares[row]; with `targets` as well
// projected[targets[row]] += shares[row] * that.
// Layer `index` of adapters; of a sparse layer they change nothing here.
void Model::run_mlp(const Linear& gate_up, const Linear& down, int index, const Rows& in, Rows& down_in,
                    int count, Team& team, const int* targets, const float* shares) {
  sum_ranks(index, Adapted::GATE_UP, gate_up, in, team);
  const auto adapt_gate_up = [&](int row, int num, int panel, float* tile) {
    adapt(index, Adapted::GATE_UP, row, num, panel, tile);
  };
  const auto adapt_down = [&](int row, int num, int panel, float* tile) {
    adapt(index, Adapted::DOWN, row, num, panel, tile);
  };
  const auto activate = [&](int row, int panel, __m512 gate, __m512 up) {
    const __m512 value = activated(gate, up);
    if (down.kind() == Kind::BF16)
      _mm256_storeu_si256((__m256i*)(down_in.row<bf16>(row) + panel * LANES), narrow(value));
    else if (down.kind() == Kind::F32)
      _mm512_storeu_ps(down_in.row<float>(row) + panel * LANES, value);
    else
      _mm512_storeu_ps(inner_.data() + static_cast<long>(row) * inner_width_ + panel * LANES, value);
  };
  const auto activated_place = [&](int row, int panel) -> const void* {
    const int column = panel * LANES;
    if (down.kind() == Kind::BF16) return down_in.row<bf16>(row) + column;
    if (down.kind() == Kind::F32) return down_in.row<float>(row) + column;
    return inner_.data() + static_cast<long>(row) * inner_width_ + column;
  };
  gate_up.apply(in, count, team, adapt_gate_up, Placed{activate, activated_place}, [] {});
  if (down.quantized())
    team.share(count, rows_per_claim(inner_width_), [&](int first, int last, int) {
      for (int row = first; row < last; ++row) {
        const float* inner = inner_.data() + static_cast<long>(row) * inner_width_;
        down.prepare(inner, down_in, row);
        take(down, inner, row);
      }
    });
  sum_ranks(index, Adapted::DOWN, down, down_in, team);
  const auto projected_place = [&](int row, int panel) {
    return projected(targets == nullptr ? row : targets[row]) + panel * PANEL;
  };
  const auto project = [&](int row, int panel, __m512 low, __m512 high) {
    float* out = projected_place(row, panel);
    if (targets != nullptr) {
      const __m512 share = _mm512_set1_ps(shares[row]);
      low = _mm512_fmadd_ps(low, share, _mm512_loadu_ps(out));
      high = _mm512_fmadd_ps(high, share, _mm512_loadu_ps(out + LANES));
    } else if (shares != nullptr) {
      low = _mm512_mul_ps(low, _mm512_set1_ps(shares[row]));
      high = _mm512_mul_ps(high, _mm512_set1_ps(shares[row]));
    }
    _mm512_storeu_ps(out, low);
    _mm512_storeu_ps(out + LANES, high);
  };
  down.apply(down_in, count, team, adapt_down, Placed{project, projected_place}, [] {});
}

// Room for the choices of `rows` rows, made before a team runs: in it nothing may fail.
void Model::reserve_experts(size_t rows) {
  const size_t choices = rows * most_chosen_;
  chosen_.resize(std::max(chosen_.size(), choices));
  shares_.resize(chosen_.size());
  expert_rows_.resize(chosen_.size());
  expert_shares_.resize(chosen_.size());
  expert_begin_.resize(most_experts_ + 1);
  expert_next_.resize(most_experts_);
  ranking_.resize(static_cast<size_t>(shape_.threads) * most_experts_);
  scores_.resize(ranking_.size());
  group_sums_.resize(ranking_.size());
  shared_shares_.resize(std::max(shared_shares_.size(), rows));
}

// What all rows chose, expert by expert.
void Model::sort_by_expert(int experts, int count, int per_token) {
  const int choices = count * per_token;
  std::fill_n(expert_begin_.begin(), experts + 1, 0);
  for (int i = 0; i < choices; ++i) ++expert_begin_[chosen_[i] + 1];
  for (int expert = 0; expert < experts; ++expert) expert_begin_[expert + 1] += expert_begin_[expert];
  std::copy_n(expert_begin_.begin(), experts, expert_next_.begin());
  for (int i = 0; i < choices; ++i) {
    const int place = expert_next_[chosen_[i]]++;
    expert_rows_[place] = i / per_token;
    expert_shares_[place] = shares_[i];
  }
}

// A sparse MLP. The one beside the experts and they work one after the other, so a row's sum has one order
// whatever the batch.
void Model::feed_experts(const Layer& layer, int index, int count, Team& team) {
  const LayerShape& shape = layer.shape;
  shape.router->apply(*layer.router_in, count, team, [&](int row, int panel, __m512 low, __m512 high) {
    float* out = router_.data() + static_cast<long>(row) * most_experts_ + panel * PANEL;
    _mm512_storeu_ps(out, low);
    _mm512_storeu_ps(out + LANES, high);
  });
  team.share(count, rows_per_claim(width_), [&](int first, int last, int rank) {
    for (int row = first; row < last; ++row) {
      choose_experts(layer, row, rank);
      if (shape.shared_gate_up == nullptr) std::memset(projected(row), 0, width_ * sizeof(float));
    }
  });
  if (shape.shared_gate_up != nullptr)
    run_mlp(*shape.shared_gate_up, *shape.shared_down, index, *layer.shared_in, *layer.shared_down_in, count,
            team, nullptr, shape.shared_gate ? shared_shares_.data() : nullptr);
  sort_by_expert(shape.experts, count, shape.experts_per_token);
  const Rows& from = *layer.mlp_in;
  Rows& to = *layer.expert_in;
  for (int expert = 0; expert < shape.experts; ++expert) {
    const int* rows = expert_rows_.data() + expert_begin_[expert];
    const int num = expert_begin_[expert + 1] - expert_begin_[expert];
    if (num == 0) continue;
    team.share(num, rows_per_claim(width_), [&](int first, int last, int) {
      for (int i = first; i < last; ++i) to.copy(from, rows[i], i);
    });
    run_mlp(*shape.gate_up[expert], *shape.down[expert], index, to, *layer.down_in, num, team, rows,
            expert_shares_.data() + expert_begin_[expert]);
  }
}

// The scores of all experts and the best of them, equal ones by number. Where one is no number, all shares
// are none. Without a bias or sums of scores logits decide: two that differ may have the same score.
void Model::choose_experts(const Layer& layer, int row, int rank) {
  const LayerShape& shape = layer.shape;
  float* choice = router_.data() + static_cast<long>(row) * most_experts_;
  float* scores = scores_.data() + static_cast<long>(rank) * most_experts_;
  int* chosen = chosen_.data() + static_cast<long>(row) * shape.experts_per_token;
  float* shares = shares_.data() + static_cast<long>(row) * shape.experts_per_token;
  int* order = ranking_.data() + static_cast<long>(rank) * most_experts_;
  if (shape.shared_gate) shared_shares_[row] = 1.0f / (1.0f + std::exp(-choice[shape.experts]));
  const bool softmax = shape.scores == static_cast<int>(Scores::SOFTMAX);
  const float most = *std::max_element(choice, choice + shape.experts);
  float total = 0.0f, sum = 0.0f;
  for (int expert = 0; expert < shape.experts; ++expert) {
    scores[expert] = softmax ? std::exp(choice[expert] - most) : 1.0f / (1.0f + std::exp(-choice[expert]));
    total += scores[expert];
  }
  if (softmax)
    for (int expert = 0; expert < shape.experts; ++expert) scores[expert] /= total;
  if (shape.choice_bias != nullptr)
    for (int expert = 0; expert < shape.experts; ++expert)
      choice[expert] = scores[expert] + shape.choice_bias[expert];
  else if (shape.group_best > 1)
    std::copy_n(scores, shape.experts, choice);
  if (shape.groups_per_token < shape.groups) leave_groups_out(shape, choice, rank);
  for (int expert = 0; expert < shape.experts; ++expert) order[expert] = expert;
  std::partial_sort(order, order + shape.experts_per_token, order + shape.experts,
                    [&](int a, int b) { return choice[a] > choice[b] || (choice[a] == choice[b] && a < b); });
  const float none = total - total;  // 0, or no number where one of the scores is none
  for (int i = 0; i < shape.experts_per_token; ++i) {
    chosen[i] = order[i];
    shares[i] = scores[order[i]] + none;
    sum += shares[i];
  }
  if (shape.normalize)
    for (int i = 0; i < shape.experts_per_token; ++i) shares[i] /= sum + LEAST_SUM;
  for (int i = 0; i < shape.experts_per_token; ++i) shares[i] *= shape.scale;
}

// Experts of groups that a row does not go to can no longer be chosen; equal groups by number.
void Model::leave_groups_out(const LayerShape& shape, float* choice, int rank) {
  const int size = shape.experts / shape.groups;
  float* sums = group_sums_.data() + static_cast<long>(rank) * most_experts_;
  int* order = ranking_.data() + static_cast<long>(rank) * most_experts_;
  const auto better = [&](int a, int b) {
    return choice[a] > choice[b] || (choice[a] == choice[b] && a < b);
  };
  for (int group = 0; group < shape.groups; ++group) {
    for (int i = 0; i < size; ++i) order[i] = group * size + i;
    std::partial_sort(order, order + shape.group_best, order + size, better);
    sums[group] = 0.0f;
    for (int i = 0; i < shape.group_best; ++i) sums[group] += choice[order[i]];
  }
  for (int group = 0; group < shape.groups; ++group) {
    int before = 0;  // groups that are better
    for (int other = 0; other < shape.groups; ++other)
      before += sums[other] > sums[group] || (sums[other] == sums[group] && other < group);
    if (before >= shape.groups_per_token) std::fill_n(choice + group * size, size, -INFINITY);
  }
}

}  // namespace penstock

// The least logit that top-k and top-p keep, found without a sort: a selection over the bits of the logits,
// after cheap bounds have ruled most of a row out. Ties with the last one kept are kept.
#pragma once

#include <cstring>
#include <functional>
#include <utility>

#include "logit_row.h"

namespace penstock::sampling {

constexpr int64_t kGroupsPerKept = 8;
constexpr int kHalvings = 6;
constexpr size_t kSorted = 200;  // items that are sooner sorted than counted
constexpr double kHead = 10.0;   // ids at least e^-10 times as likely as the likeliest
// What chance_below may be off by, of itself.
constexpr double kTailError = 2e-5;

inline uint32_t ordered_bits(float value) {  // unsigned order = order of values; +0 and -0 are one value
  value += 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

inline float from_ordered_bits(uint32_t bits) {
  bits = bits & 0x80000000u ? bits & 0x7FFFFFFFu : ~bits;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Weighted {
  uint32_t bits;  // ordered_bits of the logit
  double weight;
};

// From the largest down, the first value at which the weights reach `target`; the least one if they do not.
// Overwrites `items`, of which there is at least one.
inline float value_reaching(std::vector<Weighted>& items, double target) {
  static thread_local std::vector<double> sums;
  if (items.size() <= kSorted) {
    std::sort(items.begin(), items.end(),
              [](const Weighted& a, const Weighted& b) { return a.bits > b.bits; });
    double sum = 0.0;
    for (const Weighted& item : items)
      if ((sum += item.weight) >= target) return from_ordered_bits(item.bits);
    return from_ordered_bits(items.back().bits);
  }
  uint32_t prefix = 0;
  for (const auto& digit : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
    const int shift = digit.first, width = digit.second;
    const uint32_t last = (1u << width) - 1;
    sums.assign(last + 1, 0.0);
    uint32_t least = last;  // the lowest place in use: weights may be too small to be seen in the sums
    for (const Weighted& item : items) {
      const uint32_t place = (item.bits >> shift) & last;
      sums[place] += item.weight;
      least = std::min(least, place);
    }
    uint32_t place = last;
    double before = 0.0;
    while (place > least && before + sums[place] < target) before += sums[place--];
    target -= before;
    prefix |= place << shift;
    items.erase(std::remove_if(items.begin(), items.end(),
                               [&](const Weighted& item) { return ((item.bits >> shift) & last) != place; }),
                items.end());
    if (items.size() == 1) return from_ordered_bits(items[0].bits);
  }
  return from_ordered_bits(prefix);
}

constexpr double kInverseFactorials[] = {
    1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
    1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

// Every lane: exp(x) for x <= 0, to about 1 ulp.
inline __m512d exp_of_negative(__m512d x) {
  x = _mm512_max_pd(x, _mm512_set1_pd(-800.0));  // exp is 0 there, and -inf would make a NaN below
  const __m512d n = _mm512_roundscale_pd(_mm512_mul_pd(x, _mm512_set1_pd(1.4426950408889634)),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512d r = _mm512_fnmadd_pd(n, _mm512_set1_pd(0x1.62e42fefa39efp-1), x);
  r = _mm512_fnmadd_pd(n, _mm512_set1_pd(0x1.abc9e3b39803fp-56), r);
  __m512d sum = _mm512_set1_pd(kInverseFactorials[13]);
#pragma GCC unroll 13
  for (int i = 12; i >= 0; --i) sum = _mm512_fmadd_pd(sum, r, _mm512_set1_pd(kInverseFactorials[i]));
  return _mm512_scalef_pd(sum, n);
}

// Something that the `top_k` largest reach, close below the least of them: the same place among the maxima
// of groups, of which there are a few times as many.
inline float under_top_k(const float* row, int64_t vocab, int64_t top_k) {
  static thread_local std::vector<float> maxima;
  const int64_t vectors = vocab / (kGroupsPerKept * top_k);  // each of 16 lanes has a group of so many ids
  if (vectors < 2) return -kInf;
  const int64_t group = vectors * kLanes;
  maxima.clear();
  for (int64_t first = 0; first < vocab; first += group) {
    __m512 most = _mm512_set1_ps(-kInf);
    const int64_t end = std::min(vocab, first + group);
    for (int64_t start = first; start < end; start += kLanes)
      most = _mm512_max_ps(most, load(row, start, lanes_at(start, vocab)));
    maxima.resize(maxima.size() + kLanes);
    _mm512_storeu_ps(maxima.data() + maxima.size() - kLanes, most);
  }
  if (static_cast<int64_t>(maxima.size()) < top_k) return -kInf;
  std::nth_element(maxima.begin(), maxima.begin() + (top_k - 1), maxima.end(), std::greater<float>());
  return maxima[static_cast<size_t>(top_k - 1)];
}

inline float top_k_floor(const Row& row, int64_t top_k) {
  static thread_local std::vector<float> logits;
  static thread_local std::vector<Weighted> items;
  float least = under_top_k(row.maxima, row.chunks() * kLanes, top_k);
  if (least == -kInf) least = under_top_k(row.logits, row.size, top_k);
  const int64_t count = gather(row, least, logits);
  if (count <= top_k)
    return count < top_k ? -kInf : *std::min_element(logits.begin(), logits.begin() + count);
  items.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) items[i] = {ordered_bits(logits[i]), 1.0};
  return value_reaching(items, static_cast<double>(top_k));
}

// exp(logit / temperature - highest)
inline __m512d chances(__m256 logits, double temperature, double highest) {
  const __m512d scores = _mm512_div_pd(_mm512_cvtps_pd(logits), _mm512_set1_pd(temperature));
  return exp_of_negative(_mm512_sub_pd(scores, _mm512_set1_pd(highest)));
}

// The chances of a row's ids, relative to the likeliest one's, and their sums from any logit upwards.
class Chances {
 public:
  Chances(const float* row, int64_t vocab, double highest, double temperature) : row_(row), vocab_(vocab) {
    each_.resize(static_cast<size_t>(vocab + kLanes));
    for (int64_t start = 0; start < vocab; start += kLanes) {
      const __m512 x = load(row, start, lanes_at(start, vocab));
      const __mmask16 kept = at_least(x, -kInf);
      __m512d low = _mm512_setzero_pd(), high = low;
      if (kept) {
        low = chances(_mm512_castps512_ps256(x), temperature, highest);
        high = chances(_mm512_extractf32x8_ps(x, 1), temperature, highest);
      }
      _mm512_storeu_pd(each_.data() + start, _mm512_maskz_mov_pd(static_cast<__mmask8>(kept), low));
      _mm512_storeu_pd(each_.data() + start + 8, _mm512_maskz_mov_pd(static_cast<__mmask8>(kept >> 8), high));
    }
  }

  double from(float value) const {
    __m512d low = _mm512_setzero_pd(), high = low;
    for (int64_t start = 0; start < vocab_; start += kLanes) {
      const __mmask16 kept = at_least(load(row_, start, lanes_at(start, vocab_)), value);
      if (!kept) continue;
      const double* each = each_.data() + start;
      low = _mm512_mask_add_pd(low, static_cast<__mmask8>(kept), low, _mm512_loadu_pd(each));
      high = _mm512_mask_add_pd(high, static_cast<__mmask8>(kept >> 8), high, _mm512_loadu_pd(each + 8));
    }
    return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
  }

  // Those of the logits in [value, end).
  void between(float value, float end, std::vector<Weighted>& items) const {
    items.clear();
    for (int64_t start = 0; start < vocab_; start += kLanes) {
      const __m512 x = load(row_, start, lanes_at(start, vocab_));
      for (__mmask16 kept = at_least(x, value) & ~at_least(x, end); kept; kept &= kept - 1) {
        const int64_t id = start + __builtin_ctz(kept);
        items.push_back({ordered_bits(row_[id]), each_[static_cast<size_t>(id)]});
      }
    }
  }

 private:
  const float* row_;
  int64_t vocab_;
  static inline thread_local std::vector<double> each_;
};

// The first logit from the largest, `top`, down at which the chances reach `target`; no less than `low` need
// be looked at.
inline float last_kept(const Chances& chances, float top, float low, double target) {
  static thread_local std::vector<Weighted> items;
  float high = kInf;
  double above = 0.0;  // the chances from `high` upwards
  for (int i = 0; i < kHalvings && low > -kInf; ++i) {
    const float middle = low + 0.5f * (std::min(high, top) - low);
    const double sum = chances.from(middle);
    if (sum >= target) {
      low = middle;
    } else {
      high = middle;
      above = sum;
    }
  }
  chances.between(low, high, items);
  return items.empty() ? low : value_reaching(items, target - above);
}

// The same as below where few ids hold nearly all chances: only theirs are exact, and what the others' sum
// may be off by is not enough to move the result. NaN where it is.
inline float top_p_floor_of_head(const Row& row, double temperature, double top_p) {
  static thread_local std::vector<float> head;
  const float edge = static_cast<float>(row.top - kHead * temperature);
  const int64_t count = gather(row, edge, head);
  if (2 * count > row.size) return kNan;
  const double tail = chance_below(row, edge, temperature);
  const Chances chances(head.data(), count, static_cast<double>(row.top) / temperature, temperature);
  const double sum = chances.from(-kInf), off = kTailError * tail;
  if (sum < top_p * (sum + tail + off)) return kNan;
  const float least = last_kept(chances, row.top, edge, top_p * (sum + tail + off));
  const float most = last_kept(chances, row.top, edge, top_p * (sum + tail - off));
  return least == most ? least : kNan;
}

inline float top_p_floor(const Row& row, double temperature, double top_p) {
  const float floor = top_p_floor_of_head(row, temperature, top_p);
  if (!std::isnan(floor)) return floor;
  const double highest = static_cast<double>(row.top) / temperature;
  const Chances chances(row.logits, row.size, highest, temperature);
  const double total = chances.from(-kInf);
  // Below this everything together is less than what top_p leaves over. It is a little lower than it could
  // be, because a float is not exact.
  const double negligible = std::log(0.5 * (1.0 - top_p) * total / static_cast<double>(row.size));
  const double cut = (highest + negligible) * temperature;
  return last_kept(chances, row.top, static_cast<float>(cut - 1e-5 * std::abs(cut) - 1e-5), top_p * total);
}

// What both keep; top-p is of what top-k leaves.
inline float floor_of(const Row& row, double temperature, int64_t top_k, double top_p) {
  static thread_local std::vector<float> kept, maxima;
  float floor = -kInf;
  if (top_k > 0 && top_k < row.size) floor = top_k_floor(row, top_k);
  if (top_p >= 1.0) return floor;
  if (floor == -kInf) return top_p_floor(row, temperature, top_p);
  const int64_t count = gather(row, floor, kept);
  return std::max(floor, top_p_floor(Row(kept.data(), count, maxima), temperature, top_p));
}

}  // namespace penstock::sampling

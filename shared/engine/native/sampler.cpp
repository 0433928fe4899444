// One token per row of logits: argmax, or Gumbel-max over what top-k, top-p and min-p leave.
//
// The same draw as sampler.py and noise.py: scores are logits / temperature + G(seed, position, id) in double
// precision, G from a splitmix64 counter. Two things make it quick without changing it:
//   * -log(-log u) exceeds a bound only where 1 - u is small, and 1 - u is known before any logarithm. An id
//     is scored exactly only where that bound says that it could beat the best so far: a few of each row.
//   * thresholds come from a radix selection over the bits of the logits instead of a sort.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kMultiplier1 = 0xBF58476D1CE4E5B9ull;
constexpr uint64_t kMultiplier2 = 0x94D049BB133111EBull;
constexpr int64_t kLanes = 16;
constexpr float kInf = std::numeric_limits<float>::infinity();

// ---- the noise ----

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * kMultiplier1;
  value = (value ^ (value >> 27)) * kMultiplier2;
  return value ^ (value >> 31);
}

__m512i mix(__m512i value) {
  value = _mm512_mullo_epi64(_mm512_xor_si512(value, _mm512_srli_epi64(value, 30)),
                             _mm512_set1_epi64(static_cast<int64_t>(kMultiplier1)));
  value = _mm512_mullo_epi64(_mm512_xor_si512(value, _mm512_srli_epi64(value, 27)),
                             _mm512_set1_epi64(static_cast<int64_t>(kMultiplier2)));
  return _mm512_xor_si512(value, _mm512_srli_epi64(value, 31));
}

double gumbel(uint64_t key, int64_t id) {
  const uint64_t bits = mix(key + static_cast<uint64_t>(id + 1) * kGolden) >> 12;
  const double uniform = (static_cast<double>(bits) + 0.5) * 0x1p-52;
  return -std::log(-std::log(uniform));
}

// A lower bound of log2(1 - u) for the ids `first` .. `first` + 15, up to rounding (see kSlack).
// log2(2^e (1 + f)) >= e + f, and e + f is what a float's bits say when they are read as an integer.
__m512 log2_of_rest(uint64_t key, int64_t first) {
  const __m512i step = _mm512_set1_epi64(static_cast<int64_t>(8 * kGolden));
  const __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
  const __m512i start = _mm512_set1_epi64(static_cast<int64_t>(key + static_cast<uint64_t>(first + 1) * kGolden));
  const __m512i low = _mm512_add_epi64(
      start, _mm512_mullo_epi64(lane, _mm512_set1_epi64(static_cast<int64_t>(kGolden))));
  const __m512i ones = _mm512_set1_epi64(-1);
  const __m512i rest_low = _mm512_srli_epi64(_mm512_xor_si512(mix(low), ones), 12);
  const __m512i rest_high = _mm512_srli_epi64(_mm512_xor_si512(mix(_mm512_add_epi64(low, step)), ones), 12);
  const __m512 rest = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepu64_ps(rest_low)),
                                         _mm512_cvtepu64_ps(rest_high), 1);
  return _mm512_sub_ps(
      _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_castps_si512(rest)), _mm512_set1_ps(0x1p-23f)),
      _mm512_set1_ps(127.0f + 52.0f));
}

// ---- one row ----

struct Top {
  float value;  // -inf when every id is ruled out
  int64_t id;
  bool nan;
};

__mmask16 lanes_at(int64_t start, int64_t size) {
  return size - start >= kLanes ? 0xFFFF : static_cast<__mmask16>((1u << (size - start)) - 1);
}

__m512 load(const float* row, int64_t start, __mmask16 lanes) {
  return _mm512_mask_loadu_ps(_mm512_set1_ps(-kInf), lanes, row + start);
}

// The largest logit, and the lowest id that has it.
Top find_top(const float* row, int64_t vocab) {
  __m512 best = _mm512_set1_ps(-kInf);
  __mmask16 nan = 0;
  for (int64_t start = 0; start < vocab; start += kLanes) {
    const __m512 x = load(row, start, lanes_at(start, vocab));
    nan |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    best = _mm512_max_ps(x, best);
  }
  Top top{_mm512_reduce_max_ps(best), 0, nan != 0};
  if (top.nan) return top;
  for (int64_t start = 0; start < vocab; start += kLanes) {
    const __mmask16 lanes = lanes_at(start, vocab);
    const __mmask16 found =
        _mm512_mask_cmp_ps_mask(lanes, load(row, start, lanes), _mm512_set1_ps(top.value), _CMP_EQ_OQ);
    if (found) {
      top.id = start + __builtin_ctz(found);
      break;
    }
  }
  return top;
}

// ---- top-k and top-p: the least logit that is kept ----

uint32_t ordered_bits(float value) {  // unsigned order = order of values; +0 and -0 are one value
  value += 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

float from_ordered_bits(uint32_t bits) {
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
float value_reaching(std::vector<Weighted>& items, double target) {
  static thread_local std::vector<double> sums;
  uint32_t prefix = 0;
  for (const auto [shift, width] : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
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

// Every lane: exp(x) for x <= 0, to about 1 ulp.
__m512d exp_of_negative(__m512d x) {
  x = _mm512_max_pd(x, _mm512_set1_pd(-800.0));  // exp is 0 there, and -inf would make a NaN below
  const __m512d n = _mm512_roundscale_pd(_mm512_mul_pd(x, _mm512_set1_pd(1.4426950408889634)),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512d r = _mm512_fnmadd_pd(n, _mm512_set1_pd(0x1.62e42fefa39efp-1), x);
  r = _mm512_fnmadd_pd(n, _mm512_set1_pd(0x1.abc9e3b39803fp-56), r);
  __m512d sum = _mm512_set1_pd(1.0 / 6227020800.0);  // 1 / 13!
  for (const double factorial : {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0,
                                 6.0, 2.0, 1.0, 1.0})
    sum = _mm512_fmadd_pd(sum, r, _mm512_set1_pd(1.0 / factorial));
  return _mm512_scalef_pd(sum, n);
}

struct Kept {
  std::vector<float> logits;  // with room for a full vector behind the last
  std::vector<double> chances;  // relative to the likeliest
};

// The finite logits that are at least `floor`, in the order of their ids.
int64_t gather(const float* row, int64_t vocab, float floor, std::vector<float>& logits) {
  logits.resize(static_cast<size_t>(vocab + kLanes));
  int64_t count = 0;
  for (int64_t start = 0; start < vocab; start += kLanes) {
    const __mmask16 lanes = lanes_at(start, vocab);
    const __m512 x = load(row, start, lanes);
    const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(floor), _CMP_GE_OQ) &
                           _mm512_cmp_ps_mask(x, _mm512_set1_ps(-kInf), _CMP_GT_OQ);
    _mm512_mask_compressstoreu_ps(logits.data() + count, kept, x);
    count += __builtin_popcount(kept);
  }
  return count;
}

float top_k_floor(const float* row, int64_t vocab, int64_t top_k) {
  static thread_local std::vector<float> logits;
  static thread_local std::vector<Weighted> items;
  const int64_t count = gather(row, vocab, -kInf, logits);
  if (count <= top_k) return -kInf;
  items.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) items[i] = {ordered_bits(logits[i]), 1.0};
  return value_reaching(items, static_cast<double>(top_k));
}

float top_p_floor(const float* row, int64_t vocab, float floor, float top, double temperature, double top_p) {
  static thread_local Kept kept;
  static thread_local std::vector<Weighted> items;
  const int64_t count = gather(row, vocab, floor, kept.logits);
  kept.chances.resize(static_cast<size_t>(count + kLanes));
  const __m512d highest = _mm512_set1_pd(static_cast<double>(top) / temperature);
  __m512d sum = _mm512_setzero_pd();
  for (int64_t start = 0; start < count; start += 8) {
    const __mmask8 lanes = count - start >= 8 ? 0xFF : static_cast<__mmask8>((1u << (count - start)) - 1);
    const __m512d x = _mm512_cvtps_pd(_mm256_loadu_ps(kept.logits.data() + start));
    const __m512d chance =
        exp_of_negative(_mm512_sub_pd(_mm512_div_pd(x, _mm512_set1_pd(temperature)), highest));
    _mm512_storeu_pd(kept.chances.data() + start, chance);
    sum = _mm512_mask_add_pd(sum, lanes, sum, chance);
  }
  const double total = _mm512_reduce_add_pd(sum);
  // Ids so unlikely that all of them together stay below what top_p leaves over are not the last one kept.
  const double negligible = 0.5 * (1.0 - top_p) * total / static_cast<double>(count);
  items.clear();
  for (int64_t i = 0; i < count; ++i)
    if (kept.chances[i] >= negligible) items.push_back({ordered_bits(kept.logits[i]), kept.chances[i]});
  return value_reaching(items, top_p * total);
}

// ---- the draw ----

struct Draw {  // laid out as native_sampler.py says
  double temperature;
  double top_p;
  double min_p;
  uint64_t seed;
  int64_t position;
  int64_t top_k;
};

// What the float arithmetic of the bound may be off by, in bits: far more than its rounding errors, of which
// the largest are relative ones of the two scores.
constexpr float kSlack = 2e-3f;
constexpr float kRelativeSlack = 1e-6f;
constexpr float kLeastLog2 = -54.0f;  // 1 - u is at least 2^-53

// argmax of logit / temperature + G over logits >= `floor` whose quotient is at least `least`.
int64_t gumbel_argmax(const float* row, int64_t vocab, const Draw& draw, float floor, double least, int64_t first) {
  const uint64_t key = mix(mix(draw.seed + kGolden) + static_cast<uint64_t>(draw.position));
  int64_t best = first;
  double most = static_cast<double>(row[first]) / draw.temperature + gumbel(key, first);
  const __m512 inverse = _mm512_set1_ps(static_cast<float>(1.0 / draw.temperature));
  const __m512 log2_e = _mm512_set1_ps(1.44269504f);
  for (int64_t start = 0; start < vocab; start += kLanes) {
    const __mmask16 lanes = lanes_at(start, vocab);
    const __m512 x = load(row, start, lanes);
    __mmask16 open = _mm512_cmp_ps_mask(x, _mm512_set1_ps(floor), _CMP_GE_OQ) &
                     _mm512_cmp_ps_mask(x, _mm512_set1_ps(-kInf), _CMP_GT_OQ);
    if (!open) continue;
    // An id wins only with G > most - score, so only with 1 - u < -log u < exp(score - most).
    const __m512 score = _mm512_mul_ps(x, inverse);
    const __m512 known = _mm512_set1_ps(static_cast<float>(most));
    const __m512 size = _mm512_add_ps(_mm512_abs_ps(score), _mm512_abs_ps(known));
    const __m512 slack = _mm512_fmadd_ps(size, _mm512_set1_ps(kRelativeSlack), _mm512_set1_ps(kSlack));
    const __m512 bound = _mm512_fmadd_ps(_mm512_sub_ps(score, known), log2_e, slack);
    open = _mm512_mask_cmp_ps_mask(open, bound, _mm512_set1_ps(kLeastLog2), _CMP_NLT_UQ);
    if (!open) continue;
    open = _mm512_mask_cmp_ps_mask(open, log2_of_rest(key, start), bound, _CMP_NGT_UQ);
    for (; open; open &= open - 1) {
      const int64_t id = start + __builtin_ctz(open);
      const double quotient = static_cast<double>(row[id]) / draw.temperature;
      if (quotient < least) continue;
      const double exact = quotient + gumbel(key, id);
      if (exact > most || (exact == most && id < best)) {
        most = exact;
        best = id;
      }
    }
  }
  return best;
}

int64_t draw_row(const float* row, int64_t vocab, const Draw& draw) {
  const Top top = find_top(row, vocab);
  if (top.nan || top.value == -kInf) return -1;
  if (draw.temperature == 0.0 || top.value == kInf) return top.id;
  float floor = -kInf;
  if (draw.top_k > 0 && draw.top_k < vocab) floor = top_k_floor(row, vocab, draw.top_k);
  if (draw.top_p < 1.0) floor = top_p_floor(row, vocab, floor, top.value, draw.temperature, draw.top_p);
  const double least = draw.min_p > 0.0
                           ? static_cast<double>(top.value) / draw.temperature + std::log(draw.min_p)
                           : -std::numeric_limits<double>::infinity();
  return gumbel_argmax(row, vocab, draw, floor, least, top.id);
}

}  // namespace

extern "C" {

// ids[i]: the draw from row i of `logits` [rows, vocab], or -1 where all are -inf or one is no number.
void penstock_sample(const float* logits, int64_t rows, int64_t vocab, const Draw* draws, int64_t* ids) {
  for (int64_t i = 0; i < rows; ++i) ids[i] = draw_row(logits + i * vocab, vocab, draws[i]);
}

// ids[i]: the lowest id of the largest logit, or -1 as above.
void penstock_argmax(const float* logits, int64_t rows, int64_t vocab, int64_t* ids) {
  for (int64_t i = 0; i < rows; ++i) {
    const Top top = find_top(logits + i * vocab, vocab);
    ids[i] = top.nan || top.value == -kInf ? -1 : top.id;
  }
}
}

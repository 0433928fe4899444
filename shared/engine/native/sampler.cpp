// One token per row of logits: argmax, or Gumbel-max over what top-k, top-p and min-p leave.
//
// The same draw as draw.py and noise.py: scores are logits / temperature + G(seed, position, id) in double
// precision, G from a splitmix64 counter. Two things make it quick without changing it:
//   * -log(-log u) exceeds a bound only where 1 - u is small, and 1 - u is known before any logarithm. An id
//     is scored exactly only where that bound says that it could beat the best so far: a few of each row.
//   * thresholds come from a selection instead of a sort (thresholds.h).
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "thresholds.h"

namespace {

using namespace penstock::sampling;

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kMultiplier1 = 0xBF58476D1CE4E5B9ull;
constexpr uint64_t kMultiplier2 = 0x94D049BB133111EBull;

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
  const __m512i start =
      _mm512_set1_epi64(static_cast<int64_t>(key + static_cast<uint64_t>(first + 1) * kGolden));
  const __m512i low =
      _mm512_add_epi64(start, _mm512_mullo_epi64(lane, _mm512_set1_epi64(static_cast<int64_t>(kGolden))));
  const __m512i ones = _mm512_set1_epi64(-1);
  const __m512i rest_low = _mm512_srli_epi64(_mm512_xor_si512(mix(low), ones), 12);
  const __m512i rest_high = _mm512_srli_epi64(_mm512_xor_si512(mix(_mm512_add_epi64(low, step)), ones), 12);
  const __m512 rest = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepu64_ps(rest_low)),
                                         _mm512_cvtepu64_ps(rest_high), 1);
  return _mm512_sub_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_castps_si512(rest)), _mm512_set1_ps(0x1p-23f)),
                       _mm512_set1_ps(127.0f + 52.0f));
}

// ---- one row ----

struct Top {
  float value;  // -inf when every id is ruled out
  int64_t id;
  bool nan;
};

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
int64_t gumbel_argmax(const float* row, int64_t vocab, const Draw& draw, float floor, double least,
                      int64_t first) {
  const uint64_t key = mix(mix(draw.seed + kGolden) + static_cast<uint64_t>(draw.position));
  int64_t best = first;
  double most = static_cast<double>(row[first]) / draw.temperature + gumbel(key, first);
  const __m512 inverse = _mm512_set1_ps(static_cast<float>(1.0 / draw.temperature));
  const __m512 log2_e = _mm512_set1_ps(1.44269504f);
  for (int64_t start = 0; start < vocab; start += kLanes) {
    const __mmask16 lanes = lanes_at(start, vocab);
    const __m512 x = load(row, start, lanes);
    __mmask16 open = at_least(x, floor);
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
  const float floor = floor_of(row, vocab, top.value, draw.temperature, draw.top_k, draw.top_p);
  const double least = draw.min_p > 0.0
                           ? static_cast<double>(top.value) / draw.temperature + std::log(draw.min_p)
                           : -std::numeric_limits<double>::infinity();
  return gumbel_argmax(row, vocab, draw, floor, least, top.id);
}

}  // namespace

extern "C" {

// The penalties on one row [vocab], in place: `seen` in prompt or output, `output` times in the output. Each
// product is rounded before it is subtracted, as it is everywhere else.
void penstock_penalise(float* row, const uint8_t* seen, const float* output, int64_t vocab, float repetition,
                       float frequency, float presence) {
  for (int64_t start = 0; start < vocab; start += kLanes) {
    const __mmask16 lanes = lanes_at(start, vocab);
    const __m128i flags = _mm_maskz_loadu_epi8(lanes, seen + start);
    const __mmask16 penalised = _mm_test_epi8_mask(flags, flags);
    if (!penalised) continue;
    const __m512 x = load(row, start, lanes);
    const __m512 times = _mm512_maskz_loadu_ps(lanes, output + start);
    const __m512 zero = _mm512_setzero_ps(), factor = _mm512_set1_ps(repetition);
    const __mmask16 positive = _mm512_cmp_ps_mask(x, zero, _CMP_GT_OQ);
    const __mmask16 repeated = _mm512_cmp_ps_mask(times, zero, _CMP_GT_OQ);
    __m512 y = _mm512_mask_div_ps(_mm512_mul_ps(x, factor), positive, x, factor);
    y = _mm512_sub_ps(y, _mm512_mul_round_ps(_mm512_set1_ps(frequency), times, _MM_FROUND_CUR_DIRECTION));
    y = _mm512_sub_ps(y, _mm512_maskz_mov_ps(repeated, _mm512_set1_ps(presence)));
    _mm512_mask_storeu_ps(row + start, penalised, y);
  }
}

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

// One token per row of logits: argmax, or Gumbel-max over what top-k, top-p and min-p leave.
//
// The same draw as draw.py and noise.py: scores are logits / temperature + G(seed, position, id) in double
// precision, G from a splitmix64 counter. Three things make it quick without changing it:
//   * -log(-log u) exceeds a bound only where 1 - u is small, and 1 - u is known before any logarithm. An id
//     is scored exactly only where that bound says that it could beat the best so far: a few of each row.
//   * The largest logits of each chunk of ids bound that for all of them: mostly an id costs its hash and one
//     comparison, and nothing where a chunk is too low for any noise (logit_row.h).
//   * Thresholds come from a selection instead of a sort (thresholds.h).
// Rows are drawn side by side.
#include "sampler.h"

#include <numeric>

#include "thread_pool.h"
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

// ---- the draw ----

// Ids that may not be drawn become -inf.
void rule_out(float* row, int64_t vocab, const uint8_t* allowed) {
  const __m512 never = _mm512_set1_ps(-kInf);
  for (int64_t start = 0; start < vocab; start += kLanes) {
    __mmask16 bits;
    std::memcpy(&bits, allowed + start / 8, sizeof bits);
    const __mmask16 lanes = lanes_at(start, vocab) & static_cast<__mmask16>(~bits);
    if (lanes) _mm512_mask_storeu_ps(row + start, lanes, never);
  }
}

// What the float arithmetic of the bound may be off by, in bits: far more than its rounding errors, of which
// the largest are relative ones of the two scores.
constexpr float kSlack = 2e-3f;
constexpr float kRelativeSlack = 1e-6f;
constexpr float kLeastLog2 = -54.0f;  // 1 - u is at least 2^-53

// What an id must have for its score to be able to beat `most`: an upper bound of log2(1 - u).
// It wins only with G > most - score, so only with 1 - u < -log u < exp(score - most).
__m512 bound_of(__m512 logits, __m512 inverse, __m512 most) {
  const __m512 score = _mm512_mul_ps(logits, inverse);
  const __m512 size = _mm512_add_ps(_mm512_abs_ps(score), _mm512_abs_ps(most));
  const __m512 slack = _mm512_fmadd_ps(size, _mm512_set1_ps(kRelativeSlack), _mm512_set1_ps(kSlack));
  return _mm512_fmadd_ps(_mm512_sub_ps(score, most), _mm512_set1_ps(1.44269504f), slack);
}

// The least hashes, before their last step, of which 1 - u can be below 2^bound; 8 lanes of `bound`. That
// step changes only the bits that are cleared here.
__m512i least_hashes(__m256 bound) {
  // The float with the bits of `bound` + 127 + 52 is what log2_of_rest compares with; the slack is for the
  // rounding of a hash to a float. Where the bound is no number or above 0, every hash will do.
  const __m256 above = _mm256_min_ps(_mm256_add_ps(bound, _mm256_set1_ps(kSlack)), _mm256_setzero_ps());
  const __m256 bits =
      _mm256_mul_ps(_mm256_add_ps(above, _mm256_set1_ps(127.0f + 52.0f)), _mm256_set1_ps(0x1p23f));
  const __m256 rest = _mm256_castsi256_ps(_mm256_cvtps_epi32(bits));
  const __m512i count = _mm512_min_epu64(_mm512_add_epi64(_mm512_cvtps_epu64(rest), _mm512_set1_epi64(2)),
                                         _mm512_set1_epi64((int64_t{1} << 52) - 1));
  const __m512i least = _mm512_sub_epi64(_mm512_setzero_si512(), _mm512_slli_epi64(count, 12));
  return _mm512_and_si512(least, _mm512_set1_epi64(~((int64_t{1} << 33) - 1)));
}

// A hash without its last step.
__m512i unfinished_mix(__m512i value) {
  value = _mm512_mullo_epi64(_mm512_xor_si512(value, _mm512_srli_epi64(value, 30)),
                             _mm512_set1_epi64(static_cast<int64_t>(kMultiplier1)));
  return _mm512_mullo_epi64(_mm512_xor_si512(value, _mm512_srli_epi64(value, 27)),
                            _mm512_set1_epi64(static_cast<int64_t>(kMultiplier2)));
}

// argmax of logit / temperature + G over logits >= `floor` whose quotient is at least `least`.
class GumbelArgmax {
 public:
  GumbelArgmax(const Row& row, const Draw& draw, float floor, double least, int64_t first)
      : row_(row),
        temperature_(draw.temperature),
        floor_(floor),
        least_(least),
        key_(mix(mix(draw.seed + kGolden) + static_cast<uint64_t>(draw.position))),
        inverse_(_mm512_set1_ps(static_cast<float>(1.0 / draw.temperature))),
        best_(first),
        most_(static_cast<double>(row.logits[first]) / draw.temperature + gumbel(key_, first)) {}

  int64_t find() {
    for (int64_t chunk = 0; chunk < row_.chunks(); ++chunk) {
      const __m512 most = _mm512_set1_ps(static_cast<float>(most_));
      const __m512 maxima = row_.maxima_of(chunk), bound = bound_of(maxima, inverse_, most);
      const __mmask16 open =
          _mm512_mask_cmp_ps_mask(at_least(maxima, floor_), bound, _mm512_set1_ps(kLeastLog2), _CMP_NLT_UQ);
      if (open) look_through(chunk, open, bound);
    }
    return best_;
  }

 private:
  void look_through(int64_t chunk, __mmask16 open, __m512 bound) {
    const __m512i least_low = least_hashes(_mm512_castps512_ps256(bound));
    const __m512i least_high = least_hashes(_mm512_extractf32x8_ps(bound, 1));
    const __m512i lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i step = _mm512_set1_epi64(static_cast<int64_t>(kLanes * kGolden));
    const int64_t first = chunk * kChunk;
    __m512i low = _mm512_add_epi64(
        _mm512_set1_epi64(static_cast<int64_t>(key_ + static_cast<uint64_t>(first + 1) * kGolden)),
        _mm512_mullo_epi64(lane, _mm512_set1_epi64(static_cast<int64_t>(kGolden))));
    __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(static_cast<int64_t>(8 * kGolden)));
    const __mmask8 open_low = static_cast<__mmask8>(open), open_high = static_cast<__mmask8>(open >> 8);
    for (int64_t start = first; start < row_.end_of(chunk); start += kLanes) {
      const __mmask8 hit_low = _mm512_mask_cmpge_epu64_mask(open_low, unfinished_mix(low), least_low);
      const __mmask8 hit_high = _mm512_mask_cmpge_epu64_mask(open_high, unfinished_mix(high), least_high);
      low = _mm512_add_epi64(low, step);
      high = _mm512_add_epi64(high, step);
      const __mmask16 hit = static_cast<__mmask16>(hit_low | hit_high << 8);
      if (hit) score(start, hit);
    }
  }

  // Those of the 16 ids from `start` that `hit` has, each by its own logit.
  void score(int64_t start, __mmask16 hit) {
    const __m512 x = load(row_.logits, start, lanes_at(start, row_.size));
    const __m512 bound = bound_of(x, inverse_, _mm512_set1_ps(static_cast<float>(most_)));
    hit &= at_least(x, floor_);
    hit = _mm512_mask_cmp_ps_mask(hit, bound, _mm512_set1_ps(kLeastLog2), _CMP_NLT_UQ);
    if (!hit) return;
    hit = _mm512_mask_cmp_ps_mask(hit, log2_of_rest(key_, start), bound, _CMP_NGT_UQ);
    for (; hit; hit &= hit - 1) {
      const int64_t id = start + __builtin_ctz(hit);
      const double quotient = static_cast<double>(row_.logits[id]) / temperature_;
      if (quotient < least_) continue;
      const double exact = quotient + gumbel(key_, id);
      if (exact > most_ || (exact == most_ && id < best_)) {
        most_ = exact;
        best_ = id;
      }
    }
  }

  const Row& row_;
  const double temperature_;
  const float floor_;
  const double least_;
  const uint64_t key_;
  const __m512 inverse_;
  int64_t best_;
  double most_;
};

// The raw log-probabilities of one row: what they sum to, and the `count` likeliest ids', lowest id first
// among equals; -1 for those that there are not.
double logprobs_of(const float* logits, int64_t vocab, int64_t count, int64_t* ids, float* logprobs) {
  static thread_local std::vector<float> maxima, kept;
  static thread_local std::vector<int32_t> places, order;
  std::fill_n(ids, count, int64_t{-1});
  const Row row(logits, vocab, maxima);
  if (row.nan || std::isinf(row.top)) return kNan;
  const double total = row.top + std::log(chance_below(row, kInf, 1.0));
  if (count == 0) return total;
  float least = under_top_k(row.maxima, row.chunks() * kLanes, count);
  if (least == -kInf) least = under_top_k(row.logits, row.size, count);
  const int64_t found = gather(row, least, kept, &places);
  order.resize(static_cast<size_t>(found));
  std::iota(order.begin(), order.end(), 0);
  const int64_t told = std::min(count, found);
  std::partial_sort(order.begin(), order.begin() + told, order.end(),
                    [](int32_t a, int32_t b) { return kept[a] > kept[b] || (kept[a] == kept[b] && a < b); });
  for (int64_t i = 0; i < told; ++i) {
    ids[i] = places[order[i]];
    logprobs[i] = static_cast<float>(kept[order[i]] - total);
  }
  return total;
}

}  // namespace

int64_t penstock::sampling::draw_row(float* logits, int64_t vocab, const Draw& draw) {
  static thread_local std::vector<float> maxima;
  if (draw.allowed) rule_out(logits, vocab, draw.allowed);
  const Row row(logits, vocab, maxima);
  if (row.nan || row.top == -kInf) return -1;
  if (draw.temperature == 0.0 || row.top == kInf) return row.top_id();
  const float floor = floor_of(row, draw.temperature, draw.top_k, draw.top_p);
  const double least = draw.min_p > 0.0
                           ? static_cast<double>(row.top) / draw.temperature + std::log(draw.min_p)
                           : -std::numeric_limits<double>::infinity();
  return GumbelArgmax(row, draw, floor, least, row.top_id()).find();
}

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

// ids[i]: the draw from row i of `logits` [rows, vocab], or -1 where all are -inf or one is no number. Ids
// that a row does not allow are overwritten.
void penstock_sample(float* logits, int64_t rows, int64_t vocab, const Draw* draws, int64_t* ids,
                     int threads) {
  penstock::Team(threads).share(static_cast<int>(rows), 1, [&](int first, int last, int) {
    for (int64_t i = first; i < last; ++i) ids[i] = draw_row(logits + i * vocab, vocab, draws[i]);
  });
}

// Of row rows[i] of `logits`: the logarithm of the sum of its chances, and the num_top[i] likeliest ids with
// their log-probabilities, in `most` places each.
void penstock_logprobs(const float* logits, int64_t vocab, const int64_t* rows, const int64_t* num_top,
                       int64_t count, int64_t most, double* totals, int64_t* ids, float* logprobs,
                       int threads) {
  penstock::Team(threads).share(static_cast<int>(count), 1, [&](int first, int last, int) {
    for (int64_t i = first; i < last; ++i)
      totals[i] =
          logprobs_of(logits + rows[i] * vocab, vocab, num_top[i], ids + i * most, logprobs + i * most);
  });
}
}

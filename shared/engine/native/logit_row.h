// One row of logits, and the maxima by which most of it can be passed over.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "vectors.h"

namespace penstock::sampling {

constexpr int64_t kLanes = 16;
constexpr int64_t kChunk = 16 * kLanes;  // ids that have one vector of maxima
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline __mmask16 lanes_at(int64_t start, int64_t size) {
  return size - start >= kLanes ? 0xFFFF : static_cast<__mmask16>((1u << (size - start)) - 1);
}

inline __m512 load(const float* row, int64_t start, __mmask16 lanes) {
  return _mm512_mask_loadu_ps(_mm512_set1_ps(-kInf), lanes, row + start);
}

// Which of `x` are at least `floor` and not ruled out.
inline __mmask16 at_least(__m512 x, float floor) {
  return _mm512_cmp_ps_mask(x, _mm512_set1_ps(floor), _CMP_GE_OQ) &
         _mm512_cmp_ps_mask(x, _mm512_set1_ps(-kInf), _CMP_GT_OQ);
}

// A row [size]. Lane j of chunk c's maxima is the largest logit of the ids c * kChunk + j + 16 n.
struct Row {
  const float* logits;
  int64_t size;
  const float* maxima;
  float top = -kInf;  // -inf when every id is ruled out
  bool nan = false;

  // Looks at every logit once. `room` is where the maxima go; the row reads them there.
  Row(const float* logits, int64_t size, std::vector<float>& room) : logits(logits), size(size) {
    room.resize(static_cast<size_t>(chunks() * kLanes));
    maxima = room.data();
    __m512 best = _mm512_set1_ps(-kInf);
    __mmask16 unordered = 0;
    for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
      __m512 most = _mm512_set1_ps(-kInf);
      for (int64_t start = chunk * kChunk; start < end_of(chunk); start += kLanes) {
        const __m512 x = load(logits, start, lanes_at(start, size));
        unordered |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        most = _mm512_max_ps(x, most);
      }
      _mm512_storeu_ps(room.data() + chunk * kLanes, most);
      best = _mm512_max_ps(most, best);
    }
    nan = unordered != 0;
    top = _mm512_reduce_max_ps(best);
  }

  int64_t chunks() const { return (size + kChunk - 1) / kChunk; }
  int64_t end_of(int64_t chunk) const { return std::min(size, (chunk + 1) * kChunk); }
  __m512 maxima_of(int64_t chunk) const { return _mm512_loadu_ps(maxima + chunk * kLanes); }
  bool reaches(int64_t chunk, float floor) const { return at_least(maxima_of(chunk), floor) != 0; }

  // The lowest id with the largest logit.
  int64_t top_id() const {
    for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
      if (_mm512_cmp_ps_mask(maxima_of(chunk), _mm512_set1_ps(top), _CMP_EQ_OQ) == 0) continue;
      for (int64_t start = chunk * kChunk; start < end_of(chunk); start += kLanes) {
        const __mmask16 lanes = lanes_at(start, size);
        const __mmask16 found =
            _mm512_mask_cmp_ps_mask(lanes, load(logits, start, lanes), _mm512_set1_ps(top), _CMP_EQ_OQ);
        if (found) return start + __builtin_ctz(found);
      }
    }
    return 0;
  }
};

// 2^x for x <= 0, to 3e-7 of itself, and no less than 2^-126.
inline __m512 power_of_two(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 sum = _mm512_set1_ps(0.00133908633f);
  for (const float factor : {0.00967603177f, 0.0555035695f, 0.240221068f, 0.693147182f, 1.00000012f})
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(factor));
  return _mm512_scalef_ps(sum, n);
}

// The sum of exp((logit - top) / temperature) over the logits below `edge`: to 2e-5 of itself, of which the
// largest part is what a float exponent is off by, 2e-7 of its size.
inline double chance_below(const Row& row, float edge, double temperature) {
  const __m512 scale = _mm512_set1_ps(static_cast<float>(1.4426950408889634 / temperature));
  const __m512 top = _mm512_set1_ps(row.top), limit = _mm512_set1_ps(edge);
  __m512d low = _mm512_setzero_pd(), high = low;
  for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t start = chunk * kChunk; start < row.end_of(chunk); start += kLanes) {
      const __m512 x = load(row.logits, start, lanes_at(start, row.size));
      const __mmask16 below = _mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ);
      const __m512 each = power_of_two(_mm512_mul_ps(_mm512_sub_ps(x, top), scale));
      sum = _mm512_mask_add_ps(sum, below, sum, each);
    }
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(sum)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(sum, 1)));
  }
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

// The finite logits that are at least `floor`, in the order of their ids, and, unless null, those ids; both
// get room for more.
inline int64_t gather(const Row& row, float floor, std::vector<float>& kept,
                      std::vector<int32_t>* ids = nullptr) {
  kept.resize(static_cast<size_t>(row.size + kLanes));
  if (ids) ids->resize(kept.size());
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t count = 0;
  for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
    if (!row.reaches(chunk, floor)) continue;
    for (int64_t start = chunk * kChunk; start < row.end_of(chunk); start += kLanes) {
      const __m512 x = load(row.logits, start, lanes_at(start, row.size));
      const __mmask16 mask = at_least(x, floor);
      if (!mask) continue;
      _mm512_storeu_ps(kept.data() + count, _mm512_maskz_compress_ps(mask, x));  // a masked store is slow
      if (ids) {
        const __m512i here = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(start)));
        _mm512_storeu_si512(ids->data() + count, _mm512_maskz_compress_epi32(mask, here));
      }
      count += __builtin_popcount(mask);
    }
  }
  return count;
}

}  // namespace penstock::sampling

// What a row of attention sums up of some keys: the largest score, the sum of the weights that are relative
// to it, and the sum of values times weights, which is padded to panels.
#pragma once

#include "simd.h"

namespace penstock {

constexpr int TILE_KEYS = 64;  // that a row meets at a time
constexpr float NOTHING_SEEN = -1e30f;
constexpr int SUMS_MOST = 0, SUMS_TOTAL = 1, SUMS_OUTPUT = LANES;  // where each begins

inline void clear_sums(float* sums, int rows, int stride) {
  std::memset(sums, 0, static_cast<size_t>(rows) * stride * sizeof(float));
  for (int row = 0; row < rows; ++row) sums[static_cast<long>(row) * stride + SUMS_MOST] = NOTHING_SEEN;
}

// Adds those of later keys.
inline void add_sums(float* sums, const float* later, int width) {
  const float before = sums[SUMS_MOST], after = later[SUMS_MOST];
  if (after == NOTHING_SEEN) return;
  if (before == NOTHING_SEEN) {
    std::memcpy(sums, later, (SUMS_OUTPUT + width) * sizeof(float));
    return;
  }
  const float most = before > after ? before : after;  // a NaN is not lost: its weight is one too
  const __m512 keep = exp(_mm512_set1_ps(before - most)), take = exp(_mm512_set1_ps(after - most));
  sums[SUMS_MOST] = most;
  sums[SUMS_TOTAL] =
      __builtin_fmaf(later[SUMS_TOTAL], _mm512_cvtss_f32(take), sums[SUMS_TOTAL] * _mm512_cvtss_f32(keep));
  for (int d = SUMS_OUTPUT; d < SUMS_OUTPUT + width; d += LANES)
    _mm512_storeu_ps(sums + d, _mm512_fmadd_ps(_mm512_loadu_ps(later + d), take,
                                               _mm512_mul_ps(_mm512_loadu_ps(sums + d), keep)));
}

// The values' mean by weight, in place. `sink`, where there is one, is a score without a value: its weight is
// in the total, once, whatever the keys were cut into.
inline const float* finish_sums(float* sums, int width, const float* sink) {
  float* const output = sums + SUMS_OUTPUT;
  float total = sums[SUMS_TOTAL];
  if (sink != nullptr) total += _mm512_cvtss_f32(exp(_mm512_set1_ps(*sink - sums[SUMS_MOST])));
  const __m512 share = _mm512_set1_ps(1.0f / total);
  for (int d = 0; d < width; d += LANES)
    _mm512_storeu_ps(output + d, _mm512_mul_ps(_mm512_loadu_ps(output + d), share));
  return output;
}

}  // namespace penstock

// Scores of up to 16 rows -> weights for the matrix unit. Each row's largest score and sum is a lane of one
// vector, so that what is left of a row's own is little beside its exponentials.
#pragma once

#include <algorithm>

#include "attention_sums.h"
#include "registers.h"

namespace penstock {

[[gnu::noinline]] inline void cap_scores(float (*scores)[TILE_KEYS], int num, float cap) {
  for (int r = 0; r < num; ++r)
    for (int i = 0; i < TILE_KEYS; i += LANES)
      _mm512_store_ps(scores[r] + i, soft_cap(_mm512_load_ps(scores[r] + i), cap));
}

// Takes away the scores of keys that a row does not see: row r sees those up to last[r], `window` of them.
inline void hide_scores(float (*scores)[TILE_KEYS], int num, int key, const int* last, int window) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int r = 0; r < num; ++r) {
    const __m512i end = _mm512_set1_epi32(last[r]);
    const __m512i before = _mm512_set1_epi32(window > 0 ? last[r] - window : -1);
    for (int i = 0; i < TILE_KEYS; i += LANES) {
      const __m512i keys = _mm512_add_epi32(_mm512_set1_epi32(key + i), lanes);
      const __mmask16 seen = _mm512_cmple_epi32_mask(keys, end) & _mm512_cmpgt_epi32_mask(keys, before);
      _mm512_mask_storeu_ps(scores[r] + i, ~seen, _mm512_set1_ps(-INFINITY));
    }
  }
}

// Scores of rows -> weights relative to each row's largest score so far, in their place, of bf16 rounded to
// it; what a row has summed up, `sums` with `width` outputs, `stride` numbers apart, is rescaled. Rows take
// each step side by side: what reduces a vector waits for itself. One piece of code for every caller: a
// compiler fuses a product and a sum in one place and not in another.
template <bool ROUNDED, int MOST>
[[gnu::noinline]] void weigh_rows(float (*scores)[TILE_KEYS], int num, float* sums, long stride, int width) {
  static_assert(TILE_KEYS == 4 * LANES);
  float tops[MOST];
  alignas(64) float totals[MOST][LANES];
  for (int r = 0; r < num; ++r) {
    __m512 best = _mm512_set1_ps(sums[r * stride + SUMS_MOST]);
    for (int i = 0; i < 4; ++i) best = _mm512_max_ps(best, _mm512_loadu_ps(scores[r] + i * LANES));
    tops[r] = _mm512_reduce_max_ps(best);
  }
  for (int r = 0; r < num; ++r) {
    const __m512 top = _mm512_set1_ps(tops[r]);
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      const __m512 weight = exp(_mm512_sub_ps(_mm512_loadu_ps(scores[r] + i * LANES), top));
      total = _mm512_add_ps(total, weight);
      if constexpr (ROUNDED)
        put_rounded(scores[r] + i * LANES, weight);
      else
        _mm512_storeu_ps(scores[r] + i * LANES, weight);
    }
    _mm512_storeu_ps(totals[r], total);
  }
  for (int r = 0; r < num; ++r, sums += stride) {
    const float before = sums[SUMS_MOST], most = tops[r];
    const float keep = most == before ? 1.0f : _mm512_cvtss_f32(exp(_mm512_set1_ps(before - most)));
    sums[SUMS_TOTAL] =
        __builtin_fmaf(sums[SUMS_TOTAL], keep, _mm512_reduce_add_ps(_mm512_loadu_ps(totals[r])));
    if (most == before) continue;
    sums[SUMS_MOST] = most;
    for (int d = SUMS_OUTPUT; d < SUMS_OUTPUT + width; d += LANES)
      _mm512_storeu_ps(sums + d, _mm512_mul_ps(_mm512_loadu_ps(sums + d), _mm512_set1_ps(keep)));
  }
}

}  // namespace penstock

#ifdef __AVX512BF16__  // which every CPU with a matrix unit has
namespace penstock {

constexpr int SIDE_BY_SIDE = LANES;  // rows
constexpr float LOG2_E = 1.44269504088896341f;

// 2^x to 4e-7 for x <= 0; of 0 exactly 1, of -inf 0, of NaN NaN.
inline __m512 exp2_below_1(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x), and 0 of -inf; scalef takes floor(x) itself
  __m512 p = _mm512_set1_ps(1.8775767e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.9893397e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5826318e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4015361e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9315308e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);
}

// What `across` gives, where there are few rows or all of them: how many a loop has is then known, or few.
template <class Join>
inline __m512 across_rows(__m512 (&rows)[SIDE_BY_SIDE], int num, Join&& join) {
  return num > 8 ? across(rows, SIDE_BY_SIDE, join) : across(rows, num, join);
}

// Weights relative to each row's largest score so far; what a row has summed up, `outputs` [num, width],
// `stride` numbers apart, is rescaled. One piece of code for every caller: a compiler fuses a product and a
// sum in one place and not in another.
[[gnu::noinline]] inline void weigh_scores(const float (*scores)[TILE_KEYS], int num, float* most,
                                           float* total, float* outputs, int width, long stride,
                                           bf16 (*weights)[TILE_KEYS]) {
  static_assert(TILE_KEYS == 4 * LANES);
  const __mmask16 rows = first_lanes(num);
  const __m512 log2_e = _mm512_set1_ps(LOG2_E);
  __m512 parts[SIDE_BY_SIDE];
  for (int r = num; r < SIDE_BY_SIDE; ++r) parts[r] = _mm512_setzero_ps();
  for (int r = 0; r < num; ++r)
    parts[r] = _mm512_max_ps(
        _mm512_max_ps(_mm512_load_ps(scores[r]), _mm512_load_ps(scores[r] + LANES)),
        _mm512_max_ps(_mm512_load_ps(scores[r] + 2 * LANES), _mm512_load_ps(scores[r] + 3 * LANES)));
  const __m512 before = _mm512_maskz_loadu_ps(rows, most);
  const __m512 top =
      _mm512_max_ps(across_rows(parts, num, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); }), before);
  alignas(64) float tops[SIDE_BY_SIDE], keeps[SIDE_BY_SIDE];
  _mm512_store_ps(tops, top);
  for (int r = num; r < SIDE_BY_SIDE; ++r) parts[r] = _mm512_setzero_ps();
  for (int r = 0; r < num; ++r) {
    const __m512 most_of_row = _mm512_set1_ps(tops[r]);
    __m512 weight[4];
    for (int i = 0; i < 4; ++i)
      weight[i] = exp2_below_1(
          _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(scores[r] + i * LANES), most_of_row), log2_e));
    parts[r] = _mm512_add_ps(_mm512_add_ps(weight[0], weight[1]), _mm512_add_ps(weight[2], weight[3]));
    _mm512_store_si512(weights[r], (__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]));
    _mm512_store_si512(weights[r] + 2 * LANES, (__m512i)_mm512_cvtne2ps_pbh(weight[3], weight[2]));
  }
  const __m512 sum = across_rows(parts, num, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
  const __m512 keep = exp2_below_1(_mm512_mul_ps(_mm512_sub_ps(before, top), log2_e));
  _mm512_mask_storeu_ps(total, rows, _mm512_fmadd_ps(_mm512_maskz_loadu_ps(rows, total), keep, sum));
  _mm512_mask_storeu_ps(most, rows, top);
  _mm512_store_ps(keeps, keep);
  for (unsigned changed = _mm512_mask_cmp_ps_mask(rows, before, top, _CMP_NEQ_UQ); changed != 0;
       changed &= changed - 1) {
    const int r = __builtin_ctz(changed);
    const __m512 factor = _mm512_set1_ps(keeps[r]);
    float* output = outputs + r * stride;
    for (int d = 0; d < width; d += LANES)
      _mm512_storeu_ps(output + d, _mm512_mul_ps(_mm512_loadu_ps(output + d), factor));
  }
}

}  // namespace penstock
#endif

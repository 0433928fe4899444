// Rows in bf16 meet a tile of keys on the CPU's vectors: scores, their softmax, and the values that they
// weigh.
#pragma once

#include "attention.h"

namespace penstock {

// One step of the chain that `multiply` adds up: a pair of a row times a vector of them.
inline __m512 add_step(const bf16* row, __m512i column, __m512 sum) {
  int pair;
  std::memcpy(&pair, row, sizeof pair);
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)column);
}

// Rows [first, first + R), `offset` rows into their KV head's, meet the `count` keys that begin at `key`:
// those that are packed, or, bit for bit the same, as they are stored.
template <class E>
template <int R, bool STORED>
void Attention<E>::visit(int first, int offset, int key, int count, int position, int group, int window) {
  alignas(64) float scores[R][TILE_KEYS];
  alignas(64) E weights[R][TILE_KEYS];
  if constexpr (STORED)
    for (int keys = 0; keys < count; keys += LANES) score_stored<R>(first, keys, scores);
  else
    for (int half = 0; half < count; half += PANEL) score_packed<R>(first, half, scores);
  for (int r = 0; r < R; ++r)
    soften(first + r, key, position + (offset + r) / group, window, scores[r], weights[r]);
  for (int d = 0; d < width_; d += PANEL) {
    Accumulators<R> acc;
    float* out = sums_of(sums_, first) + SUMS_OUTPUT + d;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      acc[r][0] = _mm512_loadu_ps(out + r * stride_);
      acc[r][1] = _mm512_loadu_ps(out + r * stride_ + LANES);
    }
    if constexpr (STORED)
      add_stored<R>(weights, count, d, acc);
    else
      multiply<R>(weights[0], TILE_KEYS, values_.data() + static_cast<long>(d) * TILE_KEYS,
                  round_up(count, STEP<E>), acc);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      _mm512_storeu_ps(out + r * stride_, acc[r][0]);
      _mm512_storeu_ps(out + r * stride_ + LANES, acc[r][1]);
    }
  }
}

// Rows [first, first + R) of the queries times a panel of packed keys.
template <class E>
template <int R>
void Attention<E>::score_packed(int first, int half, float (&scores)[R][TILE_KEYS]) {
  Accumulators<R> acc;
  clear<R>(acc);
  multiply<R>(queries_.data() + static_cast<long>(first) * depth_, depth_, keys_.data() + half * depth_,
              depth_, acc);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_store_ps(scores[r] + half, acc[r][0]);
    _mm512_store_ps(scores[r] + half + LANES, acc[r][1]);
  }
}

// Rows [first, first + R) of the queries times 16 keys of the tile.
template <class E>
template <int R>
void Attention<E>::score_stored(int first, int keys, float (&scores)[R][TILE_KEYS]) {
  constexpr int PER_VECTOR = 64 / sizeof(E);
  const E* queries = queries_.data() + static_cast<long>(first) * depth_;
  __m512 acc[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
  for (int d = 0; d < depth_; d += PER_VECTOR) {
    __m512i block[LANES];
    tokens_.transposed(keys, d, block);
    const int dwords = std::min(LANES, (depth_ - d) / STEP<E>);
    for (int i = 0; i < dwords; ++i)
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) acc[r] = add_step(queries + r * depth_ + d + i * STEP<E>, block[i], acc[r]);
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) _mm512_store_ps(scores[r] + keys, acc[r]);
}

// acc[r] += weights[r] times columns [d, d + 32) of the tile's values.
template <class E>
template <int R>
void Attention<E>::add_stored(const E (&weights)[R][TILE_KEYS], int count, int d, Accumulators<R>& acc) {
  for (int i = 0; i < count; i += STEP<E>) {
    __m512i low, high;
    tokens_.values(i, d, low, high);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      acc[r][0] = add_step(weights[r] + i, low, acc[r][0]);
      acc[r][1] = add_step(weights[r] + i, high, acc[r][1]);
    }
  }
}

// Scores of one row -> weights relative to the row's maximum so far; what it has summed up is rescaled.
// One piece of code for every caller: a compiler fuses a product and a sum in one place and not in another.
template <class E>
[[gnu::noinline]] void Attention<E>::soften(int row, int key, int position, int window, const float* scores,
                                            E* weights) {
  float* const sums = sums_of(sums_, row);
  float& most_so_far = sums[SUMS_MOST];
  float& total = sums[SUMS_TOTAL];
  constexpr int VECTORS = TILE_KEYS / LANES;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i last = _mm512_set1_epi32(position);
  const __m512i before = _mm512_set1_epi32(window > 0 ? position - window : -1);  // the last key out of sight
  __m512 score[VECTORS];
  __m512 best = _mm512_set1_ps(most_so_far);
  for (int i = 0; i < VECTORS; ++i) {
    const __m512i keys = _mm512_add_epi32(_mm512_set1_epi32(key + i * LANES), lanes);
    const __mmask16 seen = _mm512_cmple_epi32_mask(keys, last) & _mm512_cmpgt_epi32_mask(keys, before);
    __m512 value = _mm512_load_ps(scores + i * LANES);
    if (shape_.soft_cap > 0.0f) value = penstock::soft_cap(value, shape_.soft_cap);
    score[i] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, value);
    best = _mm512_max_ps(best, score[i]);
  }
  const float most = _mm512_reduce_max_ps(best);
  const __m512 top = _mm512_set1_ps(most);
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < VECTORS; ++i) {
    const __m512 weight = exp(_mm512_sub_ps(score[i], top));
    sum = _mm512_add_ps(sum, weight);
    _mm256_store_si256((__m256i*)(weights + i * LANES), narrow(weight));
  }
  const float keep = most == most_so_far ? 1.0f : _mm512_cvtss_f32(exp(_mm512_set1_ps(most_so_far - most)));
  total = __builtin_fmaf(total, keep, _mm512_reduce_add_ps(sum));
  if (most == most_so_far) return;
  most_so_far = most;
  float* out = sums + SUMS_OUTPUT;
  for (int d = 0; d < width_; d += LANES)
    _mm512_storeu_ps(out + d, _mm512_mul_ps(_mm512_loadu_ps(out + d), _mm512_set1_ps(keep)));
}

}  // namespace penstock

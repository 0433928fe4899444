#include "attention.h"

#ifdef __AVX512BF16__
#include "attention_unit.h"
#include "attention_vectors.h"
#endif

namespace penstock {

template <class E>
void Attention<E>::widen_queries(const AttentionItem& item, const QuerySpan& span, int kv_head,
                                 const float* queries, long stride, int to) {
  const int group = shape_.heads / shape_.kv_heads;
  const __m512 scale = _mm512_set1_ps(shape_.scale);
  for_each_tile(item.count * group, FEW_ROWS, [&](int at, int num) {
    float* const tile = wide_queries_.data() + static_cast<long>(to + at) * depth_;
    for (int r = at; r < at + num; ++r) {
      const float* source = queries + (span.first_row + item.first + r / group) * stride +
                            (kv_head * group + r % group) * shape_.head_dim;
      for (int d = 0; d < depth_; d += LANES) {
        alignas(64) float numbers[LANES];
        __m512 value =
            _mm512_mul_ps(_mm512_maskz_loadu_ps(first_lanes(shape_.head_dim - d), source + d), scale);
        if constexpr (sizeof(E) == 2) value = widen(narrow(value));
        _mm512_storeu_ps(numbers, value);
        for (int i = 0; i < std::min(LANES, depth_ - d); ++i) tile[(d + i) * num + r - at] = numbers[i];
      }
    }
  });
}

#ifdef __AVX512BF16__  // which every CPU with a matrix unit has
template <class E>
void Attention<E>::load_queries(const AttentionItem& item, const QuerySpan& span, int kv_head,
                                const float* queries, long stride, int to, bool turned) {
  const int group = shape_.heads / shape_.kv_heads;
  const __m512 scale = _mm512_set1_ps(shape_.scale);
  const int rows = item.count * group;
  for (int r = 0; r < rows; ++r) {
    const float* source = queries + (span.first_row + item.first + r / group) * stride +
                          (kv_head * group + r % group) * shape_.head_dim;
    E* target = queries_.data() + static_cast<long>(to + r) * depth_;
    for (int d = 0; d < depth_; d += LANES) {
      const __m512 value =
          _mm512_mul_ps(_mm512_maskz_loadu_ps(first_lanes(shape_.head_dim - d), source + d), scale);
      if (turned) {
        alignas(32) E pairs[LANES];
        _mm256_store_si256((__m256i*)pairs, narrow(value));
        E* place = queries_.data() + static_cast<long>(to) * depth_ + (d * rows + 2 * r);
        for (int i = 0; i < LANES; i += 2) std::memcpy(place + i * rows, pairs + i, 2 * sizeof(E));
      } else {
        _mm256_mask_storeu_epi16(target + d, first_lanes(depth_ - d), narrow(value));
      }
    }
  }
}

template <class E>
void Attention<E>::meet(matrix_unit::HeadTiles& tiles, const Pool& pool, int first, int rows, bool stored,
                        int key, int count, int position, int window) {
  if (on_unit_) return meet_on_unit(tiles, pool, first, rows, stored, key, count, window);
  const int group = shape_.heads / shape_.kv_heads;
  if (stored)
    return with_rows(rows,
                     [&]<int R>() { this->visit<R, true>(first, 0, key, count, position, group, window); });
  tokens_.pack_keys(round_up(count, PANEL), depth_, keys_.data());
  tokens_.pack_values(round_up(count, PANEL), width_, values_.data());
  for_each_tile(rows, MAX_TILE_ROWS, [&](int at, int num) {
    with_rows(num,
              [&]<int R>() { this->visit<R, false>(first + at, at, key, count, position, group, window); });
  });
}
#endif

template <class E>
void Attention<E>::meet_in_fp32(const Pool& pool, int kv_head, int first, int rows, int key, int count,
                                int window) {
  alignas(64) float scores[FEW_ROWS][TILE_KEYS];  // and then weights
  const E* const keys = blocks_.keys(pool, kv_head, depth_, ahead_);
  const BlockRows<E>* const values = blocks_.values(pool, kv_head);
  for_each_tile(rows, FEW_ROWS, [&](int at, int num) {
    const float* const queries = wide_queries_.data() + static_cast<long>(first + at) * depth_;
    const int* const last = last_keys_.data() + at;
    float* const sums = sums_of(sums_, first + at);
    with_rows<FEW_ROWS>(num, [&]<int R>() { score_rows<R>(queries, keys, depth_, count, scores, ahead_); });
    if (shape_.soft_cap > 0.0f) cap_scores(scores, num, shape_.soft_cap);
    if (last[0] < key + TILE_KEYS - 1 || (window > 0 && last[num - 1] - window >= key))
      hide_scores(scores, num, key, last, window);
    ahead_.ask(ahead_.share(1) * num / rows);
    weigh_rows<sizeof(E) == 2, FEW_ROWS>(scores, num, sums, stride_, width_);
    with_rows<FEW_ROWS>(num, [&]<int R>() {
      add_value_rows<R>(scores, values, round_up(count, STEP<E>), width_, sums + SUMS_OUTPUT, stride_,
                        ahead_);
    });
  });
}

template void Attention<float>::widen_queries(const AttentionItem&, const QuerySpan&, int, const float*, long,
                                              int);
template void Attention<float>::meet_in_fp32(const Pool&, int, int, int, int, int, int);
#ifdef __AVX512BF16__
template void Attention<bf16>::load_queries(const AttentionItem&, const QuerySpan&, int, const float*, long,
                                            int, bool);
template void Attention<bf16>::meet(matrix_unit::HeadTiles&, const Pool&, int, int, bool, int, int, int, int);
#else
template void Attention<bf16>::widen_queries(const AttentionItem&, const QuerySpan&, int, const float*, long,
                                             int);
template void Attention<bf16>::meet_in_fp32(const Pool&, int, int, int, int, int, int);
#endif

}  // namespace penstock

#include "attention.h"

namespace penstock {

template <class E>
void Attention<E>::meet([[maybe_unused]] matrix_unit::HeadTiles& tiles, [[maybe_unused]] const Pool& pool,
                        int first, int rows, bool stored, int key, int count, int position, int window) {
#ifdef __AVX512BF16__  // which every CPU with a matrix unit has
  if constexpr (sizeof(E) == 2)
    if (on_unit_) return meet_on_unit(tiles, pool, first, rows, stored, key, count, window);
#endif
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

template void Attention<float>::meet_in_fp32(const Pool&, int, int, int, int, int, int);
#ifdef __AVX512BF16__
template void Attention<bf16>::meet(matrix_unit::HeadTiles&, const Pool&, int, int, bool, int, int, int, int);
#else
template void Attention<bf16>::meet_in_fp32(const Pool&, int, int, int, int, int, int);
#endif

}  // namespace penstock

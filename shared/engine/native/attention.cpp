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

template void Attention<float>::meet(matrix_unit::HeadTiles&, const Pool&, int, int, bool, int, int, int,
                                     int);
template void Attention<bf16>::meet(matrix_unit::HeadTiles&, const Pool&, int, int, bool, int, int, int, int);

}  // namespace penstock

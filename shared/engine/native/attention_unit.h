// Rows in bf16 meet a tile of keys on the matrix unit.
#pragma once

#include "attention.h"

namespace penstock {

// The rows of one KV head, of which `first` is the first, meet the `count` keys that begin at `key`, on the
// matrix unit: those that are packed, or, bit for bit the same, as they are stored.
template <class E>
void Attention<E>::meet_on_unit(matrix_unit::HeadTiles& tiles, const Pool& pool, int first, int rows,
                                bool stored, int key, int count, int window) {
  alignas(64) float scores[2][SIDE_BY_SIDE][TILE_KEYS];
  alignas(64) bf16 weights[SIDE_BY_SIDE][TILE_KEYS];
  const int padded = round_up(count, PANEL);
  if (!stored) tokens_.pack_keys(padded, depth_, keys_.data());
  tokens_.pack_values(padded, width_, values_.data());
  const auto score = [&](int offset) {
    const int num = std::min(SIDE_BY_SIDE, rows - offset);
    const bf16* queries = queries_.data() + static_cast<long>(first + offset) * depth_;
    float (*to)[TILE_KEYS] = scores[offset / SIDE_BY_SIDE % 2];
    tiles.lay_out(num, stored);
    if (stored)
      score_stored_on_unit(pool, queries, num, count, to);
    else
      matrix_unit::score_packed(queries, keys_.data(), depth_, count, to);
  };
  score(0);
  for (int offset = 0; offset < rows; offset += SIDE_BY_SIDE) {
    if (offset + SIDE_BY_SIDE < rows) score(offset + SIDE_BY_SIDE);  // while the unit does, these are weighed
    const int num = std::min(SIDE_BY_SIDE, rows - offset), row = first + offset;
    const int* last = last_keys_.data() + offset;
    float (*now)[TILE_KEYS] = scores[offset / SIDE_BY_SIDE % 2];
    if (shape_.soft_cap > 0.0f) cap_scores(now, num, shape_.soft_cap);
    if (last[0] < key + TILE_KEYS - 1 || (window > 0 && last[num - 1] - window >= key))
      hide_scores(now, num, key, last, window);
    float* outputs = sums_of(sums_, row) + SUMS_OUTPUT;
    weigh_scores(now, num, most_.data() + row, totals_.data() + row, outputs, width_, stride_, weights);
    tiles.lay_out(num, stored);
    for (int d = 0; d < width_; d += PANEL)
      matrix_unit::add_values(weights, values_.data() + static_cast<long>(d) * TILE_KEYS, padded, outputs + d,
                              stride_);
  }
}

// Keys as they are stored where those are whole steps of bf16, 16 of them being one block's.
template <class E>
void Attention<E>::score_stored_on_unit(const Pool& pool, const bf16* queries, int rows, int count,
                                        float (*scores)[TILE_KEYS]) {
  const bool as_stored = pool.kind == KvKind::BF16 && depth_ == shape_.head_dim;
  for (int keys = 0; keys < count; keys += BLOCK_TOKENS) {
    for (int i = keys; i < keys + BLOCK_TOKENS; ++i) {
      for (int d = 0; d < depth_; d += PANEL) {
        tokens_.ask_ahead(0, i, d);
        if (!as_stored)
          _mm512_storeu_si512(keys_.data() + static_cast<long>(i) * depth_ + d, tokens_.load(0, i, d));
      }
    }
    matrix_unit::score_stored(
        as_stored ? tokens_.rows[0][keys] : keys_.data() + static_cast<long>(keys) * depth_,
        as_stored ? static_cast<long>(pool.kv_heads) * pool.head_dim : depth_, queries, rows, depth_, scores,
        keys);
  }
}

}  // namespace penstock

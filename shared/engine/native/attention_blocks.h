// The blocks of one KV head that a tile of keys covers: as they are stored, or copied where that is in other
// numbers, or has places that no token has yet, or ends within a panel.
#pragma once

#include <algorithm>

#include "attention_rows.h"
#include "memory.h"
#include "pool.h"

namespace penstock {

constexpr int TILE_BLOCKS = TILE_KEYS / BLOCK_TOKENS;

template <class E>
class TileBlocks {
 public:
  explicit TileBlocks(int head_dim)
      : head_dim_(head_dim),
        width_(round_up(head_dim, PANEL)),
        copies_(2L * TILE_KEYS * width_),
        keys_(static_cast<size_t>(TILE_KEYS) * width_) {
    // What no token has written to is multiplied as well, and denormals take a hundred times as long.
    std::fill_n(copies_.data(), 2L * TILE_KEYS * width_, E{});
    std::fill_n(keys_.data(), static_cast<size_t>(TILE_KEYS) * width_, E{});
  }

  void poison() {
    copies_.poison();
    keys_.poison();
  }

  // `blocks` of the sequence; the tile's keys begin at `key`, and the item's end at `end`.
  void locate(const Pool& pool, int layer, const int* blocks, int key, int end) {
    num_ = (std::min(TILE_KEYS, end - key) + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    for (int each = 0; each < num_; ++each) {
      const int at = key / BLOCK_TOKENS + each;
      tokens_[each] = std::min(BLOCK_TOKENS, end - at * BLOCK_TOKENS);
      stored_[each] = pool.head(layer, blocks[at], 0, 0, 0);
      scales_[each] = pool.kind == KvKind::INT8 ? pool.scale(layer, blocks[at], 0, 0, 0) : nullptr;
    }
  }

  // Keys of a head, of whole blocks, [depth / STEP][TILE_KEYS][STEP].
  const E* keys(const Pool& pool, int kv_head, int depth, LinesAhead& ahead) {
    const int lines = ahead.share(TILE_BLOCKS * ((depth * sizeof(E) + 63) / 64));
    constexpr int PER_VECTOR = 64 / sizeof(E);
    // A vector that begins in a block's keys ends in its values at the latest: what is no dim goes nowhere.
    const bool as_stored = pool.kind != KvKind::INT8 && depth == head_dim_ && pool.kv_heads * depth >= 4;
    if (!as_stored) point_at(pool, 0, kv_head);
    for (int block = 0; block < num_; ++block) {
      const BlockRows<E> rows = as_stored ? rows_of(pool, block, 0, kv_head) : rows_[block];
      const int last = as_stored ? tokens_[block] - 1 : BLOCK_TOKENS - 1;  // which those behind it repeat
      for (int d = 0; d < depth; d += PER_VECTOR) {
        __m512i turned[LANES];
        ahead.ask(lines);
        for (int i = 0; i < LANES; ++i) turned[i] = _mm512_loadu_si512(rows.row(std::min(i, last)) + d);
        transpose16(turned);
        const int dwords = std::min(LANES, (depth - d) / STEP<E>);
        E* to = keys_.data() + (d * TILE_KEYS + block * BLOCK_TOKENS * STEP<E>);
        for (int i = 0; i < dwords; ++i) _mm512_storeu_si512(to + i * TILE_KEYS * STEP<E>, turned[i]);
      }
    }
    return keys_.data();
  }

  const BlockRows<E>* values(const Pool& pool, int kv_head) {
    point_at(pool, 1, kv_head);
    return rows_;
  }

 private:
  BlockRows<E> rows_of(const Pool& pool, int block, int part, int kv_head) const {
    const long row = pool.kv_heads * head_dim_;
    const E* const rows = reinterpret_cast<const E*>(stored_[block]) + part * BLOCK_TOKENS * row;
    return {rows + kv_head * head_dim_, row};
  }

  void point_at(const Pool& pool, int part, int kv_head) {
    const bool as_stored = pool.kind != KvKind::INT8 && head_dim_ == width_;
    for (int block = 0; block < num_; ++block) {
      // As many as are multiplied at a time; what is beyond the last token must be numbers, and repeats it.
      const int count = part == 0 ? BLOCK_TOKENS : round_up(tokens_[block], STEP<E>);
      if (as_stored && tokens_[block] >= count) {
        rows_[block] = rows_of(pool, block, part, kv_head);
        continue;
      }
      E* const copy = copies_.data() + (part * TILE_KEYS + block * BLOCK_TOKENS) * static_cast<long>(width_);
      if (pool.kind == KvKind::INT8)
        widen_rows(pool, block, part, kv_head, count, copy);
      else
        copy_rows(rows_of(pool, block, part, kv_head), tokens_[block] - 1, count, copy);
      rows_[block] = {copy, width_};
    }
  }

  // A vector at a time: a call to copy a dozen numbers would take longer than to multiply them.
  void copy_rows(const BlockRows<E>& rows, int last, int count, E* to) const {
    constexpr int PER_DWORD = 4 / sizeof(E), PER_VECTOR = 64 / sizeof(E);
    if (head_dim_ % PER_DWORD != 0) {
      for (int i = 0; i < count; ++i)
        std::memcpy(to + static_cast<long>(i) * width_, rows.row(std::min(i, last)), head_dim_ * sizeof(E));
      return;
    }
    for (int d = 0; d < head_dim_; d += PER_VECTOR) {
      const __mmask16 dims = first_lanes((head_dim_ - d) / PER_DWORD);
      for (int i = 0; i < count; ++i)
        _mm512_storeu_ps(
            reinterpret_cast<float*>(to + static_cast<long>(i) * width_ + d),
            _mm512_maskz_loadu_ps(dims, reinterpret_cast<const float*>(rows.row(std::min(i, last)) + d)));
    }
  }

  void widen_rows(const Pool& pool, int block, int part, int kv_head, int count, E* to) const {
    const long row = pool.kv_heads * head_dim_;
    const uint8_t* const codes = stored_[block] + part * BLOCK_TOKENS * row + kv_head * head_dim_;
    for (int i = 0; i < count; ++i) {
      const int token = std::min(i, tokens_[block] - 1);
      widen_codes(codes + token * row,
                  scales_[block][(part * BLOCK_TOKENS + token) * pool.kv_heads + kv_head],
                  to + static_cast<long>(i) * width_);
    }
  }

  // int8 codes to the numbers that they stand for.
  void widen_codes(const uint8_t* codes, uint16_t half_scale, E* to) const {
    const __m512 scale = _mm512_set1_ps(_cvtsh_ss(half_scale));
    for (int d = 0; d < head_dim_; d += LANES) {
      const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                                             _mm_maskz_loadu_epi8(first_lanes(head_dim_ - d), codes + d))),
                                         scale);
      if constexpr (sizeof(E) == 2)
        _mm256_storeu_si256((__m256i*)(to + d), narrow(value));
      else
        _mm512_storeu_ps(to + d, value);
    }
  }

  int head_dim_, width_;
  int num_ = 0;                         // of the tile's blocks
  int tokens_[TILE_BLOCKS];             // of each that are to be seen
  const uint8_t* stored_[TILE_BLOCKS];  // where each begins
  const uint16_t* scales_[TILE_BLOCKS];
  BlockRows<E> rows_[TILE_BLOCKS];
  Buffer<E> copies_;  // [2][TILE_KEYS, width]
  Buffer<E> keys_;    // [depth / STEP][TILE_KEYS][STEP]
};

}  // namespace penstock

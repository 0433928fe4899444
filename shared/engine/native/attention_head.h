// One KV head of a tile's tokens: where its keys and values lie, and how they are packed for many rows.
#pragma once

#include <algorithm>

#include "attention_sums.h"
#include "tile.h"

namespace penstock {

template <class E>
struct TileHead {
  int head_dim;
  const E* rows[2][TILE_KEYS];         // K and V of each token
  const uint8_t* ahead[2][TILE_KEYS];  // and where those of the next tile are stored

  // From dim `d` on, one vector, zeros beyond the head.
  __m512i load(int part, int i, int d) const {
    const E* source = rows[part][i] + d;
    const int count = head_dim - d;
    if (count >= static_cast<int>(64 / sizeof(E))) return _mm512_loadu_si512(source);
    if constexpr (sizeof(E) == 4)
      return _mm512_maskz_loadu_epi32(first_lanes(count), source);
    else
      return _mm512_maskz_loadu_epi16(count <= 0 ? 0 : (1u << count) - 1, source);
  }

  // Each line that is read asks for its successor in the next tile: the CPU cannot foresee where that lies.
  void ask_ahead(int part, int i, int d) const {
    _mm_prefetch(reinterpret_cast<const char*>(ahead[part][i] + d * sizeof(E)), _MM_HINT_T1);
  }

  // The dwords of the keys of 16 tokens from dim `d` on: the first of each, the second of each, ...
  void transposed(int first, int d, __m512i (&block)[LANES]) const {
    for (int i = 0; i < LANES; ++i) {
      ask_ahead(0, first + i, d);
      block[i] = load(0, first + i, d);
    }
    transpose16(block);
  }

  // Keys of `count` tokens, whole panels, -> panels [depth / STEP][32][STEP]: a transpose of dwords for both
  // element types.
  void pack_keys(int count, int depth, E* panels) const {
    constexpr int PER_VECTOR = 64 / sizeof(E);
    for (int panel = 0; panel < count; panel += PANEL, panels += PANEL * depth)
      for (int d = 0; d < depth; d += PER_VECTOR)
        for (int half = 0; half < PANEL; half += LANES) {
          __m512i block[LANES];
          transposed(panel + half, d, block);
          const int dwords = std::min(LANES, (depth - d) / STEP<E>);
          for (int i = 0; i < dwords; ++i)
            _mm512_storeu_si512(panels + ((d / STEP<E> + i) * PANEL + half) * STEP<E>, block[i]);
        }
  }

  // Values of `count` tokens, whole steps, -> panels [TILE_KEYS / STEP][32 dims][STEP].
  void pack_values(int count, int width, E* panels) const {
    for (int d = 0; d < width; d += PANEL, panels += PANEL * TILE_KEYS)
      for (int i = 0; i < count; i += STEP<E>) {
        __m512i low, high;
        values(i, d, low, high);
        _mm512_storeu_si512(panels + i * PANEL, low);
        _mm512_storeu_si512(panels + i * PANEL + PANEL * STEP<E> / 2, high);
      }
  }

  // Dims [d, d + 32) of a step's values: of bf16 the pairs of two tokens' elements.
  void values(int i, int d, __m512i& low, __m512i& high) const {
    ask_ahead(1, i, d);
    low = load(1, i, d);
    if constexpr (sizeof(E) == 4) {
      high = load(1, i, d + LANES);
    } else {
      ask_ahead(1, i + 1, d);
      zip(low, load(1, i + 1, d), low, high);
    }
  }
};

}  // namespace penstock

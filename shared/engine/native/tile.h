// The inner kernel of everything: a tile of up to MAX_TILE_ROWS rows times one panel of 32 columns.
//
// A panel holds its columns side by side so that the k-th step of all 32 is two vectors: [k][32] for fp32,
// [k / 2][32][2] for bf16. Each output element is one chain of fused multiply-adds over k, in order, whatever
// the number of rows: a row's result does not depend on the rows beside it.
#pragma once

#include "simd.h"

namespace penstock {

constexpr int PANEL = 32;
constexpr int MAX_TILE_ROWS = 12;  // 24 accumulators + 2 columns + 1 row element of 32 registers
constexpr int PREFETCH_BYTES = 2048;

template <class E>
constexpr int STEP = sizeof(E) == 2 ? 2 : 1;  // elements of k in one step

template <int R>
using Accumulators = __m512[R][2];

template <int R>
inline void clear(Accumulators<R>& acc) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
}

// acc[r] += rows[r, 0:k] @ panel[0:k]; `k` is a multiple of STEP.
template <int R>
inline void multiply(const float* rows, long stride, const float* panel, int k, Accumulators<R>& acc) {
  for (int i = 0; i < k; ++i, panel += PANEL) {
    _mm_prefetch(reinterpret_cast<const char*>(panel) + PREFETCH_BYTES, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(panel) + PREFETCH_BYTES + 64, _MM_HINT_T0);
    const __m512 b0 = _mm512_loadu_ps(panel), b1 = _mm512_loadu_ps(panel + LANES);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512 a = _mm512_set1_ps(rows[r * stride + i]);
      acc[r][0] = _mm512_fmadd_ps(a, b0, acc[r][0]);
      acc[r][1] = _mm512_fmadd_ps(a, b1, acc[r][1]);
    }
  }
}

template <int R>
inline void multiply(const bf16* rows, long stride, const bf16* panel, int k, Accumulators<R>& acc) {
  for (int i = 0; i < k; i += 2, panel += 2 * PANEL) {
    _mm_prefetch(reinterpret_cast<const char*>(panel) + PREFETCH_BYTES, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(panel) + PREFETCH_BYTES + 64, _MM_HINT_T0);
    const __m512bh b0 = (__m512bh)_mm512_loadu_si512(panel);
    const __m512bh b1 = (__m512bh)_mm512_loadu_si512(panel + PANEL);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int pair;
      std::memcpy(&pair, rows + r * stride + i, sizeof pair);
      const __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
      acc[r][0] = _mm512_dpbf16_ps(acc[r][0], a, b0);
      acc[r][1] = _mm512_dpbf16_ps(acc[r][1], a, b1);
    }
  }
}

// Calls `call.template operator()<R>()` with R = rows.
template <class Call>
inline void with_rows(int rows, Call&& call) {
  switch (rows) {
    case 1:
      return call.template operator()<1>();
    case 2:
      return call.template operator()<2>();
    case 3:
      return call.template operator()<3>();
    case 4:
      return call.template operator()<4>();
    case 5:
      return call.template operator()<5>();
    case 6:
      return call.template operator()<6>();
    case 7:
      return call.template operator()<7>();
    case 8:
      return call.template operator()<8>();
    case 9:
      return call.template operator()<9>();
    case 10:
      return call.template operator()<10>();
    case 11:
      return call.template operator()<11>();
    default:
      return call.template operator()<12>();
  }
}

// Rows [0, count) in tiles of nearly equal height, at most `most` each.
template <class Call>
inline void for_each_tile(int count, int most, Call&& call) {
  const int tiles = (count + most - 1) / most;
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = count * tile / tiles, last = count * (tile + 1) / tiles;
    call(first, last - first);
  }
}

}  // namespace penstock

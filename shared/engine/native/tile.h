// The inner kernel of everything: a tile of up to MAX_TILE_ROWS rows times one panel of 32 columns.
//
// A panel holds its columns side by side so that the k-th step of all 32 is two vectors: [k][32] for fp32,
// [k / 2][32][2] for bf16. Each output element is one chain of fused multiply-adds over k, in order, whatever
// the number of rows: a row's result does not depend on the rows beside it.
#pragma once

#include "simd.h"

namespace penstock {

constexpr int PANEL = 32;
// A tile is computed by as many of its columns' two vectors at a time as leave room for accumulators: of 32
// registers that hold a vector each, 24 and 2 columns and 1 row element, of 16 that hold half of one, 8.
constexpr int VECTORS_AT_ONCE = WHOLE_VECTORS ? 2 : 1;
constexpr int MAX_TILE_ROWS = WHOLE_VECTORS ? 12 : 4;
constexpr int PREFETCH_BYTES = 2048;
constexpr int WIDENED_COLUMNS = 128;  // of a tile's rows, which then stay in the L1 beside the panel's

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
#pragma GCC unroll 2
  for (int first = 0; first < 2; first += VECTORS_AT_ONCE)
    for (int i = 0; i < k; ++i) {
      const float* columns = panel + i * PANEL + first * LANES;
      __m512 b[VECTORS_AT_ONCE];
#pragma GCC unroll 2
      for (int each = 0; each < VECTORS_AT_ONCE; ++each) {
        _mm_prefetch(reinterpret_cast<const char*>(columns + each * LANES) + PREFETCH_BYTES, _MM_HINT_T0);
        b[each] = _mm512_loadu_ps(columns + each * LANES);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const __m512 a = _mm512_set1_ps(rows[r * stride + i]);
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS_AT_ONCE; ++each)
          acc[r][first + each] = _mm512_fmadd_ps(a, b[each], acc[r][first + each]);
      }
    }
}

// The same where no instruction multiplies bf16: rows become fp32, some steps at a time, and of each pair the
// one with the higher place is multiplied first.
template <int R>
inline void multiply_widened(const bf16* rows, long stride, const bf16* panel, int k, Accumulators<R>& acc) {
  alignas(64) float wide[R][WIDENED_COLUMNS];
  for (int at = 0; at < k; at += WIDENED_COLUMNS, rows += WIDENED_COLUMNS, panel += WIDENED_COLUMNS * PANEL) {
    const int count = std::min(WIDENED_COLUMNS, k - at);
    for (int r = 0; r < R; ++r) {
      const bf16* row = rows + r * stride;
      int i = 0;
      for (; i + LANES <= count; i += LANES)
        _mm512_store_ps(wide[r] + i, widen(_mm256_loadu_si256((const __m256i*)(row + i))));
      for (; i < count; ++i) wide[r][i] = to_float(row[i]);
    }
#pragma GCC unroll 2
    for (int first = 0; first < 2; first += VECTORS_AT_ONCE)
      for (int i = 0; i < count; i += 2) {
        const bf16* columns = panel + i * PANEL + first * PANEL;
        __m512 low[VECTORS_AT_ONCE], high[VECTORS_AT_ONCE];
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS_AT_ONCE; ++each) {
          _mm_prefetch(reinterpret_cast<const char*>(columns + each * PANEL) + PREFETCH_BYTES, _MM_HINT_T0);
          const __m512i pairs = _mm512_loadu_si512(columns + each * PANEL);
          low[each] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
          high[each] =
              _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const __m512 second = _mm512_set1_ps(wide[r][i + 1]);
#pragma GCC unroll 2
          for (int each = 0; each < VECTORS_AT_ONCE; ++each)
            acc[r][first + each] = _mm512_fmadd_ps(second, high[each], acc[r][first + each]);
          const __m512 one = _mm512_set1_ps(wide[r][i]);
#pragma GCC unroll 2
          for (int each = 0; each < VECTORS_AT_ONCE; ++each)
            acc[r][first + each] = _mm512_fmadd_ps(one, low[each], acc[r][first + each]);
        }
      }
  }
}

template <int R>
inline void multiply(const bf16* rows, long stride, const bf16* panel, int k, Accumulators<R>& acc) {
  if constexpr (WIDENS_ROWS && R > 1) return multiply_widened<R>(rows, stride, panel, k, acc);
#pragma GCC unroll 2
  for (int first = 0; first < 2; first += VECTORS_AT_ONCE)
    for (int i = 0; i < k; i += 2) {
      const bf16* columns = panel + i * PANEL + first * PANEL;
      __m512bh b[VECTORS_AT_ONCE];
#pragma GCC unroll 2
      for (int each = 0; each < VECTORS_AT_ONCE; ++each) {
        _mm_prefetch(reinterpret_cast<const char*>(columns + each * PANEL) + PREFETCH_BYTES, _MM_HINT_T0);
        b[each] = (__m512bh)_mm512_loadu_si512(columns + each * PANEL);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        int pair;
        std::memcpy(&pair, rows + r * stride + i, sizeof pair);
        const __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS_AT_ONCE; ++each)
          acc[r][first + each] = _mm512_dpbf16_ps(acc[r][first + each], a, b[each]);
      }
    }
}

// Calls `call.template operator()<R>()` with R = rows, of which there are 1 to MAX_TILE_ROWS.
template <int R = MAX_TILE_ROWS, class Call>
inline void with_rows(int rows, Call&& call) {
  if constexpr (R > 1)
    if (rows < R) return with_rows<R - 1>(rows, call);
  call.template operator()<R>();
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

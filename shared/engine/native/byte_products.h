// The exact sums of one group in bytes: rows' high bytes and their low ones, each times codes, four columns a
// lane at a time.
#pragma once

#include "quantized_tile.h"

namespace penstock {

// Rows whose high and low sums have room in registers beside each other.
constexpr int MAX_ROWS_AT_ONCE = WHOLE_VECTORS ? 3 : 2;

inline __m512i four_of(const int8_t* row_codes) {
  int quad;
  std::memcpy(&quad, row_codes, sizeof quad);
  return _mm512_set1_epi32(quad);
}

// Of VECTORS_AT_ONCE vectors of columns, from vector `first` on:
template <int R, bool HIGH, bool LOW>
inline void add_nibbles(const int8_t* high, const int8_t* low, long stride, const uint8_t* codes, int group,
                        int first, Sums (&highs)[R][2], Sums (&lows)[R][2]) {
  const __m512i low_nibbles = _mm512_set1_epi8(0x0f);
  const uint8_t* const end = codes + group * 16;
  for (; codes < end; codes += SHARED_BLOCK * 16, high += SHARED_BLOCK, low += SHARED_BLOCK / 2) {
    const uint8_t* block = codes + first * 64;
    if constexpr (HIGH) fetch_ahead(codes, 4);
#pragma GCC unroll 2
    for (int quad = 0; quad < 8; quad += DOT_WIDTH) {
      __m512i b[VECTORS_AT_ONCE];
#pragma GCC unroll 2
      for (int each = 0; each < VECTORS_AT_ONCE; ++each)
        b[each] = _mm512_loadu_si512(block + 32 * quad + 64 * each);
      if constexpr (HIGH) {
        __m512i ones[VECTORS_AT_ONCE], others[VECTORS_AT_ONCE];
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS_AT_ONCE; ++each) {
          ones[each] = _mm512_and_si512(b[each], low_nibbles);
          others[each] = _mm512_and_si512(_mm512_srli_epi16(b[each], 4), low_nibbles);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const __m512i one = four_of(high + r * stride + quad);
          const __m512i other = four_of(high + r * stride + 8 + quad);
#pragma GCC unroll 2
          for (int each = 0; each < VECTORS_AT_ONCE; ++each)
            highs[r][first + each] =
                add_nibble_products(highs[r][first + each], ones[each], one, others[each], other);
        }
      }
      if constexpr (LOW) {
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const __m512i shared = four_of(low + r * stride + quad);
#pragma GCC unroll 2
          for (int each = 0; each < VECTORS_AT_ONCE; ++each)
            lows[r][first + each] = add_products(lows[r][first + each], b[each], shared);
        }
      }
    }
  }
}

// Codes that were unpacked just now are FETCHED.
template <int R, bool HIGH, bool LOW, bool FETCHED>
inline void add_bytes(const int8_t* high, const int8_t* low, long stride, const uint8_t* codes, int group,
                      int first, Sums (&highs)[R][2], Sums (&lows)[R][2]) {
  for (int k = 0; k < group; k += DOT_WIDTH) {
    const uint8_t* block = codes + k * PANEL;
    if constexpr (HIGH && !FETCHED) fetch_ahead(block, 2);
    __m512i b[VECTORS_AT_ONCE];
#pragma GCC unroll 2
    for (int each = 0; each < VECTORS_AT_ONCE; ++each)
      b[each] = _mm512_loadu_si512(block + 64 * (first + each));
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      if constexpr (HIGH) {
        const __m512i a = four_of(high + r * stride + k);
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS_AT_ONCE; ++each)
          highs[r][first + each] = add_products(highs[r][first + each], b[each], a);
      }
      if constexpr (LOW) {
        const __m512i a = four_of(low + r * stride + k);
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS_AT_ONCE; ++each)
          lows[r][first + each] = add_products(lows[r][first + each], b[each], a);
      }
    }
  }
}

// The products of one group with the rows' high bytes, low bytes or both, which then go to sums of their own.
template <int R, Kind KIND, bool HIGH, bool LOW, bool FETCHED>
inline void add_parts(const int8_t* high, const int8_t* low, long stride, const uint8_t* codes, int group,
                      Sums (&highs)[R][2], Sums (&lows)[R][2]) {
#pragma GCC unroll 2
  for (int first = 0; first < 2; first += VECTORS_AT_ONCE)
    if constexpr (KIND == Kind::INT4)
      add_nibbles<R, HIGH, LOW>(high, low, stride, codes, group, first, highs, lows);
    else
      add_bytes<R, HIGH, LOW, FETCHED>(high, low, stride, codes, group, first, highs, lows);
}

// sum[r] += the products of columns [first, first + group) of row r; codes that were unpacked just now are
// FETCHED.
template <int R, Kind KIND, bool FETCHED>
inline void add_group(const QuantizedRows& rows, int first, const uint8_t* codes, int group,
                      Sums (&sum)[R][2]) {
  constexpr int SHIFT = HIGH_SHIFT<KIND>;
  const int8_t *high = rows.high + first, *low = rows.low + first / COLUMNS_PER_BYTE<KIND>;
  if constexpr (KIND == Kind::INT8_COARSE) {
    add_parts<R, KIND, true, false, FETCHED>(high, low, rows.stride, codes, group, sum, sum);
  } else if constexpr (R <= MAX_ROWS_AT_ONCE) {
    Sums lows[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) lows[r][0] = lows[r][1] = Sums{};
    add_parts<R, KIND, true, true, FETCHED>(high, low, rows.stride, codes, group, sum, lows);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
      for (int half = 0; half < 2; ++half) sum[r][half] = (sum[r][half] << SHIFT) + lows[r][half];
  } else {
    add_parts<R, KIND, true, false, FETCHED>(high, low, rows.stride, codes, group, sum, sum);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
      for (int half = 0; half < 2; ++half) sum[r][half] <<= SHIFT;
    add_parts<R, KIND, false, true, FETCHED>(high, low, rows.stride, codes, group, sum, sum);
  }
}

}  // namespace penstock

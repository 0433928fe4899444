// The inner kernel of quantized linears: a tile of up to QUANTIZED_TILE_ROWS rows of whole numbers times one
// panel of codes.
#pragma once

#include <cstring>

#include "code_storage.h"
#include "linear.h"
#include "quantized_rows.h"

namespace penstock {

constexpr int DOT_WIDTH = 4;  // int8 products that one VNNI lane adds up
// Rows whose high and low sums have room in registers beside each other.
constexpr int MAX_ROWS_AT_ONCE = WHOLE_VECTORS ? 4 : 2;

template <Kind KIND>
constexpr int HIGH_SHIFT = KIND == Kind::INT4 ? SHARED_SHIFT : FINE_SHIFT;
template <Kind KIND>
constexpr int COLUMNS_PER_BYTE = KIND == Kind::INT4 ? 2 : 1;  // of codes and of low bytes

// Rows of whole numbers, from the first that a tile takes, and the parts of a panel that they meet.
struct QuantizedRows {
  const int8_t *high, *low;  // of row 0
  long stride;
  const float* scales;
  const int* sums;
  const float* offsets;  // [rows, groups, 2] of INT4: the sum as it is and times the scale
  int groups;
};
struct QuantizedPanel {
  StoredCodes codes;
  const uint16_t* scales;
  const uint8_t* zeros;
  const uint16_t* minima;

  template <bool MINIMA>
  void next_group() {  // but for the codes
    scales += PANEL;
    if constexpr (MINIMA)
      minima += PANEL;
    else
      zeros += PANEL;
  }
};

// Of one group and 16 columns: how its exact sums are scaled and added up in fp32.
// W = (code - zero) * scale, so sum(W a) = scale * scale_a * (sum(code * a) - zero * sum(a)).
// W = code * scale + minimum, so sum(W a) = scale_a * (scale * sum(code * a) + minimum * sum(a)).
template <bool MINIMA>
struct GroupScales {
  __m512 scale, minimum;
  Sums zero;

  GroupScales(const QuantizedPanel& panel, int half) : scale(floats_of(panel.scales, half)) {
    if constexpr (MINIMA)
      minimum = floats_of(panel.minima, half);
    else
      zero = (Sums)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(panel.zeros + half * LANES)));
  }

  // The same where there are minima and `row_offset` is row_scale * row_sum, made once for all columns.
  __m512 add_with_minimum(__m512 total, Sums sum, float row_scale, float row_offset) const {
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(row_scale));
    total = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum), factor, total);
    return _mm512_fmadd_ps(minimum, _mm512_set1_ps(row_offset), total);
  }

  __m512 add(__m512 total, Sums sum, float row_scale, int row_sum) const {
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(row_scale));
    if constexpr (MINIMA) {
      total = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum), factor, total);
      return _mm512_fmadd_ps(minimum, _mm512_set1_ps(row_scale * static_cast<float>(row_sum)), total);
    } else {
      const Sums exact = sum - zero * row_sum;
      return _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)exact), factor, total);
    }
  }

 private:
  static __m512 floats_of(const uint16_t* halves, int half) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(halves + half * LANES)));
  }
};

inline __m512i four_of(const int8_t* row_codes) {
  int quad;
  std::memcpy(&quad, row_codes, sizeof quad);
  return _mm512_set1_epi32(quad);
}

inline void fetch_ahead(const uint8_t* codes, int lines) {
  for (int line = 0; line < lines; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(codes) + CODE_PREFETCH_BYTES + 64 * line, _MM_HINT_T0);
}

// Of VECTORS_AT_ONCE vectors of columns, from vector `first` on:
template <int R, bool HIGH, bool LOW>
inline void add_nibbles(const int8_t* high, const int8_t* low, long stride, const uint8_t* codes, int group,
                        int first, Sums (&highs)[R][2], Sums (&lows)[R][2]) {
  const __m512i low_nibbles = _mm512_set1_epi8(0x0f);
  for (int k = 0; k < group; k += SHARED_BLOCK) {
    const uint8_t* block = codes + k * 16 + first * 64;
    if constexpr (HIGH) fetch_ahead(codes + k * 16, 4);
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
          const __m512i one = four_of(high + r * stride + k + quad);
          const __m512i other = four_of(high + r * stride + k + 8 + quad);
#pragma GCC unroll 2
          for (int each = 0; each < VECTORS_AT_ONCE; ++each)
            highs[r][first + each] =
                add_nibble_products(highs[r][first + each], ones[each], one, others[each], other);
        }
      }
      if constexpr (LOW) {
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const __m512i shared = four_of(low + r * stride + k / 2 + quad);
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
inline void add_group(const int8_t* high, const int8_t* low, long stride, const uint8_t* codes, int group,
                      Sums (&highs)[R][2], Sums (&lows)[R][2]) {
#pragma GCC unroll 2
  for (int first = 0; first < 2; first += VECTORS_AT_ONCE)
    if constexpr (KIND == Kind::INT4)
      add_nibbles<R, HIGH, LOW>(high, low, stride, codes, group, first, highs, lows);
    else
      add_bytes<R, HIGH, LOW, FETCHED>(high, low, stride, codes, group, first, highs, lows);
}

// [R, 32] of a quantized linear: per group exact integer sums, then scaled and added up in fp32.
template <int R, Kind KIND, bool MINIMA, Storage STORAGE = Storage::BYTES>
void multiply_quantized(const QuantizedRows& rows, QuantizedPanel panel, int group, float* tile) {
  constexpr int SHIFT = HIGH_SHIFT<KIND>;
  constexpr bool UNPACKED = STORAGE != Storage::BYTES;
  alignas(64) uint8_t unpacked[UNPACKED ? LONGEST_PACKED_GROUP * PANEL : 64];
  const int8_t *high = rows.high, *low = rows.low;
  __m512 total[R][2];
  clear<R>(total);
  for (int g = 0; g < rows.groups; ++g) {
    const uint8_t* codes = panel.codes.data;
    if constexpr (UNPACKED) {
      unpack_codes<STORAGE>(codes, panel.codes.levels, group, unpacked);
      codes = unpacked;
    }
    Sums sum[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Sums{};
    if constexpr (KIND == Kind::INT8_COARSE) {
      add_group<R, KIND, true, false, UNPACKED>(high, low, rows.stride, codes, group, sum, sum);
    } else if constexpr (R <= MAX_ROWS_AT_ONCE) {
      Sums lows[R][2];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) lows[r][0] = lows[r][1] = Sums{};
      add_group<R, KIND, true, true, UNPACKED>(high, low, rows.stride, codes, group, sum, lows);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sum[r][half] = (sum[r][half] << SHIFT) + lows[r][half];
    } else {
      add_group<R, KIND, true, false, UNPACKED>(high, low, rows.stride, codes, group, sum, sum);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sum[r][half] <<= SHIFT;
      add_group<R, KIND, false, true, UNPACKED>(high, low, rows.stride, codes, group, sum, sum);
    }
    panel.codes.data += group * PANEL * bits_in(STORAGE) / 8 / COLUMNS_PER_BYTE<KIND>;
    high += group;
    low += group / COLUMNS_PER_BYTE<KIND>;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const GroupScales<MINIMA> scales(panel, half);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        if constexpr (KIND == Kind::INT4 && MINIMA)
          total[r][half] =
              scales.add_with_minimum(total[r][half], sum[r][half], rows.scales[r * rows.groups + g],
                                      rows.offsets[2 * (r * rows.groups + g) + 1]);
        else
          total[r][half] = scales.add(total[r][half], sum[r][half], rows.scales[r * rows.groups + g],
                                      rows.sums[r * rows.groups + g]);
    }
    panel.next_group<MINIMA>();
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_store_ps(tile + r * PANEL, total[r][0]);
    _mm512_store_ps(tile + r * PANEL + LANES, total[r][1]);
  }
}

}  // namespace penstock

// The inner kernel of quantized linears: a tile of up to QUANTIZED_TILE_ROWS rows of whole numbers times one
// panel of codes.
#pragma once

#include <cstring>

#include "linear.h"
#include "quantized_rows.h"

namespace penstock {

constexpr int DOT_WIDTH = 4;               // int8 products that one VNNI lane adds up
constexpr int CODE_PREFETCH_BYTES = 8192;  // codes are used up several times as fast as floats
constexpr int MAX_ROWS_AT_ONCE = 4;        // whose high and low sums have room in registers beside each other

template <Kind KIND>
constexpr int HIGH_SHIFT = KIND == Kind::INT4 ? SHARED_SHIFT : FINE_SHIFT;
template <Kind KIND>
constexpr int COLUMNS_PER_BYTE = KIND == Kind::INT4 ? 2 : 1;  // of codes and of low bytes

// A vector of the type that integer dot products add to: GCC copies any other one in front of and behind
// each.
using Sums = int __attribute__((vector_size(64)));

inline Sums add_products(Sums sums, __m512i codes, __m512i row_codes) {
  return (Sums)_mm512_dpbusd_epi32((__m512i)sums, codes, row_codes);
}

// Rows of whole numbers, from the first that a tile takes, and the parts of a panel that they meet.
struct QuantizedRows {
  const int8_t *high, *low;  // of row 0
  long stride;
  const float* scales;
  const int* sums;
  int groups;
};
struct QuantizedPanel {
  const uint8_t* codes;
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

// The products of one group with the rows' high bytes, low bytes or both, which then go to sums of their own.
template <int R, Kind KIND, bool HIGH, bool LOW>
inline void add_group(const int8_t* high, const int8_t* low, long stride, const uint8_t* codes, int group,
                      Sums (&highs)[R][2], Sums (&lows)[R][2]) {
  if constexpr (KIND == Kind::INT4) {
    const __m512i low_nibbles = _mm512_set1_epi8(0x0f);
    for (int k = 0; k < group; k += SHARED_BLOCK, codes += 256) {
      if constexpr (HIGH) fetch_ahead(codes, 4);
#pragma GCC unroll 2
      for (int quad = 0; quad < 8; quad += DOT_WIDTH) {
        const __m512i b0 = _mm512_loadu_si512(codes + 32 * quad);
        const __m512i b1 = _mm512_loadu_si512(codes + 32 * quad + 64);
        if constexpr (HIGH) {
          const __m512i first0 = _mm512_and_si512(b0, low_nibbles);
          const __m512i first1 = _mm512_and_si512(b1, low_nibbles);
          const __m512i second0 = _mm512_and_si512(_mm512_srli_epi16(b0, 4), low_nibbles);
          const __m512i second1 = _mm512_and_si512(_mm512_srli_epi16(b1, 4), low_nibbles);
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            const __m512i first = four_of(high + r * stride + k + quad);
            const __m512i second = four_of(high + r * stride + k + 8 + quad);
            highs[r][0] = add_products(highs[r][0], first0, first);
            highs[r][1] = add_products(highs[r][1], first1, first);
            highs[r][0] = add_products(highs[r][0], second0, second);
            highs[r][1] = add_products(highs[r][1], second1, second);
          }
        }
        if constexpr (LOW) {
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            const __m512i shared = four_of(low + r * stride + k / 2 + quad);
            lows[r][0] = add_products(lows[r][0], b0, shared);
            lows[r][1] = add_products(lows[r][1], b1, shared);
          }
        }
      }
    }
  } else {
    for (int k = 0; k < group; k += DOT_WIDTH, codes += 128) {
      if constexpr (HIGH) fetch_ahead(codes, 2);
      const __m512i b0 = _mm512_loadu_si512(codes), b1 = _mm512_loadu_si512(codes + 64);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        if constexpr (HIGH) {
          const __m512i a = four_of(high + r * stride + k);
          highs[r][0] = add_products(highs[r][0], b0, a);
          highs[r][1] = add_products(highs[r][1], b1, a);
        }
        if constexpr (LOW) {
          const __m512i a = four_of(low + r * stride + k);
          lows[r][0] = add_products(lows[r][0], b0, a);
          lows[r][1] = add_products(lows[r][1], b1, a);
        }
      }
    }
  }
}

// [R, 32] of a quantized linear: per group exact integer sums, then scaled and added up in fp32.
template <int R, Kind KIND, bool MINIMA>
void multiply_quantized(const QuantizedRows& rows, QuantizedPanel panel, int group, float* tile) {
  constexpr int SHIFT = HIGH_SHIFT<KIND>;
  const int8_t *high = rows.high, *low = rows.low;
  __m512 total[R][2];
  clear<R>(total);
  for (int g = 0; g < rows.groups; ++g) {
    Sums sum[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Sums{};
    if constexpr (KIND == Kind::INT8_COARSE) {
      add_group<R, KIND, true, false>(high, low, rows.stride, panel.codes, group, sum, sum);
    } else if constexpr (R <= MAX_ROWS_AT_ONCE) {
      Sums lows[R][2];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) lows[r][0] = lows[r][1] = Sums{};
      add_group<R, KIND, true, true>(high, low, rows.stride, panel.codes, group, sum, lows);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sum[r][half] = (sum[r][half] << SHIFT) + lows[r][half];
    } else {
      add_group<R, KIND, true, false>(high, low, rows.stride, panel.codes, group, sum, sum);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sum[r][half] <<= SHIFT;
      add_group<R, KIND, false, true>(high, low, rows.stride, panel.codes, group, sum, sum);
    }
    panel.codes += group * PANEL / COLUMNS_PER_BYTE<KIND>;
    high += group;
    low += group / COLUMNS_PER_BYTE<KIND>;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const GroupScales<MINIMA> scales(panel, half);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
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

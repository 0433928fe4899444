// The inner kernel of quantized linears: a tile of up to QUANTIZED_TILE_ROWS rows of whole numbers times one
// panel of codes.
#pragma once

#include <cstring>

#include "code_storage.h"
#include "linear.h"
#include "quantized_rows.h"

namespace penstock {

constexpr int DOT_WIDTH = 4;  // columns whose bytes are one lane

template <Kind KIND>
constexpr int HIGH_SHIFT = KIND == Kind::INT4 ? SHARED_SHIFT : FINE_SHIFT;
template <Kind KIND>
constexpr int COLUMNS_PER_BYTE = KIND == Kind::INT4 ? 2 : 1;  // of codes and of low bytes

// Rows of whole numbers, from the first that a tile takes, and the parts of a panel that they meet.
struct QuantizedRows {
  const int8_t *high, *low;  // of row 0; words begin at `high`
  long stride;               // in bytes
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
    if constexpr (MINIMA) {
      const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(row_scale));
      total = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum), factor, total);
      return _mm512_fmadd_ps(minimum, _mm512_set1_ps(row_scale * static_cast<float>(row_sum)), total);
    } else {
      return add_exact(total, sum - zero * row_sum, row_scale);
    }
  }

  // The same where the products with the zero are out of the sum.
  __m512 add_exact(__m512 total, Sums exact, float row_scale) const {
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(row_scale));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)exact), factor, total);
  }

 private:
  static __m512 floats_of(const uint16_t* halves, int half) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(halves + half * LANES)));
  }
};

inline void fetch_ahead(const uint8_t* codes, int lines) {
  for (int line = 0; line < lines; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(codes) + CODE_PREFETCH_BYTES + 64 * line, _MM_HINT_T0);
}

}  // namespace penstock

#ifdef PENSTOCK_WORD_PRODUCTS
#include "word_products.h"
#else
#include "byte_products.h"
#endif

namespace penstock {

// Rows of so many groups have room on the stack for what their sums are worth, times one zero.
constexpr int ONE_ZERO_GROUPS = 192;

// Whether all columns of a panel have one zero in all of so many groups, as those of Q4_0 and Q8_0 have.
inline bool has_one_zero(const uint8_t* zeros, int groups) {
  return groups <= ONE_ZERO_GROUPS &&
         std::memcmp(zeros, zeros + 1, static_cast<size_t>(groups) * PANEL - 1) == 0;
}

// [R, 32] of a quantized linear: per group exact integer sums, then scaled and added up in fp32.
template <int R, Kind KIND, bool MINIMA, Storage STORAGE = Storage::BYTES, bool ONE_ZERO = false>
void multiply_quantized(const QuantizedRows& rows, QuantizedPanel panel, int group, float* tile) {
  constexpr bool UNPACKED = STORAGE != Storage::BYTES;
  alignas(64) uint8_t unpacked[UNPACKED ? LONGEST_PACKED_GROUP * PANEL : 64];
  alignas(64) int zero_sums[ONE_ZERO ? R * ONE_ZERO_GROUPS : LANES];
  if constexpr (ONE_ZERO)
    for (int at = 0; at < R * rows.groups; at += LANES) {
      const __m512i sums = _mm512_maskz_loadu_epi32(first_lanes(R * rows.groups - at), rows.sums + at);
      _mm512_store_si512(zero_sums + at, _mm512_mullo_epi32(sums, _mm512_set1_epi32(panel.zeros[0])));
    }
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
    add_group<R, KIND, UNPACKED>(rows, g * group, codes, group, sum);
    panel.codes.data += group * PANEL * bits_in(STORAGE) / 8 / COLUMNS_PER_BYTE<KIND>;
#pragma GCC unroll 2
    for (int first = 0; first < 2; first += VECTORS_AT_ONCE) {
      const GroupScales<MINIMA> scales[] = {{panel, first}, {panel, first + VECTORS_AT_ONCE - 1}};
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const int group_at = r * rows.groups + g;
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS_AT_ONCE; ++each) {
          __m512& at = total[r][first + each];
          if constexpr (KIND == Kind::INT4 && MINIMA)
            at = scales[each].add_with_minimum(at, sum[r][first + each], rows.scales[group_at],
                                               rows.offsets[2 * group_at + 1]);
          else if constexpr (ONE_ZERO)
            at = scales[each].add_exact(at,
                                        sum[r][first + each] - Sums(_mm512_set1_epi32(zero_sums[group_at])),
                                        rows.scales[group_at]);
          else
            at = scales[each].add(at, sum[r][first + each], rows.scales[group_at], rows.sums[group_at]);
        }
      }
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

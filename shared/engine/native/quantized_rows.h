// Rows as whole numbers: each group of columns gets a unit, the largest |x| of the group over as many steps
// as the form has, and each x becomes a whole number a of units, so that products with codes add up exactly.
//
// VNNI multiplies bytes, so a number is a high byte and a low one. Of INT8, a = 128 high + low: 15 bits for
// twice the products. Of INT4, two columns c and c + 8 of 16 share a low byte, for one and a half times the
// products: their codes lie in one byte w + 16 w', and a low byte times that is low * w + 16 * low * w'. So
//
//     a = 256 high + low        a' = 256 high' + 16 low
//
// which reaches every a' that is a multiple of 16, and every 16th a: 12 bits for either. First a' is rounded;
// its last digit to the base of 16 says which numbers a may be.
#pragma once

#include <algorithm>

#include "simd.h"

namespace penstock {

constexpr float FINE_STEPS = 127.0f * 128.0f;
constexpr float SHARED_STEPS = 119.0f * 256.0f;  // what a low byte adds to high' must find room in it
constexpr float COARSE_STEPS = 127.0f;
constexpr int FINE_SHIFT = 7, SHARED_SHIFT = 8;  // from high bytes to units
constexpr int SHARED_BLOCK = 16;                 // columns; the second eight share the low bytes of the first

// The unit of `count` numbers; of a group of zeros 0, of one with what is no number NaN.
inline float unit_of(const float* values, int count, float steps) {
  return largest(values, count) / steps;
}

// All of these: `count` numbers, and zeros up to `group`, a multiple of 16, to bytes; returns the sum of a.
inline int round_coarse(const float* values, int count, int group, float unit, int8_t* codes) {
  const __m512 divisor = _mm512_set1_ps(unit > 0.0f ? unit : 1.0f);
  __m512i sum = _mm512_setzero_si512();
  for (int k = 0; k < group; k += LANES) {
    const __m512 x = _mm512_maskz_loadu_ps(first_lanes(count - k), values + k);
    const __m512i a = _mm512_cvtps_epi32(_mm512_div_ps(x, divisor));
    sum = _mm512_add_epi32(sum, a);
    _mm_storeu_si128((__m128i*)(codes + k), _mm512_cvtsepi32_epi8(a));
  }
  return _mm512_reduce_add_epi32(sum);
}

inline int round_fine(const float* values, int count, int group, float unit, int8_t* high, int8_t* low) {
  const __m512 divisor = _mm512_set1_ps(unit > 0.0f ? unit : 1.0f);
  const __m512i half = _mm512_set1_epi32(1 << (FINE_SHIFT - 1));
  __m512i sum = _mm512_setzero_si512();
  for (int k = 0; k < group; k += LANES) {
    const __m512 x = _mm512_maskz_loadu_ps(first_lanes(count - k), values + k);
    const __m512i a = _mm512_cvtps_epi32(_mm512_div_ps(x, divisor));
    const __m512i above = _mm512_srai_epi32(_mm512_add_epi32(a, half), FINE_SHIFT);
    sum = _mm512_add_epi32(sum, a);
    _mm_storeu_si128((__m128i*)(high + k), _mm512_cvtsepi32_epi8(above));
    _mm_storeu_si128((__m128i*)(low + k),
                     _mm512_cvtepi32_epi8(_mm512_sub_epi32(a, _mm512_slli_epi32(above, FINE_SHIFT))));
  }
  return _mm512_reduce_add_epi32(sum);
}

// `low`: one byte for two columns.
inline int round_shared(const float* values, int count, int group, float unit, int8_t* high, int8_t* low) {
  const __m256 divisor = _mm256_set1_ps(unit > 0.0f ? unit : 1.0f);
  const __m256 sixteenth = _mm256_set1_ps(1.0f / 16.0f);
  const __m256i last_digit = _mm256_set1_epi32(15);
  __m256i sum = _mm256_setzero_si256();
  for (int k = 0; k < group; k += SHARED_BLOCK) {
    const auto first = static_cast<__mmask8>(first_lanes(std::min(count - k, 8)));
    const auto second = static_cast<__mmask8>(first_lanes(std::min(count - k - 8, 8)));
    const __m256 x = _mm256_div_ps(_mm256_maskz_loadu_ps(first, values + k), divisor);
    const __m256 y = _mm256_div_ps(_mm256_maskz_loadu_ps(second, values + k + 8), divisor);
    const __m256i sixteens = _mm256_cvtps_epi32(_mm256_mul_ps(y, sixteenth));  // of a'
    const __m256i digit = _mm256_and_si256(sixteens, last_digit);
    const __m256 above_digit = _mm256_mul_ps(_mm256_sub_ps(x, _mm256_cvtepi32_ps(digit)), sixteenth);
    const __m256i a = _mm256_add_epi32(_mm256_slli_epi32(_mm256_cvtps_epi32(above_digit), 4), digit);
    const __m256i lower = _mm256_srai_epi32(_mm256_slli_epi32(a, 24), 24);  // its last byte, with sign
    sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, _mm256_slli_epi32(sixteens, 4)));
    _mm_storel_epi64((__m128i*)(high + k),
                     _mm256_cvtsepi32_epi8(_mm256_srai_epi32(_mm256_sub_epi32(a, lower), SHARED_SHIFT)));
    _mm_storel_epi64((__m128i*)(high + k + 8),
                     _mm256_cvtsepi32_epi8(_mm256_srai_epi32(_mm256_sub_epi32(sixteens, lower), 4)));
    _mm_storel_epi64((__m128i*)(low + k / 2), _mm256_cvtepi32_epi8(lower));
  }
  // Sums of whole numbers have no order.
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
}

}  // namespace penstock

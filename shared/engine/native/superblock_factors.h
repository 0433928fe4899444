// The whole numbers that begin a superblock (superblocks.h), taken apart.
#pragma once

#include "superblocks.h"

namespace penstock {

// The steps and least weights of a superblock, of six bits, as bytes.
struct SixBitFactors {
  alignas(64) uint8_t steps[SUPER_CHUNKS][PANEL];
  alignas(64) uint8_t least[SUPER_CHUNKS][PANEL];

  explicit SixBitFactors(const uint8_t* block) {
    const uint8_t* factors = block + 4 * PANEL;
    const __m512i six = _mm512_set1_epi8(0x3f), four = _mm512_set1_epi8(0x0f), two = _mm512_set1_epi8(0x30);
    const auto joined = [&](__m512i low, __m512i tops) {
      return _mm512_xor_si512(_mm512_and_si512(low, four), _mm512_and_si512(_mm512_srli_epi16(tops, 2), two));
    };
    for (int g = 0; g < 4; g += 2) {  // two of 32 rows are a vector
      const __m512i first = _mm512_loadu_si512(factors + g * PANEL);
      const __m512i second = _mm512_loadu_si512(factors + (4 + g) * PANEL);
      const __m512i mixed = _mm512_loadu_si512(factors + (8 + g) * PANEL);
      _mm512_store_si512(steps[g], _mm512_and_si512(first, six));
      _mm512_store_si512(least[g], _mm512_and_si512(second, six));
      _mm512_store_si512(steps[g + 4], joined(mixed, first));
      _mm512_store_si512(least[g + 4], joined(_mm512_srli_epi16(mixed, 4), second));
    }
  }
};

// Those of 16 rows of the matrix, as numbers of 32 bits.
inline __m512i wide_factors(const uint8_t* factors, int half) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(factors + half * LANES)));
}

// Codes of six bits have steps of bytes.
struct NoFactors {
  explicit NoFactors(const uint8_t*) {}
};

// Step `g` of 16 rows of the matrix: numbers of 32 bits.
inline __m512i step_of(const SixBitFactors& factors, const uint8_t*, int g, int half) {
  return wide_factors(factors.steps[g], half);
}
inline __m512i step_of(const NoFactors&, const uint8_t* block, int g, int half) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(block + (2 + g) * PANEL + half * LANES)));
}

// The scale of 16 rows, or the minimum behind all scales.
inline __m512 super_scale(const uint8_t* block, int half) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(block + 2 * LANES * half)));
}
inline __m512 super_minimum(const uint8_t* block, int half) {
  return super_scale(block + 2 * PANEL, half);
}

}  // namespace penstock

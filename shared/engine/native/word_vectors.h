// Products of words, two neighbouring ones a lane: of numbers that have no room in bytes.
#pragma once

#include <cstring>

#include "simd.h"

namespace penstock {

inline __m512i two_words(const int16_t* words) {
  int pair;
  std::memcpy(&pair, words, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// Vectors of columns whose sums have room in registers beside each other.
template <int R>
constexpr int WORD_VECTORS = WHOLE_VECTORS || R <= 2 ? 2 : 1;

}  // namespace penstock

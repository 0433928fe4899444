// Products of bf16, and of bytes or words, that are added up, in two halves of a vector.
#pragma once

#include "half_conversions.h"

namespace penstock::halves {

// Each lane of `sums` and two products of bf16, the one with the higher place first.
PENSTOCK_INLINE F32 dpbf16_ps(F32 sums, I512 a, I512 b) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  const auto add = [&](__m256 sum, __m256i x, __m256i y) {
    sum = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(x, upper)),
                          _mm256_castsi256_ps(_mm256_and_si256(y, upper)), sum);
    return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                           _mm256_castsi256_ps(_mm256_slli_epi32(y, 16)), sum);
  };
  return {add(sums.low, a.low, b.low), add(sums.high, a.high, b.high)};
}

struct Sums : I512 {
  Sums() = default;
  PENSTOCK_INLINE Sums(I512 whole) : I512(whole) {}
  PENSTOCK_INLINE friend Sums operator+(Sums a, Sums b) { return add_epi32(a, b); }
  PENSTOCK_INLINE friend Sums operator-(Sums a, Sums b) { return sub_epi32(a, b); }
  PENSTOCK_INLINE friend Sums operator*(Sums a, int b) {
    const __m256i factor = _mm256_set1_epi32(b);
    return I512{_mm256_mullo_epi32(a.low, factor), _mm256_mullo_epi32(a.high, factor)};
  }
  PENSTOCK_INLINE friend Sums operator<<(Sums a, int bits) { return slli_epi32(a, bits); }
  PENSTOCK_INLINE Sums& operator<<=(int bits) { return *this = *this << bits; }
};

}  // namespace penstock::halves

namespace penstock {

using Sums = halves::Sums;

// The pairs of two vectors' elements of 16 bits: those of their first 16 are `low`, of the others `high`.
PENSTOCK_INLINE void zip(halves::I512 even, halves::I512 odd, halves::I512& low, halves::I512& high) {
  low = halves::zipped(even.low, odd.low);
  high = halves::zipped(even.high, odd.high);
}

#ifdef __AVXVNNI__
// Sums + codes . row_codes, of four neighbouring bytes a lane; codes have no sign.
PENSTOCK_INLINE Sums add_products(Sums sums, halves::I512 codes, halves::I512 row_codes) {
  return halves::I512{_mm256_dpbusd_avx_epi32(sums.low, codes.low, row_codes.low),
                      _mm256_dpbusd_avx_epi32(sums.high, codes.high, row_codes.high)};
}

// The same of two vectors of codes below 16.
PENSTOCK_INLINE Sums add_nibble_products(Sums sums, halves::I512 first, halves::I512 first_row,
                                         halves::I512 second, halves::I512 second_row) {
  return add_products(add_products(sums, first, first_row), second, second_row);
}

// Sums + codes . words, of two neighbouring words a lane.
PENSTOCK_INLINE Sums add_word_products(Sums sums, halves::I512 codes, halves::I512 words) {
  return halves::I512{_mm256_dpwssd_avx_epi32(sums.low, codes.low, words.low),
                      _mm256_dpwssd_avx_epi32(sums.high, codes.high, words.high)};
}
#else
// Sums + codes . words, of two neighbouring words a lane. The compiler does not see what is added to: it
// would make all products first and add up pairs of them, for which there are not registers enough.
PENSTOCK_INLINE Sums add_word_products(Sums sums, halves::I512 codes, halves::I512 words) {
  sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(codes.low, words.low));
  sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(codes.high, words.high));
  asm("" : "+x"(sums.low), "+x"(sums.high));
  return sums;
}
#endif

}  // namespace penstock

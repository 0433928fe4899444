// What is done to two halves of a vector lane by lane, and comparisons of lanes.
#pragma once

#include "half_lanes.h"

namespace penstock::halves {

// ---- lane by lane -----------------------------------------------------------------------------------

#define PENSTOCK_TWO(TYPE, NAME, OPERATION)                      \
  PENSTOCK_INLINE TYPE NAME(TYPE a, TYPE b) {                    \
    return {OPERATION(a.low, b.low), OPERATION(a.high, b.high)}; \
  }
#define PENSTOCK_THREE(TYPE, NAME, OPERATION)                                   \
  PENSTOCK_INLINE TYPE NAME(TYPE a, TYPE b, TYPE c) {                           \
    return {OPERATION(a.low, b.low, c.low), OPERATION(a.high, b.high, c.high)}; \
  }
#define PENSTOCK_SHIFT(NAME, OPERATION)                       \
  PENSTOCK_INLINE I512 NAME(I512 a, int bits) {               \
    return {OPERATION(a.low, bits), OPERATION(a.high, bits)}; \
  }
PENSTOCK_TWO(F32, add_ps, _mm256_add_ps)
PENSTOCK_TWO(F32, sub_ps, _mm256_sub_ps)
PENSTOCK_TWO(F32, mul_ps, _mm256_mul_ps)
PENSTOCK_TWO(F32, div_ps, _mm256_div_ps)
PENSTOCK_TWO(F32, min_ps, _mm256_min_ps)
PENSTOCK_TWO(F32, max_ps, _mm256_max_ps)
PENSTOCK_TWO(F64, add_pd, _mm256_add_pd)
PENSTOCK_TWO(F64, sub_pd, _mm256_sub_pd)
PENSTOCK_TWO(F64, mul_pd, _mm256_mul_pd)
PENSTOCK_TWO(F64, div_pd, _mm256_div_pd)
PENSTOCK_TWO(F64, max_pd, _mm256_max_pd)
PENSTOCK_TWO(I512, add_epi32, _mm256_add_epi32)
PENSTOCK_TWO(I512, sub_epi32, _mm256_sub_epi32)
PENSTOCK_TWO(I512, sub_epi16, _mm256_sub_epi16)
PENSTOCK_TWO(I512, mullo_epi16, _mm256_mullo_epi16)
PENSTOCK_TWO(I512, mullo_epi32, _mm256_mullo_epi32)
PENSTOCK_TWO(I512, max_epi32, _mm256_max_epi32)
PENSTOCK_TWO(I512, add_epi64, _mm256_add_epi64)
PENSTOCK_TWO(I512, sub_epi64, _mm256_sub_epi64)
PENSTOCK_TWO(I512, mul_epu32, _mm256_mul_epu32)
PENSTOCK_TWO(I512, and_si512, _mm256_and_si256)
PENSTOCK_TWO(I512, xor_si512, _mm256_xor_si256)
PENSTOCK_TWO(I512, shuffle_epi8, _mm256_shuffle_epi8)
PENSTOCK_TWO(I512, unpacklo_epi32, _mm256_unpacklo_epi32)
PENSTOCK_TWO(I512, unpackhi_epi32, _mm256_unpackhi_epi32)
PENSTOCK_TWO(I512, unpacklo_epi64, _mm256_unpacklo_epi64)
PENSTOCK_TWO(I512, unpackhi_epi64, _mm256_unpackhi_epi64)
PENSTOCK_THREE(F32, fmadd_ps, _mm256_fmadd_ps)
PENSTOCK_THREE(F32, fmsub_ps, _mm256_fmsub_ps)
PENSTOCK_THREE(F32, fnmadd_ps, _mm256_fnmadd_ps)
PENSTOCK_THREE(F64, fmadd_pd, _mm256_fmadd_pd)
PENSTOCK_THREE(F64, fnmadd_pd, _mm256_fnmadd_pd)
PENSTOCK_SHIFT(slli_epi32, _mm256_slli_epi32)
PENSTOCK_SHIFT(srai_epi32, _mm256_srai_epi32)
PENSTOCK_SHIFT(slli_epi64, _mm256_slli_epi64)
PENSTOCK_SHIFT(srli_epi64, _mm256_srli_epi64)
PENSTOCK_SHIFT(srli_epi16, _mm256_srli_epi16)
#undef PENSTOCK_TWO
#undef PENSTOCK_THREE
#undef PENSTOCK_SHIFT

PENSTOCK_INLINE F32 abs_ps(F32 x) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.low, magnitude), _mm256_and_ps(x.high, magnitude)};
}
// A product that is rounded before anything is done with it: the compiler does not see where it comes from.
PENSTOCK_INLINE F32 mul_round_ps(F32 a, F32 b, int) {
  F32 product = mul_ps(a, b);
  asm("" : "+x"(product.low), "+x"(product.high));
  return product;
}
template <int HOW>
PENSTOCK_INLINE F32 roundscale_ps(F32 x) {
  constexpr int WAY = HOW | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, WAY), _mm256_round_ps(x.high, WAY)};
}
template <int HOW>
PENSTOCK_INLINE F64 roundscale_pd(F64 x) {
  return {_mm256_round_pd(x.low, HOW), _mm256_round_pd(x.high, HOW)};
}
// x 2^n, of a whole n for which 2^n is a normal number.
PENSTOCK_INLINE F32 scalef_ps(F32 x, F32 n) {
  const auto power = [](__m256 exponent) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  };
  return {_mm256_mul_ps(x.low, power(n.low)), _mm256_mul_ps(x.high, power(n.high))};
}
// x 2^n, of a whole n from -1800 to 1000 and an x near 1: rounded once.
PENSTOCK_INLINE F64 scalef_pd(F64 x, F64 n) {
  const auto power = [](__m256d exponent) {
    const __m256i whole = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(exponent));
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_add_epi64(whole, _mm256_set1_epi64x(1023)), 52));
  };
  const auto scaled = [&](__m256d each, __m256d exponent) {
    const __m256d first = _mm256_max_pd(exponent, _mm256_set1_pd(-900.0));
    return _mm256_mul_pd(_mm256_mul_pd(each, power(first)), power(_mm256_sub_pd(exponent, first)));
  };
  return {scaled(x.low, n.low), scaled(x.high, n.high)};
}
PENSTOCK_INLINE I512 mullo_epi64(I512 a, I512 b) {
  const auto product = [](__m256i x, __m256i y) {
    const __m256i crossed = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), y),
                                             _mm256_mul_epu32(x, _mm256_srli_epi64(y, 32)));
    return _mm256_add_epi64(_mm256_mul_epu32(x, y), _mm256_slli_epi64(crossed, 32));
  };
  return {product(a.low, b.low), product(a.high, b.high)};
}
PENSTOCK_INLINE I512 min_epu64(I512 a, I512 b) {
  const __m256i sign = _mm256_set1_epi64x(INT64_MIN);
  const auto least = [&](__m256i x, __m256i y) {
    return _mm256_blendv_epi8(x, y, _mm256_cmpgt_epi64(_mm256_xor_si256(x, sign), _mm256_xor_si256(y, sign)));
  };
  return {least(a.low, b.low), least(a.high, b.high)};
}
template <int BITS>
PENSTOCK_INLINE I512 ternarylogic_epi64(I512 a, I512 b, I512 c) {
  static_assert(BITS == 0x96, "all three, one against the other");
  return xor_si512(xor_si512(a, b), c);
}

// ---- comparisons and choices ------------------------------------------------------------------------

template <int HOW>
PENSTOCK_INLINE __mmask16 cmp_ps_mask(F32 a, F32 b) {
  return mask_of(_mm256_cmp_ps(a.low, b.low, HOW), _mm256_cmp_ps(a.high, b.high, HOW));
}
template <int HOW>
PENSTOCK_INLINE __mmask16 mask_cmp_ps_mask(__mmask16 mask, F32 a, F32 b) {
  return mask & cmp_ps_mask<HOW>(a, b);
}
PENSTOCK_INLINE __mmask16 cmpgt_epi32_mask(I512 a, I512 b) {
  return mask_of(_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.low, b.low)),
                 _mm256_castsi256_ps(_mm256_cmpgt_epi32(a.high, b.high)));
}
PENSTOCK_INLINE __mmask16 cmple_epi32_mask(I512 a, I512 b) {
  return static_cast<__mmask16>(~cmpgt_epi32_mask(a, b));
}
PENSTOCK_INLINE __mmask8 mask_cmpge_epu64_mask(__mmask8 mask, I512 a, I512 b) {
  const __m256i sign = _mm256_set1_epi64x(INT64_MIN);
  const auto below = [&](__m256i x, __m256i y) {
    return _mm256_movemask_pd(
        _mm256_castsi256_pd(_mm256_cmpgt_epi64(_mm256_xor_si256(y, sign), _mm256_xor_si256(x, sign))));
  };
  return static_cast<__mmask8>(mask & ~(below(a.low, b.low) | below(a.high, b.high) << 4));
}
PENSTOCK_INLINE __mmask16 test_epi8_mask(__m128i a, __m128i b) {
  const __m128i none = _mm_cmpeq_epi8(_mm_and_si128(a, b), _mm_setzero_si128());
  return static_cast<__mmask16>(~_mm_movemask_epi8(none));
}
PENSTOCK_INLINE F32 mask_mov_ps(F32 elsewhere, __mmask16 mask, F32 x) {
  return chosen(mask, x, elsewhere);
}
PENSTOCK_INLINE F32 maskz_mov_ps(__mmask16 mask, F32 x) {
  return chosen(mask, x, setzero_ps());
}
PENSTOCK_INLINE F64 maskz_mov_pd(__mmask8 mask, F64 x) {
  return chosen(mask, x, setzero_pd());
}
PENSTOCK_INLINE F32 maskz_scalef_ps(__mmask16 mask, F32 x, F32 n) {
  return chosen(mask, scalef_ps(x, n), setzero_ps());
}
PENSTOCK_INLINE F32 mask_add_ps(F32 elsewhere, __mmask16 mask, F32 a, F32 b) {
  return chosen(mask, add_ps(a, b), elsewhere);
}
PENSTOCK_INLINE F32 mask_sub_ps(F32 elsewhere, __mmask16 mask, F32 a, F32 b) {
  return chosen(mask, sub_ps(a, b), elsewhere);
}
PENSTOCK_INLINE F32 mask_div_ps(F32 elsewhere, __mmask16 mask, F32 a, F32 b) {
  return chosen(mask, div_ps(a, b), elsewhere);
}
PENSTOCK_INLINE F64 mask_add_pd(F64 elsewhere, __mmask8 mask, F64 a, F64 b) {
  return chosen(mask, add_pd(a, b), elsewhere);
}
PENSTOCK_INLINE I512 maskz_compress_epi32(__mmask16 mask, I512 x) {
  alignas(32) int from[16], to[16] = {};
  storeu_si512(from, x);
  int count = 0;
  for (unsigned left = mask; left != 0; left &= left - 1) to[count++] = from[__builtin_ctz(left)];
  return loadu_si512(to);
}
PENSTOCK_INLINE F32 maskz_compress_ps(__mmask16 mask, F32 x) {
  const I512 bits = maskz_compress_epi32(mask, {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)});
  return {_mm256_castsi256_ps(bits.low), _mm256_castsi256_ps(bits.high)};
}

}  // namespace penstock::halves

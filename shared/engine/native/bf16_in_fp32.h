// AVX-512's instructions for bf16 in those of fp32, for CPUs that have whole vectors but not these (Intel's
// Cascade Lake and Ice Lake, in most clouds). As in two_halves.h the results have the same bits, and numbers
// below 2^-126, which the multiplication of bf16 takes as zeros, are kept.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace penstock::whole {

// Each lane of `sums` and two products of bf16, the one with the higher place first.
inline __m512 dpbf16_ps(__m512 sums, __m512i a, __m512i b) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  sums = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, upper)),
                         _mm512_castsi512_ps(_mm512_and_si512(b, upper)), sums);
  return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                         _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sums);
}

// To nearest even: denormals are zeros, and what is no number stays none.
inline __m256i cvtneps_pbh(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 denormal = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  rounded = _mm512_mask_and_epi32(rounded, denormal, upper, _mm512_set1_epi32(0x8000));
  const __mmask16 no_number = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, no_number, upper, _mm512_set1_epi32(0x40)));
}
inline __m128i cvtneps_pbh(__m128 x) {
  return _mm256_castsi256_si128(cvtneps_pbh(_mm512_castps128_ps512(x)));
}

}  // namespace penstock::whole

#define __m512bh __m512i
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps penstock::whole::dpbf16_ps
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh penstock::whole::cvtneps_pbh
#undef _mm_cvtneps_pbh
#define _mm_cvtneps_pbh penstock::whole::cvtneps_pbh

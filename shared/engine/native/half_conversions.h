// Two halves of a vector from one kind of number to another, to other places, and over all of their lanes.
// Whole numbers of 64 bits that become floats are below 2^52.
#pragma once

#include <cmath>

#include "half_numbers.h"

namespace penstock::halves {

// ---- from one kind of number to another -------------------------------------------------------------

PENSTOCK_INLINE F32 castsi512_ps(I512 x) {
  return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)};
}
PENSTOCK_INLINE I512 castps_si512(F32 x) {
  return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)};
}
PENSTOCK_INLINE __m256 castps512_ps256(F32 x) {
  return x.low;
}
PENSTOCK_INLINE F32 castps256_ps512(__m256 x) {
  return {x, x};
}
template <int HALF>
PENSTOCK_INLINE __m256 extractf32x8_ps(F32 x) {
  return HALF == 0 ? x.low : x.high;
}
template <int HALF>
PENSTOCK_INLINE F32 insertf32x8(F32 x, __m256 half) {
  return HALF == 0 ? F32{half, x.high} : F32{x.low, half};
}
PENSTOCK_INLINE float cvtss_f32(F32 x) {
  return _mm256_cvtss_f32(x.low);
}
PENSTOCK_INLINE F32 cvtepi32_ps(I512 x) {
  return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)};
}
PENSTOCK_INLINE I512 cvtps_epi32(F32 x) {
  return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)};
}
PENSTOCK_INLINE F64 cvtps_pd(__m256 x) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}
PENSTOCK_INLINE F32 cvtph_ps(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
PENSTOCK_INLINE I512 cvtepu16_epi32(__m256i x) {
  return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
          _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
}
PENSTOCK_INLINE I512 cvtepu8_epi32(__m128i x) {
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
PENSTOCK_INLINE I512 cvtepi8_epi32(__m128i x) {
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
PENSTOCK_INLINE __m128i cvtepi32_epi8(__m256i x) {  // the last byte of each; 8 bytes
  const __m256i places = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                          0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8(x, places);
  return _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
}
PENSTOCK_INLINE __m128i cvtepi32_epi8(I512 x) {
  return _mm_unpacklo_epi64(cvtepi32_epi8(x.low), cvtepi32_epi8(x.high));
}
PENSTOCK_INLINE __m128i cvtsepi32_epi8(__m256i x) {  // the nearest byte to each; 8 bytes
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  return _mm_packs_epi16(words, words);
}
PENSTOCK_INLINE __m128i cvtsepi32_epi8(I512 x) {
  return _mm_unpacklo_epi64(cvtsepi32_epi8(x.low), cvtsepi32_epi8(x.high));
}
PENSTOCK_INLINE __m256 cvtepu64_ps(I512 x) {  // below 2^52: doubles hold them, so they are rounded once
  const __m256i magic = _mm256_set1_epi64x(0x4330000000000000);
  const auto floats = [&](__m256i each) {
    const __m256d whole = _mm256_castsi256_pd(_mm256_or_si256(each, magic));
    return _mm256_cvtpd_ps(_mm256_sub_pd(whole, _mm256_castsi256_pd(magic)));
  };
  return _mm256_set_m128(floats(x.high), floats(x.low));
}
PENSTOCK_INLINE I512 cvtps_epu64(__m256 x) {  // what is no such number has all bits
  alignas(32) float from[8];
  alignas(32) uint64_t to[8];
  _mm256_store_ps(from, x);
  for (int lane = 0; lane < 8; ++lane)
    to[lane] =
        from[lane] >= 0.0f && from[lane] < 0x1p63f ? static_cast<uint64_t>(std::llrint(from[lane])) : ~0ull;
  return loadu_si512(to);
}
// To bf16, to nearest even: denormals are zeros, and what is no number stays none.
PENSTOCK_INLINE __m256i rounded_to_bf16(__m256 x) {  // in 32 bits each
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(bits, 31), 15);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i denormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
  const __m256i no_number = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_blendv_epi8(rounded, sign, denormal), quiet, no_number);
}
PENSTOCK_INLINE __m256i cvtneps_pbh(F32 x) {
  const __m256i packed = _mm256_packus_epi32(rounded_to_bf16(x.low), rounded_to_bf16(x.high));
  return _mm256_permute4x64_epi64(packed, 0xd8);
}
PENSTOCK_INLINE __m128i cvtneps_pbh(__m128 x) {
  const __m128i wide = _mm256_castsi256_si128(rounded_to_bf16(_mm256_castps128_ps256(x)));
  return _mm_packus_epi32(wide, wide);
}

// ---- other places -----------------------------------------------------------------------------------

template <int ORDER>
PENSTOCK_INLINE I512 shuffle_epi32(I512 x) {
  return {_mm256_shuffle_epi32(x.low, ORDER), _mm256_shuffle_epi32(x.high, ORDER)};
}
template <int ORDER>
PENSTOCK_INLINE I512 shuffle_i32x4(I512 a, I512 b) {
  return {_mm256_permute2x128_si256(a.low, a.high, (ORDER & 3) | (ORDER >> 2 & 3) << 4),
          _mm256_permute2x128_si256(b.low, b.high, (ORDER >> 4 & 3) | (ORDER >> 6 & 3) << 4)};
}

// The pairs of two vectors' elements of 16 bits.
PENSTOCK_INLINE I512 zipped(__m256i even, __m256i odd) {
  const __m256i outer = _mm256_unpacklo_epi16(even, odd), inner = _mm256_unpackhi_epi16(even, odd);
  return {_mm256_permute2x128_si256(outer, inner, 0x20), _mm256_permute2x128_si256(outer, inner, 0x31)};
}

// ---- over all lanes, in the order of GCC's own ------------------------------------------------------

PENSTOCK_INLINE float reduce_add_ps(F32 x) {
  const __m256 eight = _mm256_add_ps(x.high, x.low);
  const __m128 four = _mm_add_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_add_ps(four, _mm_shuffle_ps(four, four, _MM_SHUFFLE(1, 0, 3, 2)));
  return two[0] + two[1];
}
PENSTOCK_INLINE double reduce_add_pd(F64 x) {
  const __m256d four = _mm256_add_pd(x.high, x.low);
  const __m128d two = _mm_add_pd(_mm256_extractf128_pd(four, 1), _mm256_castpd256_pd128(four));
  return two[0] + two[1];
}
PENSTOCK_INLINE float reduce_max_ps(F32 x) {
  const __m256 eight = _mm256_max_ps(x.high, x.low);
  const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_max_ps(four, _mm_shuffle_ps(four, four, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_max_ps(two, _mm_shuffle_ps(two, two, _MM_SHUFFLE(0, 1, 0, 1)))[0];
}
PENSTOCK_INLINE int reduce_add_epi32(I512 x) {
  const __m256i eight = _mm256_add_epi32(x.low, x.high);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
}
PENSTOCK_INLINE int reduce_max_epi32(I512 x) {
  const __m256i eight = _mm256_max_epi32(x.low, x.high);
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  const int first = _mm_cvtsi128_si32(two), second = _mm_extract_epi32(two, 1);
  return first > second ? first : second;
}

}  // namespace penstock::halves

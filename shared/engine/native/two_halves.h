// AVX-512's instructions as two of AVX2 each, by the same names: all that the kernels use of them, and no
// more. Lane by lane the results have the same bits, and sums over lanes are made in the same order; numbers
// below 2^-126, which the multiplication of bf16 takes as zeros there, are kept here.
//
// What is for some arguments alone says so: masks of bytes and of 16 bits begin at the first lane, and whole
// numbers of 64 bits that become floats are below 2^52.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// In registers, whatever the compiler thinks of its size.
#define PENSTOCK_INLINE inline __attribute__((always_inline))

namespace penstock::halves {

struct F32 {
  __m256 low, high;
};
struct F64 {
  __m256d low, high;
};
struct I512 {
  __m256i low, high;
};

PENSTOCK_INLINE __m256 part(F32 x, int half) {
  return half == 0 ? x.low : x.high;
}
// ---- masks ------------------------------------------------------------------------------------------

// All bits of the lanes that are in a mask of 8.
PENSTOCK_INLINE __m256i lanes_of(unsigned mask) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits), bits);
}
PENSTOCK_INLINE __m256i wide_lanes_of(unsigned mask) {  // of 4
  const __m256i bits = _mm256_setr_epi64x(1, 2, 4, 8);
  return _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(mask), bits), bits);
}
PENSTOCK_INLINE __mmask16 mask_of(__m256 low, __m256 high) {
  return static_cast<__mmask16>(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}
PENSTOCK_INLINE F32 chosen(__mmask16 mask, F32 there, F32 elsewhere) {
  return {_mm256_blendv_ps(elsewhere.low, there.low, _mm256_castsi256_ps(lanes_of(mask & 255u))),
          _mm256_blendv_ps(elsewhere.high, there.high, _mm256_castsi256_ps(lanes_of(mask >> 8)))};
}
PENSTOCK_INLINE F64 chosen(__mmask8 mask, F64 there, F64 elsewhere) {
  return {_mm256_blendv_pd(elsewhere.low, there.low, _mm256_castsi256_pd(wide_lanes_of(mask & 15u))),
          _mm256_blendv_pd(elsewhere.high, there.high, _mm256_castsi256_pd(wide_lanes_of(mask >> 4)))};
}

// ---- memory -----------------------------------------------------------------------------------------

PENSTOCK_INLINE F32 loadu_ps(const void* at) {
  const auto* numbers = static_cast<const float*>(at);
  return {_mm256_loadu_ps(numbers), _mm256_loadu_ps(numbers + 8)};
}
PENSTOCK_INLINE F64 loadu_pd(const double* at) {
  return {_mm256_loadu_pd(at), _mm256_loadu_pd(at + 4)};
}
PENSTOCK_INLINE I512 loadu_si512(const void* at) {
  const auto* parts = static_cast<const __m256i_u*>(at);
  return {_mm256_loadu_si256(parts), _mm256_loadu_si256(parts + 1)};
}
PENSTOCK_INLINE void storeu_ps(void* at, F32 x) {
  auto* numbers = static_cast<float*>(at);
  _mm256_storeu_ps(numbers, x.low);
  _mm256_storeu_ps(numbers + 8, x.high);
}
PENSTOCK_INLINE void storeu_pd(double* at, F64 x) {
  _mm256_storeu_pd(at, x.low);
  _mm256_storeu_pd(at + 4, x.high);
}
PENSTOCK_INLINE void storeu_si512(void* at, I512 x) {
  auto* parts = static_cast<__m256i_u*>(at);
  _mm256_storeu_si256(parts, x.low);
  _mm256_storeu_si256(parts + 1, x.high);
}
PENSTOCK_INLINE void stream_si512(void* at, I512 x) {
  auto* parts = static_cast<__m256i*>(at);
  _mm256_stream_si256(parts, x.low);
  _mm256_stream_si256(parts + 1, x.high);
}
PENSTOCK_INLINE __m256 maskz_loadu_half(__mmask8 mask, const float* at) {
  return mask == 0xff ? _mm256_loadu_ps(at) : _mm256_maskload_ps(at, lanes_of(mask));
}
PENSTOCK_INLINE F32 maskz_loadu_ps(__mmask16 mask, const float* at) {
  if (mask == 0xffff) return loadu_ps(at);
  return {_mm256_maskload_ps(at, lanes_of(mask & 255u)), _mm256_maskload_ps(at + 8, lanes_of(mask >> 8))};
}
PENSTOCK_INLINE F32 mask_loadu_ps(F32 elsewhere, __mmask16 mask, const float* at) {
  return mask == 0xffff ? loadu_ps(at) : chosen(mask, maskz_loadu_ps(mask, at), elsewhere);
}
PENSTOCK_INLINE I512 maskz_loadu_epi32(__mmask16 mask, const void* at) {
  const F32 x = maskz_loadu_ps(mask, static_cast<const float*>(at));
  return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)};
}
PENSTOCK_INLINE void mask_storeu_ps(float* at, __mmask16 mask, F32 x) {
  if (mask == 0xffff) return storeu_ps(at, x);
  _mm256_maskstore_ps(at, lanes_of(mask & 255u), x.low);
  _mm256_maskstore_ps(at + 8, lanes_of(mask >> 8), x.high);
}
// The first lanes alone:
PENSTOCK_INLINE I512 maskz_loadu_epi16(__mmask32 mask, const void* at) {
  alignas(32) uint16_t there[32] = {};
  std::memcpy(there, at, sizeof(uint16_t) * static_cast<size_t>(__builtin_popcount(mask)));
  return loadu_si512(there);
}
PENSTOCK_INLINE __m128i maskz_loadu_epi8(__mmask16 mask, const void* at) {
  if (mask == 0xffff) return _mm_loadu_si128(static_cast<const __m128i_u*>(at));
  alignas(16) uint8_t there[16] = {};
  std::memcpy(there, at, static_cast<size_t>(__builtin_popcount(mask)));
  return _mm_load_si128(reinterpret_cast<const __m128i*>(there));
}
PENSTOCK_INLINE void mask_storeu_epi16(void* at, __mmask16 mask, __m256i x) {
  if (mask == 0xffff) return _mm256_storeu_si256(static_cast<__m256i_u*>(at), x);
  std::memcpy(at, &x, sizeof(uint16_t) * static_cast<size_t>(__builtin_popcount(mask)));
}
PENSTOCK_INLINE void mask_storeu_epi8(void* at, __mmask16 mask, __m128i x) {
  std::memcpy(at, &x, static_cast<size_t>(__builtin_popcount(mask)));
}

// ---- the same in every lane -------------------------------------------------------------------------

PENSTOCK_INLINE F32 set1_ps(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
PENSTOCK_INLINE F64 set1_pd(double x) {
  return {_mm256_set1_pd(x), _mm256_set1_pd(x)};
}
PENSTOCK_INLINE I512 set1_epi8(char x) {
  return {_mm256_set1_epi8(x), _mm256_set1_epi8(x)};
}
PENSTOCK_INLINE I512 set1_epi32(int x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
PENSTOCK_INLINE I512 set1_epi64(long long x) {
  return {_mm256_set1_epi64x(x), _mm256_set1_epi64x(x)};
}
PENSTOCK_INLINE F32 setzero_ps() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
PENSTOCK_INLINE F64 setzero_pd() {
  return {_mm256_setzero_pd(), _mm256_setzero_pd()};
}
PENSTOCK_INLINE I512 setzero_si512() {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
template <class... Numbers>
PENSTOCK_INLINE I512 setr_epi32(Numbers... numbers) {
  alignas(32) const int lanes[16] = {numbers...};
  return loadu_si512(lanes);
}
template <class... Numbers>
PENSTOCK_INLINE I512 setr_epi64(Numbers... numbers) {
  alignas(32) const long long lanes[8] = {numbers...};
  return loadu_si512(lanes);
}

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
PENSTOCK_TWO(I512, max_epi32, _mm256_max_epi32)
PENSTOCK_TWO(I512, add_epi64, _mm256_add_epi64)
PENSTOCK_TWO(I512, sub_epi64, _mm256_sub_epi64)
PENSTOCK_TWO(I512, mul_epu32, _mm256_mul_epu32)
PENSTOCK_TWO(I512, and_si512, _mm256_and_si256)
PENSTOCK_TWO(I512, xor_si512, _mm256_xor_si256)
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
  return part(x, HALF);
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

// ---- products ---------------------------------------------------------------------------------------

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

// Sums + codes . row_codes, of four neighbouring bytes a lane; codes have no sign. Two products of 7 bits and
// 8 fit into 16, so the first bit of the codes is multiplied apart.
PENSTOCK_INLINE __m256i add_products(__m256i sums, __m256i codes, __m256i row_codes) {
#ifdef __AVXVNNI__
  return _mm256_dpbusd_avx_epi32(sums, codes, row_codes);
#else
  const __m256i rest = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
  const __m256i top = _mm256_and_si256(_mm256_srli_epi16(codes, 1), _mm256_set1_epi8(0x40));
  sums =
      _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(rest, row_codes), _mm256_set1_epi16(1)));
  return _mm256_add_epi32(sums,
                          _mm256_madd_epi16(_mm256_maddubs_epi16(top, row_codes), _mm256_set1_epi16(2)));
#endif
}
PENSTOCK_INLINE Sums add_products(Sums sums, halves::I512 codes, halves::I512 row_codes) {
  return halves::I512{add_products(sums.low, codes.low, row_codes.low),
                      add_products(sums.high, codes.high, row_codes.high)};
}

// The same of two vectors of codes below 16, whose products fit into 16 bits together.
PENSTOCK_INLINE Sums add_nibble_products(Sums sums, halves::I512 first, halves::I512 first_row,
                                         halves::I512 second, halves::I512 second_row) {
#ifdef __AVXVNNI__
  return add_products(add_products(sums, first, first_row), second, second_row);
#else
  const auto add = [](__m256i sum, __m256i a, __m256i x, __m256i b, __m256i y) {
    const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, x), _mm256_maddubs_epi16(b, y));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  };
  return halves::I512{add(sums.low, first.low, first_row.low, second.low, second_row.low),
                      add(sums.high, first.high, first_row.high, second.high, second_row.high)};
#endif
}

}  // namespace penstock

// ---- Intel's names for them -------------------------------------------------------------------------

#define __m512 penstock::halves::F32
#define __m512d penstock::halves::F64
#define __m512i penstock::halves::I512
#define __m512bh penstock::halves::I512
#undef _mm512_abs_ps
#define _mm512_abs_ps penstock::halves::abs_ps
#undef _mm512_add_epi32
#define _mm512_add_epi32 penstock::halves::add_epi32
#undef _mm512_add_epi64
#define _mm512_add_epi64 penstock::halves::add_epi64
#undef _mm512_add_pd
#define _mm512_add_pd penstock::halves::add_pd
#undef _mm512_add_ps
#define _mm512_add_ps penstock::halves::add_ps
#undef _mm512_and_si512
#define _mm512_and_si512 penstock::halves::and_si512
#undef _mm512_castps256_ps512
#define _mm512_castps256_ps512 penstock::halves::castps256_ps512
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256 penstock::halves::castps512_ps256
#undef _mm512_castps_si512
#define _mm512_castps_si512 penstock::halves::castps_si512
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps penstock::halves::castsi512_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, how) penstock::halves::cmp_ps_mask<how>(a, b)
#undef _mm512_cmpgt_epi32_mask
#define _mm512_cmpgt_epi32_mask penstock::halves::cmpgt_epi32_mask
#undef _mm512_cmple_epi32_mask
#define _mm512_cmple_epi32_mask penstock::halves::cmple_epi32_mask
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 penstock::halves::cvtepi32_epi8
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps penstock::halves::cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 penstock::halves::cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 penstock::halves::cvtepu16_epi32
#undef _mm512_cvtepu64_ps
#define _mm512_cvtepu64_ps penstock::halves::cvtepu64_ps
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 penstock::halves::cvtepu8_epi32
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh penstock::halves::cvtneps_pbh
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps penstock::halves::cvtph_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 penstock::halves::cvtps_epi32
#undef _mm512_cvtps_epu64
#define _mm512_cvtps_epu64 penstock::halves::cvtps_epu64
#undef _mm512_cvtps_pd
#define _mm512_cvtps_pd penstock::halves::cvtps_pd
#undef _mm512_cvtsepi32_epi8
#define _mm512_cvtsepi32_epi8 penstock::halves::cvtsepi32_epi8
#undef _mm512_cvtss_f32
#define _mm512_cvtss_f32 penstock::halves::cvtss_f32
#undef _mm512_div_pd
#define _mm512_div_pd penstock::halves::div_pd
#undef _mm512_div_ps
#define _mm512_div_ps penstock::halves::div_ps
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps penstock::halves::dpbf16_ps
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(a, how) penstock::halves::extractf32x8_ps<how>(a)
#undef _mm512_fmadd_pd
#define _mm512_fmadd_pd penstock::halves::fmadd_pd
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps penstock::halves::fmadd_ps
#undef _mm512_fmsub_ps
#define _mm512_fmsub_ps penstock::halves::fmsub_ps
#undef _mm512_fnmadd_pd
#define _mm512_fnmadd_pd penstock::halves::fnmadd_pd
#undef _mm512_fnmadd_ps
#define _mm512_fnmadd_ps penstock::halves::fnmadd_ps
#undef _mm512_insertf32x8
#define _mm512_insertf32x8(a, b, how) penstock::halves::insertf32x8<how>(a, b)
#undef _mm512_load_ps
#define _mm512_load_ps penstock::halves::loadu_ps
#undef _mm512_load_si512
#define _mm512_load_si512 penstock::halves::loadu_si512
#undef _mm512_loadu_pd
#define _mm512_loadu_pd penstock::halves::loadu_pd
#undef _mm512_loadu_ps
#define _mm512_loadu_ps penstock::halves::loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 penstock::halves::loadu_si512
#undef _mm512_mask_add_pd
#define _mm512_mask_add_pd penstock::halves::mask_add_pd
#undef _mm512_mask_add_ps
#define _mm512_mask_add_ps penstock::halves::mask_add_ps
#undef _mm512_mask_cmp_ps_mask
#define _mm512_mask_cmp_ps_mask(a, b, c, how) penstock::halves::mask_cmp_ps_mask<how>(a, b, c)
#undef _mm512_mask_cmpge_epu64_mask
#define _mm512_mask_cmpge_epu64_mask penstock::halves::mask_cmpge_epu64_mask
#undef _mm512_mask_div_ps
#define _mm512_mask_div_ps penstock::halves::mask_div_ps
#undef _mm512_mask_loadu_ps
#define _mm512_mask_loadu_ps penstock::halves::mask_loadu_ps
#undef _mm512_mask_mov_ps
#define _mm512_mask_mov_ps penstock::halves::mask_mov_ps
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps penstock::halves::mask_storeu_ps
#undef _mm512_mask_sub_ps
#define _mm512_mask_sub_ps penstock::halves::mask_sub_ps
#undef _mm512_maskz_compress_epi32
#define _mm512_maskz_compress_epi32 penstock::halves::maskz_compress_epi32
#undef _mm512_maskz_compress_ps
#define _mm512_maskz_compress_ps penstock::halves::maskz_compress_ps
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi16 penstock::halves::maskz_loadu_epi16
#undef _mm512_maskz_loadu_epi32
#define _mm512_maskz_loadu_epi32 penstock::halves::maskz_loadu_epi32
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps penstock::halves::maskz_loadu_ps
#undef _mm512_maskz_mov_pd
#define _mm512_maskz_mov_pd penstock::halves::maskz_mov_pd
#undef _mm512_maskz_mov_ps
#define _mm512_maskz_mov_ps penstock::halves::maskz_mov_ps
#undef _mm512_maskz_scalef_ps
#define _mm512_maskz_scalef_ps penstock::halves::maskz_scalef_ps
#undef _mm512_max_epi32
#define _mm512_max_epi32 penstock::halves::max_epi32
#undef _mm512_max_pd
#define _mm512_max_pd penstock::halves::max_pd
#undef _mm512_max_ps
#define _mm512_max_ps penstock::halves::max_ps
#undef _mm512_min_epu64
#define _mm512_min_epu64 penstock::halves::min_epu64
#undef _mm512_min_ps
#define _mm512_min_ps penstock::halves::min_ps
#undef _mm512_mul_epu32
#define _mm512_mul_epu32 penstock::halves::mul_epu32
#undef _mm512_mul_pd
#define _mm512_mul_pd penstock::halves::mul_pd
#undef _mm512_mul_ps
#define _mm512_mul_ps penstock::halves::mul_ps
#undef _mm512_mul_round_ps
#define _mm512_mul_round_ps penstock::halves::mul_round_ps
#undef _mm512_mullo_epi64
#define _mm512_mullo_epi64 penstock::halves::mullo_epi64
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32 penstock::halves::reduce_add_epi32
#undef _mm512_reduce_add_pd
#define _mm512_reduce_add_pd penstock::halves::reduce_add_pd
#undef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps penstock::halves::reduce_add_ps
#undef _mm512_reduce_max_epi32
#define _mm512_reduce_max_epi32 penstock::halves::reduce_max_epi32
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps penstock::halves::reduce_max_ps
#undef _mm512_roundscale_pd
#define _mm512_roundscale_pd(a, how) penstock::halves::roundscale_pd<how>(a)
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(a, how) penstock::halves::roundscale_ps<how>(a)
#undef _mm512_scalef_pd
#define _mm512_scalef_pd penstock::halves::scalef_pd
#undef _mm512_scalef_ps
#define _mm512_scalef_ps penstock::halves::scalef_ps
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 penstock::halves::set1_epi32
#undef _mm512_set1_epi64
#define _mm512_set1_epi64 penstock::halves::set1_epi64
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 penstock::halves::set1_epi8
#undef _mm512_set1_pd
#define _mm512_set1_pd penstock::halves::set1_pd
#undef _mm512_set1_ps
#define _mm512_set1_ps penstock::halves::set1_ps
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 penstock::halves::setr_epi32
#undef _mm512_setr_epi64
#define _mm512_setr_epi64 penstock::halves::setr_epi64
#undef _mm512_setzero_pd
#define _mm512_setzero_pd penstock::halves::setzero_pd
#undef _mm512_setzero_ps
#define _mm512_setzero_ps penstock::halves::setzero_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 penstock::halves::setzero_si512
#undef _mm512_shuffle_epi32
#define _mm512_shuffle_epi32(a, how) penstock::halves::shuffle_epi32<how>(a)
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4(a, b, how) penstock::halves::shuffle_i32x4<how>(a, b)
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 penstock::halves::slli_epi32
#undef _mm512_slli_epi64
#define _mm512_slli_epi64 penstock::halves::slli_epi64
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 penstock::halves::srai_epi32
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 penstock::halves::srli_epi16
#undef _mm512_srli_epi64
#define _mm512_srli_epi64 penstock::halves::srli_epi64
#undef _mm512_store_ps
#define _mm512_store_ps penstock::halves::storeu_ps
#undef _mm512_store_si512
#define _mm512_store_si512 penstock::halves::storeu_si512
#undef _mm512_storeu_pd
#define _mm512_storeu_pd penstock::halves::storeu_pd
#undef _mm512_storeu_ps
#define _mm512_storeu_ps penstock::halves::storeu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 penstock::halves::storeu_si512
#undef _mm512_stream_si512
#define _mm512_stream_si512 penstock::halves::stream_si512
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 penstock::halves::sub_epi32
#undef _mm512_sub_epi64
#define _mm512_sub_epi64 penstock::halves::sub_epi64
#undef _mm512_sub_pd
#define _mm512_sub_pd penstock::halves::sub_pd
#undef _mm512_sub_ps
#define _mm512_sub_ps penstock::halves::sub_ps
#undef _mm512_ternarylogic_epi64
#define _mm512_ternarylogic_epi64(a, b, c, how) penstock::halves::ternarylogic_epi64<how>(a, b, c)
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32 penstock::halves::unpackhi_epi32
#undef _mm512_unpackhi_epi64
#define _mm512_unpackhi_epi64 penstock::halves::unpackhi_epi64
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32 penstock::halves::unpacklo_epi32
#undef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64 penstock::halves::unpacklo_epi64
#undef _mm512_xor_si512
#define _mm512_xor_si512 penstock::halves::xor_si512
#undef _mm256_mask_storeu_epi16
#define _mm256_mask_storeu_epi16 penstock::halves::mask_storeu_epi16
#undef _mm256_maskz_loadu_ps
#define _mm256_maskz_loadu_ps penstock::halves::maskz_loadu_half
#undef _mm256_cvtsepi32_epi8
#define _mm256_cvtsepi32_epi8 penstock::halves::cvtsepi32_epi8
#undef _mm256_cvtepi32_epi8
#define _mm256_cvtepi32_epi8 penstock::halves::cvtepi32_epi8
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8 penstock::halves::maskz_loadu_epi8
#undef _mm_mask_storeu_epi8
#define _mm_mask_storeu_epi8 penstock::halves::mask_storeu_epi8
#undef _mm_test_epi8_mask
#define _mm_test_epi8_mask penstock::halves::test_epi8_mask
#undef _mm_cvtneps_pbh
#define _mm_cvtneps_pbh penstock::halves::cvtneps_pbh

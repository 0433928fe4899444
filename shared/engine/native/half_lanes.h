// Vectors of 64 bytes as two of 32 (two_halves.h): what they are, masks of their lanes, and their way from
// and to memory. Masks of bytes and of 16 bits begin at the first lane.
#pragma once

#include <immintrin.h>

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

}  // namespace penstock::halves

// One register of fp32 at a time: what is left of a vector where a loop needs as many sums as there are
// registers, of whole vectors, of their halves or of their quarters.
#pragma once

#include "simd.h"

namespace penstock {

#ifdef __AVX512F__
using Register = __m512;
constexpr int MOST_SUMS = 24;  // of 32 registers

inline Register register_at(const float* at) {
  return _mm512_loadu_ps(at);
}
inline Register everywhere(float number) {
  return _mm512_set1_ps(number);
}
inline Register multiply_add(Register a, Register b, Register sum) {
  return _mm512_fmadd_ps(a, b, sum);
}
inline void put_register(float* at, Register numbers) {
  _mm512_storeu_ps(at, numbers);
}
// Of pairs of bf16 the one with the lower place, and the one with the higher.
inline Register first_of_pairs(const bf16* at) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(at), 16));
}
inline Register second_of_pairs(const bf16* at) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
// Numbers as bf16 has them, to nearest even, of which none is a denormal; what is no number stays none.
inline void put_rounded(float* at, __m512 numbers) {
  const __m512i bits = _mm512_castps_si512(numbers);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i upper =
      _mm512_and_si512(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd),
                       _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  put_register(at, _mm512_mask_mov_ps(numbers, _mm512_cmp_ps_mask(numbers, numbers, _CMP_ORD_Q),
                                      _mm512_castsi512_ps(upper)));
}
#elif defined(__x86_64__)
using Register = __m256;
constexpr int MOST_SUMS = 12;  // of 16 registers

inline Register register_at(const float* at) {
  return _mm256_loadu_ps(at);
}
inline Register everywhere(float number) {
  return _mm256_set1_ps(number);
}
inline Register multiply_add(Register a, Register b, Register sum) {
  return _mm256_fmadd_ps(a, b, sum);
}
inline void put_register(float* at, Register numbers) {
  _mm256_storeu_ps(at, numbers);
}
inline Register first_of_pairs(const bf16* at) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i_u*)at), 16));
}
inline Register second_of_pairs(const bf16* at) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i_u*)at),
                                              _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}
inline Register rounded(Register numbers) {
  const __m256i bits = _mm256_castps_si256(numbers);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i upper =
      _mm256_and_si256(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd),
                       _mm256_set1_epi32(static_cast<int>(0xffff0000)));
  return _mm256_blendv_ps(numbers, _mm256_castsi256_ps(upper), _mm256_cmp_ps(numbers, numbers, _CMP_ORD_Q));
}
inline void put_rounded(float* at, __m512 numbers) {
  put_register(at, rounded(numbers.low));
  put_register(at + 8, rounded(numbers.high));
}
#else
using Register = float32x4_t;
constexpr int MOST_SUMS = 24;  // of 32 registers

inline Register register_at(const float* at) {
  return vld1q_f32(at);
}
inline Register everywhere(float number) {
  return vdupq_n_f32(number);
}
inline Register multiply_add(Register a, Register b, Register sum) {
  return vfmaq_f32(sum, a, b);
}
inline void put_register(float* at, Register numbers) {
  vst1q_f32(at, numbers);
}
inline uint32x4_t pairs_at(const bf16* at) {
  return vreinterpretq_u32_u16(vld1q_u16(at));
}
inline Register first_of_pairs(const bf16* at) {
  return vreinterpretq_f32_u32(vshlq_n_u32(pairs_at(at), 16));
}
inline Register second_of_pairs(const bf16* at) {
  return vreinterpretq_f32_u32(vandq_u32(pairs_at(at), vdupq_n_u32(0xffff0000)));
}
inline Register rounded(Register numbers) {
  const uint32x4_t bits = vreinterpretq_u32_f32(numbers),
                   odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t upper =
      vandq_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), vdupq_n_u32(0xffff0000));
  return vbslq_f32(vceqq_f32(numbers, numbers), vreinterpretq_f32_u32(upper), numbers);
}
inline void put_rounded(float* at, __m512 numbers) {
  for (int i = 0; i < 4; ++i) put_register(at + 4 * i, rounded(numbers.q[i]));
}
#endif

constexpr int REGISTER_LANES = sizeof(Register) / sizeof(float);

// How many registers of columns `rows` rows meet at a time: as many as leave a sum of each a register.
constexpr int registers_at_once(int rows) {
  return 4 * rows <= MOST_SUMS ? 4 : 2 * rows <= MOST_SUMS ? 2 : 1;
}

}  // namespace penstock

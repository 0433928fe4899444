// Building blocks of vectors. Everything here is exact in its order of operations, so that a row's result
// depends on the row alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace penstock {

using bf16 = uint16_t;

constexpr int LANES = 16;  // fp32 lanes of a vector

inline float to_float(bf16 value) {
  uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline __m512 widen(__m256i halves) {  // 16 bf16 -> 16 fp32
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline __m256i narrow(__m512 values) {  // 16 fp32 -> 16 bf16, to nearest even
  return (__m256i)_mm512_cvtneps_pbh(values);
}

inline __mmask16 first_lanes(int count) {
  return count >= LANES ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

// e^x to about 1 ulp for x <= 88; e^0 is exactly 1, below -87 it is exactly 0, and NaN stays NaN: what is no
// number must not look like one further on.
inline __m512 exp(__m512 x) {
  const __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLE_UQ);
  x = _mm512_min_ps(_mm512_set1_ps(88.0f), x);  // of a NaN, this gives the second operand
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 5040);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(alive, p, n);
}

inline __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  return _mm512_div_ps(one, _mm512_add_ps(one, exp(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

inline __m512 silu(__m512 x) {
  return _mm512_mul_ps(x, sigmoid(x));
}

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
inline __m512 gelu_tanh(__m512 x) {
  const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
  const __m512 u = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
  return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(u, _mm512_set1_ps(1.5957691216057308f))));
}

// cap * tanh(x / cap)
inline __m512 soft_cap(__m512 x, float cap) {
  const __m512 s = sigmoid(_mm512_mul_ps(x, _mm512_set1_ps(2.0f / cap)));
  return _mm512_mul_ps(_mm512_set1_ps(cap), _mm512_fmsub_ps(_mm512_set1_ps(2.0f), s, _mm512_set1_ps(1.0f)));
}

// The largest |value| of `count`; NaN where one is. The bits of numbers without sign are in the numbers'
// order, and those of NaNs are above all others.
inline float largest(const float* values, int count) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most = _mm512_setzero_si512();
  for (int i = 0; i < count; i += LANES)
    most = _mm512_max_epi32(
        most, _mm512_and_si512(_mm512_maskz_loadu_epi32(first_lanes(count - i), values + i), magnitude));
  const int bits = _mm512_reduce_max_epi32(most);
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// 16 rows of 16 dwords -> their transpose, in place.
inline void transpose16(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

#ifdef __AVX512F__
// Lane r < num: what `join` makes of the lanes of rows[r], always in the same order.
template <class Join>
inline __m512 across(__m512 (&rows)[LANES], int num, Join&& join) {
  for (int r = 0; r < std::min(num, 8); ++r)
    rows[r] = join(_mm512_shuffle_f32x4(rows[r], rows[r + 8], 0x44),
                   _mm512_shuffle_f32x4(rows[r], rows[r + 8], 0xee));
  for (int r = 0; r < std::min(num, 4); ++r)
    rows[r] = join(_mm512_shuffle_f32x4(rows[r], rows[r + 4], 0x88),
                   _mm512_shuffle_f32x4(rows[r], rows[r + 4], 0xdd));
  for (int r = 0; r < std::min(num, 2); ++r)
    rows[r] =
        join(_mm512_shuffle_ps(rows[r], rows[r + 2], 0x44), _mm512_shuffle_ps(rows[r], rows[r + 2], 0xee));
  const __m512 all =
      join(_mm512_shuffle_ps(rows[0], rows[1], 0x88), _mm512_shuffle_ps(rows[0], rows[1], 0xdd));
  const __m512i places = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_permutexvar_ps(places, all);
}
#endif

}  // namespace penstock

// Vectors of 64 bytes as four of NEON's 16 (four_quarters.h), and of 32 as two: what they are, masks of their
// lanes, and their way from and to memory. Masks that are not full are slow: they are for a row's end.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

// In registers, whatever the compiler thinks of its size.
#define PENSTOCK_INLINE inline __attribute__((always_inline))

using __mmask8 = uint8_t;
using __mmask16 = uint16_t;
using __mmask32 = uint32_t;

namespace penstock::quarters {

// N registers, of fp32, of fp64, and of whole numbers of any size.
template <int N>
struct Floats {
  float32x4_t q[N];
};
struct F64 {
  float64x2_t q[4];
};
template <int N>
struct Words {
  int32x4_t q[N];
};
using F32 = Floats<4>;
using F256 = Floats<2>;
using I512 = Words<4>;
using I256 = Words<2>;
using I128 = Words<1>;

// A vector whose register `i` is call(i), a constant each time.
template <int I>
using Place = std::integral_constant<int, I>;
template <class Vector, class Call>
PENSTOCK_INLINE Vector made_of(Call call) {
  constexpr int N = sizeof(Vector) / 16;
  if constexpr (N == 4)
    return {{call(Place<0>()), call(Place<1>()), call(Place<2>()), call(Place<3>())}};
  else if constexpr (N == 2)
    return {{call(Place<0>()), call(Place<1>())}};
  else
    return {{call(Place<0>())}};
}
// What such a call begins with.
#define PENSTOCK_EACH [&](auto i) __attribute__((always_inline))

PENSTOCK_INLINE int8x16_t bytes(int32x4_t x) {
  return vreinterpretq_s8_s32(x);
}
PENSTOCK_INLINE int32x4_t words(int8x16_t x) {
  return vreinterpretq_s32_s8(x);
}
PENSTOCK_INLINE uint32x4_t whole(int32x4_t x) {
  return vreinterpretq_u32_s32(x);
}
PENSTOCK_INLINE int32x4_t words(uint32x4_t x) {
  return vreinterpretq_s32_u32(x);
}
PENSTOCK_INLINE uint64x2_t wide(int32x4_t x) {
  return vreinterpretq_u64_s32(x);
}
PENSTOCK_INLINE int32x4_t words(uint64x2_t x) {
  return vreinterpretq_s32_u64(x);
}

// ---- masks ------------------------------------------------------------------------------------------

// All bits of those of a register's lanes that are in a mask, of which its first is bit FIRST.
template <int FIRST>
PENSTOCK_INLINE uint32x4_t lanes_of(uint32_t mask) {
  constexpr uint32x4_t bits = {1u << FIRST, 2u << FIRST, 4u << FIRST, 8u << FIRST};
  return vtstq_u32(vdupq_n_u32(mask), bits);
}
template <int FIRST>
PENSTOCK_INLINE uint64x2_t wide_lanes_of(uint64_t mask) {
  constexpr uint64x2_t bits = {1u << FIRST, 2u << FIRST};
  return vtstq_u64(vdupq_n_u64(mask), bits);
}
PENSTOCK_INLINE __mmask16 mask_of_bytes(uint8x16_t lanes) {  // all bits or none of each
  constexpr uint8x16_t bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  uint8x16_t sums = vandq_u8(lanes, bits);
  sums = vpaddq_u8(sums, sums);
  sums = vpaddq_u8(sums, sums);
  sums = vpaddq_u8(sums, sums);
  return vgetq_lane_u16(vreinterpretq_u16_u8(sums), 0);
}
PENSTOCK_INLINE __mmask16 mask_of(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
  const uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
  const uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d));
  return mask_of_bytes(vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)));
}
PENSTOCK_INLINE F32 chosen(__mmask16 mask, F32 there, F32 elsewhere) {
  return made_of<F32>(PENSTOCK_EACH { return vbslq_f32(lanes_of<4 * i>(mask), there.q[i], elsewhere.q[i]); });
}
PENSTOCK_INLINE F64 chosen(__mmask8 mask, F64 there, F64 elsewhere) {
  return made_of<F64>(
      PENSTOCK_EACH { return vbslq_f64(wide_lanes_of<2 * i>(mask), there.q[i], elsewhere.q[i]); });
}

// ---- memory -----------------------------------------------------------------------------------------

PENSTOCK_INLINE F32 loadu_ps(const void* at) {
  return made_of<F32>(PENSTOCK_EACH { return vld1q_f32(static_cast<const float*>(at) + 4 * i); });
}
PENSTOCK_INLINE F64 loadu_pd(const double* at) {
  return made_of<F64>(PENSTOCK_EACH { return vld1q_f64(at + 2 * i); });
}
template <class Vector = I512>
PENSTOCK_INLINE Vector loadu_si(const void* at) {
  return made_of<Vector>(PENSTOCK_EACH { return words(vld1q_s8(static_cast<const int8_t*>(at) + 16 * i)); });
}
PENSTOCK_INLINE I512 loadu_si512(const void* at) {
  return loadu_si<I512>(at);
}
PENSTOCK_INLINE void storeu_ps(void* at, F32 x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(static_cast<float*>(at) + 4 * i, x.q[i]);
}
PENSTOCK_INLINE void storeu_pd(double* at, F64 x) {
  for (int i = 0; i < 4; ++i) vst1q_f64(at + 2 * i, x.q[i]);
}
template <int N>
PENSTOCK_INLINE void storeu_si(void* at, Words<N> x) {
  for (int i = 0; i < N; ++i) vst1q_s8(static_cast<int8_t*>(at) + 16 * i, bytes(x.q[i]));
}
PENSTOCK_INLINE void storeu_si512(void* at, I512 x) {
  storeu_si(at, x);
}
PENSTOCK_INLINE void stream_si512(void* at, I512 x) {  // what passes the caches by is left to the CPU
  storeu_si(at, x);
}

// Those of `count` elements that a mask has; the others are not touched.
template <class Element>
PENSTOCK_INLINE void copy_some(Element* to, const Element* from, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1)
    std::memcpy(to + __builtin_ctz(mask), from + __builtin_ctz(mask), sizeof(Element));
}
PENSTOCK_INLINE F32 mask_loadu_ps(F32 elsewhere, __mmask16 mask, const float* at) {
  if (mask == 0xffff) return loadu_ps(at);
  float lanes[16];
  storeu_ps(lanes, elsewhere);
  copy_some(lanes, at, mask);
  return loadu_ps(lanes);
}
PENSTOCK_INLINE F32 maskz_loadu_ps(__mmask16 mask, const float* at) {
  return mask_loadu_ps(F32{}, mask, at);
}
PENSTOCK_INLINE F256 maskz_loadu_half(__mmask8 mask, const float* at) {
  if (mask == 0xff) return {{vld1q_f32(at), vld1q_f32(at + 4)}};
  float lanes[8] = {};
  copy_some(lanes, at, mask);
  return {{vld1q_f32(lanes), vld1q_f32(lanes + 4)}};
}
PENSTOCK_INLINE I512 maskz_loadu_epi32(__mmask16 mask, const void* at) {
  const F32 x = maskz_loadu_ps(mask, static_cast<const float*>(at));
  return made_of<I512>(PENSTOCK_EACH { return vreinterpretq_s32_f32(x.q[i]); });
}
PENSTOCK_INLINE void mask_storeu_ps(float* at, __mmask16 mask, F32 x) {
  if (mask == 0xffff) return storeu_ps(at, x);
  float lanes[16];
  storeu_ps(lanes, x);
  copy_some(at, lanes, mask);
}
PENSTOCK_INLINE I512 maskz_loadu_epi16(__mmask32 mask, const void* at) {
  if (mask == 0xffffffffu) return loadu_si512(at);
  uint16_t lanes[32] = {};
  copy_some(lanes, static_cast<const uint16_t*>(at), mask);
  return loadu_si512(lanes);
}
PENSTOCK_INLINE I128 maskz_loadu_epi8(__mmask16 mask, const void* at) {
  if (mask == 0xffff) return loadu_si<I128>(at);
  uint8_t lanes[16] = {};
  copy_some(lanes, static_cast<const uint8_t*>(at), mask);
  return loadu_si<I128>(lanes);
}
PENSTOCK_INLINE void mask_storeu_epi16(void* at, __mmask16 mask, I256 x) {
  if (mask == 0xffff) return storeu_si(at, x);
  uint16_t lanes[16];
  storeu_si(lanes, x);
  copy_some(static_cast<uint16_t*>(at), lanes, mask);
}
PENSTOCK_INLINE void mask_storeu_epi8(void* at, __mmask16 mask, I128 x) {
  if (mask == 0xffff) return storeu_si(at, x);
  uint8_t lanes[16];
  storeu_si(lanes, x);
  copy_some(static_cast<uint8_t*>(at), lanes, mask);
}

// ---- the same in every lane -------------------------------------------------------------------------

template <class Vector = F32>
PENSTOCK_INLINE Vector set1_ps(float x) {
  return made_of<Vector>(PENSTOCK_EACH { return vdupq_n_f32(x); });
}
PENSTOCK_INLINE F64 set1_pd(double x) {
  return made_of<F64>(PENSTOCK_EACH { return vdupq_n_f64(x); });
}
PENSTOCK_INLINE I512 set1_epi8(int8_t x) {
  return made_of<I512>(PENSTOCK_EACH { return words(vdupq_n_s8(x)); });
}
template <class Vector = I512>
PENSTOCK_INLINE Vector set1_epi32(int x) {
  return made_of<Vector>(PENSTOCK_EACH { return vdupq_n_s32(x); });
}
PENSTOCK_INLINE I512 set1_epi64(int64_t x) {
  return made_of<I512>(PENSTOCK_EACH { return words(vdupq_n_u64(static_cast<uint64_t>(x))); });
}
PENSTOCK_INLINE F32 setzero_ps() {
  return set1_ps(0.0f);
}
PENSTOCK_INLINE F64 setzero_pd() {
  return set1_pd(0.0);
}
PENSTOCK_INLINE I512 setzero_si512() {
  return set1_epi32(0);
}
template <class... Numbers>
PENSTOCK_INLINE I512 setr_epi32(Numbers... numbers) {
  const int lanes[16] = {numbers...};
  return loadu_si512(lanes);
}
template <class... Numbers>
PENSTOCK_INLINE I512 setr_epi64(Numbers... numbers) {
  const int64_t lanes[8] = {numbers...};
  return loadu_si512(lanes);
}

}  // namespace penstock::quarters

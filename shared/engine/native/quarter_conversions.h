// Quarters of a vector from one kind of number to another, to other places, and over all of their lanes.
#pragma once

#include "quarter_numbers.h"

namespace penstock::quarters {

// ---- from one kind of number to another -------------------------------------------------------------

template <int N>
PENSTOCK_INLINE Floats<N> castsi_ps(Words<N> x) {
  return made_of<Floats<N>>(PENSTOCK_EACH { return vreinterpretq_f32_s32(x.q[i]); });
}
PENSTOCK_INLINE F32 castsi512_ps(I512 x) {
  return castsi_ps(x);
}
PENSTOCK_INLINE I512 castps_si512(F32 x) {
  return made_of<I512>(PENSTOCK_EACH { return vreinterpretq_s32_f32(x.q[i]); });
}
PENSTOCK_INLINE F256 castps512_ps256(F32 x) {
  return {{x.q[0], x.q[1]}};
}
PENSTOCK_INLINE F32 castps256_ps512(F256 x) {
  return {{x.q[0], x.q[1], x.q[0], x.q[1]}};
}
template <int HALF>
PENSTOCK_INLINE F256 extractf32x8_ps(F32 x) {
  return {{x.q[2 * HALF], x.q[2 * HALF + 1]}};
}
template <int HALF>
PENSTOCK_INLINE F32 insertf32x8(F32 x, F256 half) {
  x.q[2 * HALF] = half.q[0], x.q[2 * HALF + 1] = half.q[1];
  return x;
}
template <int HALF>
PENSTOCK_INLINE I128 extracti128_si256(I256 x) {
  return {{x.q[HALF]}};
}
PENSTOCK_INLINE float cvtss_f32(F32 x) {
  return vgetq_lane_f32(x.q[0], 0);
}
template <int N>
PENSTOCK_INLINE Floats<N> cvtepi32_ps(Words<N> x) {
  return made_of<Floats<N>>(PENSTOCK_EACH { return vcvtq_f32_s32(x.q[i]); });
}
// To nearest even; what no such number is near to becomes the least of them.
template <int N>
PENSTOCK_INLINE Words<N> cvtps_epi32(Floats<N> x) {
  return made_of<Words<N>>(PENSTOCK_EACH {
    const uint32x4_t near = vcltq_f32(x.q[i], vdupq_n_f32(0x1p31f));
    return vbslq_s32(near, vcvtnq_s32_f32(x.q[i]), vdupq_n_s32(INT32_MIN));
  });
}
PENSTOCK_INLINE F64 cvtps_pd(F256 x) {
  return {{vcvt_f64_f32(vget_low_f32(x.q[0])), vcvt_high_f64_f32(x.q[0]), vcvt_f64_f32(vget_low_f32(x.q[1])),
           vcvt_high_f64_f32(x.q[1])}};
}
PENSTOCK_INLINE F32 cvtph_ps(I256 halves) {
  const float16x8_t low = vreinterpretq_f16_s32(halves.q[0]), high = vreinterpretq_f16_s32(halves.q[1]);
  return {{vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
           vcvt_high_f32_f16(high)}};
}
PENSTOCK_INLINE I512 cvtepu16_epi32(I256 x) {
  const uint16x8_t low = vreinterpretq_u16_s32(x.q[0]), high = vreinterpretq_u16_s32(x.q[1]);
  return {{words(vmovl_u16(vget_low_u16(low))), words(vmovl_high_u16(low)),
           words(vmovl_u16(vget_low_u16(high))), words(vmovl_high_u16(high))}};
}
PENSTOCK_INLINE I512 cvtepu8_epi32(I128 x) {
  const uint8x16_t all = vreinterpretq_u8_s32(x.q[0]);
  const uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_high_u8(all);
  return cvtepu16_epi32({{vreinterpretq_s32_u16(low), vreinterpretq_s32_u16(high)}});
}
PENSTOCK_INLINE I512 cvtepi8_epi32(I128 x) {
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes(x.q[0]))), high = vmovl_high_s8(bytes(x.q[0]));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)),
           vmovl_high_s16(high)}};
}
PENSTOCK_INLINE int16x8_t shorts_of(int32x4_t low, int32x4_t high) {  // the last 16 bits of each
  return vuzp1q_s16(vreinterpretq_s16_s32(low), vreinterpretq_s16_s32(high));
}
PENSTOCK_INLINE I128 cvtepi32_epi8(I512 x) {  // the last byte of each
  const int8x16_t low = vreinterpretq_s8_s16(shorts_of(x.q[0], x.q[1]));
  return {{words(vuzp1q_s8(low, vreinterpretq_s8_s16(shorts_of(x.q[2], x.q[3]))))}};
}
PENSTOCK_INLINE I128 cvtepi32_epi8(I256 x) {  // 8 bytes
  return cvtepi32_epi8(I512{{x.q[0], x.q[1], x.q[0], x.q[1]}});
}
PENSTOCK_INLINE I128 cvtsepi32_epi8(I512 x) {  // the nearest byte to each
  const int16x8_t low = vqmovn_high_s32(vqmovn_s32(x.q[0]), x.q[1]);
  const int16x8_t high = vqmovn_high_s32(vqmovn_s32(x.q[2]), x.q[3]);
  return {{words(vqmovn_high_s16(vqmovn_s16(low), high))}};
}
PENSTOCK_INLINE I128 cvtsepi32_epi8(I256 x) {  // 8 bytes
  return cvtsepi32_epi8(I512{{x.q[0], x.q[1], x.q[0], x.q[1]}});
}
PENSTOCK_INLINE F256 cvtepu64_ps(I512 x) {  // below 2^52: doubles hold them, so they are rounded once
  const auto floats = [&](int32x4_t low, int32x4_t high) __attribute__((always_inline)) {
    return vcvt_high_f32_f64(vcvt_f32_f64(vcvtq_f64_u64(wide(low))), vcvtq_f64_u64(wide(high)));
  };
  return {{floats(x.q[0], x.q[1]), floats(x.q[2], x.q[3])}};
}
PENSTOCK_INLINE I512 cvtps_epu64(F256 x) {  // what is no such number has all bits
  const F64 exact = cvtps_pd(x);
  return made_of<I512>(PENSTOCK_EACH {
    const uint64x2_t there =
        vandq_u64(vcgeq_f64(exact.q[i], vdupq_n_f64(0.0)), vcltq_f64(exact.q[i], vdupq_n_f64(0x1p63)));
    return words(vbslq_u64(there, vcvtnq_u64_f64(exact.q[i]), vdupq_n_u64(~0ull)));
  });
}
// To bf16, to nearest even: denormals are zeros, and what is no number stays none.
PENSTOCK_INLINE uint32x4_t rounded_to_bf16(float32x4_t x) {  // in 32 bits each
  const uint32x4_t bits = vreinterpretq_u32_f32(x), upper = vshrq_n_u32(bits, 16);
  const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16);
  const uint32x4_t quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
  const uint32x4_t sign = vandq_u32(upper, vdupq_n_u32(0x8000));
  const uint32x4_t denormal = vcltq_f32(vabsq_f32(x), vdupq_n_f32(0x1p-126f));
  return vbslq_u32(vceqq_f32(x, x), vbslq_u32(denormal, sign, rounded), quiet);
}
PENSTOCK_INLINE I256 cvtneps_pbh(F32 x) {
  const auto pair = [&](float32x4_t low, float32x4_t high) __attribute__((always_inline)) {
    return vreinterpretq_s32_s16(shorts_of(words(rounded_to_bf16(low)), words(rounded_to_bf16(high))));
  };
  return {{pair(x.q[0], x.q[1]), pair(x.q[2], x.q[3])}};
}
PENSTOCK_INLINE I128 cvtneps_pbh(Floats<1> x) {
  const int32x4_t all = words(rounded_to_bf16(x.q[0]));
  return {{vreinterpretq_s32_s16(shorts_of(all, all))}};
}

// ---- other places -----------------------------------------------------------------------------------

template <int ORDER, int N>
PENSTOCK_INLINE Words<N> shuffle_epi32(Words<N> x) {
  constexpr uint32x4_t PLACES = {ORDER & 3, ORDER >> 2 & 3, ORDER >> 4 & 3, ORDER >> 6 & 3};
  return made_of<Words<N>>(PENSTOCK_EACH { return __builtin_shuffle(x.q[i], PLACES); });
}
template <int ORDER>
PENSTOCK_INLINE I512 shuffle_i32x4(I512 a, I512 b) {
  return {{a.q[ORDER & 3], a.q[ORDER >> 2 & 3], b.q[ORDER >> 4 & 3], b.q[ORDER >> 6 & 3]}};
}
PENSTOCK_INLINE I512 shuffle_epi8(I512 table, I512 places) {  // places below 16, in each 16 bytes
  return made_of<I512>(
      PENSTOCK_EACH { return words(vqtbl1q_s8(bytes(table.q[i]), vreinterpretq_u8_s32(places.q[i]))); });
}

// ---- over all lanes, in the order of GCC's own for AVX-512 ------------------------------------------

template <class Join>
PENSTOCK_INLINE float joined(F32 x, Join join) {
  const float32x4_t four = join(join(x.q[3], x.q[1]), join(x.q[2], x.q[0]));
  const float32x4_t two = join(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(join(two, vdupq_laneq_f32(two, 1)), 0);
}
PENSTOCK_INLINE float reduce_add_ps(F32 x) {
  return joined(x, [](float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); });
}
PENSTOCK_INLINE float reduce_max_ps(F32 x) {
  return joined(x, [](float32x4_t a, float32x4_t b) { return most_of(a, b); });
}
PENSTOCK_INLINE double reduce_add_pd(F64 x) {
  const float64x2_t two = vaddq_f64(vaddq_f64(x.q[3], x.q[1]), vaddq_f64(x.q[2], x.q[0]));
  return vgetq_lane_f64(two, 0) + vgetq_lane_f64(two, 1);
}
PENSTOCK_INLINE int reduce_add_epi32(I512 x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.q[0], x.q[1]), vaddq_s32(x.q[2], x.q[3])));
}
PENSTOCK_INLINE int reduce_max_epi32(I512 x) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.q[0], x.q[1]), vmaxq_s32(x.q[2], x.q[3])));
}

}  // namespace penstock::quarters

// Products of bf16 and of bytes that are added up, in quarters of a vector.
#pragma once

#include "quarter_conversions.h"

namespace penstock::quarters {

// Each lane of `sums` and two products of bf16, the one with the higher place first.
PENSTOCK_INLINE F32 dpbf16_ps(F32 sums, I512 a, I512 b) {
  const auto upper = [](int32x4_t pairs) __attribute__((always_inline)) {
    return vreinterpretq_f32_u32(vandq_u32(whole(pairs), vdupq_n_u32(0xffff0000)));
  };
  const auto lower = [](int32x4_t pairs) __attribute__((always_inline)) {
    return vreinterpretq_f32_s32(vshlq_n_s32(pairs, 16));
  };
  return made_of<F32>(PENSTOCK_EACH {
    const float32x4_t sum = vfmaq_f32(sums.q[i], upper(a.q[i]), upper(b.q[i]));
    return vfmaq_f32(sum, lower(a.q[i]), lower(b.q[i]));
  });
}

struct Sums : I512 {
  Sums() = default;
  PENSTOCK_INLINE Sums(I512 whole) : I512(whole) {}
  PENSTOCK_INLINE friend Sums operator+(Sums a, Sums b) { return add_epi32<4>(a, b); }
  PENSTOCK_INLINE friend Sums operator-(Sums a, Sums b) { return sub_epi32<4>(a, b); }
  PENSTOCK_INLINE friend Sums operator*(Sums a, int b) {
    return made_of<I512>(PENSTOCK_EACH { return vmulq_n_s32(a.q[i], b); });
  }
  PENSTOCK_INLINE friend Sums operator<<(Sums a, int bits) { return slli_epi32<4>(a, bits); }
  PENSTOCK_INLINE Sums& operator<<=(int bits) { return *this = *this << bits; }
};

}  // namespace penstock::quarters

namespace penstock {

using Sums = quarters::Sums;

// The pairs of two vectors' elements of 16 bits: those of their first 16 are `low`, of the others `high`.
PENSTOCK_INLINE void zip(quarters::I512 even, quarters::I512 odd, quarters::I512& low, quarters::I512& high) {
  const auto first = [&](int i) __attribute__((always_inline)) {
    return vreinterpretq_s32_s16(
        vzip1q_s16(vreinterpretq_s16_s32(even.q[i]), vreinterpretq_s16_s32(odd.q[i])));
  };
  const auto second = [&](int i) __attribute__((always_inline)) {
    return vreinterpretq_s32_s16(
        vzip2q_s16(vreinterpretq_s16_s32(even.q[i]), vreinterpretq_s16_s32(odd.q[i])));
  };
  const quarters::I512 lower = {{first(0), second(0), first(1), second(1)}};
  high = {{first(2), second(2), first(3), second(3)}};
  low = lower;
}

// Sums + codes . row_codes, of four neighbouring bytes a lane; codes have no sign, and the instruction takes
// bytes that have one: of codes less 128, and 128 times the row's own sum, which is made once for all columns
// that meet it.
PENSTOCK_INLINE Sums add_products(Sums sums, quarters::I512 codes, quarters::I512 row_codes) {
  return quarters::made_of<quarters::I512>(PENSTOCK_EACH {
    const int8x16_t row = quarters::bytes(row_codes.q[i]);
    const int8x16_t lowered = veorq_s8(quarters::bytes(codes.q[i]), vdupq_n_s8(-128));
    const int32x4_t row_sum = vshlq_n_s32(vdotq_s32(vdupq_n_s32(0), row, vdupq_n_s8(1)), 7);
    return vaddq_s32(vdotq_s32(sums.q[i], lowered, row), row_sum);
  });
}

// The same of two vectors of codes below 16, which are the same with a sign.
PENSTOCK_INLINE Sums add_nibble_products(Sums sums, quarters::I512 first, quarters::I512 first_row,
                                         quarters::I512 second, quarters::I512 second_row) {
  return quarters::made_of<quarters::I512>(PENSTOCK_EACH {
    const int32x4_t sum = vdotq_s32(sums.q[i], quarters::bytes(first.q[i]), quarters::bytes(first_row.q[i]));
    return vdotq_s32(sum, quarters::bytes(second.q[i]), quarters::bytes(second_row.q[i]));
  });
}

// Sums + codes . words, of two neighbouring words a lane.
PENSTOCK_INLINE Sums add_word_products(Sums sums, quarters::I512 codes, quarters::I512 words) {
  return quarters::made_of<quarters::I512>(PENSTOCK_EACH {
    const int16x8_t a = vreinterpretq_s16_s32(codes.q[i]), b = vreinterpretq_s16_s32(words.q[i]);
    const int32x4_t first = vmull_s16(vget_low_s16(a), vget_low_s16(b));
    return vaddq_s32(sums.q[i], vpaddq_s32(first, vmull_high_s16(a, b)));
  });
}

}  // namespace penstock

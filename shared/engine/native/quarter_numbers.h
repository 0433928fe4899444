// What is done to the quarters of a vector lane by lane, and comparisons of lanes. Of a number that is none
// the results are x86's: the lesser and the larger of two are then the second one.
#pragma once

#include "quarter_lanes.h"

namespace penstock::quarters {

// ---- lane by lane -----------------------------------------------------------------------------------

#define PENSTOCK_FLOATS(NAME, OPERATION)                                            \
  template <int N>                                                                  \
  PENSTOCK_INLINE Floats<N> NAME(Floats<N> a, Floats<N> b) {                        \
    return made_of<Floats<N>>(PENSTOCK_EACH { return OPERATION(a.q[i], b.q[i]); }); \
  }
#define PENSTOCK_DOUBLES(NAME, OPERATION)                                     \
  PENSTOCK_INLINE F64 NAME(F64 a, F64 b) {                                    \
    return made_of<F64>(PENSTOCK_EACH { return OPERATION(a.q[i], b.q[i]); }); \
  }
#define PENSTOCK_WORDS(NAME, OPERATION, SIZE)                                                          \
  template <int N>                                                                                     \
  PENSTOCK_INLINE Words<N> NAME(Words<N> a, Words<N> b) {                                              \
    return made_of<Words<N>>(PENSTOCK_EACH {                                                           \
      return vreinterpretq_s32_##SIZE(                                                                 \
          OPERATION##_##SIZE(vreinterpretq_##SIZE##_s32(a.q[i]), vreinterpretq_##SIZE##_s32(b.q[i]))); \
    });                                                                                                \
  }
#define PENSTOCK_SHIFT(NAME, SIZE, DIRECTION)                                             \
  template <int N>                                                                        \
  PENSTOCK_INLINE Words<N> NAME(Words<N> a, int bits) {                                   \
    return made_of<Words<N>>(PENSTOCK_EACH {                                              \
      return vreinterpretq_s32_##SIZE(vreinterpretq_##SIZE##_s32(a.q[i]) DIRECTION bits); \
    });                                                                                   \
  }
PENSTOCK_FLOATS(add_ps, vaddq_f32)
PENSTOCK_FLOATS(sub_ps, vsubq_f32)
PENSTOCK_FLOATS(mul_ps, vmulq_f32)
PENSTOCK_FLOATS(div_ps, vdivq_f32)
PENSTOCK_DOUBLES(add_pd, vaddq_f64)
PENSTOCK_DOUBLES(sub_pd, vsubq_f64)
PENSTOCK_DOUBLES(mul_pd, vmulq_f64)
PENSTOCK_DOUBLES(div_pd, vdivq_f64)
PENSTOCK_WORDS(add_epi32, vaddq, u32)
PENSTOCK_WORDS(sub_epi32, vsubq, u32)
PENSTOCK_WORDS(sub_epi16, vsubq, u16)
PENSTOCK_WORDS(mullo_epi16, vmulq, u16)
PENSTOCK_WORDS(mullo_epi32, vmulq, u32)
PENSTOCK_WORDS(add_epi64, vaddq, u64)
PENSTOCK_WORDS(sub_epi64, vsubq, u64)
PENSTOCK_WORDS(and_si512, vandq, u32)
PENSTOCK_WORDS(xor_si512, veorq, u32)
PENSTOCK_WORDS(unpacklo_epi32, vzip1q, u32)
PENSTOCK_WORDS(unpackhi_epi32, vzip2q, u32)
PENSTOCK_WORDS(unpacklo_epi64, vzip1q, u64)
PENSTOCK_WORDS(unpackhi_epi64, vzip2q, u64)
PENSTOCK_SHIFT(slli_epi32, u32, <<)
PENSTOCK_SHIFT(slli_epi64, u64, <<)
PENSTOCK_SHIFT(srli_epi64, u64, >>)
PENSTOCK_SHIFT(srli_epi16, u16, >>)
#undef PENSTOCK_FLOATS
#undef PENSTOCK_DOUBLES
#undef PENSTOCK_WORDS
#undef PENSTOCK_SHIFT

template <int N>
PENSTOCK_INLINE Words<N> srai_epi32(Words<N> a, int bits) {
  return made_of<Words<N>>(PENSTOCK_EACH { return a.q[i] >> bits; });
}
PENSTOCK_INLINE I512 max_epi32(I512 a, I512 b) {
  return made_of<I512>(PENSTOCK_EACH { return vmaxq_s32(a.q[i], b.q[i]); });
}
PENSTOCK_INLINE float32x4_t least_of(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
PENSTOCK_INLINE float32x4_t most_of(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
PENSTOCK_INLINE float64x2_t most_of(float64x2_t a, float64x2_t b) {
  return vbslq_f64(vcgtq_f64(a, b), a, b);
}
template <int N>
PENSTOCK_INLINE Floats<N> min_ps(Floats<N> a, Floats<N> b) {
  return made_of<Floats<N>>(PENSTOCK_EACH { return least_of(a.q[i], b.q[i]); });
}
PENSTOCK_INLINE F32 max_ps(F32 a, F32 b) {
  return made_of<F32>(PENSTOCK_EACH { return most_of(a.q[i], b.q[i]); });
}
PENSTOCK_INLINE F64 max_pd(F64 a, F64 b) {
  return made_of<F64>(PENSTOCK_EACH { return most_of(a.q[i], b.q[i]); });
}
PENSTOCK_INLINE F32 abs_ps(F32 x) {
  return made_of<F32>(PENSTOCK_EACH { return vabsq_f32(x.q[i]); });
}
PENSTOCK_INLINE F32 fmadd_ps(F32 a, F32 b, F32 c) {  // a b + c
  return made_of<F32>(PENSTOCK_EACH { return vfmaq_f32(c.q[i], a.q[i], b.q[i]); });
}
PENSTOCK_INLINE F32 fnmadd_ps(F32 a, F32 b, F32 c) {  // c - a b
  return made_of<F32>(PENSTOCK_EACH { return vfmsq_f32(c.q[i], a.q[i], b.q[i]); });
}
PENSTOCK_INLINE F32 fmsub_ps(F32 a, F32 b, F32 c) {  // a b - c
  return made_of<F32>(PENSTOCK_EACH { return vfmaq_f32(vnegq_f32(c.q[i]), a.q[i], b.q[i]); });
}
PENSTOCK_INLINE F64 fmadd_pd(F64 a, F64 b, F64 c) {
  return made_of<F64>(PENSTOCK_EACH { return vfmaq_f64(c.q[i], a.q[i], b.q[i]); });
}
PENSTOCK_INLINE F64 fnmadd_pd(F64 a, F64 b, F64 c) {
  return made_of<F64>(PENSTOCK_EACH { return vfmsq_f64(c.q[i], a.q[i], b.q[i]); });
}
// A product that is rounded before anything is done with it: the compiler does not see where it comes from.
PENSTOCK_INLINE F32 mul_round_ps(F32 a, F32 b, int) {
  F32 product = mul_ps(a, b);
  asm("" : "+w"(product.q[0]), "+w"(product.q[1]), "+w"(product.q[2]), "+w"(product.q[3]));
  return product;
}
template <int HOW>
PENSTOCK_INLINE F32 roundscale_ps(F32 x) {
  static_assert((HOW & 7) == 0, "to whole numbers, to nearest even");
  return made_of<F32>(PENSTOCK_EACH { return vrndnq_f32(x.q[i]); });
}
template <int HOW>
PENSTOCK_INLINE F64 roundscale_pd(F64 x) {
  static_assert((HOW & 7) == 0, "to whole numbers, to nearest even");
  return made_of<F64>(PENSTOCK_EACH { return vrndnq_f64(x.q[i]); });
}
// x 2^n, of a whole n for which 2^n is a normal number.
PENSTOCK_INLINE F32 scalef_ps(F32 x, F32 n) {
  return made_of<F32>(PENSTOCK_EACH {
    const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n.q[i]), vdupq_n_s32(127));
    return vmulq_f32(x.q[i], vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
  });
}
// x 2^n, of a whole n from -1800 to 1000 and an x near 1: rounded once.
PENSTOCK_INLINE F64 scalef_pd(F64 x, F64 n) {
  const auto power = [](float64x2_t exponent) __attribute__((always_inline)) {
    const int64x2_t biased = vaddq_s64(vcvtnq_s64_f64(exponent), vdupq_n_s64(1023));
    return vreinterpretq_f64_s64(vshlq_n_s64(biased, 52));
  };
  return made_of<F64>(PENSTOCK_EACH {
    const float64x2_t first = most_of(n.q[i], vdupq_n_f64(-900.0));
    return vmulq_f64(vmulq_f64(x.q[i], power(first)), power(vsubq_f64(n.q[i], first)));
  });
}
PENSTOCK_INLINE I512 mul_epu32(I512 a, I512 b) {
  return made_of<I512>(
      PENSTOCK_EACH { return words(vmull_u32(vmovn_u64(wide(a.q[i])), vmovn_u64(wide(b.q[i])))); });
}
PENSTOCK_INLINE I512 mullo_epi64(I512 a, I512 b) {
  return made_of<I512>(PENSTOCK_EACH {
    const uint32x4_t crossed = vmulq_u32(whole(a.q[i]), vrev64q_u32(whole(b.q[i])));
    const uint64x2_t upper = vshlq_n_u64(vpaddlq_u32(crossed), 32);
    return words(vmlal_u32(upper, vmovn_u64(wide(a.q[i])), vmovn_u64(wide(b.q[i]))));
  });
}
PENSTOCK_INLINE I512 min_epu64(I512 a, I512 b) {
  return made_of<I512>(PENSTOCK_EACH {
    const uint64x2_t x = wide(a.q[i]), y = wide(b.q[i]);
    return words(vbslq_u64(vcltq_u64(x, y), x, y));
  });
}
template <int BITS>
PENSTOCK_INLINE I512 ternarylogic_epi64(I512 a, I512 b, I512 c) {
  static_assert(BITS == 0x96, "all three, one against the other");
  return xor_si512(xor_si512(a, b), c);
}

// ---- comparisons and choices ------------------------------------------------------------------------

// The ways to compare that are asked for, by x86's names and numbers: what is no number is none of EQ, LT, GE
// and GT, and all of the others.
enum Comparison {
  _CMP_UNORD_Q = 3,
  _CMP_NEQ_UQ = 4,
  _CMP_EQ_OQ = 0,
  _CMP_LT_OQ = 17,
  _CMP_NLT_UQ = 21,
  _CMP_NLE_UQ = 22,
  _CMP_NGT_UQ = 26,
  _CMP_GE_OQ = 29,
  _CMP_GT_OQ = 30,
};

template <int HOW>
PENSTOCK_INLINE uint32x4_t compared(float32x4_t a, float32x4_t b) {
  if constexpr (HOW == _CMP_EQ_OQ) return vceqq_f32(a, b);
  if constexpr (HOW == _CMP_NEQ_UQ) return vmvnq_u32(vceqq_f32(a, b));
  if constexpr (HOW == _CMP_LT_OQ) return vcltq_f32(a, b);
  if constexpr (HOW == _CMP_NLT_UQ) return vmvnq_u32(vcltq_f32(a, b));
  if constexpr (HOW == _CMP_NLE_UQ) return vmvnq_u32(vcleq_f32(a, b));
  if constexpr (HOW == _CMP_NGT_UQ) return vmvnq_u32(vcgtq_f32(a, b));
  if constexpr (HOW == _CMP_GE_OQ) return vcgeq_f32(a, b);
  if constexpr (HOW == _CMP_GT_OQ) return vcgtq_f32(a, b);
  if constexpr (HOW == _CMP_UNORD_Q) return vmvnq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b)));
}
template <int HOW>
PENSTOCK_INLINE __mmask16 cmp_ps_mask(F32 a, F32 b) {
  return mask_of(compared<HOW>(a.q[0], b.q[0]), compared<HOW>(a.q[1], b.q[1]), compared<HOW>(a.q[2], b.q[2]),
                 compared<HOW>(a.q[3], b.q[3]));
}
template <int HOW>
PENSTOCK_INLINE __mmask16 mask_cmp_ps_mask(__mmask16 mask, F32 a, F32 b) {
  return mask & cmp_ps_mask<HOW>(a, b);
}
PENSTOCK_INLINE __mmask16 cmpgt_epi32_mask(I512 a, I512 b) {
  return mask_of(vcgtq_s32(a.q[0], b.q[0]), vcgtq_s32(a.q[1], b.q[1]), vcgtq_s32(a.q[2], b.q[2]),
                 vcgtq_s32(a.q[3], b.q[3]));
}
PENSTOCK_INLINE __mmask16 cmple_epi32_mask(I512 a, I512 b) {
  return static_cast<__mmask16>(~cmpgt_epi32_mask(a, b));
}
PENSTOCK_INLINE __mmask8 mask_cmpge_epu64_mask(__mmask8 mask, I512 a, I512 b) {
  const auto reached = PENSTOCK_EACH {
    return vreinterpretq_u32_u64(vcgeq_u64(wide(a.q[i]), wide(b.q[i])));
  };
  const uint32x4_t low = vuzp1q_u32(reached(Place<0>()), reached(Place<1>()));
  const uint32x4_t high = vuzp1q_u32(reached(Place<2>()), reached(Place<3>()));
  return mask & static_cast<__mmask8>(mask_of(low, high, low, high));
}
PENSTOCK_INLINE __mmask16 test_epi8_mask(I128 a, I128 b) {
  return mask_of_bytes(vtstq_s8(bytes(a.q[0]), bytes(b.q[0])));
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
  int from[16], to[16] = {};
  storeu_si512(from, x);
  int count = 0;
  for (unsigned left = mask; left != 0; left &= left - 1) to[count++] = from[__builtin_ctz(left)];
  return loadu_si512(to);
}
PENSTOCK_INLINE F32 maskz_compress_ps(__mmask16 mask, F32 x) {
  const I512 bits =
      maskz_compress_epi32(mask, made_of<I512>(PENSTOCK_EACH { return vreinterpretq_s32_f32(x.q[i]); }));
  return made_of<F32>(PENSTOCK_EACH { return vreinterpretq_f32_s32(bits.q[i]); });
}

}  // namespace penstock::quarters

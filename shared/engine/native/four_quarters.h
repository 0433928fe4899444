// AVX-512's instructions as four of NEON each (Armv8.2-A with dot products of bytes), by the same names, and
// the few of AVX2's and SSE's that the kernels use beside them. Lane by lane the results have the same bits,
// and sums over lanes are made in the same order.
#pragma once

#include <atomic>

#include "quarter_conversions.h"
#include "quarter_lanes.h"
#include "quarter_numbers.h"
#include "quarter_products.h"

namespace penstock {
namespace parts = quarters;
}

#include "vector_names.h"

#define __m256 penstock::quarters::F256
#define __m256i penstock::quarters::I256
#define __m128i penstock::quarters::I128

using penstock::quarters::_CMP_EQ_OQ;
using penstock::quarters::_CMP_GE_OQ;
using penstock::quarters::_CMP_GT_OQ;
using penstock::quarters::_CMP_LT_OQ;
using penstock::quarters::_CMP_NEQ_UQ;
using penstock::quarters::_CMP_NGT_UQ;
using penstock::quarters::_CMP_NLE_UQ;
using penstock::quarters::_CMP_NLT_UQ;
using penstock::quarters::_CMP_UNORD_Q;
constexpr int _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_CUR_DIRECTION = 4, _MM_FROUND_NO_EXC = 8;
constexpr int _MM_PERM_BADC = 0x4e;

// ---- vectors of 32 bytes ----------------------------------------------------------------------------

#define _mm256_add_epi32 penstock::quarters::add_epi32
#define _mm256_add_ps penstock::quarters::add_ps
#define _mm256_and_si256 penstock::quarters::and_si512
#define _mm256_castsi256_ps penstock::quarters::castsi_ps
#define _mm256_castsi256_si128 penstock::quarters::extracti128_si256<0>
#define _mm256_cvtepi32_ps penstock::quarters::cvtepi32_ps
#define _mm256_cvtps_epi32 penstock::quarters::cvtps_epi32
#define _mm256_div_ps penstock::quarters::div_ps
#define _mm256_extracti128_si256(a, half) penstock::quarters::extracti128_si256<half>(a)
#define _mm256_loadu_si256 penstock::quarters::loadu_si<penstock::quarters::I256>
#define _mm256_min_ps penstock::quarters::min_ps
#define _mm256_mul_ps penstock::quarters::mul_ps
#define _mm256_set1_epi32 penstock::quarters::set1_epi32<penstock::quarters::I256>
#define _mm256_set1_ps penstock::quarters::set1_ps<penstock::quarters::F256>
#define _mm256_setzero_ps() penstock::quarters::set1_ps<penstock::quarters::F256>(0.0f)
#define _mm256_setzero_si256() penstock::quarters::set1_epi32<penstock::quarters::I256>(0)
#define _mm256_slli_epi32 penstock::quarters::slli_epi32
#define _mm256_srai_epi32 penstock::quarters::srai_epi32
#define _mm256_store_si256 penstock::quarters::storeu_si
#define _mm256_storeu_si256 penstock::quarters::storeu_si
#define _mm256_sub_epi32 penstock::quarters::sub_epi32
#define _mm256_sub_ps penstock::quarters::sub_ps

// ---- vectors of 16 bytes, and single numbers --------------------------------------------------------

#define _mm_add_epi32 penstock::quarters::add_epi32
#define _mm_loadu_si128 penstock::quarters::loadu_si<penstock::quarters::I128>
#define _mm_shuffle_epi32(a, how) penstock::quarters::shuffle_epi32<how>(a)
#define _mm_storeu_si128 penstock::quarters::storeu_si

PENSTOCK_INLINE penstock::quarters::Floats<1> _mm_set_ss(float x) {
  return {{vsetq_lane_f32(x, vdupq_n_f32(0.0f), 0)}};
}
PENSTOCK_INLINE int _mm_cvtsi128_si32(__m128i x) {
  return vgetq_lane_s32(x.q[0], 0);
}
#define _mm_extract_epi32(x, lane) vgetq_lane_s32((x).q[0], lane)
PENSTOCK_INLINE void _mm_storel_epi64(void* at, __m128i x) {
  vst1_s8(static_cast<int8_t*>(at), vget_low_s8(penstock::quarters::bytes(x.q[0])));
}
PENSTOCK_INLINE float _cvtsh_ss(uint16_t half) {
  __fp16 number;
  std::memcpy(&number, &half, sizeof number);
  return number;
}
PENSTOCK_INLINE uint16_t _cvtss_sh(float x, int) {  // to nearest even
  const __fp16 number = static_cast<__fp16>(x);
  uint16_t half;
  std::memcpy(&half, &number, sizeof half);
  return half;
}

// ---- memory and time --------------------------------------------------------------------------------

// How near a line is to come: as the compiler's own function counts it.
#define _MM_HINT_T0 3
#define _MM_HINT_T1 2
#define _mm_prefetch(at, near) __builtin_prefetch(at, 0, near)

PENSTOCK_INLINE void _mm_sfence() {
  std::atomic_thread_fence(std::memory_order_release);
}
// As long as x86's instruction of this name; this CPU's own one takes no time on most.
PENSTOCK_INLINE void _mm_pause() {
  asm volatile("isb" ::: "memory");
}

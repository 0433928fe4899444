// The vectors that everything here is written in: Intel's names for AVX-512. Where the compiler may use it
// but not for bf16, those few names are of fp32's instructions (bf16_in_fp32.h); where it may not at all,
// each vector is two of AVX2 (two_halves.h), or on arm64 four of NEON (four_quarters.h), with the same lanes
// and the same bits.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cstdint>

namespace penstock {

#ifdef __AVX512F__
constexpr bool WHOLE_VECTORS = true;
#else
constexpr bool WHOLE_VECTORS = false;
#endif

// Whether there is an instruction for products of bf16, or it is cheaper to have rows in fp32 for them: each
// row then meets a panel in one operation a number, and widening it costs a few for all columns.
#if defined(__AVX512BF16__) || !defined(__x86_64__)
constexpr bool WIDENS_ROWS = false;
#else
constexpr bool WIDENS_ROWS = true;
#endif

// Whether whole numbers are multiplied as words, two products at a time (word_products.h), for want of an
// instruction that adds up four of bytes (byte_products.h).
#if defined(__x86_64__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
#define PENSTOCK_WORD_PRODUCTS
constexpr bool WORD_PRODUCTS = true;
#else
constexpr bool WORD_PRODUCTS = false;
#endif

}  // namespace penstock

#ifdef __AVX512F__
#ifndef __AVX512BF16__
#include "bf16_in_fp32.h"
#endif

namespace penstock {

// A vector of the type that integer dot products add to: GCC copies any other one in front of and behind
// each.
using Sums = int __attribute__((vector_size(64)));

#ifdef __AVX512VNNI__
// Sums + codes . row_codes, of four neighbouring bytes a lane; codes have no sign.
inline Sums add_products(Sums sums, __m512i codes, __m512i row_codes) {
  return (Sums)_mm512_dpbusd_epi32((__m512i)sums, codes, row_codes);
}

// The same of two vectors of codes below 16.
inline Sums add_nibble_products(Sums sums, __m512i first, __m512i first_row, __m512i second,
                                __m512i second_row) {
  return add_products(add_products(sums, first, first_row), second, second_row);
}

// Sums + codes . words, of two neighbouring words a lane.
inline Sums add_word_products(Sums sums, __m512i codes, __m512i words) {
  return (Sums)_mm512_dpwssd_epi32((__m512i)sums, codes, words);
}
#else
// The same in this order (half_products.h).
inline Sums add_word_products(Sums sums, __m512i codes, __m512i words) {
  sums += (Sums)_mm512_madd_epi16(codes, words);
  asm("" : "+v"(sums));
  return sums;
}
#endif

// The pairs of two vectors' elements of 16 bits: those of their first 16 are `low`, of the others `high`.
inline void zip(__m512i even, __m512i odd, __m512i& low, __m512i& high) {
  alignas(64) static constexpr uint16_t ORDER[2][32] = {
      {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  low = _mm512_permutex2var_epi16(even, _mm512_load_si512(ORDER[0]), odd);
  high = _mm512_permutex2var_epi16(even, _mm512_load_si512(ORDER[1]), odd);
}

}  // namespace penstock
#elif defined(__x86_64__)
#include "two_halves.h"
#else
#include "four_quarters.h"
#endif

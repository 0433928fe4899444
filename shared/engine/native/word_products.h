// The exact sums of one group in words, for CPUs that lack an instruction for products of bytes that is exact
// (AVX2 without VNNI: two such products end at 16 bits, so high and low bytes would take two each, and each
// of those its own way to 32 bits).
//
// A word has both bytes of a row's number, which is at most 127 * 128 or 119 * 256 + 8 (quantized_rows.h),
// and codes are below 256: two products make less than 2^24, and 32 bits hold what they hold of bytes.
//
// Of four columns the words are in the order 0, 2, 1, 3: one operation takes the codes out of a lane's even
// bytes, and one those out of its odd ones. Of INT4, a number of the second eight columns is 16 times
// something whole, which is its word: its code is the upper half of a byte, 16 times what it is where it
// lies.
#pragma once

#include "quantized_tile.h"
#include "word_vectors.h"

namespace penstock {

// The upper halves of a vector's even bytes. Of many rows there is no register for the mask beside the sums,
// and a compiler would rather write down sums than read it again.
template <int R>
[[gnu::always_inline]] inline __m512i upper_nibbles(__m512i codes) {
#ifndef __AVX512F__
  if constexpr (R > 2) {
    alignas(32) static constexpr uint32_t BITS[8] = {0x00f000f0, 0x00f000f0, 0x00f000f0, 0x00f000f0,
                                                     0x00f000f0, 0x00f000f0, 0x00f000f0, 0x00f000f0};
    asm("vpand %2, %1, %0" : "=x"(codes.low) : "x"(codes.low), "m"(BITS));
    asm("vpand %2, %1, %0" : "=x"(codes.high) : "x"(codes.high), "m"(BITS));
    return codes;
  }
#endif
  return _mm512_and_si512(codes, _mm512_set1_epi32(0x00f000f0));
}

// 16 columns of high bytes and their low ones -> words. A number that is none may be beyond them.
template <Kind KIND>
inline __m256i words_of(const int8_t* high, [[maybe_unused]] const int8_t* low) {
  __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)high));
  if constexpr (KIND == Kind::INT8) {
    const __m256i lows = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)low));
    words = _mm256_add_epi16(_mm256_slli_epi16(words, FINE_SHIFT), lows);
  } else if constexpr (KIND == Kind::INT4) {
    const __m128i shared = _mm_loadl_epi64((const __m128i*)low);
    constexpr int FIRST = 1 << SHARED_SHIFT, SECOND = FIRST / 16;
    const __m256i units = _mm256_set_m128i(_mm_set1_epi16(SECOND), _mm_set1_epi16(FIRST));
    const __m256i lows = _mm256_cvtepi8_epi16(_mm_unpacklo_epi64(shared, shared));
    words = _mm256_adds_epi16(_mm256_mullo_epi16(words, units), lows);
  }
  return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
}

// `count` columns, a multiple of 16, of which the high bytes come first, and then the low ones.
template <Kind KIND>
inline void join_bytes(const int8_t* bytes, int count, int16_t* words) {
  for (int k = 0; k < count; k += SHARED_BLOCK) {
    const int8_t* low = bytes + count + k / COLUMNS_PER_BYTE<KIND>;
    _mm256_storeu_si256((__m256i*)(words + k), words_of<KIND>(bytes + k, low));
  }
}

// sum[r] = the products of columns [first, first + group) of row r; codes that were unpacked just now are
// FETCHED.
template <int R, Kind KIND, bool FETCHED>
[[gnu::always_inline]] inline void add_group(const QuantizedRows& rows, int first, const uint8_t* codes,
                                             int group, Sums (&sum)[R][2]) {
  constexpr bool NIBBLES = KIND == Kind::INT4;
  constexpr int BLOCK = NIBBLES ? SHARED_BLOCK : DOT_WIDTH, VECTORS = WORD_VECTORS<R>;
  const int16_t* words = reinterpret_cast<const int16_t*>(rows.high) + first;
  const long stride = rows.stride / static_cast<long>(sizeof(int16_t));
  const __m512i code_bits = _mm512_set1_epi32(NIBBLES ? 0x000f000f : 0x00ff00ff);
#pragma GCC unroll 2
  for (int vector = 0; vector < 2; vector += VECTORS) {
    Sums added[R][VECTORS];  // in registers: what may be anybody's, a compiler writes down at every step
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int each = 0; each < VECTORS; ++each) added[r][each] = Sums{};
    for (int k = 0; k < group; k += BLOCK) {
      const uint8_t* block = codes + k * PANEL / COLUMNS_PER_BYTE<KIND> + 64 * vector;
#pragma GCC unroll 2
      for (int quad = 0; quad < BLOCK / COLUMNS_PER_BYTE<KIND>;
           quad += DOT_WIDTH, block += DOT_WIDTH * PANEL) {
        if constexpr (!FETCHED) fetch_ahead(block, VECTORS);  // what this loop will read
        __m512i b[VECTORS];
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS; ++each) b[each] = _mm512_loadu_si512(block + 64 * each);
        const auto add = [&](int column, auto&& codes_in) {
          __m512i some[VECTORS];
#pragma GCC unroll 2
          for (int each = 0; each < VECTORS; ++each) some[each] = codes_in(b[each]);
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            const __m512i pair = two_words(words + r * stride + k + column);
#pragma GCC unroll 2
            for (int each = 0; each < VECTORS; ++each)
              added[r][each] = add_word_products(added[r][each], some[each], pair);
          }
        };
        const auto lower = [&](__m512i x) { return _mm512_and_si512(x, code_bits); };
        add(quad, lower);
        if constexpr (NIBBLES) {
          add(quad + 8, upper_nibbles<R>);
#pragma GCC unroll 2
          for (int each = 0; each < VECTORS; ++each) b[each] = _mm512_srli_epi16(b[each], 8);
          add(quad + 2, lower);
          add(quad + 10, upper_nibbles<R>);
        } else {
          add(quad + 2, [](__m512i x) { return _mm512_srli_epi16(x, 8); });
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int each = 0; each < VECTORS; ++each) sum[r][vector + each] = added[r][each];
  }
}

}  // namespace penstock

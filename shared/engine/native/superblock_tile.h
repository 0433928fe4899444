// The inner kernel of K-quants of 5 and 6 bits: rows of whole numbers (superblock_rows.h) times a panel of
// superblocks, whose products are one sum of whole numbers each, exact and so the same in any order. Few rows
// meet codes that are unpacked on the way, and each step multiplies a sum; many meet codes that are unpacked
// once, times their step.
#pragma once

#include <type_traits>

#include "quantized_tile.h"
#include "superblock_factors.h"
#include "superblock_rows.h"
#include "word_vectors.h"

namespace penstock {

constexpr int SUPER_PREFETCH_BYTES = 8192;
constexpr int QUADS = LEAST_COLUMNS / 4;  // of a chunk

// The sums that a superblock is made of, of R rows and 16 rows of the matrix: of 6 bits those of its halves.
template <int R, int BITS>
using SuperParts = Sums[have_minimum(BITS) ? 1 : 2][R][2];

// What is taken apart once for a superblock.
template <int BITS>
using SuperFactors = std::conditional_t<have_minimum(BITS), SixBitFactors, NoFactors>;

// The quads of a chunk as bytes, of 16 rows of the matrix.
template <int BITS>
[[gnu::always_inline]] inline void unpack_quads(const uint8_t* chunk, int half, __m512i (&quads)[QUADS]) {
  const __m512i low_nibbles = _mm512_set1_epi8(0x0f), upper_bits = _mm512_set1_epi8(BITS == 5 ? 0x10 : 0x30);
#pragma GCC unroll 2
  for (int block = 0; block < 2; ++block) {
    const uint8_t* nibbles = chunk + block * (SHARED_BLOCK * PANEL / 2) + 64 * half;
    const __m512i first = _mm512_loadu_si512(nibbles), second = _mm512_loadu_si512(nibbles + 128);
    quads[4 * block] = _mm512_and_si512(first, low_nibbles);
    quads[4 * block + 1] = _mm512_and_si512(second, low_nibbles);
    quads[4 * block + 2] = _mm512_and_si512(_mm512_srli_epi16(first, 4), low_nibbles);
    quads[4 * block + 3] = _mm512_and_si512(_mm512_srli_epi16(second, 4), low_nibbles);
  }
#pragma GCC unroll 8
  for (int quad = 0; quad < QUADS; ++quad) {
    const int vector = BITS == 5 ? 0 : quad / 4, shift = BITS == 5 ? quad : quad % 4 * 2;
    __m512i upper = _mm512_loadu_si512(chunk + superblocks::UPPER_PLACE + vector * 128 + 64 * half);
    if (shift < 4) upper = _mm512_slli_epi32(upper, 4 - shift);
    if (shift > 4) upper = _mm512_srli_epi16(upper, shift - 4);
    quads[quad] = _mm512_xor_si512(quads[quad], _mm512_and_si512(upper, upper_bits));
  }
}

// Columns 0 and 2 of a quad, and columns 1 and 3, as words.
inline __m512i even_columns(__m512i quad) {
  return _mm512_and_si512(quad, _mm512_set1_epi32(0x00ff00ff));
}
inline __m512i odd_columns(__m512i quad) {
  return _mm512_srli_epi16(quad, 8);
}

template <int BITS>
inline void fetch_chunk_ahead(const uint8_t* chunk, int half) {
  for (int line = 0; line < super_chunk_bytes(BITS) / 2; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(chunk) + SUPER_PREFETCH_BYTES +
                     half * (super_chunk_bytes(BITS) / 2) + line,
                 _MM_HINT_T0);
}

// tile [R, 32] += what a superblock's sums are worth; there was nothing before the first one.
template <int R, int BITS>
[[gnu::always_inline]] inline void add_scaled(const SuperRows& rows, int superblock, const uint8_t* block,
                                              const SuperFactors<BITS>& factors,
                                              const SuperParts<R, BITS>& parts, float* tile) {
  for (int half = 0; half < 2; ++half) {
    const __m512 scale = super_scale(block, half);
    __m512 minimum = scale;
    alignas(64) __m512i least[have_minimum(BITS) ? SUPER_CHUNKS : 1];
    if constexpr (have_minimum(BITS)) {
      minimum = super_minimum(block, half);
      for (int g = 0; g < SUPER_CHUNKS; ++g) {  // four times it, and it
        const __m512i one = wide_factors(factors.least[g], half);
        least[g] = _mm512_xor_si512(_mm512_slli_epi32(one, 2), _mm512_slli_epi32(one, 16));
      }
    }
    for (int r = 0; r < R; ++r) {
      __m512 sum = _mm512_cvtepi32_ps((__m512i)parts[0][r][half]);
      if constexpr (!have_minimum(BITS))
        sum = _mm512_add_ps(sum, _mm512_cvtepi32_ps((__m512i)parts[1][r][half]));
      __m512 added = _mm512_mul_ps(scale, sum);
      if constexpr (have_minimum(BITS)) {
        const int16_t* row_sums = rows.sums(r, superblock).of_least;
        Sums all = Sums{};
#pragma GCC unroll 8
        for (int g = 0; g < SUPER_CHUNKS; ++g)
          all = add_word_products(all, least[g], two_words(row_sums + 2 * g));
        added = _mm512_fnmadd_ps(minimum, _mm512_cvtepi32_ps((__m512i)all), added);
      }
      float* place = tile + r * PANEL + half * LANES;
      const __m512 before = superblock == 0 ? _mm512_setzero_ps() : _mm512_load_ps(place);
      const __m512 unit = _mm512_set1_ps(rows.units[r * rows.superblocks + superblock]);
      _mm512_store_ps(place, _mm512_fmadd_ps(added, unit, before));
    }
  }
}

// added[r] += the products of NUM quads of a superblock, from quad `first` on, and rows of words. Of few rows
// there are two sums each: an addition waits for the one before.
template <int R, int NUM>
[[gnu::always_inline]] inline void add_word_quads(const SuperRows& rows, int superblock, int first,
                                                  const __m512i* quads, Sums (&added)[R]) {
  constexpr bool TWO_SUMS = WHOLE_VECTORS && R <= 4;
  Sums others[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) others[r] = Sums{};
#pragma GCC unroll 8
  for (int quad = 0; quad < NUM; ++quad) {
    const int16_t* columns = rows.words + superblock * SUPER_COLUMNS + 4 * (first + quad);
    const __m512i even = even_columns(quads[quad]), odd = odd_columns(quads[quad]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      added[r] = add_word_products(added[r], even, two_words(columns + r * rows.stride));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Sums& sum = TWO_SUMS ? others[r] : added[r];
      sum = add_word_products(sum, odd, two_words(columns + r * rows.stride + 2));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    if constexpr (TWO_SUMS) added[r] = added[r] + others[r];
}

#ifndef PENSTOCK_WORD_PRODUCTS
// The same of rows of bytes. Codes are below 128: bytes with a sign, too.
template <int R, int NUM>
[[gnu::always_inline]] inline void add_byte_quads(const SuperRows& rows, int superblock, int first,
                                                  const __m512i* quads, Sums (&added)[R]) {
  Sums high[R][2], low[R];
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) high[r][0] = high[r][1] = low[r] = Sums{};
#pragma GCC unroll 4
  for (int quad = 0; quad < NUM; quad += 2)
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      const int8_t* upper = rows.high(r, superblock) + 4 * (first + quad);
      const int8_t* lower = rows.low(r, superblock) + 4 * (first + quad);
      Sums &some_high = high[r][quad / 2 % 2], &some_low = quad / 2 % 2 == 0 ? added[r] : low[r];
      some_high =
          add_nibble_products(some_high, quads[quad], four_of(upper), quads[quad + 1], four_of(upper + 4));
      some_low =
          add_nibble_products(some_low, quads[quad], four_of(lower), quads[quad + 1], four_of(lower + 4));
    }
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) added[r] = ((high[r][0] + high[r][1]) << SUPER_SHIFT) + (added[r] + low[r]);
}
#endif

// Few rows: words, or BYTES.
template <int R, int BITS, bool BYTES>
void multiply_superblocks(const SuperRows& rows, const uint8_t* block, float* tile) {
  constexpr int PARTS = have_minimum(BITS) ? 1 : 2, STEP_QUADS = have_minimum(BITS) ? QUADS : QUADS / 2;
  for (int superblock = 0; superblock < rows.superblocks; ++superblock, block += super_bytes(BITS)) {
    for (int line = 0; line < super_head_bytes(BITS); line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(block) + SUPER_PREFETCH_BYTES + line, _MM_HINT_T0);
    const SuperFactors<BITS> factors(block);
    SuperParts<R, BITS> parts;
    for (int half = 0; half < 2; ++half) {
      for (int part = 0; part < PARTS; ++part) {
        Sums all[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) all[r] = Sums{};
        const int begin = part * SUPER_CHUNKS / PARTS;
        for (int chunk = begin; chunk < begin + SUPER_CHUNKS / PARTS; ++chunk) {
          const uint8_t* codes = block + super_head_bytes(BITS) + chunk * super_chunk_bytes(BITS);
          fetch_chunk_ahead<BITS>(codes, half);
          __m512i quads[QUADS];
          unpack_quads<BITS>(codes, half, quads);
#pragma GCC unroll 2
          for (int first = 0; first < QUADS; first += STEP_QUADS) {
            const int g = (chunk * QUADS + first) / STEP_QUADS;
            const __m512i step = step_of(factors, block, g, half);
            Sums added[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
              added[r] = BITS == 6 ? Sums(_mm512_set1_epi32(rows.sums(r, superblock).zeros[g])) : Sums{};
#ifndef PENSTOCK_WORD_PRODUCTS
            if constexpr (BYTES)
              add_byte_quads<R, STEP_QUADS>(rows, superblock, chunk * QUADS + first, quads + first, added);
            else
#endif
              add_word_quads<R, STEP_QUADS>(rows, superblock, chunk * QUADS + first, quads + first, added);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) all[r] = all[r] + Sums(_mm512_mullo_epi32((__m512i)added[r], step));
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) parts[part][r][half] = all[r];
      }
    }
    add_scaled<R, BITS>(rows, superblock, block, factors, parts, tile);
  }
}

// The words of a superblock, [columns / 2][2][16 rows][2], pairs of columns in the order of the rows.
template <int BITS>
void unpack_superblock(const uint8_t* block, const SuperFactors<BITS>& factors, int16_t* words) {
  const auto twice = [](__m512i step) {
    return _mm512_xor_si512(_mm512_and_si512(step, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(step, 16));
  };
  for (int half = 0; half < 2; ++half) {
    const uint8_t* codes = block + super_head_bytes(BITS);
    int16_t* place = words + half * PANEL;
    for (int chunk = 0; chunk < SUPER_CHUNKS; ++chunk, codes += super_chunk_bytes(BITS)) {
      fetch_chunk_ahead<BITS>(codes, half);
      __m512i quads[QUADS];
      unpack_quads<BITS>(codes, half, quads);
#pragma GCC unroll 8
      for (int quad = 0; quad < QUADS; ++quad) {
        const int g = have_minimum(BITS) ? chunk : 2 * chunk + quad / 4;
        const __m512i step = twice(step_of(factors, block, g, half));
        __m512i pairs[2] = {even_columns(quads[quad]), odd_columns(quads[quad])};
#pragma GCC unroll 2
        for (__m512i& pair : pairs) {
          if constexpr (BITS == 6)
            pair = _mm512_sub_epi16(pair, _mm512_set1_epi32(ZERO_OF_SIX << 16 | ZERO_OF_SIX));
          _mm512_store_si512(place, _mm512_mullo_epi16(pair, step));
          place += 2 * PANEL;
        }
      }
    }
  }
}

// A superblock that was unpacked.
template <int R, int BITS>
void add_unpacked(const SuperRows& rows, int superblock, const uint8_t* block,
                  const SuperFactors<BITS>& factors, const int16_t* unpacked, float* tile) {
  constexpr int PARTS = have_minimum(BITS) ? 1 : 2, VECTORS = WORD_VECTORS<R>;
  constexpr int PAIRS = SUPER_COLUMNS / 2 / PARTS;
  SuperParts<R, BITS> parts;
  const int16_t* words = rows.words + superblock * SUPER_COLUMNS;
#pragma GCC unroll 2
  for (int part = 0; part < PARTS; ++part)
#pragma GCC unroll 2
    for (int first = 0; first < 2; first += VECTORS) {
      Sums added[R][VECTORS];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS; ++each) added[r][each] = Sums{};
      for (int pair = part * PAIRS; pair < (part + 1) * PAIRS; ++pair) {
        __m512i columns[VECTORS];
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS; ++each)
          columns[each] = _mm512_load_si512(unpacked + pair * 2 * PANEL + (first + each) * PANEL);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const __m512i two = two_words(words + r * rows.stride + 2 * pair);
#pragma GCC unroll 2
          for (int each = 0; each < VECTORS; ++each)
            added[r][each] = add_word_products(added[r][each], columns[each], two);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int each = 0; each < VECTORS; ++each) parts[part][r][first + each] = added[r][each];
    }
  add_scaled<R, BITS>(rows, superblock, block, factors, parts, tile);
}

// tile [num, 32] of any number of rows.
template <int BITS>
void multiply_super(const SuperRows& rows, const uint8_t* block, int num, float* tile) {
#ifndef PENSTOCK_WORD_PRODUCTS
  if (rows.bytes)
    return with_rows<SUPER_BYTE_ROWS>(
        num, [&]<int R>() { multiply_superblocks<R, BITS, true>(rows, block, tile); });
#endif
  if (num <= SUPER_TILE_ROWS)
    return with_rows<SUPER_TILE_ROWS>(
        num, [&]<int R>() { multiply_superblocks<R, BITS, false>(rows, block, tile); });
  alignas(64) int16_t unpacked[SUPER_COLUMNS * PANEL];
  for (int superblock = 0; superblock < rows.superblocks; ++superblock, block += super_bytes(BITS)) {
    const SuperFactors<BITS> factors(block);
    unpack_superblock<BITS>(block, factors, unpacked);
    for_each_tile(num, SUPER_TILE_ROWS, [&](int first, int count) {
      with_rows<SUPER_TILE_ROWS>(count, [&]<int R>() {
        add_unpacked<R, BITS>(rows.behind(first), superblock, block, factors, unpacked, tile + first * PANEL);
      });
    });
  }
}

}  // namespace penstock

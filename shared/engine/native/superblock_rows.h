// Rows that meet K-quants of 5 and 6 bits: of each 256 columns whole numbers of one unit, 13 bits with their
// sign.
//
// A weight's step times its code less zero is at most 63 * 31, or 128 * 32 of 6 bits; so the products of 256
// columns, or 128 of 6 bits, add up in 32 bits whatever the numbers are.
//
// They are words, in the order 0, 2, 1, 3 of four columns, as in word_products.h. One row or two are bytes
// where an instruction multiplies those: 64 high + low, all high bytes of a superblock before its low ones.
// Behind all numbers come, superblock by superblock, what their sums are needed for: of each 32 columns the
// sum s as two words, s >> 2 and s & 3, which meet four times the least weight and the least weight; of each
// 16 columns -32 s, where products with codes of 6 bits begin.
#pragma once

#include <algorithm>

#include "superblocks.h"

namespace penstock {

constexpr int SUPER_STEPS = 4095;
static_assert(63l * 31 * SUPER_STEPS * SUPER_COLUMNS < 1l << 31);
static_assert(128l * 32 * SUPER_STEPS * SUPER_COLUMNS / 2 < 1l << 31);
static_assert(SUPER_STEPS * LEAST_COLUMNS / 4 < 1 << 15);
constexpr int SUPER_TILE_ROWS = WHOLE_VECTORS ? 8 : 4;
constexpr int SUPER_BLOCK_ROWS = 64;  // that meet codes which are unpacked once
constexpr int SUPER_SHIFT = 6;        // from high bytes to units

constexpr int SUPER_BYTE_ROWS = 2;  // of more, to take codes apart into words takes less than more products

// Whether so many rows are bytes.
constexpr bool are_super_bytes(int count) {
  return !WORD_PRODUCTS && count <= SUPER_BYTE_ROWS;
}

struct SuperSums {
  int16_t of_least[2 * SUPER_CHUNKS];
  int zeros[STEPS];
};
static_assert(sizeof(SuperSums) == 96);

constexpr long super_row_bytes(int columns) {
  return columns * 2l + columns / SUPER_COLUMNS * static_cast<long>(sizeof(SuperSums));
}

// Rows from the first that a tile takes.
struct SuperRows {
  const int16_t* words;
  long stride;         // in words
  const float* units;  // [rows, superblocks]
  int superblocks;
  bool bytes;  // two of which are where a word is

  const int8_t* high(int row, int superblock) const {
    return reinterpret_cast<const int8_t*>(words + row * stride + superblock * SUPER_COLUMNS);
  }
  const int8_t* low(int row, int superblock) const { return high(row, superblock) + SUPER_COLUMNS; }

  const SuperSums& sums(int row, int superblock) const {
    return reinterpret_cast<const SuperSums*>(words + row * stride + superblocks * SUPER_COLUMNS)[superblock];
  }
  SuperRows behind(int rows) const {
    return {words + rows * stride, stride, units + static_cast<long>(rows) * superblocks, superblocks, bytes};
  }
};

inline void store_words(const int* numbers, int16_t* words) {
  for (int k = 0; k < SUPER_COLUMNS; k += 4) {
    words[k] = static_cast<int16_t>(numbers[k]);
    words[k + 1] = static_cast<int16_t>(numbers[k + 2]);
    words[k + 2] = static_cast<int16_t>(numbers[k + 1]);
    words[k + 3] = static_cast<int16_t>(numbers[k + 3]);
  }
}

inline void store_bytes(const int* numbers, int8_t* bytes) {
  for (int k = 0; k < SUPER_COLUMNS; ++k) {
    const int high = (numbers[k] + (1 << (SUPER_SHIFT - 1))) >> SUPER_SHIFT;
    bytes[k] = static_cast<int8_t>(high);
    bytes[SUPER_COLUMNS + k] = static_cast<int8_t>(numbers[k] - (high << SUPER_SHIFT));
  }
}

// One row [columns], whole superblocks.
inline void round_super_row(const float* row, int columns, bool bytes, int16_t* words, float* units) {
  auto* sums = reinterpret_cast<SuperSums*>(words + columns);
  const __m512 most = _mm512_set1_ps(SUPER_STEPS), least = _mm512_set1_ps(-SUPER_STEPS);
  alignas(64) int numbers[SUPER_COLUMNS];
  for (int first = 0; first < columns; first += SUPER_COLUMNS, words += SUPER_COLUMNS, ++sums) {
    const float unit = largest(row + first, SUPER_COLUMNS) / static_cast<float>(SUPER_STEPS);
    const __m512 divisor = _mm512_set1_ps(unit > 0.0f ? unit : 1.0f);
    *units++ = unit;
    for (int k = 0; k < SUPER_COLUMNS; k += LANES) {
      // A unit that is hardly a number is less than it should be.
      const __m512 x = _mm512_div_ps(_mm512_loadu_ps(row + first + k), divisor);
      const __m512i a = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(x, most), least));
      _mm512_store_si512(numbers + k, a);
      sums->zeros[k / STEP_COLUMNS] = -ZERO_OF_SIX * _mm512_reduce_add_epi32(a);
    }
    if (bytes)
      store_bytes(numbers, reinterpret_cast<int8_t*>(words));
    else
      store_words(numbers, words);
    for (int chunk = 0; chunk < SUPER_CHUNKS; ++chunk) {
      const int sum = -(sums->zeros[2 * chunk] + sums->zeros[2 * chunk + 1]) / ZERO_OF_SIX;
      sums->of_least[2 * chunk] = static_cast<int16_t>(sum >> 2);
      sums->of_least[2 * chunk + 1] = static_cast<int16_t>(sum & 3);
    }
  }
}

}  // namespace penstock

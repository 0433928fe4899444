// GGUF's K-quants as they lie in a panel: superblock by superblock, each 256 columns of the 32 rows of the
// matrix, in the bits that the file has. A weight is
//
//     scale * step * (code - zero) - minimum * least
//
// with a scale and a minimum of float16 for the superblock, and whole numbers for the rest: a step and a
// least weight for 32 columns of 4 and 5 bits, a step for 16 columns of 6 bits, which have no minimum and 32
// as their zero.
//
// What begins a superblock is [32 rows] of each: scale; minimum; twelve bytes of steps and least weights of 6
// bits, mixed as in the file. Of 6 bits: scale; sixteen steps of a byte. Codes follow, a chunk of 32 columns
// at a time. Those of 4 bits lie as INT4's do (quantized_rows.h). Of 5 and 6 bits, quad q of a chunk is its
// columns 4 q to 4 q + 3, and a vector is a quad of 16 rows of the matrix: nibbles come first, those of quads
// q and q + 2 of each 16 columns in one vector, and then the upper bits, of 5 bits quad q's in bit q of a
// byte, of 6 bits for each 16 columns, quad q's from bit 2 (q % 4) on.
#pragma once

#include <cstring>

#include "quantized_rows.h"
#include "tile.h"

namespace penstock {

constexpr int SUPER_COLUMNS = 256;
constexpr int LEAST_COLUMNS = 32;  // of which all have one least weight
constexpr int STEP_COLUMNS = 16;   // of which all have one step, whatever the bits
constexpr int SUPER_CHUNKS = SUPER_COLUMNS / LEAST_COLUMNS, STEPS = SUPER_COLUMNS / STEP_COLUMNS;
constexpr int FACTOR_BYTES = 12;  // of eight steps and eight least weights
constexpr int ZERO_OF_SIX = 32;

constexpr bool are_super_bits(int bits) {
  return bits >= 4 && bits <= 6;
}
constexpr bool have_minimum(int bits) {
  return bits < 6;
}
constexpr int super_head_bytes(int bits) {
  return PANEL * (have_minimum(bits) ? 4 + FACTOR_BYTES : 2 + STEPS);
}
constexpr int super_chunk_bytes(int bits) {
  return LEAST_COLUMNS * PANEL * bits / 8;
}
constexpr int super_bytes(int bits) {
  return super_head_bytes(bits) + SUPER_CHUNKS * super_chunk_bytes(bits);
}

// A superblock of one row of the matrix, as it is read from a file.
struct SuperRow {
  uint16_t scale, minimum;  // fp16
  const int8_t* steps;      // [STEPS]
  const uint8_t* least;     // [SUPER_CHUNKS]
  const uint8_t* codes;     // [SUPER_COLUMNS]
};

namespace superblocks {

constexpr int UPPER_PLACE = LEAST_COLUMNS * PANEL / 2;  // in a chunk

// Where in a chunk some bits of the code of column `k` are: a byte, and a shift in it.
struct BitPlace {
  int byte, shift;
};
constexpr BitPlace low_place(int bits, int k, int lane) {
  const int block = k / SHARED_BLOCK * (SHARED_BLOCK * PANEL / 2);
  if (bits == 4) {
    const int column = k % 8;
    return {block + (column / 4 * PANEL + lane) * 4 + column % 4, k % SHARED_BLOCK / 8 * 4};
  }
  const int quad = k % SHARED_BLOCK / 4, vector = quad % 2 * 2 + lane / LANES;
  return {block + vector * 64 + lane % LANES * 4 + k % 4, quad / 2 * 4};
}
constexpr BitPlace upper_place(int bits, int k, int lane) {
  const int in_vector = lane % LANES * 4 + k % 4;
  if (bits == 5) return {UPPER_PLACE + lane / LANES * 64 + in_vector, k / 4};
  return {UPPER_PLACE + (k / SHARED_BLOCK * 2 + lane / LANES) * 64 + in_vector, k % SHARED_BLOCK / 4 * 2};
}

}  // namespace superblocks

// Puts a row into a superblock of zeros.
inline void put_super_row(int bits, uint8_t* block, int lane, const SuperRow& row) {
  const auto put_half = [&](int place, uint16_t half) { std::memcpy(block + place + 2 * lane, &half, 2); };
  const auto put_bits = [](uint8_t* chunk, superblocks::BitPlace place, int value) {
    chunk[place.byte] |= static_cast<uint8_t>(value << place.shift);
  };
  put_half(0, row.scale);
  if (have_minimum(bits)) {
    put_half(2 * PANEL, row.minimum);
    uint8_t* factors = block + 4 * PANEL + lane;
    for (int g = 0; g < 4; ++g) {
      const int step = row.steps[2 * g], later = row.steps[2 * (g + 4)];
      const int least = row.least[g], later_least = row.least[g + 4];
      factors[g * PANEL] = static_cast<uint8_t>(step | later >> 4 << 6);
      factors[(4 + g) * PANEL] = static_cast<uint8_t>(least | later_least >> 4 << 6);
      factors[(8 + g) * PANEL] = static_cast<uint8_t>((later & 15) | (later_least & 15) << 4);
    }
  } else {
    for (int g = 0; g < STEPS; ++g) block[(2 + g) * PANEL + lane] = static_cast<uint8_t>(row.steps[g]);
  }
  uint8_t* chunk = block + super_head_bytes(bits);
  for (int first = 0; first < SUPER_COLUMNS; first += LEAST_COLUMNS, chunk += super_chunk_bytes(bits))
    for (int k = 0; k < LEAST_COLUMNS; ++k) {
      const int code = row.codes[first + k];
      put_bits(chunk, superblocks::low_place(bits, k, lane), code & 15);
      if (bits > 4) put_bits(chunk, superblocks::upper_place(bits, k, lane), code >> 4);
    }
}

// The weight of column `k` of 256.
inline float super_weight(int bits, const uint8_t* block, int lane, int k) {
  const auto half_at = [&](int place) {
    uint16_t half;
    std::memcpy(&half, block + place + 2 * lane, 2);
    return _cvtsh_ss(half);
  };
  const uint8_t* chunk = block + super_head_bytes(bits) + k / LEAST_COLUMNS * super_chunk_bytes(bits);
  const auto bits_at = [&](superblocks::BitPlace place, int mask) {
    return chunk[place.byte] >> place.shift & mask;
  };
  const int at = k % LEAST_COLUMNS, g = k / LEAST_COLUMNS;
  int code = bits_at(superblocks::low_place(bits, at, lane), 15);
  if (bits > 4) code |= bits_at(superblocks::upper_place(bits, at, lane), (1 << (bits - 4)) - 1) << 4;
  if (!have_minimum(bits)) {
    const auto step = static_cast<int8_t>(block[(2 + k / STEP_COLUMNS) * PANEL + lane]);
    return half_at(0) * static_cast<float>(step * (code - ZERO_OF_SIX));
  }
  const uint8_t* factors = block + (4 + g % 4) * PANEL + lane;
  const int first = factors[0], second = factors[4 * PANEL], mixed = factors[8 * PANEL];
  const int step = g < 4 ? first & 63 : (mixed & 15) | first >> 6 << 4;
  const int least = g < 4 ? second & 63 : mixed >> 4 | second >> 6 << 4;
  return half_at(0) * static_cast<float>(step * code) - half_at(2 * PANEL) * static_cast<float>(least);
}

}  // namespace penstock
